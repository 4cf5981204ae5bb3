"""From what a node shares now to what it should share, without taking anything from a pod that holds it.

The kubelet forgets an allocated ID that vanishes from a list and hands the GPU out twice, so a unit that is no longer
wanted is *retired*: it stays listed, Unhealthy, until the kubelet shows that no pod holds it. A GPU that is to
be shared in another way gets no new unit until all units of the old way are gone. Slices are one way, whatever their
sizes: new ones come beside retired ones as far as the GPU has room for both.

Units go together that left together: thousands are compared as sets of IDs, and none is looked at while none is free.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import chain
from operator import is_
from typing import NamedTuple, NoReturn

from gpushare_plugin.foundation.errors import PlacementError
from gpushare_plugin.foundation.structs import Struct, field, replace
from gpushare_plugin.model.choice.chooser import Request
from gpushare_plugin.model.gpu import Gpu
from gpushare_plugin.model.grant import Allocation
from gpushare_plugin.model.holding import Confirmed, Holding
from gpushare_plugin.model.resource import Resource, Units, UnitsByGpu
from gpushare_plugin.model.slices.room import fitting
from gpushare_plugin.model.unit import KUBELET_MESSAGE_LIMIT, Form, Unit, listed_size
from gpushare_plugin.sharing.isolation.layer import Mode
from gpushare_plugin.sharing.isolation.mps import room_of

MINIMUM_RETIRED_SECONDS = 2.0
"""How long a retired unit stays listed at least: an `Allocate` just answered shows nowhere yet."""

_Kind = tuple[str, Form, Mode]
"""A way to share a GPU: the resource, the form of its units, and the mode."""


class WantedOffer(Struct, frozen=True):
    """What a node should list.

    `modes` are those of shared GPUs by UUID, where the units alone do not say how they are shared. `parts` is the
    card of each MIG instance, both by UUID: a card is never allocated beside its instances.
    """

    resources: tuple[Resource, ...]
    modes: Mapping[str, Mode] = field(default_factory=dict)
    parts: Mapping[str, str] = field(default_factory=dict)

    @property
    def gpus(self) -> dict[str, int | None]:
        """The NUMA nodes of the GPUs by UUID."""
        return {gpu.uuid: gpu.numa_node for resource in self.resources for gpu in resource.units.by_gpu}

    @property
    def kinds(self) -> dict[str, set[_Kind]]:
        """The kinds of units of each GPU by its UUID."""
        kinds: dict[str, set[_Kind]] = {}
        for resource in self.resources:
            for gpu, units in resource.units.by_gpu.items():
                first = ((resource.name, unit.form, self.modes.get(gpu.uuid)) for unit in units[:1])
                kinds.setdefault(gpu.uuid, set()).update(first)
        return kinds


class Retired(Struct, frozen=True):
    """Retired units of one GPU, by ID, all of one kind.

    `resource` is what they belong to, `since` when (seconds, any clock) they were retired, `mode` their GPU's. Those
    that are not `listed` were held when we started, under a resource that we have not served since: another plugin
    may serve that one, so they are not ours to list. Their GPU waits for them all the same.
    """

    resource: str
    gpu: str
    units: Mapping[str, Unit]
    since: float
    mode: Mode = None
    listed: bool = True

    @property
    def first(self) -> Unit:
        """One of the units."""
        return next(iter(self.units.values()))

    @property
    def kind(self) -> _Kind:
        """The kind of the units."""
        return self.resource, self.first.form, self.mode


class Waiting(Struct, frozen=True):
    """A GPU that gets new units once the `units` that were allocated in the old way are gone."""

    gpu: str
    units: frozenset[str]


class Offer(Struct, frozen=True):
    """What a node lists now: its resources by name, and what is known of retired units.

    `wanted` is what was last to be listed; its `modes` are those of the units that can be allocated. `waiting` are the
    GPUs that could not be shared as wanted yet.
    """

    resources: Mapping[str, Resource] = field(default_factory=dict)
    retired: tuple[Retired, ...] = ()
    wanted: WantedOffer = field(default_factory=lambda: WantedOffer(()))
    waiting: tuple[Waiting, ...] = ()

    @property
    def modes_in_use(self) -> dict[str, Mode]:
        """The mode of each GPU that is shared, by its UUID; while a GPU waits that is the old one."""
        # A GPU without any units is ready for its first ones.
        return (
            dict(self.wanted.modes)
            | {each.gpu: each.mode for each in self.retired}
            | {gpu: self.wanted.modes.get(gpu) for resource in self.resources.values() for gpu in resource.gpus}
        )


def resumed(held: Iterable[Holding], gpus: Sequence[Gpu], modes: Mapping[str, Mode], now: float) -> Offer:
    """Return the first offer after a restart, where containers may hold units.

    `modes` are those from before the restart, by the GPU's UUID.
    """
    # A GPU that is unresponsive now may have had a mode, and then it has a UUID that its units can be known by.
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
    """Return the next offer on the way to `wanted`, and the GPUs that wait; call again while units are retired.

    `held` is all that containers hold, None while that is not confirmed: then no unit is dropped. `now` is the time, in
    seconds of the same clock.
    """
    stay: Mapping[str, Collection[str]]
    if wanted == offer.wanted:
        # What is offered is wanted, and what is retired is not: only new holdings can change anything.
        before, known = offer.retired, offer.resources
        stay = {name: resource.units.by_id.keys() for name, resource in offer.resources.items()}
    else:
        before, stay = _retire(offer, wanted, now)
        known = {}
    retired = tuple(left for each in before if (left := _held(each, held)))
    if known is offer.resources and len(retired) == len(before) and all(map(is_, retired, before)):
        return offer, offer.waiting  # also all there is to do for a card that fails or recovers
    limits = _limits(retired, wanted, stay)
    resources, too_long = _resources(wanted, retired, stay, limits, known)
    limited = {gpu: limit.until for gpu, limit in limits.items()}
    waiting = tuple(Waiting(gpu, ids) for gpu, ids in (limited | too_long).items())
    return Offer(resources, retired, wanted, waiting), waiting


def _retire(offer: Offer, wanted: WantedOffer, now: float) -> tuple[tuple[Retired, ...], dict[str, set[str]]]:
    """Return the units that are listed or retired and not wanted, and the IDs of those that are, by their resource."""
    resources = {resource.name: resource for resource in wanted.resources}
    stay: dict[str, set[str]] = defaultdict(set)
    retired = []
    for each in (*_listed(offer, now), *(_served(each, resources.keys()) for each in offer.retired)):
        same = _same(each, resources.get(each.resource), wanted.modes)
        stay[each.resource] |= same
        if left := _only(each, each.units.keys() - same if same else each.units.keys()):
            retired.append(left)
    return tuple(retired), stay


def _same(retired: Retired, resource: Resource | None, modes: Mapping[str, Mode]) -> AbstractSet[str]:
    """Return the IDs that `resource` has, too, and in the same mode."""
    same = retired.units.keys() & resource.units.by_id.keys() if resource else frozenset[str]()
    if resource and same and modes.get(resource.units[next(iter(same))].gpu) != retired.mode:
        return frozenset()
    return same


def _only(retired: Retired, ids: AbstractSet[str]) -> Retired | None:
    """Return those of the units that have one of `ids`: the very same where all do, None where none does."""
    if retired.units.keys() <= ids:
        return retired
    units = {id_: unit for id_, unit in retired.units.items() if id_ in ids}
    return replace(retired, units=units) if units else None


class _Postponed(NamedTuple):
    """A GPU gets no new units but those in `come`, by ID, `until` retired ones are gone."""

    until: frozenset[str]
    come: frozenset[str] = frozenset()


def _limits(
    retired: Iterable[Retired], wanted: WantedOffer, stay: Mapping[str, Collection[str]]
) -> dict[str, _Postponed]:
    """Return the GPUs, by UUID, of which not all units that are wanted can be listed beside the retired ones."""
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
    """Return the retired units that have a part of a GPU, by its UUID; those of a card have one of its instances."""
    beside: dict[str, list[Retired]] = defaultdict(list)
    gpus = dict.fromkeys(wanted.parts.values()) | wanted.gpus
    for each in retired:
        gpu = each.first.on(gpus).gpu  # the card may not have been there when its unit was found to be held
        for concerned in (gpu, *_overlapping(gpu, wanted.parts)):
            beside[concerned].append(each)
    return beside


def _ids(retired: Iterable[Retired]) -> frozenset[str]:
    return frozenset(chain.from_iterable(each.units for each in retired))


def _new_slices(
    uuid: str, retired: Iterable[Retired], wanted: WantedOffer, stay: Mapping[str, Collection[str]]
) -> tuple[list[Unit], frozenset[str]]:
    """Return the wanted slices of a GPU that do not `stay`, and the IDs of those that have room now."""
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
    # Small slices come first, and where one does not fit, no larger one does.
    fit = fitting(room_of(resources[0].gpus[uuid]), sizes, [name for _, _, name, _ in coming])
    return new, frozenset(id_ for *_, id_ in coming[: len(fit)])


def _overlapping(gpu: str, parts: Mapping[str, str]) -> list[str]:
    """Return a card's instances, or an instance's card."""
    return [parts[gpu]] if gpu in parts else [part for part, card in parts.items() if card == gpu]


def _resources(
    wanted: WantedOffer,
    retired: Iterable[Retired],
    stay: Mapping[str, Collection[str]],
    limits: Mapping[str, _Postponed],
    known: Mapping[str, Resource],
) -> tuple[dict[str, Resource], dict[str, frozenset[str]]]:
    """Return the resources to list: units that `stay`, new ones within the `limits` of their GPUs, and retired ones.

    Where the kubelet would reject a list as too long, the new units wait, too: return these GPUs by UUID, and for what.
    `known` are the resources as they are offered for the same `wanted`.
    """
    retired_units: dict[str, dict[str, Unit]] = {}
    for each in retired:
        if each.listed:
            retired_units.setdefault(each.resource, {}).update(each.units)
    # A resource that is no longer wanted is still served while units of it are listed.
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
        # Also with nothing to allocate yet: the kubelet rewrites its checkpoint only when it is sent a list.
        resources[resource.name] = _with_units(resource, known.get(resource.name, resource), units_of, gone)
    return resources, too_long


def _kept(units: Sequence[Unit], ids: Collection[str], more: Collection[str] = ()) -> Sequence[Unit]:
    """Return the units that have one of `ids`, or one more."""
    kept = [unit for unit in units if unit.id in ids or unit.id in more]
    return units if len(kept) == len(units) else kept


def _with_units(resource: Resource, known: Resource, by_gpu: UnitsByGpu, gone: Mapping[str, Unit]) -> Resource:
    """Return `resource` with the units `by_gpu`, without going through them where it, or `known`, has the very same."""
    by_gpu = {gpu: units for gpu, units in by_gpu.items() if units}
    for each in (resource, known):
        if each.units.by_gpu == by_gpu:
            return replace(resource, units=each.units, retired=gone)
    return replace(resource, units=Units(by_gpu), retired=gone)


def _listed(offer: Offer, now: float) -> Iterator[Retired]:
    """Yield the units that are offered now as if they were retired this moment."""
    for resource in offer.resources.values():
        for gpu, units in resource.units.by_gpu.items():
            yield Retired(
                resource.name, gpu.uuid, {unit.id: unit for unit in units}, now, offer.wanted.modes.get(gpu.uuid)
            )


def _served(retired: Retired, names: AbstractSet[str]) -> Retired:
    """Return the same units, listed if their resource is one of `names`, which are ours."""
    return replace(retired, listed=True) if retired.resource in names and not retired.listed else retired


def _held(retired: Retired, held: Confirmed | None) -> Retired | None:
    """Return the units that pods may hold, None where they hold none."""
    if held is None or held.asked_at < retired.since + MINIMUM_RETIRED_SECONDS:
        return retired
    return _only(retired, held.ids)


def _blocks(retired: Retired, kinds: set[_Kind]) -> bool:
    """Return whether new units beside those retired could allocate the same part of their GPU twice."""
    form = retired.first.form
    if form.kind == "cores":
        # Memory of the same container is on the same GPU, so that decides; but an ID is listed only once.
        return retired.kind not in kinds and any(name == retired.resource for name, *_ in kinds)
    if form.slice:
        # Slices of any sizes stand side by side, as far as there is room.
        return any(mode != retired.mode or not other.slice for _, other, mode in kinds)
    return retired.kind not in kinds


class _Reject(Struct, frozen=True):
    """Chooses nothing and grants nothing, for a `reason`."""

    reason: str

    def choose(self, request: Request) -> NoReturn:
        raise PlacementError(f"{request.resource}: {self.reason}")

    def grant(self, allocation: Allocation) -> NoReturn:
        raise PlacementError(f"{allocation.resource}: {self.reason}")
