"""From what a node shares now to what it should share, without taking anything from a pod that holds it.

The kubelet forgets an allocated ID that vanishes from a list and hands the GPU out twice, so a unit that is no longer
wanted is *retired*: it stays listed, Unhealthy, until the kubelet's own account shows that nobody holds it. A GPU that
is to be shared in another way gets no new unit until all units of the old way are gone.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NoReturn

from gpushare_plugin.errors import PlacementError
from gpushare_plugin.model.gpu import Gpu
from gpushare_plugin.model.resource import Resource
from gpushare_plugin.model.unit import Unit, parse_unit

SETTLING_SECONDS = 2.0
"""How long a retired unit stays listed at least: an `Allocate` just answered shows in no account yet."""

_Kind = tuple[str, str]
"""A way to share a GPU: the resource, and what the IDs of its units begin with."""


@dataclass(frozen=True, slots=True)
class Retired:
    """A unit on its way out: the resource it is listed under, and since when (seconds, any clock)."""

    resource: str
    unit: Unit
    since: float


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
    """What a node lists now: its resources by name, and what is known of the units on their way out, by ID."""

    resources: Mapping[str, Resource] = field(default_factory=dict)
    retired: Mapping[str, Retired] = field(default_factory=dict)


def resumed(held: Iterable[tuple[str, str]], gpus: Sequence[Gpu], now: float) -> Offer:
    """Return the offer to begin with where pods may hold units, given as resource and ID, from an earlier life."""
    units = ((resource, parse_unit(id_, gpus)) for resource, id_ in held)
    return Offer(retired={unit.id: Retired(resource, unit, now) for resource, unit in units if unit})


def advance(
    offer: Offer,
    wanted: Iterable[Resource],
    account: Account | None,
    now: float,
    parts: Mapping[str, str] = MappingProxyType({}),
) -> tuple[Offer, tuple[Waiting, ...]]:
    """Return the next offer on the way to `wanted`, and the GPUs that wait; call again while units are retired.

    `account` is the newest of the kubelet's accounts, None when it could not be asked: then nothing is given up.
    `parts` tells the card of each MIG instance, both by UUID: a card is never handed out beside its instances.
    """
    wanted = tuple(wanted)
    kinds: dict[str, set[_Kind]] = {}  # by the GPU's UUID
    wanted_ids: set[tuple[str, str]] = set()
    gpus = {gpu.uuid: gpu for resource in wanted for gpu in resource.shares}.values()
    for resource in wanted:
        for gpu, units in resource.shares.items():
            kinds.setdefault(gpu.uuid, set()).update(_kind(resource.name, unit) for unit in units[:1])
        wanted_ids.update((resource.name, id_) for id_ in resource.units)
    before = {each.unit.id: each for each in (*_listed(offer, now), *offer.retired.values())}
    retired = {
        id_: each for id_, each in before.items() if (each.resource, id_) not in wanted_ids and not _free(each, account)
    }
    blocking: dict[str, set[str]] = {}
    for each in retired.values():
        gpu_uuid = each.unit.gpu
        if gpu_uuid not in kinds and (unit := parse_unit(each.unit.id, gpus)):
            gpu_uuid = unit.gpu  # the card was not there when its unit was found to be held
        for blocked in (gpu_uuid, *_overlapping(gpu_uuid, parts)):
            if _blocks(each, kinds.get(blocked, set())):
                blocking.setdefault(blocked, set()).add(each.unit.id)
    stay = wanted_ids & {(each.resource, id_) for id_, each in before.items()}
    resources = _resources(wanted, retired.values(), stay, blocking.keys())
    waiting = (Waiting(gpu, frozenset(ids)) for gpu, ids in blocking.items() if gpu in kinds)
    return Offer(resources, retired), tuple(waiting)


def _overlapping(gpu: str, parts: Mapping[str, str]) -> list[str]:
    """Return a card's instances, or an instance's card."""
    return [parts[gpu]] if gpu in parts else [part for part, card in parts.items() if card == gpu]


def _resources(
    wanted: Iterable[Resource],
    retired: Iterable[Retired],
    stay: AbstractSet[tuple[str, str]],
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
            gpu: [unit for unit in units if (resource.name, unit.id) in stay] if gpu.uuid in blocked else units
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
            yield Retired(resource.name, unit, now)


def _free(retired: Retired, account: Account | None) -> bool:
    if account is None or account.asked_at < retired.since + SETTLING_SECONDS:
        return False
    return retired.unit.id not in account.held


def _blocks(retired: Retired, kinds: set[_Kind]) -> bool:
    """Tell whether new units beside `retired` could hand out the same piece of its GPU twice."""
    # Replicas are no pieces: more or fewer of them need no waiting.
    return retired.unit.mib > 0 or _kind(retired.resource, retired.unit) not in kinds


def _kind(resource: str, unit: Unit) -> _Kind:
    return resource, unit.id.removesuffix(str(unit.number))


class _Leaving(Resource):
    """A resource whose last units are on their way out."""

    def __init__(self, name: str) -> None:
        super().__init__(name, {})

    def _choose(self, available: Sequence[Unit], must: Sequence[Unit], size: int) -> NoReturn:  # noqa: ARG002
        raise PlacementError(f"{self.name}: this node shares its GPUs in another way now; a new pod will go elsewhere")

    _grant = _choose  # type: ignore[assignment]
