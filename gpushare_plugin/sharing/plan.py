"""The plan of a node: the GPUs of each entry of the config, the resources, and the problems of the config.

The way of sharing of an entry makes resources of the GPUs of the entry; see `ways`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import chain
from typing import TYPE_CHECKING

from gpushare_plugin.base.errors import Path, Problem
from gpushare_plugin.base.structs import Struct, field
from gpushare_plugin.config.effective import EffectiveConfig
from gpushare_plugin.config.findings import Findings, TooManyProblemsError
from gpushare_plugin.config.schema.places import spelled
from gpushare_plugin.config.schema.sections import AllDevices, DeviceCount, DeviceList
from gpushare_plugin.config.schema.spelling import shown
from gpushare_plugin.config.unreported_memory import NO_SIZE, remedy, sized
from gpushare_plugin.core.cdi import CdiDevices
from gpushare_plugin.core.device_nodes import CONTROL_DEVICES
from gpushare_plugin.core.driver_limits import DriverLimits
from gpushare_plugin.core.gpu import FailedGpu, Gpu, Inventory
from gpushare_plugin.core.resource import Resource
from gpushare_plugin.core.unit import short_uuids
from gpushare_plugin.sharing import offered_replicas
from gpushare_plugin.sharing.isolation import mps
from gpushare_plugin.sharing.isolation.choice import choose
from gpushare_plugin.sharing.isolation.layer import Mode, SharedGpus
from gpushare_plugin.sharing.isolation.mps import MpsNeeds
from gpushare_plugin.sharing.ways.cdi import CdiNames
from gpushare_plugin.sharing.ways.injection import Injection
from gpushare_plugin.sharing.ways.mig import offered
from gpushare_plugin.sharing.ways.table import WAYS
from gpushare_plugin.sharing.ways.way import Entry, MakeWay, NodeFacts, SliceNumbers, Unsuitable, Way

if TYPE_CHECKING:
    from gpushare_plugin.core.claimed_gpu import ClaimedGpu

_IN_MIG_MODE = Unsuitable(
    "is in MIG mode and is not offered itself",
    'Name its MIG instances in devices, such as "0:0", and set flags.migStrategy to single or mixed',
)


class Plan(Struct, frozen=True):
    """The resources that a node will advertise, with everything needed to share the GPUs."""

    resources: tuple[Resource, ...] = ()
    """The resources to advertise to the kubelet, without units of the GPUs that are given by claim."""
    problems: tuple[Problem, ...] = ()
    """The problems of the config; with any problem, the node must not advertise the resources."""
    notices: tuple[str, ...] = ()
    """Warnings for people."""
    mps: MpsNeeds = field(default_factory=MpsNeeds)
    """The settings of the MPS control daemon."""
    modes: Mapping[str, Mode] = field(default_factory=dict)
    """The modes of shared GPUs by UUID, for GPUs with a mode that the units alone do not show."""
    isolations: Mapping[str, str] = field(default_factory=dict)
    """The names of the isolations of shared GPUs, by UUID."""
    isolation_reasons: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Why the isolations before the chosen one were not chosen, by UUID; only for GPUs whose entry names several."""
    through_mps: bool = False
    """Whether an entry shares GPUs through MPS, perhaps none of the present GPUs."""
    cdi_names: Mapping[str, str] = field(default_factory=dict)
    """The CDI devices that stand for the offered GPUs, by UUID; empty where containers get no CDI devices."""
    by_claim: "Mapping[str, ClaimedGpu]" = field(default_factory=dict)
    """The GPUs that are given by claim, by UUID, in order of place."""


