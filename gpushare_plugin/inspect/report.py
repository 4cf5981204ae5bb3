"""What a node shares and who holds what, as data: a projection of its snapshot, which can be exchanged as JSON."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from gpushare_plugin import __version__
from gpushare_plugin.foundation.errors import GpushareError
from gpushare_plugin.foundation.memory import MIB
from gpushare_plugin.model.account.node_record import key
from gpushare_plugin.model.gpu import FailedGpu, Gpu, MigInstance, gpu_label
from gpushare_plugin.model.holding import Unknown
from gpushare_plugin.model.snapshot import SharingMode, Snapshot
from gpushare_plugin.model.usage.usage import GpuUsage, Stowaway, Usage

Source = Literal["daemon", "config"]
"""Who made a report: the running daemon, or `gpushare list` itself from the config, the GPUs and the kubelet."""

_MOST_FOREIGN = 16
"""Processes out of place of one GPU that are shown; a program can start any number."""

_WELL = {"available", "planned", "not offered"}
"""States that need no attention."""


class ReportError(GpushareError):
    """An answer is not a report of a version that can be read."""


class _ReportPart(BaseModel):
    """A part of a report; other versions may have more fields, or lack some that have a default here."""

    model_config = ConfigDict(frozen=True, alias_generator=key, populate_by_name=True, extra="ignore")


class Use(_ReportPart):
    """The units of one resource on one GPU that one container holds, and what it uses there.

    `memory_used_mib` and `utilization` (0 to 1) are None where it is not known what the container uses,
    `memory_limit_mib` where nothing limits it. `over_limit` is whether it uses too much.
    """

    namespace: str
    pod: str
    container: str
    units: int
    memory_limit_mib: int | None = None
    memory_used_mib: int | None = None
    utilization: float | None = None
    over_limit: bool = False


class ForeignProcess(_ReportPart):
    """A process on an offered GPU whose pod holds no units of it, or that is in no pod; `whose` says where it is."""

    pid: int
    program: str = ""
    whose: str = ""
    memory_used_mib: int | None = None


class MigReport(_ReportPart):
    """What makes a GPU a MIG instance, as in `MigInstance`."""

    parent: str
    number: int
    profile: str
    gpu_instance: int
    compute_instance: int


class GpuReport(_ReportPart):
    """One GPU in one resource; `resource` is None where it is in none.

    A GPU has one of these for each resource that it is offered as, or that pods still hold units of. `units` are those
    offered now, `retired` those that pods may hold although they are offered no more; `used` counts what containers
    hold of both, None where that is not known. `mode` is how the GPU is shared, as in the Node's annotation and in
    metrics, `isolation` what limits the containers, `unit_mib` the MiB of memory that one unit stands for.

    `health` is healthy, unhealthy, or unknown where no daemon watches the GPU. `state` is what new pods can expect:
    available, unavailable (the GPU is unhealthy), cordoned, waiting (for pods to end, until it is shared as
    configured), retired (all units are), unregistered (with the kubelet), planned (no daemon says so), not offered.
    `reason` is why it is not available; `cordon` and `waiting` are what cordons it and what it waits for.

    `memory_used_mib`, `utilization` (0 to 1) and `processes` are those of the whole GPU, None where they are not known.
    `foreign_processes` are some of those that should not be there. `usage_unknown` says why it is not known who uses
    the GPU, None where it is.
    """

    index: int
    uuid: str
    name: str
    minor: int | None = None
    compute_capability: str = ""
    memory_mib: int = 0
    pci_bus_id: str = ""
    numa_node: int | None = None
    mig_enabled: bool = False
    mig: MigReport | None = None
    resource: str | None = None
    mode: str | None = None
    isolation: str | None = None
    units: int = 0
    unit_mib: int | None = None
    retired: int = 0
    used: int | None = None
    uses: tuple[Use, ...] | None = None
    health: str = "unknown"
    state: str = "planned"
    reason: str | None = None
    cordon: str | None = None
    waiting: str | None = None
    memory_used_mib: int | None = None
    utilization: float | None = None
    processes: int | None = None
    foreign_processes: tuple[ForeignProcess, ...] = ()
    usage_unknown: str | None = None

    @property
    def label(self) -> str:
        """The number by which people name it, see `gpu_label`."""
        return gpu_label(self.index, self.mig.number if self.mig else None)

    @property
    def product(self) -> str:
        """What it is, in words, with the profile of an instance."""
        return f"{self.name} MIG {self.mig.profile}" if self.mig else self.name


class FailedReport(_ReportPart):
    """A GPU that does not respond, as in `FailedGpu`."""

    index: int
    reason: str
    uuid: str | None = None
    lost: bool = False
    number: int | None = None

    @property
    def label(self) -> str:
        """The number by which people name it, see `gpu_label`."""
        return gpu_label(self.index, self.number)


class NodeReport(_ReportPart):
    """Everything that `gpushare list` shows; `version` changes when readers of the old one would be wrong.

    `gpushare` is the version that made it, `source` as in `Source`. `gpus` has MIG instances after their card, without
    those of a card that is offered itself; `failed` has the GPUs that are not among `gpus`. `uses_unknown` says why it
    is not known what containers hold, None where it is. `problems` are what keeps the daemon from being ready.
    """

    version: Literal[1] = 1
    source: str = "config"
    gpushare: str = ""
    driver_version: str = ""
    cuda_version: str = ""
    gpus: tuple[GpuReport, ...]
    failed: tuple[FailedReport, ...] = ()
    uses_unknown: str | None = None
    problems: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()

    @property
    def as_configured(self) -> bool:
        """Whether the daemon is ready, and all GPUs respond, are healthy, and are shared as configured."""
        well = all(gpu.state in _WELL and gpu.health != "unhealthy" for gpu in self.gpus)
        return well and not self.failed and not self.problems


def encode(node: NodeReport, indent: int | None = None) -> str:
    """Return a report as JSON."""
    return node.model_dump_json(by_alias=True, indent=indent)


def decode(text: bytes) -> NodeReport:
    """Return the report in a JSON text; raises ReportError for anything but version 1."""
    try:
        return NodeReport.model_validate_json(text)
    except ValidationError as error:
        raise ReportError(f"{_mistake(error)}, expected a report of version 1") from error


def _mistake(error: ValidationError) -> str:
    """Return what is wrong first, in our words: pydantic's name its own types."""
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return "it is not JSON, or not all of it"
    if first["loc"] == ("version",):
        return f"it is a report of version {first['input']!r:.20}"
    if first["type"] == "missing":
        return f"it has no {_place_in(first['loc'])}"
    return f"its {_place_in(first['loc'])} is {first['input']!r:.60}" if first["loc"] else "it is no mapping"


