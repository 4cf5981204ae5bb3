"""Where pods could go instead of where they are: pods are moved in an account only, and can be put back.

A pod goes to the tightest place that its request, the GPUs it accepts, and kube-scheduler's judgement of the node allow
(`kube_scheduler`). The search tries MOST_TRIED nodes for a pod, so that the work is bounded in any cluster.
"""

import dataclasses
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import NamedTuple

from gpushare_plugin.base.errors import PlacementError
from gpushare_plugin.base.structs import replace
from gpushare_plugin.ledger.cluster import ClusterAccount
from gpushare_plugin.ledger.demand import NOTHING, Demand
from gpushare_plugin.ledger.kube_scheduler import refusal
from gpushare_plugin.ledger.node import Node
from gpushare_plugin.ledger.occupancy import ONE_GPU_KINDS, NodeAccount
from gpushare_plugin.ledger.pod import Pod
from gpushare_plugin.ledger.verdicts import PodPlace

MOST_TRIED = 32
"""The most nodes tried for a pod, the tightest first."""

STAYING = frozenset({"DaemonSet", "Node"})
"""The kinds of controllers whose pods stay where they are: DaemonSets, and Nodes with their static pods."""


class Move(NamedTuple):
    """A pod that goes elsewhere."""

    pod: Pod
    """The pod, where it is now."""
    place: PodPlace
    """Where the pod goes."""


class First(NamedTuple):
    """A waiting pod that gets its place before other pods are moved."""

    pod: Pod
    """The waiting pod."""
    node: str
    """The name of the node where the pod is to go."""


class Moving:
    """Moves pods within the account of a cluster."""

    def __init__(self, account: ClusterAccount, controllers: Mapping[str, str]) -> None:
        """Move pods of an account that nobody else uses, and that has all pods with their needs.

        `controllers` are the kinds of the pods' controllers, by UID; empty for a pod that nobody makes again.
        """
        account.use_policy("binpack")
        self.account = account
        """The account, with the pods that are moved where they go."""
        self._controllers = controllers
        self._used: dict[str, Demand] = {}
        for pod in account.pods.values():
            if pod.node is not None and not pod.phase_final:
                self._used[pod.node] = self._used.get(pod.node, NOTHING) + pod.needs.demand
        self._pieces = _Pieces(account)
        self._moved: dict[str, str] = {}
        """The nodes where moved pods go, by UID."""

    def controller(self, pod: Pod) -> str:
        """Return the kind of the controller of a pod; empty for a pod that nobody makes again."""
        return self._controllers.get(pod.uid, "")

    def is_movable(self, pod: Pod) -> bool:
        """Return whether a pod can run elsewhere: no pod of its node alone, not ending, and not moved yet."""
        stays = pod.ending or pod.phase_final or pod.uid in self._moved
        return not stays and self.controller(pod) not in STAYING

    def move(
        self, pods: Sequence[Pod], avoided: Collection[str] = (), *, to_idle: bool, first: First | None = None
    ) -> list[Move] | None:
        """Move pods of a node; return None, and move no pod, if one of the pods has no place.

        The pods go to no GPU that is `avoided`, all of their node, and without `to_idle` only to cards that other pods
        use already.
        """
        for pod in pods:
            self.account.remove_pod(pod.uid)
            self._count(pod.node or "", pod, -1)
        moves: list[Move] = []
        if first is None or self._put(first.pod, first.node, to_idle=True):
            with self._closed(avoided, {pod.node or "" for pod in pods}):
                for pod in sorted(pods, key=lambda pod: (-sum(pod.request.amounts.values()), pod.label)):
                    if (place := self._place(pod, to_idle=to_idle)) is None:
                        break
                    self._moved[pod.uid] = place.node
                    moves.append(Move(pod, place))
            if first is not None:
                self._remove(first.pod, first.node)
        if len(moves) == len(pods):
            return moves
        self.put_back(pods)
        return None

    @contextmanager
    def _closed(self, gpus: Collection[str], names: Iterable[str]) -> Iterator[None]:
        """Have GPUs of nodes give no units while the context lasts."""
        nodes = [self.account.nodes[name] for name in names if name in self.account.nodes]
        for node in nodes:
            self.account.put_node(_without(node, gpus))
        try:
            yield
        finally:
            for node in nodes:
                self.account.put_node(node)

    def put_back(self, pods: Iterable[Pod]) -> None:
        """Put pods that were to be moved back to where they were."""
        for pod in pods:
            if (node := self._moved.pop(pod.uid, None)) is not None:
                self._remove(pod, node)
            self.account.put_pod(pod)
            self._count(pod.node or "", pod, 1)

    def _place(self, pod: Pod, *, to_idle: bool) -> PodPlace | None:
        """Give a pod a place, and return the place; None without a place."""
        unbound = replace(pod, node=None, allocation=None, promise=None, indexes=None)
        nodes = self._pieces.nodes(pod, to_idle=to_idle)
        places = (self._put(unbound, node, to_idle=to_idle) for node in islice(nodes, MOST_TRIED))
        return next(filter(None, places), None)

    def _put(self, pod: Pod, node: str, *, to_idle: bool) -> PodPlace | None:
        """Give a pod a place on a node, and return the place; None without a place."""
        if refusal(pod, self.account.node_named(node), self._used.get(node, NOTHING)) is not None:
            return None
        used = None if to_idle else used_gpus(self.account.account_of(node))
        try:
            place = self.account.reserve(pod, node)
        except PlacementError:
            return None
        if used is not None and not used.issuperset(share.gpu for share in place.shares):
            self.account.release(pod.uid)
            return None
        self._count(node, pod, 1)
        return place

    def _remove(self, pod: Pod, node: str) -> None:
        self.account.release(pod.uid)
        self._count(node, pod, -1)

    def _count(self, node: str, pod: Pod, sign: int) -> None:
        used, demand = self._used.get(node, NOTHING), pod.needs.demand
        self._used[node] = used + demand if sign > 0 else used - demand


