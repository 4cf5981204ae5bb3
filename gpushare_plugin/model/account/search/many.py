"""Whether a pod fits on each of thousands of nodes: what `fitting` says of each, found in less time.

Most pods ask for one resource. Then a few values of a node decide, its `Room`, which lie close together in memory: to
follow the account of a node from object to object would take most of the time. Where the resource is memory, the free
units of the GPUs in ascending order are enough; for other kinds, `fitting` is asked once for all nodes that are alike.
"""

from bisect import bisect_left
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from functools import lru_cache

from gpushare_plugin.foundation.structs import Struct, replace
from gpushare_plugin.model.account.node import Shape
from gpushare_plugin.model.account.occupancy import NodeAccount, ResourceAccount
from gpushare_plugin.model.account.request import ANY_GPU
from gpushare_plugin.model.account.search import fitting
from gpushare_plugin.model.account.search.fitting import Ask
from gpushare_plugin.model.account.search.policies import POLICIES, Candidate, Policy
from gpushare_plugin.model.account.search.verdicts import Fit, Misfit, graded, lacking

Verdict = Fit | Misfit


class Kin(Struct, frozen=True, eq=False):
    """What nodes have in common that offer a resource alike: the same object for all of them.

    `policy`, `recorded` and `unreadable` are those of the node, `shape` is that of the offer, None where there is none.
    """

    policy: str | None
    recorded: bool
    unreadable: str | None
    shape: Shape | None


_kin = lru_cache(maxsize=4096)(Kin)


class Room(Struct, frozen=True, eq=False, gc=False):
    """What of a node decides on pods that ask for one resource of it.

    `node` is its name, `gpus` are those of all its GPUs. `ascending` are the free units from the fullest GPU to the
    emptiest, `node_free` those of all GPUs. Where the node does not have the resource, there are none of these, and no
    `account` of it.
    """

    node: str
    kin: Kin
    gpus: frozenset[str]
    account: ResourceAccount | None = None
    free: tuple[int, ...] = ()
    ascending: tuple[int, ...] = ()
    node_free: int = 0


def _room(name: str, account: NodeAccount, resource: str) -> Room:
    node, found = account.node, account.resources.get(resource)
    if found is None:
        return Room(name, _kin(node.policy, node.recorded, node.unreadable, None), node.gpus)
    kin = _kin(node.policy, node.recorded, node.unreadable, found.offer.shape)
    return Room(name, kin, node.gpus, found, found.free, tuple(sorted(found.free)), found.node_free)


class Rooms:
    """The rooms of nodes that have not changed since, by resource."""

    def __init__(self) -> None:
        """Know no node yet."""
        self._kept: dict[str, dict[str, Room]] = {}

    def of(
        self, resource: str, nodes: Sequence[str], known: Container[str], account: Callable[[str], NodeAccount]
    ) -> list[Room]:
        """Return those of the nodes that are `known`, made of their `account` where they are asked for first."""
        kept = self._kept.setdefault(resource, {})
        rooms = list(map(kept.get, nodes))
        if not all(rooms):
            missing = [name for name in nodes if name not in kept and name in known]
            kept.update((name, _room(name, account(name), resource)) for name in missing)
            rooms = list(map(kept.get, nodes))
        return [room for room in rooms if room is not None]

    def forget(self, node: str) -> None:
        """Forget those of a node, which has changed."""
        for kept in self._kept.values():
            kept.pop(node, None)