def _place_in(location: tuple[int | str, ...]) -> str:
    return ".".join(map(str, location))


def report(snapshot: Snapshot, source: Source = "config", problems: Iterable[str] = ()) -> NodeReport:
    """Bring together the GPUs of a node, what they are offered as, and what containers hold.

    `problems` say what keeps the daemon from being ready.
    """
    inventory, holdings = snapshot.inventory, snapshot.holdings
    known = {(gpu.uuid, gpu.place) for gpu in inventory.gpus}
    uuids, places = {uuid for uuid, _ in known}, {place for _, place in known}
    return NodeReport(
        source=source,
        gpushare=__version__,
        driver_version=inventory.driver_version,
        cuda_version=".".join(map(str, inventory.cuda_version)),
        gpus=tuple(_NodeReporter(snapshot, source).gpus()),
        failed=tuple(
            FailedReport(index=card.index, reason=card.reason, uuid=card.uuid, lost=card.lost, number=card.number)
            for card in inventory.failed
            # A GPU that responded once is still among those of the node.
            if card.uuid not in uuids and (card.uuid is not None or _place(card) not in places)
        ),
        uses_unknown=(holdings.reason or None) if isinstance(holdings, Unknown) else None,
        problems=tuple(problems),
        notices=snapshot.notices,
    )


def _place(card: FailedGpu) -> tuple[int, int]:
    return card.index, -1 if card.number is None else card.number


_On = tuple[str, str]
"""A resource, and the UUID of a GPU."""


