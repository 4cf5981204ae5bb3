"""The offer and the holdings of a node as data: a projection of a snapshot, exchanged as JSON."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec

from gpushare_plugin.base.errors import GpushareError
from gpushare_plugin.base.memory import MIB
from gpushare_plugin.base.structs import replace
from gpushare_plugin.base.version import __version__
from gpushare_plugin.core.claim_limits import compute_limit_percent, memory_limit_mib
from gpushare_plugin.core.claim_state import ClaimState, of_each_claim
from gpushare_plugin.core.effect import Effect
from gpushare_plugin.core.gpu import FailedGpu, Gpu, MigInstance, gpu_label
from gpushare_plugin.core.holding import Unknown
from gpushare_plugin.core.isolation_choice import choice_words
from gpushare_plugin.core.snapshot import SharingMode, Snapshot
from gpushare_plugin.core.usage import ContainerUsage, GpuUsage, Stowaway, Usage
from gpushare_plugin.observe.parts import Part

ReportSource = Literal["daemon", "config"]
"""The maker of a report: the running daemon, or `gpushare list` from the config, the GPUs and the kubelet."""

_MOST_FOREIGN = 16
"""The most foreign processes in the report of a GPU; a program can start any number of processes."""

_WELL = {"available", "planned", "by claim", "not offered"}
"""States that need no attention."""


class ReportError(GpushareError):
    """An answer is not a report of a readable version."""


class LimitEffect(Part, frozen=True, kw_only=True):
    """Whether the isolation enforces the memory limit of a container on a GPU."""

    state: str
    """The state: in effect, in effect since, not in effect, or unknown."""
    reason: str | None = None
    """Why the limit is not in effect, or what is missing to know that; None where it is in effect."""
    seconds: float | None = None
    """The seconds from the start of the container to its limit; None unless the limit came later."""

    @property
    def words(self) -> str:
        """The state, with the delay of a late limit."""
        return self.state if self.seconds is None else f"{self.state} {self.seconds:.0f} s after the start"


class Use(Part, frozen=True, kw_only=True):
    """What one container holds of one GPU by units of one resource, or by a claim, and its use of the GPU."""

    namespace: str
    """The namespace of the pod; empty where only the kubelet's checkpoint shows the pod."""
    pod: str
    """The name of the pod; empty where only the kubelet's checkpoint shows the pod."""
    container: str
    """The name of the container; empty for all containers of the pod together, by a claim."""
    units: int
    """The number of held units; by a claim, 1."""
    memory_limit_mib: int | None = None
    """The limit of GPU memory in MiB; None without a limit."""
    memory_used_mib: int | None = None
    """The GPU memory in use in MiB; None where unknown."""
    utilization: float | None = None
    """The part of the time in which the container computed on the GPU, from 0 to 1; None where unknown."""
    over_limit: bool = False
    """Whether the container uses more memory than its limit and the tolerance."""
    limit_effect: LimitEffect | None = None
    """Whether the limit is enforced; None without an isolation."""


class ClaimedDevice(Part, frozen=True, kw_only=True):
    """What one request of a prepared ResourceClaim has of one GPU."""

    namespace: str
    """The namespace of the claim and of its pods."""
    claim: str
    """The name of the claim."""
    claim_uid: str
    """The UID of the claim."""
    request: str
    """The name of the request."""
    gpu: str
    """The label of the GPU, see `gpu_label`; the name of the device where the node has the GPU no more."""
    uuid: str
    """The UUID of the GPU."""
    way: str
    """The way in which the GPU was shared when the claim was prepared."""
    isolation: str
    """The isolation that limits the containers."""
    admin_access: bool = False
    """Whether the claim has the GPU for administration: without a limit, and counted nowhere."""
    memory_mib: int | None = None
    """The memory in MiB that counts against the GPU; None where no memory counts."""
    shares: int | None = None
    """The shares that count against the GPU; None where no shares count."""
    compute_percent: int | None = None
    """The compute in percent that counts against the GPU; None where no compute was asked for."""
    memory_limit_mib: int | None = None
    """The limit of memory in MiB that the containers were given; None without a limit."""
    compute_limit_percent: int | None = None
    """The limit of compute in percent that the containers were given; None without a limit."""
    state: str = "prepared"
    """The state: prepared, or not done yet (the kubelet asks again, or gives the claim back)."""
    pods: tuple[str, ...] = ()
    """The names of the pods that have the claim, by the kubelet or else by the reservation; empty where unknown."""
    uses: tuple[Use, ...] = ()
    """The containers with the claim, as the last look at the usage found them."""

    @property
    def label(self) -> str:
        """The name of the claim for people: `namespace/name`."""
        return f"{self.namespace}/{self.claim}"


