"""Memory sharing: a GPU is cut into units of memory, and a request gets all its units on one GPU.

A container gets units of several GPUs only if a scheduler has promised the units. The variables
`ALIYUN_COM_GPU_MEM_*` have the same meaning as in containers of Aliyun's gpushare, and count units.

A second resource can give shares of compute, in percent, beside the memory (`cores_resource`).
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence

from gpushare_plugin.base.errors import Path
from gpushare_plugin.base.structs import Struct
from gpushare_plugin.base.text import some_of
from gpushare_plugin.config.findings import GPUS_TO_NAME, Findings
from gpushare_plugin.config.schema import names
from gpushare_plugin.config.schema.sections import DeviceList, MemoryResource
from gpushare_plugin.config.unreported_memory import with_memory, without_memory
from gpushare_plugin.core.chooser import OneGpu, refuse_several_gpus, refuse_unlimited
from gpushare_plugin.core.gpu import Gpu
from gpushare_plugin.core.grant import Allocation, Grant
from gpushare_plugin.core.policies import PolicyName
from gpushare_plugin.core.resource import Resource, Units
from gpushare_plugin.core.unit import KUBELET_MESSAGE_LIMIT, Form, Unit, wire_size
from gpushare_plugin.sharing.isolation.layer import Layers, Limits, isolate
from gpushare_plugin.sharing.isolation.table import isolations
from gpushare_plugin.sharing.isolation.variables import FrameworkHints, ShareVariables
from gpushare_plugin.sharing.ways.injection import Injection
from gpushare_plugin.sharing.ways.way import Entry, NodeFacts, Unsuitable, by_place

_MIG_MODE = Unsuitable(
    "is in MIG mode and cannot be shared by memory", "Name other GPUs in devices, or disable MIG mode on it"
)
_MIG_INSTANCE = Unsuitable(
    "is a MIG instance and cannot be shared by memory",
    "Name GPUs in devices, and share MIG instances with sharing.timeSlicing",
)


class MemoryWay:
    """The way of sharing for the entries of `sharing.memory.resources`."""

    section: Path = ("sharing", "memory", "resources")

    def __init__(self, node: NodeFacts, findings: Findings) -> None:
        """Make the entries, which share cards outside of MIG mode."""
        self._node = node
        self._findings = findings
        memory = node.config.sharing.memory
        self._settings = memory.resources if memory else ()
        self.entries = self._entries() if memory else []

    def _entries(self) -> list[Entry]:
        whole = tuple(gpu for gpu in self._node.inventory.cards if not gpu.mig_enabled)
        entries = [self._entry(index, settings, whole) for index, settings in enumerate(self._settings)]
        if not all(isinstance(entry.devices, DeviceList) for entry in entries):
            usable = ", ".join(gpu.label for gpu in whole) or "none"
            for gpu in self._node.inventory.cards:
                if gpu.mig_enabled:
                    self._findings.notice(f"GPU {gpu.label} {_MIG_MODE.reason}; usable: {usable}")
        return entries

    def _entry(self, index: int, settings: MemoryResource, cards: tuple[Gpu, ...]) -> Entry:
        return Entry(
            path=(*self.section, index),
            name=settings.name,
            devices=settings.devices,
            candidates=with_memory(cards),
            unsized=without_memory(cards),
            unsuitable={
                gpu: _MIG_INSTANCE if gpu.mig else _MIG_MODE for gpu in self._node.inventory.gpus if gpu.mig_enabled
            },
            isolations=isolations(
                settings.isolation,
                self._node.config,
                Limits(settings.compute, unit_mib=settings.unit.mib, burst=settings.burst),
                self._node.means,
            ),
            containers=lambda gpu: gpu.memory_mib // settings.unit.mib,
        )

    def resources(self, unclaimed: Mapping[Gpu, str]) -> list[Resource]:  # noqa: ARG002 - memory is shared by entries only
        """Return one resource for each entry, and one resource for the compute of entries with `compute: requested`."""
        entries = [
            (entry, settings)
            for entry, settings in zip(self.entries, self._settings, strict=True)
            if self._can_be_cut(entry, settings) and entry.gpus
        ]
        cores = cores_resource(
            [(entry, settings.placement) for entry, settings in entries if settings.compute == "requested"],
            self._node.short_uuids,
            self._findings,
        )
        return [*(self._resource(entry, settings) for entry, settings in entries), *([cores] if cores else [])]

    def _can_be_cut(self, entry: Entry, settings: MemoryResource) -> bool:
        unit, short_uuids = settings.unit.mib, self._node.short_uuids
        path = (*entry.path, "unit")
        too_small = [gpu for gpu in entry.gpus if gpu.memory_mib < unit]
        if too_small:
            gpus = some_of([f"{gpu.description} has {gpu.memory_mib} MiB" for gpu in too_small], GPUS_TO_NAME)
            self._findings.problem(path, f"{settings.unit} found, but {gpus}; use a smaller unit")
        size = list_size(entry.gpus, short_uuids, unit)
        if size > KUBELET_MESSAGE_LIMIT:
            smallest = type(settings.unit)(smallest_unit(entry.gpus, short_uuids))
            self._findings.problem(
                path,
                f"{settings.unit} found; the list of units would take {size:,} bytes and the kubelet accepts "
                f"{KUBELET_MESSAGE_LIMIT:,}; the smallest unit that fits these GPUs is {smallest}"
                f"{_another_name(settings.name)}",
            )
        return not too_small and size <= KUBELET_MESSAGE_LIMIT

    def _resource(self, entry: Entry, settings: MemoryResource) -> Resource:
        unit, short_uuids = settings.unit.mib, self._node.short_uuids
        units = {gpu: memory_units(gpu, short_uuids[gpu.uuid], unit) for gpu in by_place(entry.gpus)}
        single_gpu = not entry.isolation.limits_several_gpus and not settings.allow_multi_gpu_shares
        return Resource(
            settings.name,
            Units(units),
            OneGpu(settings.placement, unit),
            MemoryGranter(self._node.injection, self._layers(entry, settings), single_gpu=single_gpu),
            role="memory" if settings.compute == "requested" else None,
            single_gpu=single_gpu,
        )

    def _layers(self, entry: Entry, settings: MemoryResource) -> Layers:
        enforced = entry.isolation.layers
        # Only containers without an isolation need CGPU_DISABLE.
        variables = ShareVariables(cgpu_disabled=self._node.effective.cgpu_disabled and not enforced)
        hints = FrameworkHints(limit_is_seen=entry.isolation.limit_is_seen)
        return (variables, *enforced, *((hints,) if settings.framework_hints else ()))


class MemoryGranter(Struct, frozen=True):
    """Gives a container memory of one GPU, or of several promised GPUs."""

    injection: Injection
    """The access to GPUs."""
    layers: Layers
    """The layers that keep a container within its share."""
    single_gpu: bool = False
    """Whether the layers limit a container on one GPU only, so that promises of several GPUs are refused."""

    def grant(self, allocation: Allocation) -> Grant:
        """Return the GPUs, and the limits on each GPU in units and in MiB.

        Raises PlacementError for units on several GPUs without a promise, or with `single_gpu`.
        """
        gpus, recipient = allocation.gpus, allocation.recipient
        on = {each.gpu.uuid: each.units for each in gpus}
        if not recipient.promised:
            refuse_several_gpus(allocation.resource, on)
        if self.single_gpu:
            refuse_unlimited(allocation.resource, on)
        grant = self.injection.grant([each.gpu for each in gpus])
        units = sum(each.units for each in gpus)
        grant.environment |= {
            "ALIYUN_COM_GPU_MEM_IDX": ",".join(str(each.gpu.index) for each in gpus),
            # Without a known pod, the units of the container: the right number for a pod with one container.
            "ALIYUN_COM_GPU_MEM_POD": str(recipient.pod_units or units),
            # With several GPUs, the units on one GPU, as in ACK: the smallest number is within the share on each GPU.
            "ALIYUN_COM_GPU_MEM_CONTAINER": str(min(each.units for each in gpus)),
            "ALIYUN_COM_GPU_MEM_DEV": str(max(each.of for each in gpus)),
        }
        return isolate(grant, allocation, self.layers)


def _another_name(name: str) -> str:
    """Return the advice to take another resource name if the name fixes the unit, else an empty text."""
    if name not in names.MEMORY_IN_MIB:
        return ""
    return (
        f", but pods of {names.MEMORY_IN_MIB[name]} request {name} in MiB, so advertise larger units under another "
        f"name, such as {names.MEMORY}, and change the requests"
    )


def memory_units(gpu: Gpu, short_uuid: str, unit_mib: int) -> list[Unit]:
    """Cut the usable memory of `gpu` into whole units of `unit_mib` MiB; the rest of the memory is not allocated."""
    numbers = range(gpu.memory_mib // unit_mib)
    return Form.memory(short_uuid, unit_mib).units(gpu.uuid, gpu.numa_node, numbers, unit_mib)


def list_size(gpus: Iterable[Gpu], short_uuids: Mapping[str, str], unit_mib: int) -> int:
    """Return the bytes of the device list for `gpus` in units of `unit_mib` MiB, without making the units."""
    return sum(
        wire_size(Form.memory(short_uuids[gpu.uuid], unit_mib).prefix, gpu.memory_mib // unit_mib, gpu.numa_node)
        for gpu in gpus
    )


def smallest_unit(gpus: Sequence[Gpu], short_uuids: Mapping[str, str]) -> int:
    """Return the smallest unit, in MiB, with a device list for `gpus` short enough for the kubelet."""
    found: list[int] = []
    for units in _units_of_one_length(max(gpu.memory_mib for gpu in gpus)):
        # Larger units mean shorter lists. bisect needs ascending values, so the sizes of the lists are negative.
        place = bisect_left(units, -KUBELET_MESSAGE_LIMIT, key=lambda unit: -list_size(gpus, short_uuids, unit))
        found += units[place : place + 1]
    return min(found)


def _units_of_one_length(most_mib: int) -> Iterator[range]:
    """Yield all units of up to `most_mib` MiB, in groups of sizes that take the same number of characters in an ID.

    Only within a group does a larger unit always mean a shorter list: 10 MiB takes a character more than 9 MiB. Whole
    GiB are in the groups of MiB as well, where the search can only find a whole GiB too early, not too late.
    """
    for scale in (1, 1024):
        first = scale
        while first <= most_mib:
            yield range(first, min(10 * first, most_mib + 1), scale)
            first *= 10


UNITS = 100
"""The units of compute of a GPU, one unit for each percent."""


def cores_resource(
    entries: Sequence[tuple[Entry, PolicyName]], short_uuids: Mapping[str, str], findings: Findings
) -> Resource | None:
    """Return the resource for the compute of GPUs of the entries, None if compute cannot be limited on any GPU.

    The policy of the first entry is the policy of the resource. GPUs with an isolation that cannot limit compute
    are left out, and added to `findings`.
    """
    variables: dict[Gpu, str] = {}
    for entry, _ in entries:
        limited = {gpu: variable for gpu in entry.gpus if (variable := entry.isolation.compute_variable(gpu))}
        variables |= limited
        if unlimited := [gpu.label for gpu in entry.gpus if gpu not in limited]:
            findings.notice(
                f"{names.CORES} is not offered on GPU {', '.join(unlimited)}: {entry.isolation.name} does not limit "
                "compute there"
            )
    if not variables:
        return None
    return Resource(
        names.CORES,
        Units({gpu: cores_units(gpu, short_uuids[gpu.uuid]) for gpu in by_place(variables)}),
        OneGpu(entries[0][1]),
        CoresGranter({gpu.uuid: variable for gpu, variable in variables.items()}),
        role="cores",
    )


class CoresGranter(Struct, frozen=True):
    """Limits the compute of a container to the allocated percentage.

    The resource is `aliyun.com/gpu-core.percentage` of Alibaba Cloud's ACK. Memory brings the GPU into the container,
    compute only the variable of the limit: only one resource of a container may make a GPU visible.
    """

    variables: Mapping[str, str]
    """The variable of the compute limit, which depends on the isolation, by GPU UUID."""

    def grant(self, allocation: Allocation) -> Grant:
        """Return the compute limit, and no GPU.

        One limit counts for all GPUs of a container, so the smallest percentage is the limit. Raises PlacementError for
        units on several GPUs without a promise.
        """
        gpus = allocation.gpus
        if not allocation.recipient.promised:
            refuse_several_gpus(allocation.resource, {each.gpu.uuid: each.units for each in gpus})
        percent = str(min(each.units for each in gpus))
        return Grant(environment={self.variables[each.gpu.uuid]: percent for each in gpus})


def cores_units(gpu: Gpu, short_uuid: str) -> list[Unit]:
    """Return the units of compute of `gpu`."""
    return Form.cores(short_uuid).units(gpu.uuid, gpu.numa_node, range(UNITS))
