"""Verdicts on the nodes of a whole cluster: found once, and kept until something changes."""

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
"""Requests whose verdicts are kept; those that were asked for longest ago are forgotten first."""


class ClusterSearch:
    """Whether pods fit on nodes; what was found stays, for the requests of late, on nodes that have not changed."""

    def __init__(self, nodes: Mapping[str, Node]) -> None:
        """Search these nodes: those that are in the mapping when they are asked about."""
        self._nodes = nodes
        self._rooms = Rooms()
        self._verdicts = _Verdicts()

    def fits(
        self, ask: Ask, nodes: Sequence[str], accounts: Accounts, near: AbstractSet[str], *, scored: bool
    ) -> Mapping[str, Verdict]:
        """Return the verdicts on these nodes at least, to read only; `near` are those where the owner has pods.

        Without `scored`, nodes where the pod fits can be UNSCORED: to find that they have room takes less time.
        """
        ask = ask._replace(request=essence(ask.request))
        verdicts = self._found(ask._replace(owner=None), nodes, accounts, scored=scored)
        # Only where the owner has pods already can it make a difference, and only to some policies.
        there = [name for name in near if name in verdicts and name in self._nodes]
        if there := [name for name in there if self._separates(ask, name)]:
            beside = self._found(ask, there, accounts, scored=scored)
            return {**verdicts, **{name: beside[name] for name in there}}
        return verdicts

    def forget(self, node: str) -> None:
        """Forget what followed from the former state of a node."""
        self._rooms.forget(node)
        self._verdicts.forget(node)

    def clear(self) -> None:
        """Forget every verdict: the rules have changed."""
        self._verdicts.clear()

    def _found(self, ask: Ask, nodes: Sequence[str], accounts: Accounts, *, scored: bool) -> Mapping[str, Verdict]:
        """Return the verdicts on these nodes at least, found now where they were not kept, or not with their scores."""
        kept = self._verdicts.of(ask.request, ask.owner)
        unknown_yet = UNSCORED if scored else None
        if missing := [name for name in nodes if kept.get(name, unknown_yet) is unknown_yet]:
            found = self._find(ask, missing, accounts, scored=scored)
            kept.update(found)
            if len(found) < len(missing) and (unknown := [name for name in missing if name not in kept]):
                return {**kept, **{name: Misfit(not_known(name), ask.request) for name in unknown}}
        return kept

    def _find(self, ask: Ask, nodes: Sequence[str], accounts: Accounts, *, scored: bool) -> Mapping[str, Verdict]:
        """Return the verdict on each node that is known."""
        # What else a pod asks for, such as network cards, makes no difference.
        resources = [name for name in ask.request.amounts if name in ask.rules.ours]
        if ask.owner is not None or not resources:
            return {name: fitting.fit(accounts(name), ask) for name in nodes if name in self._nodes}
        rooms = [self._rooms.of(resource, nodes, self._nodes, accounts) for resource in resources]
        if len(resources) == 1:
            return Scan(ask, resources[0], accounts, scored=scored).verdicts(rooms[0])
        return ScanOfSeveral(ask, resources, accounts, scored=scored).verdicts(rooms)

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
