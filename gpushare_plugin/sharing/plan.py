"""From settings and GPUs to resources: which GPU is shared in which way, and everything that is wrong with that."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gpushare_plugin.config.places import spelled
from gpushare_plugin.config.schema.sections import (
    AllDevices,
    Config,
    DeviceCount,
    DeviceList,
    MemoryResource,
    Mps,
    MpsResource,
    ReplicatedResources,
    SizedDevices,
    SliceSize,
    TimeSlicedResource,
)
from gpushare_plugin.config.spelling import shown
from gpushare_plugin.foundation.errors import MOST_PROBLEMS, Path, Problem
from gpushare_plugin.model.gpu import Gpu, Inventory
from gpushare_plugin.model.resource import Resource
from gpushare_plugin.model.unit import KUBELET_MESSAGE_LIMIT, Unit, short_uuids
from gpushare_plugin.sharing.exclusive import WholeGpus, whole_unit
from gpushare_plugin.sharing.injection import CONTROL_DEVICES, Injection
from gpushare_plugin.sharing.isolation import Layers
from gpushare_plugin.sharing.layers import EntrySettings, layers, under_mps
from gpushare_plugin.sharing.memory import SharedMemory, list_size, memory_units, smallest_unit
from gpushare_plugin.sharing.mig import offered
from gpushare_plugin.sharing.mps import MpsNeeds, UnderMps, enforces_limits, most_clients, why_not
from gpushare_plugin.sharing.sizes import GpuSlices, nominal_size, slice_units
from gpushare_plugin.sharing.time_slicing import (
    ReplicaRules,
    TimeSlicedGpus,
    most_replicas,
    replica_list_size,
    replica_units,
)

_MEMORY: Path = ("sharing", "memory", "resources")
_SIZES: Path = ("sharing", "mps", "sizes")


@dataclass(frozen=True, slots=True)
class Plan:
    """What a node will advertise, and what MPS needs for that. With any `problems`, nothing may be.

    `preloaded` are the GPUs whose containers the library of HAMi holds to their part, each with what that is.
    """

    resources: tuple[Resource, ...] = ()
    problems: tuple[Problem, ...] = ()
    notices: tuple[str, ...] = ()
    mps: MpsNeeds = field(default_factory=MpsNeeds)
    preloaded: Mapping[str, str] = field(default_factory=dict)

    @property
    def ways(self) -> dict[str, UnderMps | str]:
        """How GPUs are shared of which the units do not tell all, by UUID: parts of two ways can overlap."""
        return {**self.mps.gpus, **self.preloaded}


@dataclass(slots=True)
class Entry:
    """One entry of `sharing`: what it asks for, where it stands, and the GPUs it gets."""

    path: Path
    settings: EntrySettings
    candidates: tuple[Gpu, ...]
    gpus: list[Gpu] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The resource an entry is about, or all of them."""
        if isinstance(self.settings, SizedDevices):
            return ", ".join(each.name for each in self.settings.slices)
        return self.settings.name


def plan(
    config: Config,
    inventory: Inventory,
    control_devices: tuple[str, ...] = CONTROL_DEVICES,
    describe: Callable[[Path], str] = spelled,
    *,
    cgpu_disabled: bool = False,
) -> Plan:
    """Decide what `config` means for the GPUs of `inventory`; never raises, finds all problems at once.

    Of more than MOST_PROBLEMS it finds one more than that.

    `describe` tells people where a setting stands; `cgpu_disabled` is the node label `cgpu.disable.isolation`.
    """
    return _Planner(config, inventory, control_devices, describe, cgpu_disabled=cgpu_disabled).plan()


class _TooManyProblemsError(Exception):
    """More is wrong than is told."""


