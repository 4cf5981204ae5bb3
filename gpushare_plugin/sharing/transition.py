"""From what a node shares now to what it should share, without taking anything from a pod that holds it.

The kubelet forgets an allocated ID that vanishes from a list and hands the GPU out twice, so a unit that is no longer
wanted is *retired*: it stays listed, Unhealthy, until the kubelet's own account shows that nobody holds it. A GPU that
is to be shared in another way gets no new unit until all units of the old way are gone.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import NoReturn

from gpushare_plugin.foundation.errors import PlacementError
from gpushare_plugin.model.gpu import Gpu
from gpushare_plugin.model.resource import Resource, Shares
from gpushare_plugin.model.unit import KUBELET_MESSAGE_LIMIT, Unit, is_slice, listed_size, parse_unit

SETTLING_SECONDS = 2.0
"""How long a retired unit stays listed at least: an `Allocate` just answered shows in no account yet."""

Way = Hashable
"""What else makes two ways to share a GPU different, beside its units, such as the limits it has under MPS."""

_Kind = tuple[str, str, Way]
"""A way to share a GPU: the resource, what the IDs of its units begin with, and what else."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a node should list.

    `ways` tells, by UUID, how GPUs are shared of which the units do not tell all. `parts` is the card of each MIG
    instance, both by UUID: a card is never handed out beside its instances.
    """

    resources: tuple[Resource, ...]
    ways: Mapping[str, Way] = field(default_factory=dict)
    parts: Mapping[str, str] = field(default_factory=dict)

    @property
    def gpus(self) -> dict[str, int | None]:
        """The NUMA nodes of the GPUs by UUID."""
        return {gpu.uuid: gpu.numa_node for resource in self.resources for gpu in resource.shares}

    @property
    def units(self) -> set[tuple[str, str, Way]]:
        """The units by resource, ID and way."""
        return {
            (resource.name, id_, self.ways.get(unit.gpu))
            for resource in self.resources
            for id_, unit in resource.units.items()
        }

    @property
    def kinds(self) -> dict[str, set[_Kind]]:
        """The kinds of units of each GPU by its UUID."""
        kinds: dict[str, set[_Kind]] = {}
        for resource in self.resources:
            for gpu, units in resource.shares.items():
                first = (_kind(resource.name, unit, self.ways.get(gpu.uuid)) for unit in units[:1])
                kinds.setdefault(gpu.uuid, set()).update(first)
        return kinds


@dataclass(frozen=True, slots=True)
class Retired:
    """A unit on its way out: the resource it belongs to, since when (seconds, any clock), and its GPU's way.

    One that is not `listed` was held when our life began, under a resource that we have not served in it: another
    plugin may serve that one, so it is not ours to list. Its GPU waits for it all the same.
    """

    resource: str
    unit: Unit
    since: float
    way: Way = None
    listed: bool = True


@dataclass(frozen=True, slots=True)
class Account:
    """Who holds which ID, as the kubelet told at `asked_at` (seconds, the same clock)."""

    held: Mapping[str, str]
    asked_at: float


@dataclass(frozen=True, slots=True)
class Waiting:
    """A GPU that gets new units once the `units` that were handed out in the old way are gone."""

    gpu: str
    units: frozenset[str]

    def holders(self, account: Account) -> frozenset[str]:
        """Return the pods it waits for; there are none while the kubelet's next account is all that is missing."""
        return frozenset(account.held[id_] for id_ in self.units if id_ in account.held)


@dataclass(frozen=True, slots=True)
class Offer:
    """What a node lists now: its resources by name, and what is known of the units on their way out.

    `wanted` is what was last to be listed; its `ways` are those of the units that can be handed out.
    """

    resources: Mapping[str, Resource] = field(default_factory=dict)
    retired: tuple[Retired, ...] = ()
    wanted: Wanted = field(default_factory=lambda: Wanted(()))

    @property
    def ways_in_use(self) -> dict[str, Way]:
        """The way of each GPU that has units listed, by its UUID; while a GPU waits that is the old one."""
        return {each.unit.gpu: each.way for each in self.retired} | {
            gpu: self.wanted.ways.get(gpu) for resource in self.resources.values() for gpu in resource.gpus
        }


def resumed(held: Iterable[tuple[str, str]], gpus: Sequence[Gpu], ways: Mapping[str, Way], now: float) -> Offer:
    """Return the offer to begin with where pods may hold units, given as resource and ID, from an earlier life.

    `ways` are those of that life, by the GPU's UUID.
    """
    # A GPU that does not answer now may have had a way, and then it has a UUID that its units can be known by.
    known = dict.fromkeys(ways) | {gpu.uuid: gpu.numa_node for gpu in gpus}
    units = ((resource, parse_unit(id_, known)) for resource, id_ in sorted(held))
    return Offer(
        retired=tuple(Retired(name, unit, now, ways.get(unit.gpu), listed=False) for name, unit in units if unit)
    )