class ForeignProcess(Part, frozen=True, kw_only=True):
    """A process on an offered GPU that is in no pod, or whose pod holds no units and no claim of the GPU."""

    pid: int
    """The number of the process on the host."""
    program: str = ""
    """The name of the program."""
    whose: str = ""
    """The pod, container or host of the process, in words."""
    memory_used_mib: int | None = None
    """The GPU memory in use in MiB; None where unknown."""


class MigReport(Part, frozen=True, kw_only=True):
    """The description of a MIG instance, with values of `MigInstance`."""

    parent: str
    """The UUID of the card."""
    number: int
    """NVML's number of the instance on the card."""
    profile: str
    """The profile, for example `1g.5gb`."""
    gpu_instance: int
    """The ID of the GPU instance."""
    compute_instance: int
    """The ID of the compute instance."""


class GpuReport(Part, frozen=True, kw_only=True):
    """One GPU in one resource, or a GPU in no resource.

    A GPU has a report for every resource in its offer, and for every other resource whose units pods still hold.
    """

    index: int
    """NVML's number of the card."""
    uuid: str
    """The UUID of the GPU."""
    name: str
    """The product name of the card."""
    minor: int | None = None
    """The number in the device node `/dev/nvidia<minor>`."""
    compute_capability: str = ""
    """The CUDA compute capability, for example `8.0`; empty where unknown."""
    memory_mib: int | None = None
    """The memory in MiB that containers can use; None where unknown."""
    pci_bus_id: str = ""
    """The PCI address of the card; empty where unknown."""
    numa_node: int | None = None
    """The NUMA node; None where the host does not tell."""
    mig_enabled: bool = False
    """Whether the card is in MIG mode."""
    mig: MigReport | None = None
    """The description of a MIG instance; None for a card."""
    resource: str | None = None
    """The name of the resource; None for a GPU in no resource."""
    mode: str | None = None
    """The mode in which the GPU is shared, with the words of the Node's annotation and of metrics."""
    isolation: str | None = None
    """The isolation that limits the containers; `none` for a GPU without isolation, None without offered units.

    Of a GPU that waits, the isolation of the containers that start when the GPU no longer waits.
    """
    isolation_reasons: tuple[str, ...] = ()
    """Why other isolations were not chosen that the config has before `isolation`, each with the name in front."""
    isolation_listed: bool = False
    """Whether the config lists several isolations, of which `isolation` is the first that the node has."""
    cdi_device: str | None = None
    """The CDI device that containers get; None where containers get no CDI devices."""
    units: int = 0
    """The number of units offered now."""
    unit_mib: int | None = None
    """The memory of a unit in MiB; None for units that do not stand for memory."""
    retired: int = 0
    """The number of retired units, which are listed or held but no longer offered."""
    used: int | None = None
    """The number of held units, retired units included; None where unknown."""
    uses: tuple[Use, ...] | None = None
    """The containers that hold the units; None where unknown."""
    health: str = "unknown"
    """The health: healthy, unhealthy, or unknown without a daemon that watches the GPU."""
    state: str = "planned"
    """The state for new pods: available, unavailable (the GPU is unhealthy), cordoned, waiting (for pods to end, until
    the GPU is shared as configured), retired (all units are retired), unregistered (with the kubelet), planned (by the
    config, without a daemon), by claim (pods get the GPU by ResourceClaims only), or not offered."""
    reason: str | None = None
    """The reason why the GPU is not available, or not shared as configured."""
    cordon: str | None = None
    """The source of a cordon; None without a cordon."""
    waiting: str | None = None
    """The reason why the GPU is not shared as configured yet."""
    memory_used_mib: int | None = None
    """The memory of the whole GPU in use in MiB; None where unknown."""
    utilization: float | None = None
    """The part of the time in which the whole GPU computed, from 0 to 1; None where unknown."""
    processes: int | None = None
    """The number of processes on the whole GPU; None where unknown."""
    foreign_processes: tuple[ForeignProcess, ...] = ()
    """Processes that should not be on the GPU; at most 16 processes are reported."""
    usage_unknown: str | None = None
    """The reason why the users of the GPU are unknown; None where known."""

    @property
    def label(self) -> str:
        """The number by which people name the GPU, see `gpu_label`."""
        return gpu_label(self.index, self.mig.number if self.mig else None)

    @property
    def product(self) -> str:
        """The product in words, with the profile of a MIG instance."""
        return f"{self.name} MIG {self.mig.profile}".lstrip() if self.mig else self.name


