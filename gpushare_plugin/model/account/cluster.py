"""The account of a whole cluster: nodes, pods and reservations in, verdicts out.

What is kept are the newest objects; the account of a node follows from them when it is asked for. So the order of
events does not matter, and nothing can drift.
"""

from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from gpushare_plugin.foundation.errors import PlacementError
from gpushare_plugin.model.account import fitting
from gpushare_plugin.model.account.fitting import Ask, Rules
from gpushare_plugin.model.account.many import Rooms, Scan, Verdict
from gpushare_plugin.model.account.node import ALWAYS_OURS, AccountNode
from gpushare_plugin.model.account.occupancy import NodeAccount, Reservation, Whereabouts, node_account
from gpushare_plugin.model.account.pod import AccountPod
from gpushare_plugin.model.account.policies import DEFAULT_POLICY, POLICIES
from gpushare_plugin.model.account.request import PodRequest, essence
from gpushare_plugin.model.account.verdicts import Fit, Misfit, Placement
from gpushare_plugin.model.account.victims import victims

MOST_REQUESTS = 64
"""Requests whose verdicts are kept; those that were asked for longest ago are forgotten first."""


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


class _Presence:
    """Which pods have units on which node, or are promised some, whether the node is known or not."""

    def __init__(self) -> None:
        self._there: dict[str, dict[str, None]] = {}
        self._owned: dict[str | None, Counter[str]] = {}

    def on(self, node: str) -> Collection[str]:
        """Return the UIDs of the pods on a node."""
        return self._there.get(node, {}).keys()

    def of(self, owner: str | None) -> AbstractSet[str]:
        """Return the nodes where an owner has pods."""
        return self._owned[owner].keys() if owner in self._owned else frozenset()

    def enter(self, pod: AccountPod, node: str) -> None:
        """Count a pod on a node."""
        self._there.setdefault(node, {})[pod.uid] = None
        if pod.owner is not None:
            self._owned.setdefault(pod.owner, Counter())[node] += 1

    def leave(self, pod: AccountPod, node: str) -> None:
        """Count it there no more."""
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


class _Nominated:
    """Pods that wait for a node where others are being evicted for them, by node."""

    def __init__(self) -> None:
        self._waiting: dict[str, dict[str, AccountPod]] = {}

    @property
    def nodes(self) -> AbstractSet[str]:
        """The nodes that are waited for."""
        return self._waiting.keys()

    def replace(self, before: AccountPod | None, after: AccountPod | None) -> None:
        """Take in a pod as it is now."""
        if before is not None and before.nominated in self._waiting:
            waiting = self._waiting[before.nominated]
            waiting.pop(before.uid, None)
            if not waiting:
                del self._waiting[before.nominated]
        if after is not None and after.nominated and after.node is None and not after.ended and not after.ending:
            self._waiting.setdefault(after.nominated, {})[after.uid] = after

    def ahead_of(self, pod: AccountPod, node: str) -> list[AccountPod]:
        """Return those that are as important as another pod or more so, the most important first."""
        others = [each for each in self._waiting.get(node, {}).values() if each.uid != pod.uid]
        return sorted((each for each in others if each.priority >= pod.priority), key=lambda each: -each.priority)


