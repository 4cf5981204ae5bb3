"""From settings and GPUs to resources: which GPU is shared in which way, and everything that is wrong with that."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from gpushare_plugin.config.places import spelled
from gpushare_plugin.config.schema import (
    AllDevices,
    Config,
    DeviceCount,
    DeviceList,
    MemoryResource,
    ReplicatedResource,
)
from gpushare_plugin.config.spelling import shown
from gpushare_plugin.errors import Path, Problem
from gpushare_plugin.model.gpu import Gpu, Inventory
from gpushare_plugin.model.resource import Resource
from gpushare_plugin.model.unit import KUBELET_MESSAGE_LIMIT, Unit, short_uuids
from gpushare_plugin.sharing.exclusive import WholeGpus, whole_unit
from gpushare_plugin.sharing.injection import CONTROL_DEVICES, Injection
from gpushare_plugin.sharing.memory import SharedMemory, list_size, memory_units, smallest_unit
from gpushare_plugin.sharing.mig import offered
from gpushare_plugin.sharing.time_slicing import (
    ReplicaRules,
    TimeSlicedGpus,
    most_replicas,
    replica_list_size,
    replica_units,
)


@dataclass(frozen=True, slots=True)
class Plan:
    """What a node will advertise. With any `problems`, nothing may be."""

    resources: tuple[Resource, ...]
    problems: tuple[Problem, ...]
    notices: tuple[str, ...]


@dataclass(slots=True)
class Entry:
    """One entry of `sharing`: what it asks for, where it stands, and the GPUs it gets."""

    path: Path
    settings: MemoryResource | ReplicatedResource
    candidates: tuple[Gpu, ...]
    gpus: list[Gpu] = field(default_factory=list)


def plan(
    config: Config,
    inventory: Inventory,
    control_devices: tuple[str, ...] = CONTROL_DEVICES,
    describe: Callable[[Path], str] = spelled,
) -> Plan:
    """Decide what `config` means for the GPUs of `inventory`; never raises, finds all problems at once.

    `describe` tells people where a setting stands.
    """
    return _Planner(config, inventory, control_devices, describe).plan()


class _Planner:
    def __init__(
        self,
        config: Config,
        inventory: Inventory,
        control_devices: tuple[str, ...],
        describe: Callable[[Path], str],
    ) -> None:
        self._config = config
        self._describe = describe
        self._inventory = inventory
        self._injection = Injection(config.flags, control_devices)
        self._offered = offered(inventory, config.flags.mig_strategy, config.resources)
        self._short_uuids = short_uuids(gpu.uuid for gpu in inventory.gpus)
        self._owners: dict[str, Entry] = {}
        self._problems: list[Problem] = []
        self._notices: list[str] = list(self._offered.notices)

    def plan(self) -> Plan:
        self._refuse_unserved()
        memory, replicated = self._memory_entries(), self._replicated_entries()
        self._select([*memory, *replicated])
        resources = [resource for entry in memory if (resource := self._memory_resource(entry))]
        resources += self._gpu_resources(replicated, {resource.name for resource in resources})
        return Plan(tuple(resources), tuple(self._problems), tuple(self._notices))

    # ------------------------------------------------------------------ entries and the GPUs they can choose from

    def _refuse_unserved(self) -> None:
        if self._config.sharing.mps is not None:
            self._problem(
                ("sharing", "mps"), "MPS found; this version shares by memory or time slicing: use sharing.memory"
            )
        if self._offered.problem is not None:
            self._problem(("flags", "migStrategy"), self._offered.problem)

    def _memory_entries(self) -> list[Entry]:
        memory = self._config.sharing.memory
        gpus = []
        for gpu in self._inventory.gpus:
            if gpu.mig_enabled and memory:
                self._notices.append(f"{_named(gpu)} is in MIG mode: its memory cannot be shared by units")
            elif not gpu.mig_enabled:
                gpus.append(gpu)
        path: Path = ("sharing", "memory", "resources")
        entries = memory.resources if memory else ()
        return [Entry((*path, index), settings, tuple(gpus)) for index, settings in enumerate(entries)]

    def _replicated_entries(self) -> list[Entry]:
        time_slicing = self._config.sharing.time_slicing
        path: Path = ("sharing", "timeSlicing", "resources")
        entries = []
        for index, settings in enumerate(time_slicing.resources if time_slicing else ()):
            gpus = tuple(gpu for gpu, name in self._offered.names.items() if name == settings.name)
            if gpus:
                entries.append(Entry((*path, index), settings, gpus))
            else:
                self._notices.append(f"no GPU of this node is a {settings.name}: sharing it changes nothing here")
        return entries

    # ------------------------------------------------------------------ which entry gets which GPU

    def _select(self, entries: Sequence[Entry]) -> None:
        """Give GPUs to entries: those named one by one first, then `all`, then counts of what is left."""
        for kind in (DeviceList, AllDevices, DeviceCount):
            for entry in entries:
                if isinstance(entry.settings.devices, kind):
                    for gpu in self._chosen(entry):
                        self._give(gpu, entry)

    def _chosen(self, entry: Entry) -> Iterable[Gpu]:
        match entry.settings.devices:
            case AllDevices():
                return entry.candidates
            case DeviceCount(count=count):
                free = [gpu for gpu in entry.candidates if gpu.uuid not in self._owners]
                if count > len(free) and not self._excused(
                    f"{self._name(entry)}: {count} GPUs asked for, {len(free)} answer"
                ):
                    self._problem(
                        (*entry.path, "devices"),
                        f"{count} GPUs asked for, but {len(free)} of the {len(entry.candidates)} of this node are not "
                        "selected by another entry",
                    )
                return free[:count]
            case DeviceList(references=references):
                return [gpu for reference in references if (gpu := self._referenced(entry, reference))]

    def _referenced(self, entry: Entry, reference: str) -> Gpu | None:
        for gpu in entry.candidates:
            if reference.lower() in {gpu.label, gpu.uuid.lower()}:
                return gpu
        failed = any(
            reference == card.label or card.uuid is None or card.uuid.lower() == reference.lower()
            for card in self._inventory.failed
        )
        if not (failed and self._excused(f"{self._name(entry)}: device {shown(reference)} does not answer")):
            known = ", ".join(f"{gpu.label} ({gpu.uuid})" for gpu in entry.candidates) or "none"
            self._problem((*entry.path, "devices"), f"{shown(reference)} matches no GPU; GPUs it could be: {known}")
        return None

    def _excused(self, notice: str) -> bool:
        """Tell whether cards that failed to answer explain a selection that comes up short: the others must serve."""
        if self._inventory.failed:
            self._notices.append(notice)
        return bool(self._inventory.failed)

    def _give(self, gpu: Gpu, entry: Entry) -> None:
        owner = self._owners.setdefault(gpu.uuid, entry)
        if owner is not entry:
            self._problem(
                (*entry.path, "devices"),
                f"{_named(gpu)} is selected by both {self._name(owner)} and {self._name(entry)}; one GPU belongs to "
                "one way of sharing: name different GPUs in their devices",
            )
        elif gpu not in entry.gpus:
            entry.gpus.append(gpu)

    # ------------------------------------------------------------------ resources

    def _memory_resource(self, entry: Entry) -> Resource | None:
        settings = entry.settings
        assert isinstance(settings, MemoryResource)  # noqa: S101 - narrows the type; entries are made by kind
        unit = settings.unit.mib
        path = (*entry.path, "unit")
        too_small = [gpu for gpu in entry.gpus if gpu.memory_mib < unit]
        for gpu in too_small:
            self._problem(
                path, f"{settings.unit} found, but {_named(gpu)} has {gpu.memory_mib} MiB; use a unit it can hold"
            )
        size = list_size(entry.gpus, self._short_uuids, unit)
        if size > KUBELET_MESSAGE_LIMIT:
            smallest = type(settings.unit)(smallest_unit(entry.gpus, self._short_uuids))
            self._problem(
                path,
                f"{settings.unit} found; the list of units would take {size:,} bytes and the kubelet accepts "
                f"{KUBELET_MESSAGE_LIMIT:,}; the smallest unit that fits these GPUs is {smallest}",
            )
        if too_small or size > KUBELET_MESSAGE_LIMIT or not entry.gpus:
            return None
        shares = {gpu: memory_units(gpu, self._short_uuids[gpu.uuid], unit) for gpu in _in_order(entry.gpus)}
        return SharedMemory(settings.name, shares, settings.placement, self._injection)

    def _gpu_resources(self, entries: Sequence[Entry], taken: set[str]) -> list[Resource]:
        """Build the resources of time-sliced and of whole GPUs; both can stand under one name."""
        shares: dict[str, dict[Gpu, Sequence[Unit]]] = {}
        sliced: set[str] = set()
        for entry in entries:
            name, cut = self._replicas(entry)
            sliced.add(name)
            shares.setdefault(name, {}).update(cut)
        for gpu, name in self._offered.names.items():
            if gpu.uuid not in self._owners:
                shares.setdefault(name, {})[gpu] = [whole_unit(gpu)]
        return [self._gpu_resource(name, cut, taken, sliced=name in sliced) for name, cut in shares.items() if cut]

    def _replicas(self, entry: Entry) -> tuple[str, dict[Gpu, Sequence[Unit]]]:
        settings, time_slicing = entry.settings, self._config.sharing.time_slicing
        assert isinstance(settings, ReplicatedResource)  # noqa: S101 - narrows the type; entries are made by kind
        assert time_slicing is not None  # noqa: S101 - it holds the entry
        size = replica_list_size(entry.gpus, settings.replicas)
        if size > KUBELET_MESSAGE_LIMIT:
            self._problem(
                (*entry.path, "replicas"),
                f"{settings.replicas} found; the list of replicas would take {size:,} bytes and the kubelet accepts "
                f"{KUBELET_MESSAGE_LIMIT:,}; at most {most_replicas(entry.gpus)} for these GPUs",
            )
            return time_slicing.advertised_name(settings), {}
        return (
            time_slicing.advertised_name(settings),
            {gpu: replica_units(gpu, settings.replicas) for gpu in entry.gpus},
        )

    def _gpu_resource(self, name: str, cut: dict[Gpu, Sequence[Unit]], taken: set[str], *, sliced: bool) -> Resource:
        if name in taken:
            self._problem(
                ("sharing", "memory", "resources"),
                f"{shown(name)} is the name of memory units and of GPUs at once; give the memory entry another name",
            )
        shares = {gpu: cut[gpu] for gpu in _in_order(cut)}
        if not sliced:
            return WholeGpus(name, shares, self._inventory.closeness, self._injection)
        if any(len(units) == 1 for units in shares.values()):
            self._notices.append(
                f"{name} holds replicas and whole GPUs: a pod cannot tell which it gets; "
                "set rename (or renameByDefault) to tell them apart"
            )
        time_slicing = self._config.sharing.time_slicing
        rules = ReplicaRules(
            self._config.flags.plugin.shared_devices_allocation_policy,
            bool(time_slicing and time_slicing.fail_requests_greater_than_one),
        )
        return TimeSlicedGpus(name, shares, rules, self._injection)

    def _name(self, entry: Entry) -> str:
        return f"{self._describe(entry.path)} ({entry.settings.name})"

    def _problem(self, path: Path, message: str) -> None:
        self._problems.append(Problem(path, message))


def _in_order(gpus: Iterable[Gpu]) -> list[Gpu]:
    return sorted(gpus, key=lambda gpu: gpu.place)


def _named(gpu: Gpu) -> str:
    return f"GPU {gpu.label} ({gpu.uuid}, {gpu.product})"