class NodeReport(Part, frozen=True, kw_only=True):
    """The report on a node: everything that `gpushare list` shows."""

    version: Literal[1] = 1
    """The version of the format, which changes when a change would mislead readers of the old version."""
    source: str = "config"
    """The maker of the report, a word of `ReportSource`."""
    gpushare: str = ""
    """The version of the program that made the report."""
    driver_version: str = ""
    """The version of the driver."""
    cuda_version: str = ""
    """The CUDA version of the driver, for example `12.4`."""
    gpus: tuple[GpuReport, ...]
    """The GPUs, MIG instances after their card, without instances of a card that is offered itself."""
    failed: tuple[FailedGpu, ...] = ()
    """The unresponsive GPUs that are not among `gpus`."""
    claims: tuple[ClaimedDevice, ...] | None = None
    """What prepared claims have, claim by claim; None on a node that gives no GPU by claim, and without a daemon."""
    resource_slices: str | None = None
    """Why claims cannot get all GPUs that they should: the trouble with the ResourceSlices; None without one."""
    uses_unknown: str | None = None
    """The reason why the holdings of containers are unknown; None where known."""
    problems: tuple[str, ...] = ()
    """The reasons why the daemon is not ready."""
    notices: tuple[str, ...] = ()
    """The warnings of the node."""

    @property
    def as_configured(self) -> bool:
        """Whether the daemon is ready, and all GPUs respond, are healthy, and are shared as configured."""
        well = all(gpu.state in _WELL and gpu.health != "unhealthy" for gpu in self.gpus)
        return well and not self.failed and not self.problems


def chosen_isolations(choices: Mapping[str, tuple[str, Sequence[str]]]) -> Iterator[str]:
    """Yield a sentence for all GPUs with the same isolation and the same reasons, which are given by label of the GPU.

    The reasons say why other isolations were not chosen, each with the name of the isolation in front.
    """
    gpus: dict[tuple[str, ...], list[str]] = {}
    for label, (name, reasons) in choices.items():
        gpus.setdefault((name, *reasons), []).append(label)
    for words, labels in gpus.items():
        yield f"GPU {', '.join(labels)}: {choice_words(words[0], words[1:])}"


def decode(text: bytes) -> NodeReport:
    """Return the report in a JSON text; raise ReportError for anything but a report of version 1."""
    try:
        data = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ReportError("it is not JSON, or not all of it, expected a report of version 1") from error
    try:
        return msgspec.convert(data, NodeReport)
    except msgspec.ValidationError as error:
        raise ReportError(f"{_mistake(data, str(error))}, expected a report of version 1") from error


def _mistake(data: Any, error: str) -> str:
    """Return the first mistake in our own words: msgspec's words name msgspec's types."""
    if not isinstance(data, dict):
        return "it is no mapping"
    if (version := data.get("version", 1)) != 1:
        return f"it is a report of version {version!r:.20}"
    what, _, where = error.partition(" - at `$")
    place = re.findall(r"\w+", where)
    if missing := re.search(r"missing required field `(\w+)`", what):
        return f"it has no {'.'.join((*place, missing[1]))}"
    found: Any = data
    for step in place:
        found = found[int(step) if isinstance(found, list) else step]
    return f"its {'.'.join(place)} is {found!r:.60}"


