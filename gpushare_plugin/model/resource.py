"""One advertised resource: its units, and the rules for requests, whatever the way of sharing.

What makes one way different is two values: a chooser, which decides over counts, and a granter, which says what a
container gets.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from heapq import nsmallest
from operator import attrgetter

from gpushare_plugin.foundation.errors import PlacementError, RequestError
from gpushare_plugin.foundation.structs import Struct, field
from gpushare_plugin.foundation.text import some_of
from gpushare_plugin.model.choice.chooser import Chooser, Request
from gpushare_plugin.model.choice.pairing import Allocated, Role, held_elsewhere
from gpushare_plugin.model.choice.policies import Occupancy
from gpushare_plugin.model.gpu import Gpu
from gpushare_plugin.model.grant import UNKNOWN, AllocatedGpu, Allocation, Grant, Granter, Recipient
from gpushare_plugin.model.unit import Unit

UnitsByGpu = Mapping[Gpu, Sequence[Unit]]
"""GPUs and the units each is cut into."""

UnitsOf = Mapping[str, int]
"""How many units of each GPU, by its UUID."""

_IDS_IN_A_MESSAGE = 3


class Units(Mapping[str, Unit]):
    """Units by ID and by GPU, never changed: found once, however often the resource around them is replaced.

    `gpus` are their GPUs and `counts` the number of units of each, both by the GPU's UUID.
    """

    def __init__(self, by_gpu: UnitsByGpu) -> None:
        """Hold the units of each GPU."""
        self.by_gpu = by_gpu
        self.by_id: Mapping[str, Unit] = {unit.id: unit for units in by_gpu.values() for unit in units}
        self.gpus: Mapping[str, Gpu] = {gpu.uuid: gpu for gpu in by_gpu}
        self.counts: Mapping[str, int] = {gpu.uuid: len(units) for gpu, units in by_gpu.items()}

    def of(self, uuid: str) -> Sequence[Unit]:
        """Return the units of a GPU."""
        return self.by_gpu.get(self.gpus[uuid], ())

    def __getitem__(self, id_: str) -> Unit:
        """Return the unit that an ID names."""
        return self.by_id[id_]

    def __iter__(self) -> Iterator[str]:
        """Go over the IDs, GPU by GPU."""
        return iter(self.by_id)

    def __len__(self) -> int:
        """Return the number of units."""
        return len(self.by_id)


OF_THE_KUBELET = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 1.0, 10.0)
"""Seconds up to which calls of the kubelet are counted together; longer ones are counted beside them."""
OF_THE_SCHEDULER = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
"""The same of kube-scheduler's requests, for whose answers it waits 5 s unless it is told otherwise."""
OF_WAITING_PODS = (0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 300.0, 1800.0)
"""Seconds up to which the waits of pods are counted together: from an idle slice to a GPU that has to become free."""


