"""From what a node shares now to what it should share, without taking anything from a pod that holds it.

The kubelet forgets an allocated ID that vanishes from a list and hands the GPU out twice, so a unit that is no longer
wanted is *retired*: it stays listed, Unhealthy, until the kubelet's own account shows that nobody holds it. A GPU that
is to be shared in another way waits until all units of the old way are gone.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from gpushare_plugin.model.gpu import Gpu
from gpushare_plugin.model.resource import Resource
from gpushare_plugin.model.unit import Unit

_SharesByGpu = Mapping[str, tuple[str, Mapping[str, Unit]]]
"""By a GPU's UUID: the resource it is to belong to, and its units by ID."""

SETTLING_SECONDS = 2.0
"""How long a retired unit stays listed at least: an `Allocate` just answered shows in no account yet."""


@dataclass(frozen=True, slots=True)
class Retired:
    """A unit on its way out: the resource it is listed under, its GPU, and since when (seconds, any clock)."""

    resource: str
    gpu: Gpu
    unit: Unit
    since: float


@dataclass(frozen=True, slots=True)
class Account:
    """The IDs that pods hold, as the kubelet told at `asked_at` (seconds, the same clock)."""

    held: frozenset[str]
    asked_at: float


@dataclass(frozen=True, slots=True)
class Waiting:
    """A GPU that will belong to `resource` once the units of its old way are gone; pods hold (or may hold) `held`."""

    gpu: Gpu
    resource: str
    held: frozenset[str]


@dataclass(frozen=True, slots=True)
class Offer:
    """What a node lists now: its resources by name, and what is known of the units on their way out."""

    resources: Mapping[str, Resource] = field(default_factory=dict)
    retired: Mapping[str, Retired] = field(default_factory=dict)


def advance(
    offer: Offer, wanted: Iterable[Resource], account: Account | None, now: float
) -> tuple[Offer, tuple[Waiting, ...]]:
    """Return the next offer on the way to `wanted`, and the GPUs that wait; call again while units are retired.

    `account` is the newest of the kubelet's accounts, None when it could not be asked: then nothing is given up.
    """
    wanted = tuple(wanted)
    shares = {
        gpu.uuid: (each.name, {unit.id: unit for unit in units})
        for each in wanted
        for gpu, units in each.shares.items()
    }
    retired = {
        each.unit.id: each
        for each in (*offer.retired.values(), *_listed(offer, now))
        if not _wanted(each, shares) and not _free(each, account)
    }
    waiting = _waiting(retired.values(), shares, account)
    blocked = {each.gpu.uuid for each in waiting}
    leaving: dict[str, list[Unit]] = {}
    for each in retired.values():
        leaving.setdefault(each.resource, []).append(each.unit)
    # What nobody wants any more is still served while units of it are listed.
    resources = {name: offer.resources[name].with_shares({}, units) for name, units in leaving.items()}
    for resource in wanted:
        kept = {gpu: units for gpu, units in resource.shares.items() if gpu.uuid not in blocked}
        if kept or resource.name in leaving:
            resources[resource.name] = resource.with_shares(kept, leaving.get(resource.name, ()))
    return Offer(resources, retired), waiting


def _listed(offer: Offer, now: float) -> Iterator[Retired]:
    """Yield the units that are offered now as if each were retired this moment."""
    for resource in offer.resources.values():
        for gpu, units in resource.shares.items():
            for unit in units:
                yield Retired(resource.name, gpu, unit, now)


def _wanted(retired: Retired, shares: _SharesByGpu) -> bool:
    name, units = shares.get(retired.gpu.uuid, ("", {}))
    return name == retired.resource and retired.unit.id in units


def _free(retired: Retired, account: Account | None) -> bool:
    if account is None or account.asked_at < retired.since + SETTLING_SECONDS:
        return False
    return retired.unit.id not in account.held


def _waiting(retired: Iterable[Retired], shares: _SharesByGpu, account: Account | None) -> tuple[Waiting, ...]:
    """Return the GPUs whose wanted share is of another kind than units of them that are still listed."""
    found: dict[str, Waiting] = {}
    for each in retired:
        name, units = shares.get(each.gpu.uuid, ("", {}))
        if not units or (name == each.resource and _kind(next(iter(units.values()))) == _kind(each.unit)):
            continue
        before = found.get(each.gpu.uuid, Waiting(each.gpu, name, frozenset()))
        held = {each.unit.id} if account is None or each.unit.id in account.held else set()
        found[each.gpu.uuid] = Waiting(each.gpu, name, before.held | held)
    return tuple(found.values())


def _kind(unit: Unit) -> tuple[int, bool]:
    """Tell memory units of each size, replicas and whole GPUs from each other."""
    return unit.mib, unit.id == unit.gpu