def plan(  # noqa: PLR0913 - all that a plan depends on
    effective: EffectiveConfig,
    inventory: Inventory,
    control_devices: tuple[str, ...] = CONTROL_DEVICES,
    describe: Callable[[Path], str] = spelled,
    *,
    cut: Mapping[str, SliceNumbers] | None = None,
    cdi_devices: CdiDevices | None = None,
    driver_limits: DriverLimits | None = None,
    ways: Sequence[MakeWay] = WAYS,
) -> Plan:
    """Return the plan of the config `effective` for the GPUs of `inventory`; never raises, and finds all problems.

    The search for problems stops at one problem more than MOST_PROBLEMS. `describe` returns the place of a value in the
    config, for people. `cut` holds the slices of each GPU of a partitioned node, by UUID; under MIG, `cut` holds the
    offered GPUs, without slices. `cdi_devices` are the devices in the CDI specifications of the node, and
    `driver_limits` the means of the node to set driver limits; None where nobody looked.
    """
    config = effective.config
    inventory = sized(inventory, config.unreported_memory)
    devices = offered(inventory, config.flags.mig_strategy, config.resources)
    # On a node partitioned by MIG, a card may be without MIG instances because no instance is wanted: no warning.
    findings = Findings(notices=[] if effective.partitioning == "mig" else list(devices.notices))
    node = NodeFacts(
        effective,
        inventory,
        devices.names,
        short_uuids(gpu.uuid for gpu in inventory.cards),
        Injection(config.flags, control_devices, cdi_devices),
        cut or {},
        driver_limits,
    )
    try:
        if devices.problem is not None:
            findings.problem(("flags", "migStrategy"), devices.problem)
        return _assembled(node, ways, describe, findings)
    except TooManyProblemsError:
        return Plan(problems=tuple(findings.problems))


def _assembled(node: NodeFacts, ways: Iterable[MakeWay], describe: Callable[[Path], str], findings: Findings) -> Plan:
    made = [make(node, findings) for make in ways]
    entries = [entry for way in made for entry in way.entries]
    selection = _Selection(node.inventory.failed, describe, findings)
    selection.select(entries)
    unclaimed = {gpu: name for gpu, name in _left(node).items() if gpu.uuid not in selection.owners}
    offered_gpus = _by_place([*(gpu for each in entries for gpu in each.gpus), *unclaimed])
    by_claim = _given_by_claim(node, offered_gpus, describe, findings)
    for entry in entries:
        containers = {gpu: entry.containers(gpu) for gpu in entry.gpus}
        shared = SharedGpus(selection.title(entry), entry.path, containers, entry.key, by_claim)
        entry.choice = choose(entry.isolations, shared, findings)
    needs = mps.needs((entry.isolation, entry.gpus) for entry in entries)
    if reason := mps.why_not_protocol(needs.protocol, node.inventory.driver_version):
        found = f"{needs.protocol} found, but {reason}; set 2, or install a newer driver"
        findings.problem(("flags", "mpsProtocol"), found)
    resources = tuple(_resources(made, unclaimed, findings))
    cdi, gpus = CdiNames(node.config.flags, node.injection.cdi_devices), _gpus(resources)
    findings.notices += cdi.notices(gpus)
    isolation_of = {gpu.uuid: entry.isolation for entry in entries for gpu in entry.gpus}
    claimed: dict[str, ClaimedGpu] = {}
    if (dra := node.config.dra) is not None:
        from gpushare_plugin.sharing.by_claim import claimed_gpu, without  # noqa: PLC0415 - few configs have claims

        for gpu in (each for each in gpus if each in by_claim):
            claimed[gpu.uuid] = claimed_gpu(gpu, resources, isolation_of.get(gpu.uuid), node.injection, dra)
        resources = without(resources, claimed.keys())
    findings.notices += chain.from_iterable(map(offered_replicas.warnings, resources))
    return Plan(
        resources,
        tuple(findings.problems),
        tuple(findings.notices),
        needs,
        dict(_modes(entries)),
        {uuid: isolation.name for uuid, isolation in isolation_of.items()},
        {gpu.uuid: entry.choice.passed_over for entry in entries if len(entry.isolations) > 1 for gpu in entry.gpus},
        any(isinstance(entry.isolation, mps.MpsIsolation) for entry in entries),
        cdi.by_gpu(gpus),
        claimed,
    )