def report(snapshot: Snapshot, source: ReportSource = "config", problems: Iterable[str] = ()) -> NodeReport:
    """Return the report on a node: the GPUs, their resources, and the holdings of containers.

    `problems` are the reasons why the daemon is not ready.
    """
    inventory, holdings = snapshot.inventory, snapshot.holdings
    known = {(gpu.uuid, gpu.place) for gpu in inventory.gpus}
    uuids, places = {uuid for uuid, _ in known}, {place for _, place in known}
    return NodeReport(
        source=source,
        gpushare=__version__,
        driver_version=inventory.driver_version,
        cuda_version=inventory.cuda,
        gpus=tuple(_NodeReporter(snapshot, source).gpus()),
        failed=tuple(
            card
            for card in inventory.failed
            # A GPU that responded once is still among the GPUs of the node.
            if card.uuid not in uuids and (card.uuid is not None or _place(card) not in places)
        ),
        claims=None if snapshot.claims is None else tuple(_claimed(snapshot, snapshot.claims)),
        resource_slices=snapshot.claims.trouble or None if snapshot.claims is not None else None,
        uses_unknown=(holdings.reason or None) if isinstance(holdings, Unknown) else None,
        problems=tuple(problems),
        notices=snapshot.notices,
    )


def _place(card: FailedGpu) -> tuple[int, int]:
    return card.index, -1 if card.number is None else card.number


_On = tuple[str, str]
"""A resource, and the UUID of a GPU."""


class _NodeReporter:
    """Builds the GPU reports from several parts of a snapshot; a held unit that is not listed counts as retired."""

    def __init__(self, snapshot: Snapshot, source: ReportSource) -> None:
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
        """Return `use` with limit and use of the container; units of compute beside memory have no use of their own."""
        resource, gpu = place
        for each in self._usage.containers:
            holder = each.gpu, each.namespace, each.pod, each.container
            if holder == (gpu, use.namespace, use.pod, use.container) and resource in each.resource.split(","):
                return _with_measured(use, each)
        return use

    def gpus(self) -> Iterator[GpuReport]:
        """Yield every GPU in every resource, and once a GPU in no resource.

        Instances of a card that is offered itself are left out, unless an instance has retired units.
        """
        offered = {uuid for resource in self._snapshot.resources for uuid in resource.gpus}
        held = {uuid for _, uuid in self._retired}
        for gpu in self._snapshot.inventory.gpus:
            # A container that gets the card gets the instances with it.
            if not (gpu.mig and gpu.card in offered and gpu.uuid not in held):
                yield from self._in_resources(gpu)

    def _in_resources(self, gpu: Gpu) -> Iterable[GpuReport]:
        about = self._about(gpu)
        offers = self._snapshot.offers(gpu)
        old = sorted(name for name, uuid in self._retired if uuid == gpu.uuid and name not in offers)
        for name in (*offers, *old):
            yield replace(about, **self._in_resource(gpu, name, offers))
        if not (offers or old):
            none: dict[str, object] = {} if self._holdings is None else {"used": 0, "uses": ()}
            yield replace(about, state=self._state(gpu, None, 0), **none)

    def _in_resource(self, gpu: Gpu, name: str, offers: Mapping[str, object]) -> dict[str, object]:
        resource = self._resources.get(name)
        units = resource.units.by_gpu[resource.gpus[gpu.uuid]] if resource and name in offers else ()
        uses = self._uses.get((name, gpu.uuid), ())
        mode: SharingMode | None = self._snapshot.mode(gpu) if units else None
        known = self._holdings is not None
        chosen = units or gpu.uuid in self._snapshot.waiting
        return {
            "resource": name,
            "mode": mode,
            "isolation": self._snapshot.isolations.get(gpu.uuid, "none") if chosen else None,
            "isolation_reasons": self._snapshot.isolation_reasons.get(gpu.uuid, ()) if chosen else (),
            "isolation_listed": bool(chosen) and gpu.uuid in self._snapshot.isolation_reasons,
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
            compute_capability=".".join(map(str, gpu.compute_capability or ())),
            memory_mib=gpu.memory_mib or None,
            pci_bus_id=gpu.pci_bus_id,
            numa_node=gpu.numa_node,
            mig_enabled=gpu.mig_enabled,
            mig=_mig(gpu.mig) if gpu.mig else None,
            cdi_device=snapshot.cdi_names.get(gpu.uuid),
            health=("unhealthy" if unhealthy else "healthy") if watched else "unknown",
            reason=snapshot.reasons.get(gpu.uuid),
            cordon=snapshot.cordoned.get(gpu.uuid),
            waiting=snapshot.waiting.get(gpu.uuid),
            memory_used_mib=_mib(used.memory_used),
            utilization=used.utilization,
            processes=None if used.processes is None else len(used.processes),
            foreign_processes=tuple(map(_foreign, used.stowaways[:_MOST_FOREIGN])),
            usage_unknown=used.unknown,
        )

    def _state(self, gpu: Gpu, resource: str | None, units: int) -> str:
        snapshot = self._snapshot
        standing = snapshot.standings.get(resource or "")
        states = (
            ("cordoned", gpu.uuid in snapshot.cordoned),
            ("waiting", gpu.uuid in snapshot.waiting),
            ("by claim", resource is None and gpu.uuid in snapshot.by_claim),
            ("not offered", resource is None),
            ("retired", units == 0),
            ("planned", self._source == "config"),
            ("unavailable", gpu.uuid in snapshot.unhealthy),
            ("unregistered", not (standing and standing.registered)),
        )
        return next((state for state, applies in states if applies), "available")


