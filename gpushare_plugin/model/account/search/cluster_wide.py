"""Verdicts on the nodes of a whole cluster: found once, and kept until the node or the rules change."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

from gpushare_plugin.model.account.node import Node
from gpushare_plugin.model.account.request import PodRequest, essence
from gpushare_plugin.model.account.search import fitting
from gpushare_plugin.model.account.search.fitting import Ask
from gpushare_plugin.model.account.search.many import Scan
from gpushare_plugin.model.account.search.rooms import Accounts, Rooms
from gpushare_plugin.model.account.search.several import ScanOfSeveral
from gpushare_plugin.model.account.search.verdicts import UNSCORED, Misfit, Verdict
from gpushare_plugin.model.choice.policies import POLICIES

MOST_REQUESTS = 64
"""The number of requests with kept verdicts; the verdicts of the least recently used request are forgotten first."""


class ClusterSearch:
    """The search of a cluster; keeps the verdicts for recent requests on nodes that have not changed."""

    def __init__(self, nodes: Mapping[str, Node]) -> None:
        """Search the nodes of a mapping by name; the mapping may change, and every search reads the current nodes."""
        self._nodes = nodes
        self._rooms = Rooms()
        self._verdicts = _Verdicts()

    def fits(
        self, ask: Ask, nodes: Sequence[str], accounts: Accounts, near: AbstractSet[str], *, scored: bool
    ) -> Mapping[str, Verdict]:
        """Return the verdicts on `nodes`, and perhaps on more nodes; callers must not change the mapping.

        `near` are the nodes with pods of the same owner. Without `scored`, the verdict on a node with room may be
        UNSCORED, which takes less time.
        """
        ask = ask._replace(request=essence(ask.request))
        verdicts = self._found(ask._replace(owner=None), nodes, accounts, scored=scored)
        # The owner matters only on nodes with pods of the owner, and only to some policies.
        there = [name for name in near if name in verdicts and name in self._nodes]
        if there := [name for name in there if self._separates(ask, name)]:
            beside = self._found(ask, there, accounts, scored=scored)
            return {**verdicts, **{name: beside[name] for name in there}}
        return verdicts

    def forget(self, node: str) -> None:
        """Forget the rooms of a node and all verdicts on the node, because the node has changed."""
        self._rooms.forget(node)
        self._verdicts.forget(node)

    def clear(self) -> None:
        """Forget all verdicts, because the rules have changed."""
        self._verdicts.clear()

    def _found(self, ask: Ask, nodes: Sequence[str], accounts: Accounts, *, scored: bool) -> Mapping[str, Verdict]:
        """Return the verdicts on `nodes`, and perhaps on more nodes; missing verdicts and scores are found now."""
        kept = self._verdicts.of(ask.request, ask.owner)
        unknown_yet = UNSCORED if scored else None
        if missing := [name for name in nodes if kept.get(name, unknown_yet) is unknown_yet]:
            found = self._find(ask, missing, accounts, scored=scored)
            kept.update(found)
            if len(found) < len(missing) and (unknown := [name for name in missing if name not in kept]):
                return {**kept, **{name: Misfit(not_known(name), ask.request) for name in unknown}}
        return kept

    def _find(self, ask: Ask, nodes: Sequence[str], accounts: Accounts, *, scored: bool) -> Mapping[str, Verdict]:
        """Return the verdicts on all known nodes among `nodes`."""
        # All other resources of a pod, for example network cards, make no difference.
        resources = [name for name in ask.request.amounts if name in ask.rules.ours]
        if ask.owner is not None or not resources:
            return {name: fitting.fit(accounts(name), ask) for name in nodes if name in self._nodes}
        rooms = [self._rooms.of(resource, nodes, self._nodes, accounts) for resource in resources]
        if len(resources) == 1:
            return Scan(ask, resources[0], accounts, scored=scored).verdicts(rooms[0])
        return ScanOfSeveral(ask, resources, accounts, scored=scored).verdicts(rooms)

    def _separates(self, ask: Ask, node: str) -> bool:
        """Return whether the policy for a pod on a node separates pods of the same owner."""
        return POLICIES[ask.request.policy or self._nodes[node].policy or ask.rules.policy].separates_replicas


def not_known(node: str) -> str:
    """Return the reason why a node has no verdict."""
    return f"node {node} is not known to gpushare yet"


class _Verdicts:
    """The verdicts for recent requests on nodes that have not changed."""

    def __init__(self) -> None:
        self._recent: OrderedDict[tuple[PodRequest, str | None], dict[str, Verdict]] = OrderedDict()

    def of(self, request: PodRequest, owner: str | None) -> dict[str, Verdict]:
        """Return the kept verdicts for a request by node; the caller adds new verdicts to the mapping."""
        key = (request, owner)
        verdicts = self._recent.setdefault(key, {})
        self._recent.move_to_end(key)
        if len(self._recent) > MOST_REQUESTS:
            self._recent.popitem(last=False)
        return verdicts

    def forget(self, node: str) -> None:
        """Forget the verdicts on a node, because the node has changed."""
        for verdicts in self._recent.values():
            verdicts.pop(node, None)

    def clear(self) -> None:
        """Forget all verdicts."""
        self._recent.clear()
