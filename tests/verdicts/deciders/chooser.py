"""What a node answers a kubelet: which units it prefers, and what containers get for those that are allocated."""

from collections.abc import Mapping, Sequence
from typing import Any

from gpushare_plugin.base.errors import PlacementError, RequestError
from gpushare_plugin.base.structs import replace
from gpushare_plugin.core.grant import Grant, Recipient
from gpushare_plugin.core.pairing import Allocated, Pairing
from gpushare_plugin.core.recent import RecentAllocations
from gpushare_plugin.core.resource import Resource
from gpushare_plugin.sharing.plan import plan
from tests.verdicts.deciders.host import effective, in_ranges, inventory

Json = dict[str, Any]
Shares = Sequence[Sequence[int]]
"""Numbers of cards, each with units of it."""


def decide(asked: Json) -> Json:
    """Return what is offered, and what each call is answered."""
    found = inventory(asked["cards"], asked["closeness"])
    planned = plan(effective(asked["config"]), found)
    verdict: Json = {}
    if planned.notices:
        verdict["notices"] = list(planned.notices)
    if planned.problems:
        return {
            **verdict,
            "problems": [f"{'.'.join(map(str, each.path))}: {each.message}" for each in planned.problems],
        }
    unhealthy = {found.cards[int(index)].uuid: reason for index, reason in asked["unhealthy"].items()}
    resources = [replace(each, unhealthy=unhealthy) for each in planned.resources]
    verdict["offered"] = {each.name: in_ranges(each.units) for each in resources}
    if not resources:
        return verdict
    node = _Node(resources, asked)
    verdict["calls"] = [each for call in asked["calls"] for each in node.answers(call)]
    return verdict


class _Node:
    """A node, and the kubelet that knows what its containers hold."""

    def __init__(self, resources: Sequence[Resource], asked: Json) -> None:
        self._resources = resources
        self._cards = [card["uuid"] for card in asked["cards"]]
        self._written = 0
        self._pairing = Pairing(lambda: self._written)
        self._recent = RecentAllocations()
        self._held: dict[str, set[str]] = {each.name: set() for each in resources}
        for resource in resources:
            for (gpu, units), full in zip(resource.units.by_gpu.items(), asked["full"] * 8, strict=False):
                taken = [unit.id for unit in units][: round(full * len(units))]
                # Not the lowest ones alone are held.
                gaps = {taken[int(place * len(taken))] for place in asked["gaps"] if taken and gpu.index % 2}
                self._held[resource.name] |= set(taken) - gaps

    def answers(self, call: Json) -> list[Json]:
        """Return what one container is answered, of the resource and then of the other one of a pair."""
        self._end(call)
        first = self._resources[call["resource"] % len(self._resources)]
        found = [self._answer(first, call, call["size"], call.get("promises", ()))]
        if call["beside"] and first.role is not None:
            others = [each for each in self._resources if each.role not in {None, first.role}]
            promised = call["promises beside"] if "promises beside" in call else call.get("promises", ())
            found += [self._answer(other, call, call["beside"], promised) for other in others[:1]]
        if call["written"]:
            self._written += 1
        return found

    def _answer(self, resource: Resource, call: Json, size: int, promised: Sequence[Shares]) -> Json:
        if "withdrawn" in call:
            resource = replace(resource, withdrawn=frozenset(_at(list(resource.units), call["withdrawn"])))
        hidden = set(_at(list(resource.units), call["hidden"]))
        free = [id_ for id_ in resource.units if id_ not in self._held[resource.name] and id_ not in hidden]
        strange = [call["strange"]] if "strange" in call else []
        must = _at(free, call["must"])
        answer: Json = {"resource": resource.name, "size": size, "free": len(free)}
        promises = [_units(self._cards, each) for each in promised]
        preferred = self._preferred(resource, [*free, *strange], must, size, promises)
        answer["preferred"] = preferred if isinstance(preferred, str) else in_ranges(preferred)
        match call["takes"]:
            case "any":
                ids = list(dict.fromkeys(_at(free, call["any"])))
            case "one GPU":
                ids = [id_ for id_ in free if free and resource.units[id_].gpu == resource.units[free[0]].gpu][:size]
            case "strange":
                ids = [*free[:1], *free[:1], *strange]
            case _:
                ids = free[:size] if isinstance(preferred, str) else preferred
        if ids != preferred:
            answer["taken"] = in_ranges(ids)
        return {**answer, **self._allocated(resource, ids, call)} if ids else answer

    def _preferred(
        self,
        resource: Resource,
        available: list[str],
        must: list[str],
        size: int,
        promises: Sequence[Mapping[str, int]],
    ) -> list[str] | str:
        doubtful = self._recent.doubtful(resource, available, must)
        try:
            with self._recent.call(resource.name, allocates=False):
                partner = self._pairing.partner(resource.role)
                return resource.prefer(available, must, size, promises, partner, doubtful=doubtful)
        except (PlacementError, RequestError) as error:
            return f"{type(error).__name__}: {error}"

    def _allocated(self, resource: Resource, ids: list[str], call: Json) -> Json:
        recipient = Recipient(call.get("pod"), promised="promises" in call)
        partner = self._pairing.partner(resource.role)
        try:
            with self._recent.call(resource.name, allocates=True):
                grant = resource.allocate(ids, recipient, partner)
        except (PlacementError, RequestError) as error:
            self._pairing.failed()
            return {"refused": f"{type(error).__name__}: {error}"}
        self._recent.allocated(resource.name, ids)
        allocated: Allocated | None = resource.allocated(ids)
        if allocated is not None:
            self._pairing.allocated(allocated)
        # Now and then the kubelet forgets what it has just allocated.
        if call["written"]:
            self._held[resource.name] |= set(ids)
        return {"granted": _granted(grant)}

    def _end(self, call: Json) -> None:
        """End containers."""
        for held in self._held.values():
            held.difference_update(_at(sorted(held), call["ends"]))


def _at(ids: Sequence[str], places: Sequence[float]) -> list[str]:
    """Return those at these places of a list, 0 to 1."""
    return list(dict.fromkeys(ids[int(place * len(ids))] for place in places)) if ids else []


def _units(cards: Sequence[str], shares: Shares) -> Mapping[str, int]:
    return {cards[number % len(cards)]: units for number, units in shares}


def _granted(grant: Grant) -> Json:
    found: Json = {
        "environment": dict(grant.environment),
        "mounts": [[each.container_path, each.host_path, each.read_only] for each in grant.mounts],
        "devices": [each.host_path for each in grant.devices],
        "annotations": dict(grant.annotations),
        "cdi": list(grant.cdi_devices),
    }
    return {key: value for key, value in found.items() if value}
