"""The search of thousands of nodes for several resources; `many` is the search for one resource.

If like nodes lack a requested resource, one search serves many of the nodes. Otherwise most pods ask for memory and
compute of the same GPUs: then the free units of memory and compute decide.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from gpushare_plugin.foundation.structs import replace
from gpushare_plugin.model.account.occupancy import ONE_GPU_KINDS
from gpushare_plugin.model.account.search import fitting
from gpushare_plugin.model.account.search.fitting import Ask
from gpushare_plugin.model.account.search.many import Scan, named_gpus, one_model, unwanted
from gpushare_plugin.model.account.search.rooms import Accounts, Kin, ResourceRoom
from gpushare_plugin.model.account.search.verdicts import Misfit, Verdict

Rooms = Sequence[ResourceRoom]
"""The rooms of one node in all requested resources, in the order of the resources."""


class ScanOfSeveral:
    """The search of many nodes for a pod with several resources, regardless of other pods of the same owner."""

    def __init__(self, ask: Ask, resources: Sequence[str], accounts: Accounts, *, scored: bool) -> None:
        """Search for the `resources` of the request in `ask`; `accounts` and `scored` mean the same as for `Scan`."""
        self._ask = ask
        self._accounts = accounts
        self._resources = resources
        self._scans = [Scan(ask, resource, accounts, scored=scored) for resource in resources]

    def verdicts(self, columns: Sequence[Sequence[ResourceRoom]]) -> dict[str, Verdict]:
        """Return the verdicts by node, given the rooms of all nodes in every resource."""
        found: dict[str, Verdict] = {}
        alike: dict[tuple[Kin, ...], list[Rooms]] = {}
        named = named_gpus(self._ask)
        nodes = zip(*columns, strict=True)
        kins = zip(*[[room.kin for room in column] for column in columns], strict=True)
        for rooms, of_rooms in zip(nodes, kins, strict=True):
            if named and not named.isdisjoint(rooms[0].gpus):
                found[rooms[0].node] = fitting.fit(self._accounts(rooms[0].node), self._ask)
            else:
                alike.setdefault(of_rooms, []).append(rooms)
        for of_all, there in alike.items():
            found.update(self._on_kin(of_all, there))
        return found

    def _on_kin(self, kins: Sequence[Kin], nodes: Sequence[Rooms]) -> Iterable[tuple[str, Verdict]]:
        kinds = [kin.shape.kind for kin in kins]
        if any(kin.lacking for kin in kins):
            # The missing resource decides, unless a resource searched before is short. Memory and cores come last.
            return self._searched(nodes, [n for n, kind in enumerate(kinds) if kind and kind not in ONE_GPU_KINDS])
        if sorted(kinds) == ["cores", "memory"]:
            return self._together(kins, nodes, kinds.index("memory"), kinds.index("cores"))
        return self._each(nodes) if "cores" in kinds else self._searched(nodes, range(len(kinds)))

    def _each(self, nodes: Iterable[Rooms]) -> Iterator[tuple[str, Verdict]]:
        """Yield verdicts on nodes, found by one search per node."""
        return ((rooms[0].node, fitting.fit(self._accounts(rooms[0].node), self._ask)) for rooms in nodes)

    def _searched(self, nodes: Iterable[Rooms], deciding: Sequence[int]) -> Iterator[tuple[str, Verdict]]:
        """Yield verdicts on nodes of one kin, found by one search for all nodes with the same free units.

        Only the free units of the `deciding` resources are compared, given as indexes of `self._resources`.
        """
        known: dict[tuple[tuple[int, ...], ...], Verdict] = {}
        for rooms in nodes:
            key = tuple([rooms[number].free for number in deciding])
            node = rooms[0].node
            if (found := known.get(key)) is None:
                found = known[key] = fitting.fit(self._accounts(node), self._ask)
            elif isinstance(found, Misfit) and found.account is not None:
                # The misfit names the GPUs of another node.
                found = replace(found, account=rooms[self._resources.index(found.account.offer.resource)].account)
            yield node, found

    def _together(
        self, kins: Sequence[Kin], nodes: Sequence[Rooms], memory: int, cores: int
    ) -> Iterable[tuple[str, Verdict]]:
        """Return verdicts on nodes of one kin with memory and compute, given the indexes of the two resources."""
        ask, of_memory, of_cores = self._ask, kins[memory], kins[cores]
        same = of_memory.shape.product == of_cores.shape.product and one_model(of_memory, ask)
        if not same or any(rooms[memory].offered != rooms[cores].offered for rooms in nodes):
            return self._each(nodes)
        problem = (
            ask.request.problem
            or fitting.without_memory(ask.request, self._resources[cores], (self._resources[memory],))
            or fitting.unsplittable(
                ask.request, {each: kin.shape for each, kin in zip(self._resources, kins, strict=True)}
            )
        )
        if problem:
            return dict.fromkeys((rooms[0].node for rooms in nodes), Misfit(problem, ask.request)).items()
        if unwanted(of_cores, ask):
            # `fitting` searches compute before memory, so compute is the resource of the misfit.
            return self._scans[cores].refused(of_cores, [rooms[cores] for rooms in nodes]).items()
        both = _Both(self._scans[memory], self._scans[cores])
        return both.verdicts(of_memory, of_cores, [(rooms[memory], rooms[cores]) for rooms in nodes]).items()


class _Both(NamedTuple):
    """The search of nodes of one kin for memory and compute of the same GPUs; both offers have one order of GPUs."""

    memory: Scan
    """The search for memory."""
    cores: Scan
    """The search for compute."""

    def verdicts(
        self, of_memory: Kin, of_cores: Kin, nodes: Sequence[tuple[ResourceRoom, ResourceRoom]]
    ) -> dict[str, Verdict]:
        """Return the verdicts by node, given the rooms of the nodes in memory and in compute."""
        roomy = [self._roomy(memory, cores) for memory, cores in nodes]
        found: dict[str, Verdict] = {**self.memory.fits(of_memory, [memory for memory, _ in nodes], roomy)}
        if len(found) < len(nodes):
            lack, lack_cores, part = self.memory.lack(of_memory), self.cores.lack(of_cores), self.cores.size
            for memory, cores in nodes:
                if memory.node not in found:
                    enough = [percent >= part for percent in cores.free]
                    free = tuple([units if there else 0 for units, there in zip(memory.free, enough, strict=True)])
                    short = sum(enough) < self.cores.count
                    found[memory.node] = lack_cores(cores, cores.free) if short else lack(memory, free)
        return found

    def _roomy(self, memory: ResourceRoom, cores: ResourceRoom) -> list[int]:
        """Return the free units of memory of the GPUs with enough memory and compute, in ascending order."""
        size, part = self.memory.size, self.cores.size
        both = zip(memory.free, cores.free, strict=True)
        return sorted([units for units, percent in both if units >= size and percent >= part])
