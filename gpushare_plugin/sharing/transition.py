"""The transition from the current offer of a node to the wanted offer, without taking any unit from a pod.

The kubelet forgets an allocated ID that vanishes from a device list, and then hands the GPU out twice. So an unwanted
unit is *retired*: the unit stays listed, Unhealthy, until the kubelet shows that no pod holds the unit. If the way of
sharing a GPU changes, the GPU gets no new unit until all units of the old way are gone. Slices are one way, whatever
their sizes: new slices come beside retired slices as far as the GPU has room for both.

Units retired together stay together: thousands of units are compared as sets of IDs, and no single unit is visited
while no unit is free.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import chain
from operator import is_
from typing import NamedTuple, NoReturn

from gpushare_plugin.base.errors import PlacementError
from gpushare_plugin.base.structs import Struct, field, replace
from gpushare_plugin.core.chooser import Request
from gpushare_plugin.core.gpu import Gpu
from gpushare_plugin.core.grant import Allocation
from gpushare_plugin.core.holding import Confirmed, Holding
from gpushare_plugin.core.resource import Resource, Units, UnitsByGpu
from gpushare_plugin.core.unit import KUBELET_MESSAGE_LIMIT, Form, Unit, listed_size
from gpushare_plugin.sharing.isolation.layer import Mode
from gpushare_plugin.sharing.isolation.mps import room_of
from gpushare_plugin.slices.room import fitting

MINIMUM_RETIRED_SECONDS = 2.0
"""The least time in seconds for a retired unit to stay listed.