def _given_by_claim(
    node: NodeFacts, gpus: Sequence[Gpu], describe: Callable[[Path], str], findings: Findings
) -> AbstractSet[Gpu]:
    """Return those of the offered `gpus`, sorted by place, that are given by claim."""
    if (settings := node.config.dra) is None:
        return frozenset()
    if node.effective.partitioning:
        findings.notice(
            "dra has no effect: the GPUs of this node are divided as its annotations want, and are not given by claim"
        )
        return frozenset()
    entry = Entry(
        path=("dra",),
        name=settings.driver,
        devices=settings.devices,
        candidates=tuple(gpus),
        isolations=(),
        containers=lambda _gpu: 1,
        unsuitable={card: _IN_MIG_MODE for card in node.inventory.cards if card.mig_enabled and card not in gpus},
    )
    _Selection(node.inventory.failed, describe, findings).select([entry])
    return frozenset(entry.gpus)


def _gpus(resources: Iterable[Resource]) -> Sequence[Gpu]:
    """Return the GPUs with units of any resource, by place."""
    gpus = {gpu.uuid: gpu for resource in resources for gpu in resource.gpus.values()}
    return _by_place(gpus.values())


def _by_place(gpus: Iterable[Gpu]) -> Sequence[Gpu]:
    return sorted(gpus, key=lambda gpu: gpu.place)


def _left(node: NodeFacts) -> Mapping[Gpu, str]:
    """Return the GPUs to offer whole unless an entry selects them, with their resource names.

    A node partitioned under MPS offers no whole GPU, a node partitioned by MIG only the GPUs of the cut.
    """
    match node.effective.partitioning:
        case None:
            return node.offered
        case "mps":
            return {}
        case "mig":
            return {gpu: name for gpu, name in node.offered.items() if gpu.uuid in node.cut}


def _resources(ways: Iterable[Way], unclaimed: Mapping[Gpu, str], findings: Findings) -> list[Resource]:
    """Return the resources of all ways; one name for resources of two ways is a problem of the config."""
    resources: list[Resource] = []
    sections: dict[str, Path] = {}
    for way in ways:
        of_way = way.resources(unclaimed)
        for name in (resource.name for resource in of_way if resource.name in sections):
            findings.problem(
                sections[name],
                f"{shown(name)} is the name of both memory units and GPUs; give one of them another name",
            )
        sections |= dict.fromkeys((resource.name for resource in of_way), way.section)
        resources += of_way
        claimed = {uuid for resource in of_way for uuid in resource.gpus}
        unclaimed = {gpu: name for gpu, name in unclaimed.items() if gpu.uuid not in claimed}
    return resources


def _modes(entries: Iterable[Entry]) -> Iterable[tuple[str, Mode]]:
    for entry in entries:
        modes = ((gpu.uuid, entry.isolation.mode(gpu)) for gpu in entry.gpus)
        yield from ((uuid, mode) for uuid, mode in modes if mode is not None)


def _names(reference: str, gpu: Gpu) -> bool:
    return reference.lower() in {gpu.label, gpu.uuid.lower()}


def _choice(free: int, most: int) -> str:
    """Return how many GPUs an entry can choose from, of `most` that suit the entry."""
    if free == most:
        return f"this node has {most} to choose from"
    return f"{free} of the {most} of this node are not selected by another entry"


def _not_counted(entry: Entry) -> str:
    """Return the cards that a count of devices leaves out, with reasons; for MIG instances, the labels say enough."""
    reasons = {gpu: each.reason for gpu, each in entry.unsuitable.items()} | dict.fromkeys(entry.unsized, NO_SIZE)
    return "".join(f"; GPU {gpu.label} {reason}" for gpu, reason in reasons.items() if not gpu.mig)