def _without(node: Node, gpus: Collection[str]) -> Node:
    """Return a node of which some GPUs give no units."""
    offers = {
        name: dataclasses.replace(
            offer, gpus=tuple(replace(gpu, reason="to be freed") if gpu.name in gpus else gpu for gpu in offer.gpus)
        )
        for name, offer in node.offers.items()
    }
    return replace(node, offers=offers)


def used_gpus(account: NodeAccount) -> frozenset[str]:
    """Return the names of the GPUs, MIG instances included, of cards with units that pods hold or are promised."""
    held = {each.gpu for there in account.resources.values() for each in there.holdings}
    gpus = [gpu for there in account.resources.values() for gpu in there.offer.gpus]
    cards = {gpu.index for gpu in gpus if gpu.name in held}
    return frozenset(gpu.name for gpu in gpus if gpu.index in cards)


class _FreeUnits(NamedTuple):
    """The free units of a GPU."""

    free: int
    """The number of free units."""
    node: str
    """The name of the node."""


class _Pieces:
    """The free units of all GPUs by resource, the smallest first, as they were at the beginning."""

    def __init__(self, account: ClusterAccount) -> None:
        self._kinds: dict[str, str] = {}
        self._used: defaultdict[str, list[_FreeUnits]] = defaultdict(list)
        self._idle: defaultdict[str, list[_FreeUnits]] = defaultdict(list)
        for name in account.nodes:
            self._add(account.account_of(name))
        for pieces in (*self._used.values(), *self._idle.values()):
            pieces.sort()

    def _add(self, account: NodeAccount) -> None:
        used = used_gpus(account)
        for resource, there in account.resources.items():
            self._kinds[resource] = there.offer.kind
            for gpu, free in zip(there.offer.gpus, there.free, strict=True):
                if free:
                    pieces = self._used if gpu.name in used else self._idle
                    pieces[resource].append(_FreeUnits(free, account.node.name))

    def nodes(self, pod: Pod, *, to_idle: bool) -> Iterator[str]:
        """Yield the nodes with a large enough piece for a pod, each once: with used cards first."""
        resource = next((name for name in pod.request.amounts if name in self._kinds), "")
        size = 1
        if self._kinds.get(resource) in ONE_GPU_KINDS:
            size = max(1, pod.request.amounts[resource] // max(1, pod.request.gpu_count))
        seen: set[str] = set()
        for pieces in (self._used[resource], *([self._idle[resource]] if to_idle else [])):
            for piece in islice(pieces, bisect_left(pieces, _FreeUnits(size, "")), None):
                if piece.node not in seen:
                    seen.add(piece.node)
                    yield piece.node