class Scan:
    """The search of many nodes for a pod that asks for one resource, and has no owner that matters."""

    def __init__(self, ask: Ask, account: Callable[[str], NodeAccount]) -> None:
        """Search for `ask`; `account` returns the account of a node, for the few that need all of it."""
        self._ask = ask
        self._account = account
        self._request = request = ask.request
        ((self._resource, amount),) = request.amounts.items()
        self._count = request.gpu_count
        self._size = amount // self._count
        uneven = any(amount % self._count for each in request.containers for _, amount in each.amounts)
        self._units_decide = request.problem is None and not uneven
        self._named = frozenset({*request.wishes.uuids, *request.wishes.not_uuids})

    def verdicts(self, rooms: Iterable[Room]) -> Iterator[tuple[str, Verdict]]:
        """Yield each node with its verdict, given its room in the resource that is asked for."""
        alike: dict[Kin, list[Room]] = {}
        for room in rooms:
            if self._named and not self._named.isdisjoint(room.gpus):
                yield room.node, fitting.fit(self._account(room.node), self._ask)
            else:
                alike.setdefault(room.kin, []).append(room)
        # None of these has a GPU that the pod names, so all that it can wish for or against is their model.
        for kin, there in alike.items():
            yield from self._on_kin(kin, there)

    def _on_kin(self, kin: Kin, rooms: Iterable[Room]) -> Iterator[tuple[str, Verdict]]:
        shape, wishes = kin.shape, self._request.wishes
        if shape is None or shape.kind != "memory" or not self._units_decide:
            return self._searched(rooms)
        if wishes == ANY_GPU:
            return self._measured(kin, shape, rooms)
        if shape.product is None:
            return self._searched(rooms)
        if wishes.refusal("", shape.product):
            return self._refused(shape, rooms)
        return self._measured(kin, shape, rooms)

    def _searched(self, rooms: Iterable[Room]) -> Iterator[tuple[str, Verdict]]:
        """Yield verdicts on nodes of one kin, searched once for those that have the same units free."""
        known: dict[tuple[int, ...], Verdict] = {}
        for room in rooms:
            if (found := known.get(room.free)) is None:
                found = known[room.free] = fitting.fit(self._account(room.node), self._ask)
            elif isinstance(found, Misfit) and found.account is not None:
                # It speaks of the GPUs of another node.
                found = replace(found, account=room.account)
            yield room.node, found

    def _refused(self, shape: Shape, rooms: Iterable[Room]) -> Iterator[tuple[str, Verdict]]:
        """Yield verdicts on nodes with GPUs of a model that the pod does not want."""
        summary = lacking(self._resource, self._size, self._count, choosy=True)
        curable = shape.could_have(self._size, self._count)
        for room in rooms:
            none = (0,) * len(room.free)
            yield room.node, Misfit(summary, self._request, room.account, self._size, self._count, none, curable)

    def _measured(self, kin: Kin, shape: Shape, rooms: Iterable[Room]) -> Iterator[tuple[str, Verdict]]:
        """Yield verdicts on nodes of one kin that have memory, by nothing but their free units.

        This is what most pods ask of every node of a large cluster, so what could be outside of the loop is.
        """
        request, size, count = self._request, self._size, self._count
        summary = lacking(self._resource, size, count, choosy=request.wishes != ANY_GPU)
        curable = shape.could_have(size, count)
        policy = POLICIES[request.policy or kin.policy or self._ask.rules.policy]
        most, units = shape.largest, shape.units
        fullest, one = policy.prefers == "fullest", count == 1 and policy.prefers is not None
        for room in rooms:
            ascending = room.ascending
            first = bisect_left(ascending, size)
            if len(ascending) - first < count:
                yield room.node, Misfit(summary, request, room.account, size, count, room.free, curable)
            elif one:
                free = ascending[first if fullest else -1]
                yield room.node, graded(policy.price(Candidate(free - size, most, room.node_free - size, units))[0])
            else:
                candidates = _promising(policy, ascending[first:], count)
                left = room.node_free - size * count
                prices = [policy.price(Candidate(free - size, most, left, units)) for free in candidates]
                yield room.node, graded(sum(price[0] for price in sorted(prices)[:count]) / count)


def _promising(policy: Policy, ascending: Sequence[int], count: int) -> Sequence[int]:
    """Return, of the free units of GPUs, those among which are the cheapest."""
    if policy.prefers is None:
        return ascending
    return ascending[:count] if policy.prefers == "fullest" else ascending[-count:]
