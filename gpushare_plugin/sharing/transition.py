"""From what a node shares now to what it should share, without taking anything from a pod that holds it.

The kubelet forgets an allocated ID that vanishes from a list and hands the GPU out twice, so a unit that is no longer
wanted is *retired*: it stays listed, Unhealthy, until the kubelet's own account shows that nobody holds it. A GPU that
is to be shared in another way gets no new unit until all units of the old way are gone.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import NoReturn

from gpushare_plugin.errors import PlacementError
from gpushare_plugin.model.gpu import Gpu
from gpushare_plugin.model.resource import Resource
from gpushare_plugin.model.unit import Unit, parse_unit

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
    def gpus(self) -> dict[str, Gpu]:
        """The GPUs by UUID."""
        return {gpu.uuid: gpu for resource in self.resources for gpu in resource.shares}

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
    """A unit on its way out: the resource it is listed under, since when (seconds, any clock), and its GPU's way."""

    resource: str
    unit: Unit
    since: float
    way: Way = None


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
    """What a node lists now: its resources by name, and what is known of the units on their way out, by ID.

    `ways` are those of the units that can be handed out, by the UUID of their GPU.
    """

    resources: Mapping[str, Resource] = field(default_factory=dict)
    retired: Mapping[str, Retired] = field(default_factory=dict)
    ways: Mapping[str, Way] = field(default_factory=dict)

    @property
    def ways_in_use(self) -> dict[str, Way]:
        """The way of each GPU that has units listed, by its UUID; while a GPU waits that is the old one."""
        return {each.unit.gpu: each.way for each in self.retired.values()} | {
            gpu: self.ways.get(gpu) for resource in self.resources.values() for gpu in resource.gpus
        }


def resumed(held: Iterable[tuple[str, str]], gpus: Sequence[Gpu], ways: Mapping[str, Way], now: float) -> Offer:
    """Return the offer to begin with where pods may hold units, given as resource and ID, from an earlier life.

    `ways` are those of that life, by the GPU's UUID.
    """
    units = ((resource, parse_unit(id_, gpus)) for resource, id_ in held)
    return Offer(retired={unit.id: Retired(name, unit, now, ways.get(unit.gpu)) for name, unit in units if unit})


def advance(offer: Offer, wanted: Wanted, account: Account | None, now: float) -> tuple[Offer, tuple[Waiting, ...]]:
    """Return the next offer on the way to `wanted`, and the GPUs that wait; call again while units are retired.

    `account` is the newest of the kubelet's accounts, None when it could not be asked: then nothing is given up.
    """
    units, kinds = wanted.units, wanted.kinds
    before = {each.unit.id: each for each in (*_listed(offer, now), *offer.retired.values())}
    stay = {id_ for id_, each in before.items() if (each.resource, id_, each.way) in units}
    retired = {id_: each for id_, each in before.items() if id_ not in stay and not _free(each, account)}
    blocking = _blocking(retired.values(), wanted, kinds)
    resources = _resources(wanted.resources, retired.values(), stay, blocking.keys())
    waiting = (Waiting(gpu, frozenset(ids)) for gpu, ids in blocking.items() if gpu in kinds)
    return Offer(resources, retired, wanted.ways), tuple(waiting)


def _blocking(retired: Iterable[Retired], wanted: Wanted, kinds: Mapping[str, set[_Kind]]) -> dict[str, set[str]]:
    """Return the GPUs that must not get new units, by UUID, and the IDs of the retired units which that is for."""
    blocking: dict[str, set[str]] = {}
    gpus = wanted.gpus
    for each in retired:
        gpu = each.unit.gpu
        if gpu not in kinds and (unit := parse_unit(each.unit.id, gpus.values())):
            gpu = unit.gpu  # the card was not there when its unit was found to be held
        for concerned in (gpu, *_overlapping(gpu, wanted.parts)):
            if _blocks(each, kinds.get(concerned, set())):
                blocking.setdefault(concerned, set()).add(each.unit.id)
    return blocking


def _overlapping(gpu: str, parts: Mapping[str, str]) -> list[str]:
    """Return a card's instances, or an instance's card."""
    return [parts[gpu]] if gpu in parts else [part for part, card in parts.items() if card == gpu]


def _resources(
    wanted: Iterable[Resource],
    retired: Iterable[Retired],
    stay: AbstractSet[str],
    blocked: AbstractSet[str],
) -> dict[str, Resource]:
    """Return the resources to list: units that `stay`, new ones but on `blocked` GPUs, and those on their way out."""
    leaving: dict[str, list[Unit]] = {}
    for each in retired:
        leaving.setdefault(each.resource, []).append(each.unit)
    # What nobody wants any more is still served while units of it are listed.
    resources: dict[str, Resource] = {name: _Leaving(name).with_shares({}, units) for name, units in leaving.items()}
    for resource in wanted:
        shares = {
            gpu: [unit for unit in units if unit.id in stay] if gpu.uuid in blocked else units
            for gpu, units in resource.shares.items()
        }
        kept = {gpu: units for gpu, units in shares.items() if units}
        if kept or resource.name in leaving:
            resources[resource.name] = resource.with_shares(kept, leaving.get(resource.name, ()))
    return resources


def _listed(offer: Offer, now: float) -> Iterator[Retired]:
    """Yield the units that are offered now as if each were retired this moment."""
    for resource in offer.resources.values():
        for unit in resource.units.values():
            yield Retired(resource.name, unit, now, offer.ways.get(unit.gpu))


def _free(retired: Retired, account: Account | None) -> bool:
    if account is None or account.asked_at < retired.since + SETTLING_SECONDS:
        return False
    return retired.unit.id not in account.held


def _blocks(retired: Retired, kinds: set[_Kind]) -> bool:
    """Tell whether new units beside `retired` could hand out the same piece of its GPU twice."""
    # Replicas are no pieces: more or fewer of them need no waiting.
    return retired.unit.mib > 0 or _kind(retired.resource, retired.unit, retired.way) not in kinds


def _kind(resource: str, unit: Unit, way: Way) -> _Kind:
    return resource, unit.id.removesuffix(str(unit.number)), way


class _Leaving(Resource):
    """A resource whose last units are on their way out."""

    def __init__(self, name: str) -> None:
        super().__init__(name, {})

    def _choose(self, available: Sequence[Unit], must: Sequence[Unit], size: int) -> NoReturn:  # noqa: ARG002
        raise PlacementError(f"{self.name}: this node shares its GPUs in another way now; a new pod will go elsewhere")

    _grant = _choose  # type: ignore[assignment]
