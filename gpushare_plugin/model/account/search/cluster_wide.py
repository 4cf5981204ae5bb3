"""Verdicts on the nodes of a whole cluster: found once, and kept until something changes."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from gpushare_plugin.model.account.node import AccountNode
from gpushare_plugin.model.account.occupancy import NodeAccount
from gpushare_plugin.model.account.request import PodRequest, essence
from gpushare_plugin.model.account.search import fitting
from gpushare_plugin.model.account.search.fitting import Ask
from gpushare_plugin.model.account.search.many import Rooms, Scan, Verdict
from gpushare_plugin.model.account.search.policies import POLICIES
from gpushare_plugin.model.account.search.verdicts import Misfit

MOST_REQUESTS = 64
"""Requests whose verdicts are kept; those that were asked for longest ago are forgotten first."""

Accounts = Callable[[str], NodeAccount]
"""Returns the account of a node by its name."""


class ClusterSearch:
    """Whether pods fit on nodes; what was found stays, for the requests of late, on nodes that have not changed."""

    def __init__(self, nodes: Mapping[str, AccountNode]) -> None:
        """Search these nodes: those that are in the mapping when they are asked about."""
        self._nodes = nodes
        self._rooms = Rooms()
        self._verdicts = _Verdicts()

    def fits(self, ask: Ask, nodes: Sequence[str], accounts: Accounts, near: AbstractSet[str]) -> Mapping[str, Verdict]:
        """Return the verdicts on these nodes at least, to read only; `near` are those where the owner has pods."""
        ask = ask._replace(request=essence(ask.request))
        verdicts = self._found(ask._replace(owner=None), nodes, accounts)
        # Only where the owner has pods already can it make a difference, and only to some policies.
        there = [name for name in near if name in verdicts and name in self._nodes]
        if there := [name for name in there if self._separates(ask, name)]:
            beside = self._found(ask, there, accounts)
            return {**verdicts, **{name: beside[name] for name in there}}
        return verdicts

    def forget(self, node: str) -> None:
        """Forget what followed from the former state of a node."""
        self._rooms.forget(node)
        self._verdicts.forget(node)

    def clear(self) -> None:
        """Forget every verdict: the rules have changed."""
        self._verdicts.clear()

    def _found(self, ask: Ask, nodes: Sequence[str], accounts: Accounts) -> Mapping[str, Verdict]:
        """Return the verdicts on these nodes at least, found now where they were not kept."""
        kept = self._verdicts.of(ask.request, ask.owner)
        if missing := [name for name in nodes if name not in kept]:
            found = dict(self._find(ask, missing, accounts))
            # By the names as they were asked for, which lie side by side in memory: to compare them is most of the work
            # when all are asked for again.
            kept.update((name, found[name]) for name in missing if name in found)
            if unknown := [name for name in missing if name not in kept]:
                return {**kept, **{name: Misfit(not_known(name), ask.request) for name in unknown}}
        return kept

    def _find(self, ask: Ask, nodes: Sequence[str], accounts: Accounts) -> Iterable[tuple[str, Verdict]]:
        """Return each node that is known with its verdict."""
        amounts = ask.request.amounts
        if ask.owner is None and len(amounts) == 1 and not ask.rules.ours.isdisjoint(amounts):
            (resource,) = amounts
            return Scan(ask, accounts).verdicts(self._rooms.of(resource, nodes, self._nodes, accounts))
        return ((name, fitting.fit(accounts(name), ask)) for name in nodes if name in self._nodes)

    def _separates(self, ask: Ask, node: str) -> bool:
        """Return whether it matters to a pod's policy on a node what pods of its owner are there."""
        return POLICIES[ask.request.policy or self._nodes[node].policy or ask.rules.policy].separates_replicas


def not_known(node: str) -> str:
    """Return why there is nothing to say about a node."""
    return f"node {node} is not known to gpushare yet"


class _Verdicts:
    """The verdicts on nodes that have not changed since, for the requests of late."""

    def __init__(self) -> None:
        self._recent: OrderedDict[tuple[PodRequest, str | None], dict[str, Verdict]] = OrderedDict()

    def of(self, request: PodRequest, owner: str | None) -> dict[str, Verdict]:
        """Return those for a request by node, to read and to add to."""
        key = (request, owner)
        verdicts = self._recent.setdefault(key, {})
        self._recent.move_to_end(key)
        if len(self._recent) > MOST_REQUESTS:
            self._recent.popitem(last=False)
        return verdicts

    def forget(self, node: str) -> None:
        """Forget those on a node, which has changed."""
        for verdicts in self._recent.values():
            verdicts.pop(node, None)

    def clear(self) -> None:
        """Forget all."""
        self._recent.clear()