def _with_measured(use: Use, usage: ContainerUsage) -> Use:
    return replace(
        use,
        memory_limit_mib=_mib(usage.limit),
        memory_used_mib=_mib(usage.used),
        utilization=usage.utilization,
        over_limit=usage.over,
        limit_effect=_effect(usage.effect) if usage.effect else None,
    )


def _claimed(snapshot: Snapshot, claims: ClaimState) -> Iterator[ClaimedDevice]:
    """Yield what claims have, in the order of the names of claims."""
    labels = {gpu.uuid: gpu.label for gpu in snapshot.inventory.gpus}
    shown = of_each_claim(claims.holdings(() if isinstance(snapshot.holdings, Unknown) else snapshot.holdings))
    usages = defaultdict[tuple[str, str, str | None], list[ContainerUsage]](list)
    for usage in snapshot.usage.containers if snapshot.usage is not None else ():
        for key in {(usage.namespace, each.device, each.share_id) for each in usage.claimed}:
            usages[key].append(usage)
    for claim in sorted(claims.prepared, key=lambda each: each.id):
        holders = shown.get((claim.id.namespace, claim.id.name), ())
        for id_, device in claims.devices(claim).items():
            pods = [each.pod for each in holders if id_ in each.ids]
            yield ClaimedDevice(
                namespace=claim.id.namespace,
                claim=claim.id.name,
                claim_uid=claim.id.uid,
                request=device.request,
                gpu=labels.get(device.gpu, device.device),
                uuid=device.gpu,
                way=device.way,
                isolation=device.isolation,
                admin_access=device.admin_access,
                memory_mib=device.memory_mib or None,
                shares=device.shares or None,
                compute_percent=device.percent,
                memory_limit_mib=memory_limit_mib(device),
                compute_limit_percent=compute_limit_percent(device),
                state="prepared" if claim.done else "not done yet",
                pods=tuple(dict.fromkeys(pods)),
                uses=tuple(
                    _with_measured(Use(namespace=each.namespace, pod=each.pod, container=each.container, units=1), each)
                    for each in usages.get((claim.id.namespace, device.device, device.share_id), ())
                    if device in each.claimed
                ),
            )


def _mib(memory: int | None) -> int | None:
    return None if memory is None else memory // MIB


def _effect(effect: Effect) -> LimitEffect:
    return LimitEffect(state=effect.state, reason=effect.reason or None, seconds=effect.seconds)


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