class _Selection:
    """The selection of GPUs for entries; `owners` holds the entry of each selected GPU by UUID."""

    def __init__(self, failed: tuple[FailedGpu, ...], describe: Callable[[Path], str], findings: Findings) -> None:
        self.owners: dict[str, Entry] = {}
        self._failed = failed
        self._describe = describe
        self._findings = findings

    def title(self, entry: Entry) -> str:
        """Return the name of an entry in messages."""
        return f"{self._describe(entry.path)} ({entry.name})"

    def select(self, entries: Sequence[Entry]) -> None:
        """Give GPUs to entries: first to entries with a list of GPUs, then to `all`, then to counts of free GPUs."""
        for kind in (DeviceList, AllDevices, DeviceCount):
            for entry in entries:
                if isinstance(entry.devices, kind):
                    for gpu in self._chosen(entry):
                        self._give(gpu, entry)

    def _chosen(self, entry: Entry) -> Iterable[Gpu]:
        match entry.devices:
            case AllDevices():
                self._leave_out(entry, entry.unsized)
                return entry.candidates
            case DeviceCount(count=count):
                free, unsized = (
                    [gpu for gpu in gpus if gpu.uuid not in self.owners] for gpus in (entry.candidates, entry.unsized)
                )
                if len(free) < count <= len(free) + len(unsized):
                    self._leave_out(entry, unsized)
                elif count > len(free) and not self._excused(
                    f"{self.title(entry)}: {count} GPUs requested, {len(free)} responsive"
                ):
                    self._findings.problem(
                        (*entry.path, "devices"),
                        f"{count} GPUs requested, but {_choice(len(free), len(entry.candidates))}{_not_counted(entry)}",
                    )
                return free[:count]
            case DeviceList(references=references):
                return [gpu for reference in references if (gpu := self._referenced(entry, reference))]

    def _referenced(self, entry: Entry, reference: str) -> Gpu | None:
        for gpu in entry.candidates:
            if _names(reference, gpu):
                return gpu
        for gpu, unsuitable in entry.unsuitable.items():
            if _names(reference, gpu):
                usable = ", ".join(each.label for each in entry.candidates) or "none"
                self._findings.problem(
                    (*entry.path, "devices"),
                    f"GPU {gpu.label} {unsuitable.reason}; usable: {usable}. {unsuitable.remedy}",
                )
                return None
        if unsized := [gpu for gpu in entry.unsized if _names(reference, gpu)]:
            self._leave_out(entry, unsized)
            return None
        failed = any(
            reference == card.label or card.uuid is None or card.uuid.lower() == reference.lower()
            for card in self._failed
        )
        if not (failed and self._excused(f"{self.title(entry)}: device {shown(reference)} is unresponsive")):
            known = ", ".join(gpu.identity for gpu in entry.candidates) or "none"
            self._findings.problem(
                (*entry.path, "devices"),
                f"{shown(reference)} matches no GPU; GPUs that this entry can share: {known}",
            )
        return None

    def _leave_out(self, entry: Entry, gpus: Iterable[Gpu]) -> None:
        """Add a warning for each GPU of unknown memory that an entry would get; the rest of the config applies."""
        for gpu in gpus:
            self._findings.notice(f"{self.title(entry)} leaves out {gpu.description}: it {NO_SIZE}; {remedy(gpu)}")

    def _excused(self, notice: str) -> bool:
        """Return whether unresponsive GPUs excuse missing GPUs; then `notice` is added, and the other GPUs serve."""
        if self._failed:
            self._findings.notice(notice)
        return bool(self._failed)

    def _give(self, gpu: Gpu, entry: Entry) -> None:
        owner = self.owners.setdefault(gpu.uuid, entry)
        if owner is not entry:
            self._findings.problem(
                (*entry.path, "devices"),
                f"{gpu.description} is selected by both {self.title(owner)} and {self.title(entry)}; one GPU belongs "
                "to one way of sharing: name different GPUs in their devices",
            )
        elif gpu not in entry.gpus:
            entry.gpus.append(gpu)
