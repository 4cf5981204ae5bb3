"""An advertised resource: its units, and the rules for requests, whatever the way of sharing.

Two values make the difference between ways of sharing: a chooser, which decides over counts of units, and a granter,
which decides what a container gets.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from heapq import nsmallest
from operator import attrgetter

from gpushare_plugin.base.errors import PlacementError, RequestError
from gpushare_plugin.base.structs import Struct, field
from gpushare_plugin.base.text import some_of
from gpushare_plugin.core.chooser import Chooser, Request
from gpushare_plugin.core.gpu import Gpu
from gpushare_plugin.core.grant import UNKNOWN, AllocatedGpu, Allocation, Grant, Granter, Recipient
from gpushare_plugin.core.pairing import Allocated, Role, held_elsewhere
from gpushare_plugin.core.policies import UnitCounts
from gpushare_plugin.core.unit import Unit

UnitsByGpu = Mapping[Gpu, Sequence[Unit]]
"""The units of every GPU."""

UnitsOf = Mapping[str, int]
"""A number of units by the UUID of the GPU."""

_IDS_IN_A_MESSAGE = 3


class Units(Mapping[str, Unit]):
    """Units by ID and by GPU, never changed; a new resource with the same units keeps the same object.

    `gpus` are the GPUs and `counts` the numbers of their units, both by the UUID of the GPU.
    """

    def __init__(self, by_gpu: UnitsByGpu) -> None:
        """Hold the units `by_gpu`."""
        self.by_gpu = by_gpu
        self.by_id: Mapping[str, Unit] = {unit.id: unit for units in by_gpu.values() for unit in units}
        self.gpus: Mapping[str, Gpu] = {gpu.uuid: gpu for gpu in by_gpu}
        self.counts: Mapping[str, int] = {gpu.uuid: len(units) for gpu, units in by_gpu.items()}

    def of(self, uuid: str) -> Sequence[Unit]:
        """Return the units of the GPU `uuid`."""
        return self.by_gpu.get(self.gpus[uuid], ())

    def __getitem__(self, id_: str) -> Unit:
        """Return the unit named by an ID."""
        return self.by_id[id_]

    def __iter__(self) -> Iterator[str]:
        """Go over the IDs, GPU by GPU."""
        return iter(self.by_id)

    def __len__(self) -> int:
        """Return the number of units."""
        return len(self.by_id)


class Durations(Struct, frozen=True):
    """The durations of calls, as a histogram."""

    bounds: tuple[float, ...]
    """The upper bounds of the buckets in seconds, in ascending order."""
    counts: tuple[int, ...]
    """The number of calls in every bucket; the last number counts calls beyond all bounds."""
    seconds: float
    """The sum of the durations of all calls in seconds."""


class Standing(Struct, frozen=True):
    """The standing of a resource with the kubelet, and the calls answered since the beginning of the offer."""

    registered: bool
    """Whether the present kubelet accepted the registration and watches the device list."""
    allocations: int
    """The number of granted `Allocate` calls."""
    refusals: Mapping[str, int]
    """The number of refused calls, by the name of the call."""
    calls: Mapping[tuple[str, str], Durations] = field(default_factory=dict)
    """The durations of all answered calls, by the name of the call and the gRPC code."""
    registrations: int = 0
    """The number of registrations accepted by the kubelet."""
    registration_failures: int = 0
    """The number of failed attempts to register."""


class Resource(Struct, frozen=True, eq=False):
    """A resource for the kubelet: a name and units on GPUs; never changed, only replaced."""

    # Compared by identity: a comparison of thousands of units costs more than it would save.
    name: str
    """The name of the resource."""
    units: Units
    """The offered units, also of unhealthy GPUs."""
    chooser: Chooser
    """Decides which GPUs a request gets units of."""
    granter: Granter
    """Decides what a container with units gets."""
    unhealthy: Mapping[str, str] = field(default_factory=dict)
    """The GPUs whose units must not be allocated, by UUID, with the reason."""
    retired: Mapping[str, Unit] = field(default_factory=dict)
    """Units outside the offer by ID, listed only while a pod may hold the unit; never allocated."""
    role: Role | None = None
    """Memory or compute, where containers request both separately and get both from the same GPU; None elsewhere."""
    withdrawn: AbstractSet[str] = frozenset()
    """The IDs of units about to go, preferred only where no other choice works."""
    single_gpu: bool = False
    """Whether no container gets units of several GPUs, not even by a scheduler's promise."""

    @property
    def gpus(self) -> Mapping[str, Gpu]:
        """The GPUs by UUID."""
        return self.units.gpus

    @property
    def units_of(self) -> Mapping[str, int]:
        """The number of units of every GPU, by UUID."""
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
        """Choose `size` units out of `available`, with all units of `must_include`.

        The first of `promises` that can be kept decides the GPUs; without a promise to keep, the chooser decides.
        `partner` is the container's allocation of the other resource of a pair: then all units are on the GPUs of
        `partner`. `doubtful` units may be held already and are chosen only where no other choice works. Raises
        RequestError for input without sense, and PlacementError where no choice works.
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
        """Return `must` and the lowest-numbered `free` units of the GPUs named by a promise or by the chooser."""
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
        counts = {
            uuid: UnitCounts(gpu.index, 0 if uuid in self.unhealthy else len(free.get(uuid, ())), self.units_of[uuid])
            for uuid, gpu in self.gpus.items()
        }
        return Request(self.name, size, counts, taken)

    def _chosen_first(
        self, request: Request, free: Mapping[str, Sequence[Unit]], doubtful: AbstractSet[str]
    ) -> Mapping[str, int]:
        """Return the choice among certainly free units or, where that fails, among all `free` units."""
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
            # The kubelet has not seen yet that units of unhealthy GPUs cannot be allocated. The pod shows only this
            # message, so the message names the GPUs and the reasons.
            excluded = self._excluded(free)
            raise PlacementError(f"{error}; {excluded}" if excluded else str(error)) from error

    def listed(self, id_: str) -> Unit | None:
        """Return the unit named by an ID, also a retired unit; None for an ID that is not listed."""
        return self.units.by_id.get(id_) or self.retired.get(id_)

    def gpus_of(self, ids: Iterable[str]) -> UnitsOf:
        """Return the number of units in `ids` by GPU, retired units included; IDs that are not listed are left out."""
        return Counter(unit.gpu for id_ in ids if (unit := self.listed(id_)))

    def allocated(self, ids: Collection[str]) -> Allocated | None:
        """Return the allocation of a container with exactly `ids` for the pair of resources; None without a pair."""
        if self.role is None:
            return None
        gpus = sorted((self.gpus[uuid] for uuid in self.gpus_of(ids)), key=attrgetter("place"))
        return Allocated(self.role, self.name, tuple(gpus), frozenset(ids))

    def allocate(self, ids: Collection[str], recipient: Recipient = UNKNOWN, partner: Allocated | None = None) -> Grant:
        """Return the grant for a container of `recipient` with exactly `ids` and, from a paired resource, `partner`.

        The kubelet may have ignored the preferred units, so everything is checked again. Raises RequestError for IDs of
        no unit of the resource, and PlacementError for a set of units that cannot work.
        """
        held = _by_gpu(self._known(ids, "requested").values())
        if not held:
            raise RequestError(f"{self.name}: no device ID found in the request, at least one expected")
        if held.keys() & self.unhealthy.keys():
            raise PlacementError(f"{self.name}: {self._excluded(held)}")
        if partner is not None and held.keys() != partner.uuids:
            raise held_elsewhere(self.name, map(self.gpus.__getitem__, held), partner)
        return self._grant(held, ids, recipient)

    def granted(self, ids: Collection[str]) -> Grant | None:
        """Return the grant of a container that has exactly `ids` already; None if the units are no longer offered."""
        if not ids or not all(id_ in self.units.by_id for id_ in ids):
            return None
        try:
            return self._grant(_by_gpu(self.units.by_id[id_] for id_ in ids), ids, Recipient(promised=True))
        except PlacementError:  # the config has changed since
            return None

    def _grant(self, held: Mapping[str, Sequence[Unit]], ids: Collection[str], recipient: Recipient) -> Grant:
        """Return the grant for the units `held` by GPU, whose IDs are `ids`; raises PlacementError."""
        gpus = [
            AllocatedGpu(self.gpus[uuid], len(units), self.units_of[uuid], sum([unit.mib for unit in units]))
            for uuid, units in held.items()
        ]
        gpus.sort(key=lambda allocated: allocated.gpu.place)
        return self.granter.grant(Allocation(self.name, tuple(gpus), frozenset(ids), recipient))

    def _known(self, ids: Collection[str], what: str) -> dict[str, Unit]:
        """Return the units of `ids` in one pass, because the kubelet sends thousands; `what` names `ids` in errors.

        Raises PlacementError for retired units, and RequestError for other IDs without a unit and for repeated IDs.
        """
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
        """Return, in words, the GPUs among `uuids` that cannot be allocated, with the reasons; empty without a GPU."""
        reasons = [
            f"{gpu.identity} cannot be allocated: {self.unhealthy[uuid]}"
            for uuid, gpu in self.gpus.items()
            if uuid in uuids and uuid in self.unhealthy
        ]
        return "; ".join(reasons)


def _by_gpu(units: Iterable[Unit]) -> Mapping[str, list[Unit]]:
    """Return `units` grouped by the UUID of their GPU."""
    groups: defaultdict[str, list[Unit]] = defaultdict(list)
    for unit in units:
        groups[unit.gpu].append(unit)
    return groups


def _lowest(count: int, units: Iterable[Unit], doubtful: AbstractSet[str]) -> list[Unit]:
    """Return the `count` lowest-numbered units; doubtful units come last."""
    if not doubtful:
        return nsmallest(count, units, key=attrgetter("number"))
    return nsmallest(count, units, key=lambda unit: (unit.id in doubtful, unit.number))


def _can_keep(promise: UnitsOf, request: Request) -> bool:
    """Return whether a request can get exactly the promised units: all are free, and none is taken on another GPU."""
    return (
        sum(promise.values()) == request.size
        and all(uuid in request.gpus and units <= request.gpus[uuid].free for uuid, units in promise.items())
        and all(units <= promise.get(uuid, 0) for uuid, units in request.taken.items())
    )


def _some(ids: Sequence[str]) -> str:
    return some_of(ids, _IDS_IN_A_MESSAGE, lambda id_: repr(id_[:64]))
