"""The account of a whole cluster: nodes, pods and reservations in, verdicts out.

The cluster account keeps the newest nodes, pods and reservations, and makes the account of a node from the newest
objects on demand. Thus the order of events does not matter, and accounts cannot drift from the objects.
`Presence` knows which pods are on which node, and `Nominated` which pods wait for victims there.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Protocol

from gpushare_plugin.base import structs
from gpushare_plugin.base.errors import PlacementError
from gpushare_plugin.core.policies import DEFAULT_POLICY
from gpushare_plugin.ledger import fitting
from gpushare_plugin.ledger.alike import AlikeNodes
from gpushare_plugin.ledger.ask import Ask, Rules
from gpushare_plugin.ledger.cluster_wide import ClusterSearch, not_known
from gpushare_plugin.ledger.node import ALWAYS_OURS, Node
from gpushare_plugin.ledger.occupancy import NodeAccount, Reservation, Whereabouts, node_account
from gpushare_plugin.ledger.pod import Pod
from gpushare_plugin.ledger.request import PodRequest
from gpushare_plugin.ledger.verdicts import Fit, Misfit, PodPlace, Verdict
from gpushare_plugin.ledger.victims import VictimCandidates, victims
from gpushare_plugin.packing.costs import ShareCosts


class Presence:
    """The pods with units or promised units on each node, whether the node is known or not."""

    def __init__(self) -> None:
        """Know no pod yet."""
        self._there: dict[str, dict[str, None]] = {}
        self._owned: dict[str | None, dict[str, int]] = {}
        """The number of pods of each owner on each node; plain dicts, because making Counters would double the time."""

    def on(self, node: str) -> Collection[str]:
        """Return the UIDs of the pods on a node."""
        return self._there.get(node, {}).keys()

    def of(self, owner: str | None) -> AbstractSet[str]:
        """Return the nodes with pods of an owner."""
        return self._owned[owner].keys() if owner in self._owned else frozenset()

    def enter(self, pod: Pod, node: str) -> None:
        """Count a pod on a node."""
        self._there.setdefault(node, {})[pod.uid] = None
        if pod.owner is not None:
            owned = self._owned.setdefault(pod.owner, {})
            owned[node] = owned.get(node, 0) + 1

    def leave(self, pod: Pod, node: str) -> None:
        """Stop counting a pod on a node."""
        del self._there[node][pod.uid]
        if not self._there[node]:
            del self._there[node]
        if pod.owner is not None:
            owned = self._owned[pod.owner]
            owned[node] -= 1
            if not owned[node]:
                del owned[node]
            if not owned:
                del self._owned[pod.owner]


class Nominated:
    """The pods for which pods of a node are being evicted, by node."""

    def __init__(self) -> None:
        """Know no pod yet."""
        self._waiting: dict[str, dict[str, Pod]] = {}

    @property
    def nodes(self) -> AbstractSet[str]:
        """The nodes with waiting pods."""
        return self._waiting.keys()

    def replace(self, before: Pod | None, after: Pod | None) -> None:
        """Replace a pod by its newest state; None before the first state and after the last."""
        if before is not None and before.nominated in self._waiting:
            waiting = self._waiting[before.nominated]
            waiting.pop(before.uid, None)
            if not waiting:
                del self._waiting[before.nominated]
        if after is not None and after.nominated and after.node is None and not after.ended and not after.ending:
            self._waiting.setdefault(after.nominated, {})[after.uid] = after

    def ahead_of(self, pod: Pod, node: str) -> list[Pod]:
        """Return the pods waiting for a node with at least the priority of `pod`, the highest priority first."""
        others = [each for each in self._waiting.get(node, {}).values() if each.uid != pod.uid]
        return sorted((each for each in others if each.priority >= pod.priority), key=lambda each: -each.priority)


class _Named:
    """The resources named in records of nodes."""

    def __init__(self) -> None:
        """Start without records."""
        self._counts: Counter[str] = Counter()

    def replace(self, before: Node | None, after: Node | None) -> frozenset[str]:
        """Count the resources of a changed node, and return all resources that the account decides on.

        `before` is None for an added node, `after` for a removed node.
        """
        if before is not None and before.recorded:
            self._counts.subtract(before.offers.keys())
        if after is not None and after.recorded:
            self._counts.update(after.offers.keys())
        return ALWAYS_OURS | {name for name, count in self._counts.items() if count > 0}


class AccountObserver(Protocol):
    """Is told of every change of an account."""

    def node_changed(self, name: str, /) -> None:
        """Note that a node, or what pods hold of its GPUs, has changed."""

    def pod_changed(self, before: Pod | None, after: Pod | None, /) -> None:
        """Note a new, changed or deleted pod: None before the first state and after the last."""


class ClusterAccount:
    """The account of every GPU of a cluster, with held and promised units; for one thread only, and never waits."""

    def __init__(self, default_policy: str = DEFAULT_POLICY) -> None:
        """Start empty; `default_policy` is the policy for pods and nodes without a policy."""
        self._rules = Rules(default_policy)
        self._named = _Named()
        self._nodes: dict[str, Node] = {}
        self._pods: dict[str, Pod] = {}
        self._reservations: dict[str, Reservation] = {}
        self._presence = Presence()
        self._nominated = Nominated()
        self._whereabouts = Whereabouts()
        self._accounts: dict[str, NodeAccount] = {}  # of nodes unchanged since the account was made
        self._search = ClusterSearch(self._nodes)
        self._observer: AccountObserver | None = None

    def follow(self, observer: AccountObserver) -> None:
        """Tell one observer of all changes from now on."""
        self._observer = observer

    def use_policy(self, default_policy: str) -> None:
        """Replace the policy for pods and nodes without a policy; all verdicts are found anew."""
        if default_policy != self._rules.policy:
            self._rules = replace(self._rules, policy=default_policy)
            self._search.clear()

    def use_costs(self, costs: ShareCosts) -> None:
        """Choose the GPUs of shares by these costs, where `packing` is the policy; no verdict changes by that."""
        self._rules = replace(self._rules, costs=costs)

    def put_node(self, node: Node) -> None:
        """Add a node, or replace the former state of the node."""
        before = self._nodes.get(node.name)
        if before is None or not before.same_as(node):
            self._nodes[node.name] = node
            self._changed(node.name)
            self._name(before, node)
        elif before.version != node.version:
            self._nodes[node.name] = structs.replace(before, version=node.version)

    def remove_node(self, name: str) -> None:
        """Forget a node; pods bound to the node stay until removed, because the node may come back."""
        self._name(self._nodes.pop(name, None), None)
        self._changed(name)

    def put_pod(self, pod: Pod) -> None:
        """Add a pod, or replace the former state of the pod; a bound or ended pod loses the reservation.

        A bound pod stays bound, and an ended pod stays ended: events with an earlier state are late and ignored.
        """
        before = self._pods.get(pod.uid)
        if before is not None and (before == pod or _is_older(pod, before)):
            return
        if pod.node is not None or pod.ended:
            self.release(pod.uid)
        if before is not None:
            self._leave(before, before.holds_on)
        self._pods[pod.uid] = pod
        self._tell(before, pod)
        self._nominated.replace(before, pod)
        self._enter(pod, pod.holds_on)

    def remove_pod(self, uid: str) -> None:
        """Forget a deleted pod, and the reservation of the pod."""
        self.release(uid)
        if (pod := self._pods.pop(uid, None)) is not None:
            self._tell(pod, None)
            self._nominated.replace(pod, None)
            self._leave(pod, pod.holds_on)
            self._whereabouts.forget(uid)

    def concerns(self, request: PodRequest) -> bool:
        """Return whether the account decides on a resource requested by a pod, or cannot read the request.

        A request is unreadable if a quantity makes no sense, or the pod has more resources than gpushare keeps.
        """
        return request.unreadable or not self._rules.ours.isdisjoint(request.amounts)

    def fit(self, request: PodRequest, node: str, owner: str | None = None) -> Verdict:
        """Return whether a pod fits on a node; the verdict on too few units has the numbers of the node.

        `owner` is the UID of the controller of the pod.
        """
        if node not in self._nodes:
            return Misfit(not_known(node), curable=False)
        return fitting.fit(self.account_of(node), self._ask(request, owner))

    def fit_pod(self, pod: Pod, node: str) -> Verdict:
        """Return whether a pod fits on a node after nominated pods, with the numbers of `fit`."""
        if node not in self._nodes:
            return Misfit(not_known(node), curable=False)
        account = fitting.with_nominated(self.account_of(node), self._nominated.ahead_of(pod, node), self._rules)
        return fitting.fit(account, self._ask(pod.request, pod.owner))

    def fits(self, request: PodRequest, nodes: Iterable[str], owner: str | None = None) -> dict[str, Verdict]:
        """Return whether a pod fits on each of many nodes, without the numbers of the nodes.

        One call is much faster than a call for each node.
        """
        names = list(nodes)
        verdicts = self._fits(self._ask(request, owner), names)
        return {name: verdicts[name] for name in names}

    def fits_pod(self, pod: Pod, nodes: Sequence[str]) -> Mapping[str, Verdict]:
        """Return whether a pod fits on each of many nodes, after nominated pods, for which other pods are evicted.

        The result can include further nodes, and changes with the account.
        """
        verdicts = self._fits(self._ask(pod.request, pod.owner), nodes)
        awaited: dict[str, Verdict] = {}
        for name in self._nominated.nodes & verdicts.keys():
            if isinstance(verdicts[name], Fit) and (ahead := self._nominated.ahead_of(pod, name)):
                account = fitting.with_nominated(self.account_of(name), ahead, self._rules)
                (awaited[name],) = fitting.fits(
                    AlikeNodes.alone(account, pod.request.amounts), self._ask(pod.request, pod.owner)
                )
        return {**verdicts, **awaited} if awaited else verdicts

    def _fits(self, ask: Ask, nodes: Sequence[str]) -> Mapping[str, Verdict]:
        """Return the verdicts on `nodes`, and perhaps on further nodes; callers must not change the result."""
        return self._search.fits(ask, nodes, self.account_of, self._presence.of(ask.owner))

    def place(self, request: PodRequest, node: str, owner: str | None = None, ahead: Iterable[Pod] = ()) -> PodPlace:
        """Return the place of a pod on a node, after the pods `ahead`.

        Raises PlacementError if the node is unknown, or the pod does not fit.
        """
        if node not in self._nodes:
            raise PlacementError(not_known(node))
        found = fitting.place(
            fitting.with_nominated(self.account_of(node), ahead, self._rules), self._ask(request, owner)
        )
        if isinstance(found, Misfit):
            raise PlacementError(f"node {node}: {found.reason}")
        return found

    def place_pod(self, pod: Pod, node: str) -> PodPlace:
        """Return the place of a pod on a node, after nominated pods; raises PlacementError like `place`."""
        return self.place(pod.request, node, pod.owner, self._nominated.ahead_of(pod, node))

    def places_of(self, pod: Pod, node: str) -> Iterator[PodPlace]:
        """Yield the places of pods like `pod` on a known node after nominated pods, until no further pod fits.

        Nothing is promised: the account stays as it is.
        """
        account = fitting.with_nominated(self.account_of(node), self._nominated.ahead_of(pod, node), self._rules)
        return fitting.places(account, pod, self._ask(pod.request, pod.owner))

    def reserve(self, pod: Pod, node: str) -> PodPlace:
        """Promise units on a node to a pod until the pod is bound or released, and return the place.

        A pod with a reservation on the node gets the same place again. A pod already bound to the node gets the
        place of the annotations. Raises PlacementError if the pod does not fit, has ended, or is bound or reserved
        on another node.
        """
        bound = self._pods.get(pod.uid, pod)
        if bound.ended:
            raise PlacementError(f"pod {pod.label} has ended")
        if bound.node is not None:
            if bound.node != node:
                raise PlacementError(f"pod {pod.label} is already bound to node {bound.node}")
            return PodPlace(node, bound.allocation or bound.promise or ())
        if (before := self._reservations.get(pod.uid)) is not None:
            if before.node != node:
                raise PlacementError(f"pod {pod.label} is being bound to node {before.node}; retry when that has ended")
            return PodPlace(node, before.shares)
        place = self.place_pod(pod, node)
        self._reservations[pod.uid] = Reservation(pod, node, place.shares)
        self._enter(pod, node)
        return place

    def release(self, uid: str) -> None:
        """End the reservation of a pod; a pod without a reservation is ignored."""
        if (reservation := self._reservations.pop(uid, None)) is not None:
            self._leave(reservation.pod, reservation.node)

    def victims(self, pod: Pod, node: str, candidates: VictimCandidates) -> list[Pod] | None:
        """Return the pods to evict from a node to make room for a pod, the least important first; see `victims`.

        None if the node is unknown, or if all evictions together do not make enough room.
        """
        ask = self._ask(pod.request, pod.owner)
        return victims(self.account_of(node), ask, candidates) if node in self._nodes else None

    def ahead_of(self, pod: Pod, node: str) -> list[Pod]:
        """Return the nominated pods on a node that go before `pod`, the most important first."""
        return self._nominated.ahead_of(pod, node)

    def account_of(self, name: str) -> NodeAccount:
        """Return the account of a node; an unknown node offers nothing."""
        if (account := self._accounts.get(name)) is None:
            uids = self._presence.on(name)
            account = node_account(
                self.node_named(name),
                [self._pods[uid] for uid in uids if uid not in self._reservations],
                [self._reservations[uid] for uid in uids if uid in self._reservations],
                self._whereabouts.locate,
            )
            if name in self._nodes:
                self._accounts[name] = account
        return account

    def node_named(self, name: str) -> Node:
        """Return a node, not its account; an unknown node offers nothing."""
        return self._nodes.get(name) or Node(name)

    @property
    def nodes(self) -> Mapping[str, Node]:
        """The known nodes by name; the mapping follows later changes."""
        return self._nodes

    @property
    def pods(self) -> Mapping[str, Pod]:
        """The known pods by UID; the mapping follows later changes."""
        return self._pods

    def reservation(self, uid: str) -> Reservation | None:
        """Return the reservation of a pod, None without a reservation."""
        return self._reservations.get(uid)

    def _ask(self, request: PodRequest, owner: str | None) -> Ask:
        return Ask(request, owner, self._rules)

    def _enter(self, pod: Pod, node: str | None) -> None:
        """Count a pod on the node of its held or promised units."""
        if node is not None:
            self._presence.enter(pod, node)
            self._changed(node)

    def _leave(self, pod: Pod, node: str | None) -> None:
        """Undo `_enter`."""
        if node is not None:
            self._presence.leave(pod, node)
            self._changed(node)

    def _changed(self, node: str) -> None:
        """Forget the account and the verdicts for the former state of a node."""
        self._accounts.pop(node, None)
        self._search.forget(node)
        if self._observer is not None:
            self._observer.node_changed(node)

    def _tell(self, before: Pod | None, after: Pod | None) -> None:
        if self._observer is not None:
            self._observer.pod_changed(before, after)

    def _name(self, before: Node | None, after: Node | None) -> None:
        """Update the resources named in records; a change of the resources can change every verdict."""
        ours = self._named.replace(before, after)
        if ours != self._rules.ours:
            self._rules = replace(self._rules, ours=ours)
            self._search.clear()


def _is_older(pod: Pod, known: Pod) -> bool:
    """Return whether `pod` is an older state than the `known` state of the pod."""
    return (known.node is not None and pod.node is None) or (known.ended and not pod.ended)
