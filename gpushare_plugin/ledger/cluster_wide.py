"""Verdicts on the nodes of a whole cluster: found once, and kept until the node or the rules change."""

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from gpushare_plugin.core.policies import policy_for
from gpushare_plugin.ledger import fitting
from gpushare_plugin.ledger.alike import Accounts, NodeGroups
from gpushare_plugin.ledger.ask import Ask
from gpushare_plugin.ledger.node import Node
from gpushare_plugin.ledger.request import PodRequest, essence
from gpushare_plugin.ledger.verdicts import Misfit, Verdict

MOST_GROUPINGS = 32
"""The number of combinations of resources for which the nodes stay in groups."""

MOST_REQUESTS = 64
"""The number of requests with kept verdicts; the verdicts of the least recently used request are forgotten first."""


class ClusterSearch:
    """The search of a cluster; keeps the verdicts for recent requests on nodes that have not changed."""

    def __init__(self, nodes: Mapping[str, Node]) -> None:
        """Search the nodes of a mapping by name; the mapping may change, and every search reads the current nodes."""
        self._nodes = nodes
        self._groups: OrderedDict[tuple[str, ...], NodeGroups] = OrderedDict()
        self._verdicts = _Verdicts()

    def fits(self, ask: Ask, nodes: Sequence[str], accounts: Accounts, near: AbstractSet[str]) -> Mapping[str, Verdict]:
        """Return the verdicts on `nodes`, and perhaps on more nodes; callers must not change the mapping.

        `near` are the nodes with pods of the same owner.
        """
        ask = ask._replace(request=essence(ask.request))
        verdicts = self._found(ask._replace(owner=None), nodes, accounts)
        # The owner matters only on nodes with pods of the owner, and only to some policies.
        known = [name for name in near if name in verdicts and name in self._nodes]
        if there := [name for name in known if self._separates(ask, name)]:
            beside = self._found(ask, there, accounts)
            return {**verdicts, **{name: beside[name] for name in there}}
        return verdicts

    def forget(self, node: str) -> None:
        """Forget all verdicts on a node, because the node has changed."""
        for alike in self._groups.values():
            if node in self._nodes:
                alike.change(node)
            else:
                alike.remove(node)
        self._verdicts.forget(node)

    def clear(self) -> None:
        """Forget all verdicts, because the rules have changed."""
        self._verdicts.clear()

    def _found(self, ask: Ask, nodes: Sequence[str], accounts: Accounts) -> Mapping[str, Verdict]:
        """Return the verdicts on `nodes`, and perhaps on more nodes; missing verdicts are found now."""
        kept = self._verdicts.of(ask.request, ask.owner)
        if missing := [name for name in nodes if name not in kept]:
            found = self._find(ask, missing, accounts)
            kept.update(found)
            if len(found) < len(missing) and (unknown := [name for name in missing if name not in kept]):
                return {**kept, **{name: Misfit(not_known(name), curable=False) for name in unknown}}
        return kept

    def _find(self, ask: Ask, names: Sequence[str], accounts: Accounts) -> dict[str, Verdict]:
        """Return the verdicts on all known nodes among `names`."""
        # All other resources of a pod, for example network cards, make no difference.
        resources = tuple([name for name in ask.request.amounts if name in ask.rules.ours])
        alike = self._alike(resources)
        found: dict[str, Verdict] = {}
        known = [name for name in names if name in self._nodes]
        for among in _by_named_gpus(known, ask, self._nodes):
            for replicas in _by_replicas(among, ask, accounts):
                for nodes in alike.of(replicas, accounts):
                    found.update(zip(nodes.names, fitting.fits(nodes, ask), strict=True))
        return found

    def _alike(self, resources: tuple[str, ...]) -> NodeGroups:
        """Return the nodes of the cluster in groups for requests of some resources."""
        found = self._groups.get(resources)
        if found is None:
            found = self._groups[resources] = NodeGroups(resources)
            if len(self._groups) > MOST_GROUPINGS:
                self._groups.popitem(last=False)
        self._groups.move_to_end(resources)
        return found

    def _separates(self, ask: Ask, node: str) -> bool:
        """Return whether the policy for a pod on a node separates pods of the same owner."""
        return policy_for(ask.request.policy, self._nodes[node].policy, ask.rules.policy).separates_replicas


def not_known(node: str) -> str:
    """Return the reason why a node has no verdict."""
    return f"node {node} is not known to gpushare yet"


def _by_named_gpus(names: Sequence[str], ask: Ask, nodes: Mapping[str, Node]) -> Iterable[Sequence[str]]:
    """Return the nodes without a GPU that the pod names, and the nodes with such a GPU."""
    named = ask.request.wishes.named
    if not named:
        return (names,)
    there, others = list[str](), list[str]()
    for name in names:
        (others if named.isdisjoint(nodes[name].gpus) else there).append(name)
    return there, others


def _by_replicas(names: Sequence[str], ask: Ask, accounts: Accounts) -> Iterable[Sequence[str]]:
    """Return the nodes grouped by the number of pods of the same owner."""
    if ask.owner is None:
        return (names,)
    groups: dict[int, list[str]] = {}
    for name in names:
        groups.setdefault(accounts(name).replicas(ask.owner)[0], []).append(name)
    return groups.values()


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