class _NodeReporter:
    """Puts together what is in several parts of a snapshot; a held unit that nothing lists is counted as retired."""

    def __init__(self, snapshot: Snapshot, source: Source) -> None:
        self._snapshot = snapshot
        self._holdings = None if isinstance(snapshot.holdings, Unknown) else snapshot.holdings
        self._source = source
        self._resources = {resource.name: resource for resource in snapshot.resources}
        self._retired: Counter[_On] = Counter(
            (resource.name, unit.gpu) for resource in snapshot.resources for unit in resource.retired.values()
        )
        self._uses: dict[_On, tuple[Use, ...]] = {}
        self._usage = snapshot.usage or Usage()
        self._count_uses()

    def _count_uses(self) -> None:
        counts: Counter[tuple[_On, tuple[str, str, str]]] = Counter()
        for holding, units in self._snapshot.held_units(self._holdings or ()):
            resource = self._resources.get(holding.resource)
            for unit in units:
                place = holding.resource, unit.gpu
                if resource is None or resource.listed(unit.id) is None:
                    self._retired[place] += 1
                counts[place, (holding.namespace, holding.pod, holding.container)] += 1
        for (place, (namespace, pod, container)), count in counts.items():
            use = Use(namespace=namespace, pod=pod, container=container, units=count)
            self._uses[place] = (*self._uses.get(place, ()), self._with_usage(use, place))

    def _with_usage(self, use: Use, place: _On) -> Use:
        """Return the same with what the container uses; compute, which goes with memory, uses none itself."""
        resource, gpu = place
        for each in self._usage.containers:
            holder = each.gpu, each.namespace, each.pod, each.container
            if holder == (gpu, use.namespace, use.pod, use.container) and resource in each.resource.split(","):
                used = {
                    "memory_limit_mib": _mib(each.limit),
                    "memory_used_mib": _mib(each.used),
                    "utilization": each.utilization,
                    "over_limit": each.over,
                }
                return use.model_copy(update=used)
        return use

    def gpus(self) -> Iterator[GpuReport]:
        """Yield each GPU in each resource; what is not offered and not held once, but instances of such a card not."""
        offered = {uuid for resource in self._snapshot.resources for uuid in resource.gpus}
        held = {uuid for _, uuid in self._retired}
        for gpu in self._snapshot.inventory.gpus:
            # With a card, a container gets its instances.
            if not (gpu.mig and gpu.card in offered and gpu.uuid not in held):
                yield from self._in_resources(gpu)

    def _in_resources(self, gpu: Gpu) -> Iterable[GpuReport]:
        about = self._about(gpu)
        offers = self._snapshot.offers(gpu)
        old = sorted(name for name, uuid in self._retired if uuid == gpu.uuid and name not in offers)
        for name in (*offers, *old):
            yield about.model_copy(update=self._in_resource(gpu, name, offers))
        if not (offers or old):
            none: dict[str, object] = {} if self._holdings is None else {"used": 0, "uses": ()}
            yield about.model_copy(update={"state": self._state(gpu, None, 0), **none})

    def _in_resource(self, gpu: Gpu, name: str, offers: Mapping[str, object]) -> dict[str, object]:
        resource = self._resources.get(name)
        units = resource.units.by_gpu[resource.gpus[gpu.uuid]] if resource and name in offers else ()
        uses = self._uses.get((name, gpu.uuid), ())
        mode: SharingMode | None = self._snapshot.mode(gpu) if units else None
        known = self._holdings is not None
        return {
            "resource": name,
            "mode": mode,
            "isolation": self._snapshot.isolations.get(gpu.uuid, "none") if units else None,
            "units": len(units),
            "unit_mib": (units[0].mib or None) if units else None,
            "retired": self._retired[name, gpu.uuid],
            "used": sum(use.units for use in uses) if known else None,
            "uses": uses if known else None,
            "state": self._state(gpu, name, len(units)),
        }

    def _about(self, gpu: Gpu) -> GpuReport:
        snapshot, watched = self._snapshot, self._source == "daemon"
        unhealthy = gpu.uuid in snapshot.unhealthy
        used = self._usage.of_gpu(gpu.uuid) or GpuUsage(gpu.uuid)
        return GpuReport(
            index=gpu.index,
            uuid=gpu.uuid,
            name=gpu.name,
            minor=gpu.minor,
            compute_capability=".".join(map(str, gpu.compute_capability)),
            memory_mib=gpu.memory_mib,
            pci_bus_id=gpu.pci_bus_id,
            numa_node=gpu.numa_node,
            mig_enabled=gpu.mig_enabled,
            mig=_mig(gpu.mig) if gpu.mig else None,
            health=("unhealthy" if unhealthy else "healthy") if watched else "unknown",
            reason=snapshot.reasons.get(gpu.uuid),
            cordon=snapshot.cordoned.get(gpu.uuid),
            waiting=snapshot.waiting.get(gpu.uuid),
            memory_used_mib=_mib(used.memory_used),
            utilization=used.utilization,
            processes=used.processes,
            foreign_processes=tuple(map(_foreign, used.stowaways[:_MOST_FOREIGN])),
            usage_unknown=used.unknown,
        )

    def _state(self, gpu: Gpu, resource: str | None, units: int) -> str:
        snapshot = self._snapshot
        standing = snapshot.standings.get(resource or "")
        states = (
            ("cordoned", gpu.uuid in snapshot.cordoned),
            ("waiting", gpu.uuid in snapshot.waiting),
            ("not offered", resource is None),
            ("retired", units == 0),
            ("planned", self._source == "config"),
            ("unavailable", gpu.uuid in snapshot.unhealthy),
            ("unregistered", not (standing and standing.registered)),
        )
        return next((state for state, applies in states if applies), "available")


def _mib(memory: int | None) -> int | None:
    return None if memory is None else memory // MIB


def _foreign(process: Stowaway) -> ForeignProcess:
    return ForeignProcess(
        pid=process.pid, program=process.program, whose=process.whose, memory_used_mib=_mib(process.memory)
    )


def _mig(mig: MigInstance) -> MigReport:
    return MigReport(
        parent=mig.parent,
        number=mig.number,
        profile=mig.profile,
        gpu_instance=mig.gpu_instance,
        compute_instance=mig.compute_instance,
    )