class ClusterAccount:
    """Every GPU of a cluster, who holds it and to whom it is promised.

    Not safe for threads. No method waits for anything.
    """

    def __init__(self, default_policy: str = DEFAULT_POLICY) -> None:
        """Know nothing yet; `default_policy` is for pods and nodes that name none."""
        self._rules = Rules(default_policy)
        self._named: Counter[str] = Counter()  # how many records name each resource
        self._nodes: dict[str, AccountNode] = {}
        self._pods: dict[str, AccountPod] = {}
        self._reservations: dict[str, Reservation] = {}
        self._presence = _Presence()
        self._nominated = _Nominated()
        self._whereabouts = Whereabouts()
        self._accounts: dict[str, NodeAccount] = {}  # of nodes that did not change since
        self._rooms = Rooms()
        self._verdicts = _Verdicts()

    def put_node(self, node: AccountNode) -> None:
        """Take in a node as it is now."""
        before = self._nodes.get(node.name)
        if before != node:
            self._nodes[node.name] = node
            self._changed(node.name)
            self._name(before, node)

    def remove_node(self, name: str) -> None:
        """Forget a node; pods bound to it stay known until they are removed, since the node may come back."""
        before = self._nodes.pop(name, None)
        self._changed(name)
        self._name(before, None)

    def put_pod(self, pod: AccountPod) -> None:
        """Take in a pod as it is now, which ends its reservation if it is bound.

        A pod that was bound stays bound, and one that has ended stays so: an event that says otherwise is older.
        """
        before = self._pods.get(pod.uid)
        if before is not None and (before == pod or _is_older(pod, before)):
            return
        if pod.node is not None or pod.ended:
            self.release(pod.uid)
        if before is not None:
            self._leave(before, before.holds_on)
        self._pods[pod.uid] = pod
        self._nominated.replace(before, pod)
        self._enter(pod, pod.holds_on)

    def remove_pod(self, uid: str) -> None:
        """Forget a pod that is gone, and its reservation."""
        self.release(uid)
        if (pod := self._pods.pop(uid, None)) is not None:
            self._nominated.replace(pod, None)
            self._leave(pod, pod.holds_on)
            self._whereabouts.forget(uid)

    def concerns(self, request: PodRequest) -> bool:
        """Return whether a pod asks for anything that the account decides."""
        return not self._rules.ours.isdisjoint(request.amounts)

    def fit(self, request: PodRequest, node: str, owner: str | None = None) -> Verdict:
        """Return whether a pod fits on a node; `owner` is the UID of its controller."""
        return self.fits(request, (node,), owner)[node]

    def fits(self, request: PodRequest, nodes: Iterable[str], owner: str | None = None) -> dict[str, Verdict]:
        """Return whether a pod fits on each of many nodes: much faster than one by one."""
        names = list(nodes)
        verdicts = self._fits(request, names, owner)
        return {name: verdicts[name] for name in names}

    def fits_pod(self, pod: AccountPod, nodes: Sequence[str]) -> Mapping[str, Verdict]:
        """Return whether one pod fits on each of many nodes, beside pods that others are being evicted for.

        There can be verdicts on more nodes than these, and they are of this moment: they change with the account.
        """
        verdicts = self._fits(pod.request, nodes, pod.owner)
        awaited: dict[str, Verdict] = {}
        for name in self._nominated.nodes & verdicts.keys():
            if isinstance(verdicts[name], Fit) and (ahead := self._nominated.ahead_of(pod, name)):
                account = fitting.with_nominated(self.node(name), ahead, self._rules)
                awaited[name] = fitting.fit(account, self._ask(pod.request, pod.owner))
        return {**verdicts, **awaited} if awaited else verdicts

    def _fits(self, request: PodRequest, nodes: Sequence[str], owner: str | None) -> Mapping[str, Verdict]:
        """Return the verdicts on these nodes at least, to read only."""
        request = essence(request)
        verdicts = self._found(request, nodes, None)
        # Only where the owner has pods already can it make a difference, and only to some policies.
        there = [name for name in self._presence.of(owner) if name in verdicts and name in self._nodes]
        if near := [name for name in there if self._separates(request, name)]:
            beside = self._found(request, near, owner)
            return {**verdicts, **{name: beside[name] for name in near}}
        return verdicts

    def _found(self, request: PodRequest, nodes: Sequence[str], owner: str | None) -> Mapping[str, Verdict]:
        """Return the verdicts on these nodes at least, found now where they were not kept."""
        kept = self._verdicts.of(request, owner)
        if missing := [name for name in nodes if name not in kept]:
            kept.update(self._find(request, missing, owner))
            if unknown := [name for name in missing if name not in kept]:
                return {**kept, **{name: Misfit(_unknown(name), request) for name in unknown}}
        return kept

    def _find(self, request: PodRequest, nodes: Sequence[str], owner: str | None) -> Iterable[tuple[str, Verdict]]:
        """Return each node that is known with its verdict."""
        ask = self._ask(request, owner)
        if owner is None and len(request.amounts) == 1 and not self._rules.ours.isdisjoint(request.amounts):
            (resource,) = request.amounts
            return Scan(ask, self.node).verdicts(self._rooms.of(resource, nodes, self._nodes, self.node))
        return ((name, fitting.fit(self.node(name), ask)) for name in nodes if name in self._nodes)

    def _separates(self, request: PodRequest, node: str) -> bool:
        """Return whether it matters to a pod's policy on a node what pods of its owner are there."""
        return POLICIES[request.policy or self._nodes[node].policy or self._rules.policy].separates_replicas

    def place(
        self, request: PodRequest, node: str, owner: str | None = None, ahead: Iterable[AccountPod] = ()
    ) -> Placement:
        """Return where a pod would go on a node, after those `ahead` of it; raises PlacementError where not."""
        if node not in self._nodes:
            raise PlacementError(_unknown(node))
        account = fitting.with_nominated(self.node(node), ahead, self._rules)
        found = fitting.place(account, self._ask(request, owner))
        if isinstance(found, Misfit):
            raise PlacementError(f"node {node}: {found.reason}")
        return found

    def place_pod(self, pod: AccountPod, node: str) -> Placement:
        """Return where one pod would go on a node, beside pods that others are being evicted for.

        Raises PlacementError where it does not fit.
        """
        return self.place(pod.request, node, pod.owner, self._nominated.ahead_of(pod, node))

    def reserve(self, pod: AccountPod, node: str, until: float) -> Placement:
        """Promise a pod its units on a node until a time (monotonic seconds), and return which.

        The same pod on the same node gets the same answer again, with the later time; one that is bound there already,
        what its annotations say. Raises PlacementError where it does not fit, or is bound or reserved elsewhere.
        """
        bound = self._pods.get(pod.uid, pod)
        if bound.ended:
            raise PlacementError(f"pod {pod.label} has ended")
        if bound.node is not None:
            if bound.node != node:
                raise PlacementError(f"pod {pod.label} is already bound to node {bound.node}")
            return Placement(node, bound.allocation or bound.promise or ())
        if (before := self._reservations.get(pod.uid)) is not None:
            if before.node != node:
                raise PlacementError(f"pod {pod.label} is being bound to node {before.node}; retry when that has ended")
            self._reservations[pod.uid] = before._replace(until=max(before.until, until))
            return Placement(node, before.shares)
        placement = self.place_pod(pod, node)
        self._reservations[pod.uid] = Reservation(pod, node, placement.shares, until)
        self._enter(pod, node)
        return placement

    def release(self, uid: str) -> None:
        """End the reservation of a pod, if there is one."""
        if (reservation := self._reservations.pop(uid, None)) is not None:
            self._leave(reservation.pod, reservation.node)

    def expire(self, now: float) -> list[str]:
        """End the reservations whose time has passed, and return the UIDs of their pods."""
        over = [uid for uid, reservation in self._reservations.items() if reservation.until <= now]
        for uid in over:
            self.release(uid)
        return over

    def victims(
        self, request: PodRequest, node: str, lower: Sequence[str], owner: str | None = None
    ) -> list[str] | None:
        """Return which of the pods `lower` have to be evicted from a node so that a request fits; see `victims`."""
        return victims(self.node(node), self._ask(request, owner), lower) if node in self._nodes else None

    def node(self, name: str) -> NodeAccount:
        """Return the account of a node; one that is not known offers nothing."""
        if (account := self._accounts.get(name)) is None:
            uids = self._presence.on(name)
            account = node_account(
                self.offered(name),
                [self._pods[uid] for uid in uids if uid not in self._reservations],
                [self._reservations[uid] for uid in uids if uid in self._reservations],
                self._whereabouts.locate,
            )
            if name in self._nodes:
                self._accounts[name] = account
        return account

    def offered(self, name: str) -> AccountNode:
        """Return what a node offers, without its account."""
        return self._nodes.get(name) or AccountNode(name, {})

    def nodes(self) -> list[str]:
        """Return the names of all nodes that are known."""
        return list(self._nodes)

    def pod(self, uid: str) -> AccountPod | None:
        """Return a pod, None where it is not known."""
        return self._pods.get(uid)

    def reservation(self, uid: str) -> Reservation | None:
        """Return the reservation of a pod, None where there is none."""
        return self._reservations.get(uid)

    def _ask(self, request: PodRequest, owner: str | None) -> Ask:
        return Ask(request, owner, self._rules)

    def _enter(self, pod: AccountPod, node: str | None) -> None:
        """Count a pod on the node where it has units, or is promised some."""
        if node is not None:
            self._presence.enter(pod, node)
            self._changed(node)

    def _leave(self, pod: AccountPod, node: str | None) -> None:
        """Undo `_enter`."""
        if node is not None:
            self._presence.leave(pod, node)
            self._changed(node)

    def _changed(self, node: str) -> None:
        """Forget what followed from the former state of a node."""
        self._accounts.pop(node, None)
        self._rooms.forget(node)
        self._verdicts.forget(node)

    def _name(self, before: AccountNode | None, after: AccountNode | None) -> None:
        """Note the resources that records name; when they change, every verdict may."""
        if before is not None and before.recorded:
            self._named.subtract(before.offers.keys())
        if after is not None and after.recorded:
            self._named.update(after.offers.keys())
        ours = ALWAYS_OURS | {name for name, count in self._named.items() if count > 0}
        if ours != self._rules.ours:
            self._rules = replace(self._rules, ours=ours)
            self._verdicts.clear()


def _unknown(node: str) -> str:
    return f"node {node} is not known to gpushare yet"


def _is_older(pod: AccountPod, known: AccountPod) -> bool:
    """Return whether what is said of a pod is older than what is known."""
    return (known.node is not None and pod.node is None) or (known.ended and not pod.ended)