class Durations(Struct, frozen=True):
    """How long calls took: `counts` by `bounds` (seconds), the last those beyond; `seconds` is their sum."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    seconds: float

    def plus(self, seconds: float) -> "Durations":
        """Return these and another one."""
        place = bisect_left(self.bounds, seconds)
        counts = tuple(count + (number == place) for number, count in enumerate(self.counts))
        return Durations(self.bounds, counts, self.seconds + seconds)


NO_WAITS = Durations(OF_WAITING_PODS, (0,) * (len(OF_WAITING_PODS) + 1), 0.0)


class Calls:
    """The calls that were answered, by their name and the code of the answer; to count one takes a microsecond."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        """Start without any; they are counted by these bounds, in seconds."""
        self._bounds = bounds
        self._counts: dict[tuple[str, str], list[int]] = {}
        self._seconds: dict[tuple[str, str], float] = {}

    def count(self, name: str, code: str, seconds: float) -> None:
        """Count one call."""
        key = name, code
        if key not in self._counts:
            self._counts[key], self._seconds[key] = [0] * (len(self._bounds) + 1), 0.0
        self._counts[key][bisect_left(self._bounds, seconds)] += 1
        self._seconds[key] += seconds

    @property
    def durations(self) -> Mapping[tuple[str, str], Durations]:
        """How long they took, by name and code."""
        return {key: Durations(self._bounds, tuple(counts), self._seconds[key]) for key, counts in self._counts.items()}


class Standing(Struct, frozen=True):
    """How a resource stands with the kubelet, and what was answered for it since it was offered.

    `registered` tells whether the kubelet that is there took our registration and watches the device list.
    `allocations` are the `Allocate` calls that were granted, `refusals` the calls refused, by their name; `calls` are
    all that were answered, by name and code of gRPC. `registrations` and `registration_failures` count attempts.
    """

    registered: bool
    allocations: int
    refusals: Mapping[str, int]
    calls: Mapping[tuple[str, str], Durations] = field(default_factory=dict)
    registrations: int = 0
    registration_failures: int = 0


class Resource(Struct, frozen=True, eq=False):
    """A resource as the kubelet sees it: a name and units, each on one GPU; never changed, only replaced.

    `unhealthy` holds the GPUs whose units must not be allocated, by UUID, each with the reason. `retired` are units
    that belong to the resource no more but must stay listed while a pod may hold them; they are never allocated.
    `withdrawn` are the IDs of units that are about to go: they are preferred only where nothing else works.
    With `single_gpu` no container gets units of several GPUs, even where a scheduler promised them.
    `role` is set where containers request memory and compute of a GPU separately; they get both from the same GPU.
    """

    # Compared by identity: going over thousands of units costs more than it would save.
    name: str
    units: Units
    chooser: Chooser
    granter: Granter
    unhealthy: Mapping[str, str] = field(default_factory=dict)
    retired: Mapping[str, Unit] = field(default_factory=dict)
    role: Role | None = None
    withdrawn: AbstractSet[str] = frozenset()
    single_gpu: bool = False

    @property
    def gpus(self) -> Mapping[str, Gpu]:
        """The GPUs by UUID."""
        return self.units.gpus

    @property
    def units_of(self) -> Mapping[str, int]:
        """The number of units of each GPU, by its UUID."""
        return self.units.counts

    def prefer(  # noqa: PLR0913 - what a choice depends on
        self,
        available: Collection[str],
        must_include: Collection[str],
        size: int,
        promises: Iterable[UnitsOf] = (),
        partner: Allocated | None = None,
        *,
        doubtful: AbstractSet[str] = frozenset(),
    ) -> list[str]:
        """Choose `size` units out of `available`, `must_include` among them.

        `partner` is what the container has of the other resource of a pair: the units are on the same GPUs. The first
        of `promises` that can be kept there says of which GPUs; where none can, the chooser does. Of the available,
        those that are `doubtful` may be held: they are chosen only where nothing else works. Raises
        RequestError for input that makes no sense and PlacementError when no choice can work.
        """
        if self.retired:
            available = [id_ for id_ in available if id_ not in self.retired]
        doubtful |= self.withdrawn
        free = self._known(available, "available")
        must = self._known(must_include, "must-include")
        if size < 1:
            raise RequestError(f"{self.name}: allocation size {size} found, at least 1 expected")
        if len(must) > size:
            raise RequestError(f"{self.name}: {len(must)} must-include units found for an allocation size of {size}")
        if missing := [id_ for id_ in must if id_ not in free]:
            raise RequestError(f"{self.name}: must-include units are not among the available: {_some(missing)}")
        by_gpu = _by_gpu(free.values())
        if partner is None:
            return self._pick(by_gpu, must, size, promises, doubtful)
        beside = {uuid: by_gpu[uuid] for uuid in by_gpu.keys() & partner.uuids}
        try:
            kept = [each for each in promises if each.keys() == partner.uuids]
            return self._pick(beside, must, size, kept, doubtful)
        except PlacementError as error:
            rest = ", ".join(f"{gpu.identity} has {len(by_gpu.get(gpu.uuid, ()))} free" for gpu in partner.gpus)
            raise PlacementError(f"{self.name}: {size} units requested, but {rest}; {partner}") from error

    def _pick(
        self,
        free: Mapping[str, Sequence[Unit]],
        must: Mapping[str, Unit],
        size: int,
        promises: Iterable[UnitsOf],
        doubtful: AbstractSet[str],
    ) -> list[str]:
        """Return `must`, and the lowest-numbered `free` units of the GPUs that a promise or the chooser names."""
        taken = {uuid: len(units) for uuid, units in _by_gpu(must.values()).items()}
        request = self._request(free, size, taken)
        kept = next((promise for promise in promises if _can_keep(promise, request)), None)
        chosen = list(must)
        for uuid, count in (kept or self._chosen_first(request, free, doubtful)).items():
            more = count - taken.get(uuid, 0)
            if more > 0:
                rest = [unit for unit in free[uuid] if unit.id not in must] if must else free[uuid]
                chosen += [unit.id for unit in _lowest(more, rest, doubtful)]
        return chosen

    def _request(self, free: Mapping[str, Sequence[Unit]], size: int, taken: UnitsOf) -> Request:
        occupancy = {
            uuid: Occupancy(gpu.index, 0 if uuid in self.unhealthy else len(free.get(uuid, ())), self.units_of[uuid])
            for uuid, gpu in self.gpus.items()
        }
        return Request(self.name, size, occupancy, taken)

    def _chosen_first(
        self, request: Request, free: Mapping[str, Sequence[Unit]], doubtful: AbstractSet[str]
    ) -> Mapping[str, int]:
        """Return what is chosen among units that are certainly free; where that does not work, among all."""
        if doubtful:
            certain = {uuid: [unit for unit in units if unit.id not in doubtful] for uuid, units in free.items()}
            try:
                return self.chooser.choose(self._request(certain, request.size, request.taken))
            except PlacementError:
                pass
        return self._chosen(request, free)

    def _chosen(self, request: Request, free: Collection[str]) -> Mapping[str, int]:
        try:
            return self.chooser.choose(request)
        except PlacementError as error:
            # The kubelet has not seen yet that these cannot be allocated, so the pod shows this message only.
            excluded = self._excluded(free)
            raise PlacementError(f"{error}; {excluded}" if excluded else str(error)) from error

    def listed(self, id_: str) -> Unit | None:
        """Return the unit that an ID names, retired ones included; None for an ID that is not listed."""
        return self.units.by_id.get(id_) or self.retired.get(id_)

    def gpus_of(self, ids: Iterable[str]) -> UnitsOf:
        """Return how many of these units each GPU has, retired ones included; what are no units is left out."""
        return Counter(unit.gpu for id_ in ids if (unit := self.listed(id_)))

    def allocated(self, ids: Collection[str]) -> Allocated | None:
        """Return what a container that holds exactly `ids` has of a pair of resources, None where this is of none."""
        if self.role is None:
            return None
        gpus = sorted((self.gpus[uuid] for uuid in self.gpus_of(ids)), key=attrgetter("place"))
        return Allocated(self.role, self.name, tuple(gpus), frozenset(ids))

    def allocate(self, ids: Collection[str], recipient: Recipient = UNKNOWN, partner: Allocated | None = None) -> Grant:
        """Return what a container of `recipient` that holds exactly `ids` gets, and `partner` of the other of a pair.

        The kubelet may have ignored the preferred units, so everything is checked again. Raises RequestError for IDs
        that are not this resource's and PlacementError for a set that cannot work.
        """
        held = _by_gpu(self._known(ids, "requested").values())
        if not held:
            raise RequestError(f"{self.name}: no device ID found in the request, at least one expected")
        if held.keys() & self.unhealthy.keys():
            raise PlacementError(f"{self.name}: {self._excluded(held)}")
        if partner is not None and held.keys() != partner.uuids:
            raise held_elsewhere(self.name, map(self.gpus.__getitem__, held), partner)
        gpus = [
            AllocatedGpu(self.gpus[uuid], len(units), self.units_of[uuid], sum([unit.mib for unit in units]))
            for uuid, units in held.items()
        ]
        gpus.sort(key=lambda allocated: allocated.gpu.place)
        return self.granter.grant(Allocation(self.name, tuple(gpus), frozenset(ids), recipient))

    def _known(self, ids: Collection[str], what: str) -> dict[str, Unit]:
        """Return the units of `ids`, which the kubelet sends by the thousand: they are gone over only once."""
        known = self.units.by_id
        try:
            units = {id_: known[id_] for id_ in ids}
        except KeyError:
            if retired := [id_ for id_ in ids if id_ in self.retired]:
                raise PlacementError(
                    f"{self.name}: {what} device IDs are retired, because the config or the GPUs of this node changed: "
                    f"{_some(retired)}; a new pod gets other IDs"
                ) from None
            unknown = [id_ for id_ in ids if id_ not in known]
            raise RequestError(
                f"{self.name}: {what} device IDs are not units of this resource: {_some(unknown)}"
            ) from None
        if len(units) != len(ids):
            raise RequestError(f"{self.name}: {what} device IDs contain the same ID more than once")
        return units

    def _excluded(self, uuids: Collection[str]) -> str:
        """Return which of these GPUs cannot be allocated, and why; empty where there is none."""
        reasons = [
            f"{gpu.identity} cannot be allocated: {self.unhealthy[uuid]}"
            for uuid, gpu in self.gpus.items()
            if uuid in uuids and uuid in self.unhealthy
        ]
        return "; ".join(reasons)


def _by_gpu(units: Iterable[Unit]) -> Mapping[str, list[Unit]]:
    """Return the units of each GPU that has one among `units`, by its UUID."""
    groups: defaultdict[str, list[Unit]] = defaultdict(list)
    for unit in units:
        groups[unit.gpu].append(unit)
    return groups


def _lowest(count: int, units: Iterable[Unit], doubtful: AbstractSet[str]) -> list[Unit]:
    """Return the lowest-numbered units, those that may be held last."""
    if not doubtful:
        return nsmallest(count, units, key=attrgetter("number"))
    return nsmallest(count, units, key=lambda unit: (unit.id in doubtful, unit.number))


def _can_keep(promise: UnitsOf, request: Request) -> bool:
    """Return whether a request can get exactly what was promised: there is room, and nothing is taken elsewhere."""
    return (
        sum(promise.values()) == request.size
        and all(uuid in request.gpus and units <= request.gpus[uuid].free for uuid, units in promise.items())
        and all(units <= promise.get(uuid, 0) for uuid, units in request.taken.items())
    )


def _some(ids: Sequence[str]) -> str:
    return some_of(ids, _IDS_IN_A_MESSAGE, lambda id_: repr(id_[:64]))