class _Planner:
    def __init__(
        self,
        config: Config,
        inventory: Inventory,
        control_devices: tuple[str, ...],
        describe: Callable[[Path], str],
        *,
        cgpu_disabled: bool,
    ) -> None:
        self._config = config
        self._cgpu_disabled = cgpu_disabled
        self._describe = describe
        self._inventory = inventory
        self._injection = Injection(config.flags, control_devices)
        self._offered = offered(inventory, config.flags.mig_strategy, config.resources)
        self._short_uuids = short_uuids(gpu.uuid for gpu in inventory.gpus)
        self._owners: dict[str, Entry] = {}
        self._problems: list[Problem] = []
        self._notices: list[str] = list(self._offered.notices)

    def plan(self) -> Plan:
        try:
            return self._plan()
        except _TooManyProblemsError:
            return Plan(problems=tuple(self._problems))

    def _plan(self) -> Plan:
        self._refuse_unserved()
        memory, sized, replicated = self._memory_entries(), self._sized_entries(), self._replicated_entries()
        entries = [*memory, *sized, *replicated]
        self._select(entries)
        needs = self._mps_needs([entry for entry in entries if under_mps(entry.settings)])
        resources = [resource for entry in memory if (resource := self._memory_resource(entry))]
        taken: dict[str, Path] = dict.fromkeys((resource.name for resource in resources), _MEMORY)
        sizes = self._size_resources(sized)
        taken |= dict.fromkeys((resource.name for resource in sizes), _SIZES)
        resources += [*sizes, *self._gpu_resources(replicated, taken)]
        return Plan(tuple(resources), tuple(self._problems), tuple(self._notices), needs, _preloaded(entries))

    # ------------------------------------------------------------------ entries and the GPUs they can choose from

    def _refuse_unserved(self) -> None:
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
        entries = memory.resources if memory else ()
        return [Entry((*_MEMORY, index), settings, tuple(gpus)) for index, settings in enumerate(entries)]

    def _sized_entries(self) -> list[Entry]:
        mps = self._config.sharing.mps
        entries = mps.sizes if mps else ()
        return [Entry((*_SIZES, index), settings, self._inventory.gpus) for index, settings in enumerate(entries)]

    def _replicated_entries(self) -> list[Entry]:
        sharing = self._config.sharing
        entries = []
        for key, section in (("timeSlicing", sharing.time_slicing), ("mps", sharing.mps)):
            resources: Sequence[TimeSlicedResource | MpsResource] = section.resources if section else ()
            for index, settings in enumerate(resources):
                gpus = tuple(gpu for gpu, name in self._offered.names.items() if name == settings.name)
                if gpus:
                    entries.append(Entry(("sharing", key, "resources", index), settings, gpus))
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
        return SharedMemory(settings.name, shares, settings.placement, self._injection, self._layers(entry))

    def _size_resources(self, entries: Sequence[Entry]) -> list[Resource]:
        """Build one resource for each size; several entries, and several sizes of one GPU, can have a part in it."""
        shares: dict[SliceSize, dict[Gpu, Sequence[Unit]]] = {}
        by_name: dict[SliceSize, tuple[str, Layers]] = {}
        for entry in entries:
            settings = entry.settings
            assert isinstance(settings, SizedDevices)  # noqa: S101 - narrows the type; entries are made by kind
            for gpu in entry.gpus:
                self._refuse_too_much(entry, settings, gpu)
                for each in settings.slices:
                    by_name[each.size] = (each.name, self._layers(entry))
                    units = slice_units(gpu, self._short_uuids[gpu.uuid], each.size, each.count)
                    shares.setdefault(each.size, {})[gpu] = units
        return [
            GpuSlices(
                name, size, {gpu: shares[size][gpu] for gpu in _in_order(shares[size])}, self._injection, isolation
            )
            for size, (name, isolation) in sorted(by_name.items())
        ]

    def _refuse_too_much(self, entry: Entry, settings: SizedDevices, gpu: Gpu) -> None:
        total, nominal = sum(each.size.parts * each.count for each in settings.slices), nominal_size(gpu)
        if total > nominal:
            asked = " + ".join(f"{each.count} x {each.size}" for each in settings.slices)
            self._problem(
                (*entry.path, "slices"),
                f"{asked} = {total}gb found, but {_named(gpu)} has {nominal}gb, its {gpu.memory_mib} MiB rounded up to "
                "GiB; take smaller or fewer slices",
            )

    def _gpu_resources(self, entries: Sequence[Entry], taken: Mapping[str, Path]) -> list[Resource]:
        """Build the resources of replicated and of whole GPUs; both can stand under one name."""
        shares: dict[str, dict[Gpu, Sequence[Unit]]] = {}
        replicated: dict[str, Entry] = {}
        for entry in entries:
            name, cut = self._replicas(entry)
            replicated[name] = entry
            shares.setdefault(name, {}).update(cut)
        for gpu, name in self._offered.names.items():
            if gpu.uuid not in self._owners:
                shares.setdefault(name, {})[gpu] = [whole_unit(gpu)]
        return [self._gpu_resource(name, cut, taken, replicated.get(name)) for name, cut in shares.items() if cut]

    def _replicas(self, entry: Entry) -> tuple[str, dict[Gpu, Sequence[Unit]]]:
        settings = entry.settings
        assert isinstance(settings, (TimeSlicedResource, MpsResource))  # noqa: S101 - entries are made by kind
        name = self._section(settings).advertised_name(settings)
        size = replica_list_size(entry.gpus, settings.replicas)
        if size > KUBELET_MESSAGE_LIMIT:
            self._problem(
                (*entry.path, "replicas"),
                f"{settings.replicas} found; the list of replicas would take {size:,} bytes and the kubelet accepts "
                f"{KUBELET_MESSAGE_LIMIT:,}; at most {most_replicas(entry.gpus)} for these GPUs",
            )
            return name, {}
        return name, {gpu: replica_units(gpu, settings.replicas) for gpu in entry.gpus}

    def _gpu_resource(
        self, name: str, cut: dict[Gpu, Sequence[Unit]], taken: Mapping[str, Path], entry: Entry | None
    ) -> Resource:
        """Build the resource `name`; `entry` is the one that replicates GPUs under that name, if there is one."""
        if name in taken:
            self._problem(
                taken[name],
                f"{shown(name)} is the name of pieces of memory and of GPUs at once; give one of them another name",
            )
        shares = {gpu: cut[gpu] for gpu in _in_order(cut)}
        if entry is None:
            return WholeGpus(name, shares, self._inventory.closeness, self._injection)
        if any(len(units) == 1 for units in shares.values()):
            self._notices.append(
                f"{name} holds replicas and whole GPUs: a pod cannot tell which it gets; "
                "set rename (or renameByDefault) to tell them apart"
            )
        section = self._section(entry.settings)
        refuse_several = section.fail_requests_greater_than_one
        rules = ReplicaRules(
            self._config.flags.plugin.shared_devices_allocation_policy,
            isinstance(section, Mps) if refuse_several is None else refuse_several,
        )
        return TimeSlicedGpus(name, shares, rules, self._injection, self._layers(entry))

    def _section(self, settings: EntrySettings) -> ReplicatedResources:
        """Return the section that holds an entry of replicas."""
        sharing = self._config.sharing
        section = sharing.mps if isinstance(settings, MpsResource) else sharing.time_slicing
        assert section is not None  # noqa: S101 - it holds the entry
        return section

    # ------------------------------------------------------------------ isolation

    def _layers(self, entry: Entry) -> Layers:
        return layers(entry.settings, self._config, cgpu_disabled=self._cgpu_disabled)

    def _mps_needs(self, entries: Sequence[Entry]) -> MpsNeeds:
        """Return what MPS must be told for the GPUs of `entries`, and say what it cannot do for them."""
        gpus: dict[str, UnderMps] = {}
        percentages: set[int | None] = set()
        for entry in entries:
            self._check_mps(entry)
            replicas = entry.settings.replicas if isinstance(entry.settings, MpsResource) else None
            gpus |= {gpu.uuid: UnderMps(gpu.memory_mib // replicas if replicas else None) for gpu in entry.gpus}
            if entry.gpus:
                percentages.add(100 // replicas if replicas else None)
        return MpsNeeds(gpus, percentages.pop() if len(percentages) == 1 else None)

    def _check_mps(self, entry: Entry) -> None:
        crowded, unlimited = [], []
        for gpu in entry.gpus:
            clients, key = _mps_clients(entry.settings, gpu)
            if reason := why_not(gpu):
                self._problem((*entry.path, "devices"), f"{_named(gpu)} {reason}")
            elif clients > most_clients(gpu) and key:
                self._problem(
                    (*entry.path, key),
                    f"{clients} containers could share {_named(gpu)}, and MPS serves {most_clients(gpu)} clients there",
                )
            elif clients > most_clients(gpu):
                crowded.append(f"GPU {gpu.label} ({most_clients(gpu)})")
            if not enforces_limits(gpu):
                unlimited.append(gpu.label)
        if crowded:
            self._notices.append(
                f"{self._name(entry)}: more units than MPS serves clients, on {', '.join(crowded)}: processes beyond "
                "that number cannot use the GPU; larger units, or pods that take several, avoid it"
            )
        if unlimited:
            self._notices.append(
                f"{self._name(entry)}: MPS limits neither memory nor compute before compute capability 7.0, as on GPU "
                f"{', '.join(unlimited)}"
            )

    def _name(self, entry: Entry) -> str:
        return f"{self._describe(entry.path)} ({entry.name})"

    def _problem(self, path: Path, message: str) -> None:
        self._problems.append(Problem(path, message))
        if len(self._problems) > MOST_PROBLEMS:
            raise _TooManyProblemsError


def _in_order(gpus: Iterable[Gpu]) -> list[Gpu]:
    return sorted(gpus, key=lambda gpu: gpu.place)


def _preloaded(entries: Iterable[Entry]) -> dict[str, str]:
    ways: dict[str, str] = {}
    for entry in entries:
        match entry.settings:
            case MemoryResource(isolation="hami-core"):
                ways |= dict.fromkeys((gpu.uuid for gpu in entry.gpus), "hami-core")
            case TimeSlicedResource(isolation="hami-core", replicas=replicas):
                ways |= dict.fromkeys((gpu.uuid for gpu in entry.gpus), f"hami-core, 1/{replicas}")
    return ways


def _named(gpu: Gpu) -> str:
    return f"GPU {gpu.label} ({gpu.uuid}, {gpu.product})"


def _mps_clients(settings: EntrySettings, gpu: Gpu) -> tuple[int, str]:
    """Return how many containers could share `gpu`, and the key that says so where each container counts as one."""
    match settings:
        case MemoryResource(unit=unit):
            return gpu.memory_mib // unit.mib, ""
        case SizedDevices(slices=slices):
            return sum(each.count for each in slices), "slices"
        case _:
            return settings.replicas, "replicas"