No record of the kubelet shows the units of an `Allocate` call just answered.
"""

_Kind = tuple[str, Form, Mode]
"""The kind of units on a GPU: the resource, the form of the units, and the mode of the GPU."""


class WantedOffer(Struct, frozen=True):
    """The offer that a node should list."""

    resources: tuple[Resource, ...]
    """The resources to list."""
    modes: Mapping[str, Mode] = field(default_factory=dict)
    """The modes of shared GPUs by UUID, for GPUs with a mode that the units alone do not show."""
    parts: Mapping[str, str] = field(default_factory=dict)
    """The card of each MIG instance, both by UUID: a card is never allocated beside its MIG instances."""
    served: frozenset[str] = frozenset()
    """The names of further resources to serve while they have retired units, since nobody else serves them."""

    @property
    def gpus(self) -> dict[str, int | None]:
        """The NUMA nodes of the GPUs, by GPU UUID."""
        return {gpu.uuid: gpu.numa_node for resource in self.resources for gpu in resource.units.by_gpu}

    @property
    def kinds(self) -> dict[str, set[_Kind]]:
        """The kinds of the units on each GPU, by GPU UUID."""
        kinds: dict[str, set[_Kind]] = {}
        for resource in self.resources:
            for gpu, units in resource.units.by_gpu.items():
                first = ((resource.name, unit.form, self.modes.get(gpu.uuid)) for unit in units[:1])
                kinds.setdefault(gpu.uuid, set()).update(first)
        return kinds


class Retired(Struct, frozen=True):
    """Retired units of one GPU, all of one kind."""

    resource: str
    """The name of the resource of the units."""
    gpu: str
    """The UUID of the GPU, or the part of the UUID in the IDs of the units if the GPU is unknown."""
    units: Mapping[str, Unit]
    """The units by ID."""
    since: float
    """The time when the units were retired, in seconds of any clock."""
    mode: Mode = None
    """The mode in which the units share the GPU."""
    listed: bool = True
    """Whether the units are in the device list of the resource.

    Units held at the start of the daemon stay unlisted until gpushare serves their resource: before that, another
    plugin may serve the resource. The GPU waits for unlisted units as well.
    """

    @property
    def first(self) -> Unit:
        """The first of the units."""
        return next(iter(self.units.values()))

    @property
    def kind(self) -> _Kind:
        """The kind of the units."""
        return self.resource, self.first.form, self.mode


class Waiting(Struct, frozen=True):
    """A GPU that waits for new units until retired units are gone."""

    gpu: str
    """The UUID of the GPU."""
    units: frozenset[str]
    """The IDs of the retired units that must go first."""


class Offer(Struct, frozen=True):
    """The current offer of a node."""

    resources: Mapping[str, Resource] = field(default_factory=dict)
    """The listed resources by name."""
    retired: tuple[Retired, ...] = ()
    """The retired units."""
    wanted: WantedOffer = field(default_factory=lambda: WantedOffer(()))
    """The last wanted offer; its `modes` are the modes of the allocatable units."""
    waiting: tuple[Waiting, ...] = ()
    """The GPUs that cannot be shared as wanted yet."""

    @property
    def modes_in_use(self) -> dict[str, Mode]:
        """The mode of each shared GPU by UUID; a waiting GPU still has the old mode."""
        # A GPU without any units is ready for its first units, so the wanted mode counts.
        return (
            dict(self.wanted.modes)
            | {each.gpu: each.mode for each in self.retired}
            | {gpu: self.wanted.modes.get(gpu) for resource in self.resources.values() for gpu in resource.gpus}
        )


def resumed(held: Iterable[Holding], gpus: Sequence[Gpu], modes: Mapping[str, Mode], now: float) -> Offer:
    """Return the first offer after a restart: all units that containers may hold are retired, and unlisted.

    `modes` holds the modes before the restart, by GPU UUID. `advance` takes retired units back if they are wanted.
    """
    # An unresponsive GPU with a mode before the restart has its UUID in `modes`, which identifies the units of the GPU.
    known = dict.fromkeys(modes) | {gpu.uuid: gpu.numa_node for gpu in gpus}
    groups: defaultdict[tuple[_Kind, str], dict[str, Unit]] = defaultdict(dict)
    for each in held:
        for unit in each.units(known):
            groups[(each.resource, unit.form, modes.get(unit.gpu)), unit.gpu][unit.id] = unit
    retired = (
        Retired(name, gpu, {id_: units[id_] for id_ in sorted(units)}, now, mode, listed=False)
        for ((name, _, mode), gpu), units in groups.items()
    )
    return Offer(retired=tuple(sorted(retired, key=lambda each: (each.resource, each.first.id))))


def advance(offer: Offer, wanted: WantedOffer, held: Confirmed | None, now: float) -> tuple[Offer, tuple[Waiting, ...]]:
    """Return the next offer on the way to `wanted`, and the waiting GPUs; call again while units are retired.

    `held` holds all units of containers, confirmed by the kubelet. Without confirmation, `held` is None and no unit is
    dropped. `now` is the time in seconds, of the same clock in every call.
    """
    stay: Mapping[str, Collection[str]]
    if wanted == offer.wanted:
        # All offered units are wanted, and no retired unit is wanted: only new holdings can change the offer.
        before, known = offer.retired, offer.resources
        stay = {name: resource.units.by_id.keys() for name, resource in offer.resources.items()}
    else:
        before, stay = _retire(offer, wanted, now)
        known = {}
    retired = tuple(left for each in before if (left := _held(each, held)))
    if known is offer.resources and len(retired) == len(before) and all(map(is_, retired, before)):
        return offer, offer.waiting  # no more to do, also for a card that fails or recovers
    limits = _limits(retired, wanted, stay)
    resources, too_long = _resources(wanted, retired, stay, limits, known)
    limited = {gpu: limit.until for gpu, limit in limits.items()}
    waiting = tuple(Waiting(gpu, ids) for gpu, ids in (limited | too_long).items())
    return Offer(resources, retired, wanted, waiting), waiting


def _retire(offer: Offer, wanted: WantedOffer, now: float) -> tuple[tuple[Retired, ...], dict[str, set[str]]]:
    """Return the unwanted units among listed and retired units, and the IDs of the wanted units by resource."""
    resources = {resource.name: resource for resource in wanted.resources}
    names = resources.keys() | wanted.served
    stay: dict[str, set[str]] = defaultdict(set)
    retired = []
    for each in (*_listed(offer, now), *(_served(each, names) for each in offer.retired)):
        same = _same(each, resources.get(each.resource), wanted.modes)
        stay[each.resource] |= same
        if left := _only(each, each.units.keys() - same if same else each.units.keys()):
            retired.append(left)
    return tuple(retired), stay


def _same(retired: Retired, resource: Resource | None, modes: Mapping[str, Mode]) -> AbstractSet[str]:
    """Return the IDs of retired units that `resource` has as well, in the same mode."""
    same = retired.units.keys() & resource.units.by_id.keys() if resource else frozenset[str]()
    if resource and same and modes.get(resource.units[next(iter(same))].gpu) != retired.mode:
        return frozenset()
    return same


def _only(retired: Retired, ids: AbstractSet[str]) -> Retired | None:
    """Return the retired units with an ID in `ids`: the same object if all units match, None if no unit matches."""
    if retired.units.keys() <= ids:
        return retired
    units = {id_: unit for id_, unit in retired.units.items() if id_ in ids}
    return replace(retired, units=units) if units else None


class _Postponed(NamedTuple):
    """A GPU with new units that must wait for retired units."""

    until: frozenset[str]
    """The IDs of the retired units to wait for."""
    come: frozenset[str] = frozenset()
    """The IDs of the new units that need not wait."""


def _limits(
    retired: Iterable[Retired], wanted: WantedOffer, stay: Mapping[str, Collection[str]]
) -> dict[str, _Postponed]:
    """Return the GPUs, by UUID, with wanted units that cannot be listed beside the retired units yet."""
    limits: dict[str, _Postponed] = {}
    kinds = wanted.kinds
    for gpu, beside in _beside(retired, wanted).items():
        if gpu not in kinds:
            continue
        if blocking := [each for each in beside if _blocks(each, kinds[gpu])]:
            limits[gpu] = _Postponed(_ids(blocking))
        elif slices := [each for each in beside if each.first.form.slice]:
            new, come = _new_slices(gpu, slices, wanted, stay)
            if len(come) < len(new):
                limits[gpu] = _Postponed(_ids(slices), come)
    return limits


def _beside(retired: Iterable[Retired], wanted: WantedOffer) -> dict[str, list[Retired]]:
    """Return the retired units on each GPU, by GPU UUID.

    Units on a card count for each MIG instance of the card, and units on an instance count for the card.
    """
    beside: dict[str, list[Retired]] = defaultdict(list)
    gpus = dict.fromkeys(wanted.parts.values()) | wanted.gpus
    for each in retired:
        gpu = each.first.on(gpus).gpu  # the card may have been missing when the kubelet showed the held unit
        for concerned in (gpu, *_overlapping(gpu, wanted.parts)):
            beside[concerned].append(each)
    return beside


def _ids(retired: Iterable[Retired]) -> frozenset[str]:
    return frozenset(chain.from_iterable(each.units for each in retired))


def _new_slices(
    uuid: str, retired: Iterable[Retired], wanted: WantedOffer, stay: Mapping[str, Collection[str]]
) -> tuple[list[Unit], frozenset[str]]:
    """Return the new slices wanted of a GPU, all outside of `stay`, and the IDs of the new slices with room now."""
    resources = [each for each in wanted.resources if uuid in each.gpus]
    units = [(unit, unit.id in stay.get(each.name, ())) for each in resources for unit in each.units.of(uuid)]
    new = [unit for unit, stays in units if not stays]
    there = {unit.id: unit for unit, stays in units if stays}
    for each in retired:
        there.update(each.units)
    sizes = [unit.form.slice.name for unit in there.values() if unit.form.slice]
    taken = {(unit.form.slice, unit.number) for unit in there.values()}
    coming = sorted(
        (size.gib, unit.number, size.name, unit.id)
        for unit in new
        if (size := unit.form.slice) is not None and (size, unit.number) not in taken
    )
    # Small slices come first: where a slice has no room, no larger slice has room. So the first slices of `coming` fit.
    fit = fitting(room_of(resources[0].gpus[uuid]), sizes, [name for _, _, name, _ in coming])
    return new, frozenset(id_ for *_, id_ in coming[: len(fit)])


def _overlapping(gpu: str, parts: Mapping[str, str]) -> list[str]:
    """Return the MIG instances of a card, or the card of a MIG instance."""
    return [parts[gpu]] if gpu in parts else [part for part, card in parts.items() if card == gpu]


def _resources(
    wanted: WantedOffer,
    retired: Iterable[Retired],
    stay: Mapping[str, Collection[str]],
    limits: Mapping[str, _Postponed],
    known: Mapping[str, Resource],
) -> tuple[dict[str, Resource], dict[str, frozenset[str]]]:
    """Return the resources to list: units that `stay`, new units within the `limits` of their GPUs, and retired units.

    If the kubelet would reject a list as too long, the new units in the list wait as well: also return the UUIDs of the
    GPUs of waiting units, with the IDs of the retired units to wait for. `known` holds the listed resources if the same
    offer was wanted before.
    """
    retired_units: dict[str, dict[str, Unit]] = {}
    for each in retired:
        if each.listed:
            retired_units.setdefault(each.resource, {}).update(each.units)
    # An unwanted resource is still served while units of the resource are listed.
    reject = _Reject("this node no longer shares its GPUs as this resource; a new pod is scheduled to another node")
    resources = {
        name: Resource(name, Units({}), reject, reject, retired=units) for name, units in retired_units.items()
    }
    too_long: dict[str, frozenset[str]] = {}
    for resource in wanted.resources:
        gone, ids = retired_units.get(resource.name, {}), stay.get(resource.name, ())
        new = resource.units.by_gpu
        units_of = {
            gpu: _kept(units, ids, limits[gpu.uuid].come) if gpu.uuid in limits else units for gpu, units in new.items()
        }
        if gone and listed_size(chain(gone.values(), *units_of.values())) > KUBELET_MESSAGE_LIMIT:
            old = {gpu: _kept(units, ids) for gpu, units in new.items()}
            gone_ids = frozenset(gone)
            too_long |= {gpu.uuid: gone_ids for gpu in units_of if len(old[gpu]) < len(units_of[gpu])}
            units_of = old
        # Also without allocatable units: the kubelet rewrites its checkpoint only after receiving a device list.
        resources[resource.name] = _with_units(resource, known.get(resource.name, resource), units_of, gone)
    return resources, too_long


def _kept(units: Sequence[Unit], ids: Collection[str], more: Collection[str] = ()) -> Sequence[Unit]:
    """Return the units with an ID in `ids` or `more`."""
    kept = [unit for unit in units if unit.id in ids or unit.id in more]
    return units if len(kept) == len(units) else kept


def _with_units(resource: Resource, known: Resource, by_gpu: UnitsByGpu, gone: Mapping[str, Unit]) -> Resource:
    """Return `resource` with the units `by_gpu`; equal units of `resource` or `known` are reused to save time."""
    by_gpu = {gpu: units for gpu, units in by_gpu.items() if units}
    for each in (resource, known):
        if each.units.by_gpu == by_gpu:
            return replace(resource, units=each.units, retired=gone)
    return replace(resource, units=Units(by_gpu), retired=gone)


def _listed(offer: Offer, now: float) -> Iterator[Retired]:
    """Yield all offered units as units retired at the time `now`."""
    for resource in offer.resources.values():
        for gpu, units in resource.units.by_gpu.items():
            yield Retired(
                resource.name, gpu.uuid, {unit.id: unit for unit in units}, now, offer.wanted.modes.get(gpu.uuid)
            )


def _served(retired: Retired, names: AbstractSet[str]) -> Retired:
    """Return the retired units, listed if their resource is in `names`, the resources served by gpushare."""
    return replace(retired, listed=True) if retired.resource in names and not retired.listed else retired


def _held(retired: Retired, held: Confirmed | None) -> Retired | None:
    """Return the retired units that pods may hold, None if pods hold no unit.

    Holdings count only if the kubelet was asked at least MINIMUM_RETIRED_SECONDS after the units were retired.
    """
    if held is None or held.asked_at < retired.since + MINIMUM_RETIRED_SECONDS:
        return retired
    return _only(retired, held.ids)


def _blocks(retired: Retired, kinds: set[_Kind]) -> bool:
    """Return whether new units of `kinds` beside the retired units could allocate a part of the GPU twice."""
    form = retired.first.form
    if form.kind == "cores":
        # The memory of the same container is on the same GPU, and decides instead. But an ID can be listed only once.
        return retired.kind not in kinds and any(name == retired.resource for name, *_ in kinds)
    if form.slice:
        # Slices of all sizes can be side by side; `_new_slices` checks the room.
        return any(mode != retired.mode or not other.slice for _, other, mode in kinds)
    return retired.kind not in kinds


class _Reject(Struct, frozen=True):
    """A chooser and granter that refuses every request."""

    reason: str
    """The reason of the refusal, for people."""

    def choose(self, request: Request) -> NoReturn:
        raise PlacementError(f"{request.resource}: {self.reason}")

    def grant(self, allocation: Allocation) -> NoReturn:
        raise PlacementError(f"{allocation.resource}: {self.reason}")