def advance(offer: Offer, wanted: Wanted, account: Account | None, now: float) -> tuple[Offer, tuple[Waiting, ...]]:
    """Return the next offer on the way to `wanted`, and the GPUs that wait; call again while units are retired.

    `account` is the newest of the kubelet's accounts, None when it could not be asked: then nothing is given up.
    """
    if not offer.retired and wanted == offer.wanted:
        return offer, ()  # all there is to do for a card that fails or recovers, however many units there are
    units, kinds = wanted.units, wanted.kinds
    names = {resource.name for resource in wanted.resources}
    before = [*_listed(offer, now), *(_served(each, names) for each in offer.retired)]
    stay = {(each.resource, each.unit.id, each.way) for each in before} & units
    retired = tuple(
        each for each in before if (each.resource, each.unit.id, each.way) not in stay and not _free(each, account)
    )
    blocking = _blocking(retired, wanted, kinds)
    resources, too_long = _resources(wanted, retired, {(name, id_) for name, id_, _ in stay}, blocking.keys())
    waiting = (Waiting(gpu, frozenset(ids)) for gpu, ids in (blocking | too_long).items() if gpu in kinds)
    return Offer(resources, retired, wanted), tuple(waiting)


def _blocking(retired: Iterable[Retired], wanted: Wanted, kinds: Mapping[str, set[_Kind]]) -> dict[str, set[str]]:
    """Return the GPUs that must not get new units, by UUID, and the IDs of the retired units which that is for."""
    blocking: dict[str, set[str]] = {}
    gpus = wanted.gpus
    for each in retired:
        gpu = each.unit.gpu
        if gpu not in kinds and (unit := parse_unit(each.unit.id, gpus)):
            gpu = unit.gpu  # the card was not there when its unit was found to be held
        for concerned in (gpu, *_overlapping(gpu, wanted.parts)):
            if _blocks(each, kinds.get(concerned, set())):
                blocking.setdefault(concerned, set()).add(each.unit.id)
    return blocking


def _overlapping(gpu: str, parts: Mapping[str, str]) -> list[str]:
    """Return a card's instances, or an instance's card."""
    return [parts[gpu]] if gpu in parts else [part for part, card in parts.items() if card == gpu]


def _resources(
    wanted: Wanted,
    retired: Iterable[Retired],
    stay: AbstractSet[tuple[str, str]],
    blocked: AbstractSet[str],
) -> tuple[dict[str, Resource], dict[str, set[str]]]:
    """Return the resources to list: units that `stay`, new ones but on `blocked` GPUs, and those on their way out.

    Where the kubelet would refuse a list as too long, the new units wait, too: return these GPUs by UUID, and for what.
    """
    leaving: dict[str, list[Unit]] = {}
    for each in retired:
        if each.listed:
            leaving.setdefault(each.resource, []).append(each.unit)
    # What nobody wants any more is still served while units of it are listed.
    resources: dict[str, Resource] = {name: _Leaving(name).with_shares({}, units) for name, units in leaving.items()}
    too_long: dict[str, set[str]] = {}
    for resource in wanted.resources:
        name, gone = resource.name, leaving.get(resource.name, [])
        old = {gpu: [unit for unit in units if (name, unit.id) in stay] for gpu, units in resource.shares.items()}
        shares: Shares = {gpu: old[gpu] if gpu.uuid in blocked else units for gpu, units in resource.shares.items()}
        if gone and listed_size((*gone, *chain.from_iterable(shares.values()))) > KUBELET_MESSAGE_LIMIT:
            too_long |= {gpu.uuid: {unit.id for unit in gone} for gpu in shares if len(old[gpu]) < len(shares[gpu])}
            shares = old
        # Also with nothing to hand out yet: the kubelet writes its record anew only when it is sent a list.
        resources[name] = resource.with_shares({gpu: units for gpu, units in shares.items() if units}, gone)
    return resources, too_long


def _listed(offer: Offer, now: float) -> Iterator[Retired]:
    """Yield the units that are offered now as if each were retired this moment."""
    for resource in offer.resources.values():
        for unit in resource.units.values():
            yield Retired(resource.name, unit, now, offer.wanted.ways.get(unit.gpu))


def _served(retired: Retired, names: AbstractSet[str]) -> Retired:
    """Return the same unit, listed if its resource is one of `names`, which are ours."""
    return replace(retired, listed=True) if retired.resource in names and not retired.listed else retired


def _free(retired: Retired, account: Account | None) -> bool:
    if account is None or account.asked_at < retired.since + SETTLING_SECONDS:
        return False
    return retired.unit.id not in account.held


def _blocks(retired: Retired, kinds: set[_Kind]) -> bool:
    """Tell whether new units beside `retired` could hand out the same piece of its GPU twice."""
    # Slices of one GPU have several sizes, so a new one may take the place of an old one of the same size.
    return is_slice(retired.unit.id) or _kind(retired.resource, retired.unit, retired.way) not in kinds


def _kind(resource: str, unit: Unit, way: Way) -> _Kind:
    return resource, unit.id.removesuffix(str(unit.number)), way


class _Leaving(Resource):
    """A resource whose last units are on their way out."""

    def __init__(self, name: str) -> None:
        super().__init__(name, {})

    def _choose(self, available: Sequence[Unit], must: Sequence[Unit], size: int) -> NoReturn:  # noqa: ARG002
        raise PlacementError(f"{self.name}: this node shares its GPUs in another way now; a new pod will go elsewhere")

    _grant = _choose  # type: ignore[assignment]
