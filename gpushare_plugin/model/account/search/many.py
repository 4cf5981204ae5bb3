"""The search of thousands of nodes for one resource: the verdicts of `fitting`, found in less time.

Most pods ask for one resource. For memory, the free units of the GPUs in ascending order decide. For a resource of
another kind, one search by `fitting` serves all like nodes with the same free units.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence

from gpushare_plugin.foundation.structs import replace
from gpushare_plugin.model.account.node import Shape
from gpushare_plugin.model.account.request import ANY_GPU
from gpushare_plugin.model.account.search import fitting
from gpushare_plugin.model.account.search.fitting import Ask
from gpushare_plugin.model.account.search.rooms import Accounts, Kin, ResourceRoom
from gpushare_plugin.model.account.search.verdicts import UNSCORED, Fit, Misfit, Verdict, graded, lacking
from gpushare_plugin.model.choice.policies import POLICIES, Policy

Lack = Callable[[ResourceRoom, tuple[int, ...]], Misfit]
"""Returns the misfit of a node, given the room of the node and the units of every GPU for the pod."""


class Scan:
    """The search of many nodes for a pod with one resource, regardless of other pods of the same owner."""

    def __init__(self, ask: Ask, resource: str, accounts: Accounts, *, scored: bool) -> None:
        """Search for the units of `resource` in the request of `ask`.

        `accounts` returns the whole account of a node, needed for few nodes. Without `scored`, the verdict on a node
        with room may be UNSCORED.
        """
        self._ask = ask
        self._accounts = accounts
        self._resource = resource
        self._scored = scored
        self._request = ask.request
        self.count = ask.request.gpu_count
        """The number of requested GPUs."""
        self.size = ask.request.amounts[resource] // self.count
        """The number of requested units on every GPU."""

    def verdicts(self, rooms: Iterable[ResourceRoom]) -> dict[str, Verdict]:
        """Return the verdicts by node, given the rooms of the nodes in the resource."""
        found: dict[str, Verdict] = {}
        alike: dict[Kin, list[ResourceRoom]] = {}
        named = named_gpus(self._ask)
        for room in rooms:
            if named and not named.isdisjoint(room.gpus):
                found[room.node] = fitting.fit(self._accounts(room.node), self._ask)
            else:
                alike.setdefault(room.kin, []).append(room)
        for kin, there in alike.items():
            found.update(self._on_kin(kin, there))
        return found

    def _on_kin(self, kin: Kin, rooms: Sequence[ResourceRoom]) -> dict[str, Verdict]:
        if kin.shape.kind != "memory" or not one_model(kin, self._ask):
            return dict(self._searched(rooms))
        if problem := self._request.problem or fitting.unsplittable(self._request, {self._resource: kin.shape}):
            return dict.fromkeys((room.node for room in rooms), Misfit(problem, self._request))
        return self.refused(kin, rooms) if unwanted(kin, self._ask) else self._measured(kin, rooms)

    def _searched(self, rooms: Iterable[ResourceRoom]) -> Iterator[tuple[str, Verdict]]:
        """Yield verdicts on nodes of one kin, found by one search for all nodes with the same free units."""
        known: dict[tuple[int, ...], Verdict] = {}
        for room in rooms:
            if (found := known.get(room.free)) is None:
                found = known[room.free] = fitting.fit(self._accounts(room.node), self._ask)
            elif isinstance(found, Misfit) and found.account is not None:
                # The misfit names the GPUs of another node.
                found = replace(found, account=room.account)
            yield room.node, found

    def refused(self, kin: Kin, rooms: Iterable[ResourceRoom]) -> dict[str, Verdict]:
        """Return the misfits of nodes with GPUs of a model unwanted by the pod."""
        lack = self.lack(kin)
        return {room.node: lack(room, (0,) * len(room.free)) for room in rooms}

    def _measured(self, kin: Kin, rooms: Sequence[ResourceRoom]) -> dict[str, Verdict]:
        """Return verdicts on nodes of one kin with memory, decided by the free units alone."""
        found: dict[str, Verdict] = {**self.fits(kin, rooms, [room.ascending for room in rooms])}
        if len(found) < len(rooms):
            lack = self.lack(kin)
            found.update((room.node, lack(room, room.free)) for room in rooms if room.node not in found)
        return found

    def lack(self, kin: Kin) -> Lack:
        """Return a function that makes the misfit of a node of the kin."""
        request, size, count = self._request, self.size, self.count
        summary = lacking(self._resource, size, count, choosy=request.wishes != ANY_GPU)
        curable = kin.shape.could_have(size, count)
        return lambda room, free: Misfit(summary, request, room.account, size, count, free, curable)

    def fits(self, kin: Kin, rooms: Iterable[ResourceRoom], free: Iterable[Sequence[int]]) -> dict[str, Fit]:
        """Return a fit for every node with enough room, among nodes of one kin.

        `free` has the free units of the GPUs of every node, in ascending order. Most searches of a large cluster run
        the loop for every node, so all values common to the nodes are computed before the loop.
        """
        if not self._scored:
            return self._unscored(rooms, free)
        policy = POLICIES[self._request.policy or kin.policy or self._ask.rules.policy]
        if self.count > 1 or policy.prefers is None:
            return self._fit_several(policy, kin.shape, rooms, free)
        size, most, all_units, price = self.size, kin.shape.largest, kin.shape.units, policy.price
        fullest = policy.prefers == "fullest"
        found: dict[str, Fit] = {}
        for room, ascending in zip(rooms, free, strict=True):
            first = bisect_left(ascending, size)
            if first < len(ascending):
                units = ascending[first if fullest else -1]
                found[room.node] = graded(price((units - size) / most, (room.node_free - size) / all_units)[0])
        return found

    def _unscored(self, rooms: Iterable[ResourceRoom], free: Iterable[Sequence[int]]) -> dict[str, Fit]:
        """Return UNSCORED for the same nodes as `fits`."""
        size, count = self.size, self.count
        there = zip(rooms, free, strict=True)
        return {room.node: UNSCORED for room, units in there if len(units) >= count and units[-count] >= size}

    def _fit_several(
        self, policy: Policy, shape: Shape, rooms: Iterable[ResourceRoom], free: Iterable[Sequence[int]]
    ) -> dict[str, Fit]:
        """Return the result of `fits` if more than one GPU of a node needs a price."""
        size, count, price, prefers = self.size, self.count, policy.price, policy.prefers
        most, all_units = shape.largest, shape.units
        found: dict[str, Fit] = {}
        for room, ascending in zip(rooms, free, strict=True):
            first = bisect_left(ascending, size)
            if len(ascending) - first >= count:
                node = (room.node_free - size * count) / all_units
                gpus = _cheapest_first(prefers, ascending, first, count)
                prices = [price((units - size) / most, node) for units in gpus]
                if prefers is None:
                    prices.sort()
                found[room.node] = graded(sum([each[0] for each in prices[:count]]) / count)
        return found


def _cheapest_first(prefers: str | None, ascending: Sequence[int], first: int, count: int) -> Sequence[int]:
    """Return the free units of the `count` cheapest GPUs.

    If the policy prefers neither the fullest nor the emptiest GPU, only prices show the cheapest GPUs: the free units
    of all GPUs with room are returned.
    """
    if prefers == "fullest":
        return ascending[first : first + count]
    return ascending[: -count - 1 : -1] if prefers == "emptiest" else ascending[first:]


def named_gpus(ask: Ask) -> frozenset[str]:
    """Return the GPUs that a pod wants or refuses by UUID; on the nodes of the GPUs, free units alone do not decide."""
    wishes = ask.request.wishes
    return frozenset({*wishes.uuids, *wishes.not_uuids})


def one_model(kin: Kin, ask: Ask) -> bool:
    """Return whether a pod accepts either every GPU or no GPU of a node of the kin.

    Valid only for a pod that names no GPU of the node.
    """
    return ask.request.wishes == ANY_GPU or kin.shape.product is not None


def unwanted(kin: Kin, ask: Ask) -> bool:
    """Return whether a pod accepts no GPU of a node of the kin.

    Valid only for a node with GPUs of one model, and for a pod that names no GPU of the node.
    """
    wishes = ask.request.wishes
    return wishes != ANY_GPU and wishes.refusal("", kin.shape.product or "") is not None
