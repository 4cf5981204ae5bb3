"""The review of kept slices: slices kept further for waiting pods, and slices taken back, with the reason."""

from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from operator import attrgetter

from gpushare_plugin.base.structs import Struct, replace
from gpushare_plugin.core.policies import DEFAULT_POLICY
from gpushare_plugin.ledger.pod import Pod
from gpushare_plugin.partition.elsewhere import FindOffer
from gpushare_plugin.partition.nodes import PartitionNode
from gpushare_plugin.partition.opening import Opening
from gpushare_plugin.partition.state import NodeState, blaming
from gpushare_plugin.slices.slice import Slice, named_slice
from gpushare_plugin.slices.wanted import Failure, KeptSlice

UNSEEN = timedelta(seconds=10)
"""How long facts about an unseen pod are remembered: another partitioner may have seen the pod before this process."""

DEFAULT_PATIENCE = 60.0
"""Seconds for a pod to take the slices made for the pod, unless configured otherwise."""

LEAST_PATIENCE, MOST_PATIENCE = 1.0, 86400.0
"""The least and the most seconds that can be configured."""

MOST_DOUBLINGS = 6
"""The most doublings of the delay before a node is tried again for a pod."""

RunsOn = Callable[[Pod, str, Sequence[Pod]], str | None]
"""Returns why a pod cannot run on a node beside waiting pods assigned to the node, slices aside; None if it can."""


def _nowhere(_pod: Pod) -> None:
    """Find no offer."""


class RoundRules(Struct, frozen=True):
    """The rules of a whole round."""

    runs_on: RunsOn
    """Judges whether a pod can run on a node, slices aside."""
    known: Container[str]
    """The UIDs of all seen pods, waiting or not."""
    patience: float = DEFAULT_PATIENCE
    """Seconds for which slices are kept for a pod that does not take them."""
    policy: str = DEFAULT_POLICY
    """The policy for pods and nodes that name no policy."""
    existing_offer: FindOffer = _nowhere
    """Finds the offers of existing slices to pods, which then need no new slices."""
    avoided: Container[str] = frozenset()
    """The names of nodes that get slices only if no other node has room."""

    def retry_at(self, failure: Failure) -> datetime:
        """Return the time to try a node again for a pod that did not take slices on the node."""
        return failure.at + timedelta(seconds=self.patience * float(1 << min(failure.times, MOST_DOUBLINGS)))

    def gives_up_at(self, kept: Sequence[KeptSlice]) -> datetime:
        """Return the time to take kept slices back if the pod has not taken them."""
        return since(kept) + timedelta(seconds=self.patience)


class TakenBack(Struct, frozen=True):
    """Slices no longer kept for a pod that still waits: the slices are idle, unless lost or taken by another pod."""

    uid: str
    """The UID of the pod."""
    pod: str
    """The pod, as `namespace/name`."""
    node: str
    """The name of the node."""
    kept: tuple[KeptSlice, ...]
    """The slices."""
    gpus: tuple[str, ...]
    """The names of the GPUs in messages, in the order of `kept`."""
    reason: str
    """Why the slices are no longer kept."""
    failed: bool = False
    """Whether the pod had enough time to take the slices; then other nodes are tried first."""
    lost_to_others: bool = False
    """Whether other pods have the slices, or the room of the slices."""
    swapped: bool = False
    """Whether idle slices are kept for the pod instead: no slice has to be made."""

    @classmethod
    def of(  # noqa: PLR0913 - keywords
        cls,
        pod: Pod,
        node: PartitionNode,
        kept: tuple[KeptSlice, ...],
        reason: str,
        *,
        failed: bool = False,
        lost_to_others: bool = False,
    ) -> "TakenBack":
        """Return the slices taken back on a node, with the names of the pod and of the GPUs."""
        labels = {gpu.uuid: gpu.label for gpu in node.gpus}
        gpus = tuple(labels.get(each.gpu, each.gpu) for each in kept)
        return cls(pod.uid, pod.label, node.name, kept, gpus, reason, failed, lost_to_others)


class Broken(Struct, frozen=True):
    """A pod with a defect in the decision: the pod gets no new slices, and kept slices stay kept for the pod."""

    pod: Pod
    """The pod."""
    error: Exception
    """The defect."""


def since(kept: Sequence[KeptSlice]) -> datetime:
    """Return the time since which slices are kept, the earliest time of several."""
    return min(each.since for each in kept)


class Review:
    """The review of kept slices in the order of the pods: if two pods need the same room, the first pod keeps it."""

    def __init__(
        self, nodes: Sequence[PartitionNode], waiting: Sequence[Pod], now: datetime, rules: RoundRules
    ) -> None:
        """Review `nodes` for waiting pods, given in the order of service."""
        self._waiting = {pod.uid: pod for pod in waiting}
        self._rank = {pod.uid: rank for rank, pod in enumerate(waiting)}
        self._now = now
        self._rules = rules
        self.taken_back: list[TakenBack] = []
        self.broken: list[Broken] = []
        self._forgotten_at: list[datetime] = []
        self._assigned_pods: dict[int, list[Pod]] = {}
        self._kept_on: dict[str, str] = {}
        self._openings: list[Opening] = []
        self._failed: list[dict[str, Failure]] = []
        for number, node in enumerate(nodes):
            with blaming(number):
                self._openings.append(Opening(number, node))
                self._failed.append(self._remembered(node))
        for number, uid, kept in sorted(self._all(nodes), key=self._order):
            try:
                self._review(number, uid, kept)
            except Exception as error:  # noqa: BLE001 - one pod must not stop the slices of all others
                self.broken.append(Broken(self._waiting[uid], error))
                with blaming(number):
                    if self._openings[number].lost(kept) is None:
                        self._openings[number].keep(uid, kept)
        self.states: list[NodeState] = []
        for number, (opening, failed) in enumerate(zip(self._openings, self._failed, strict=True)):
            with blaming(number):
                self.states.append(opening.state(failed))

    @property
    def forgets_at(self) -> datetime | None:
        """The earliest time to forget a fact about an unseen pod; None for never."""
        return min(self._forgotten_at, default=None)

    def _all(self, nodes: Sequence[PartitionNode]) -> Iterator[tuple[int, str, tuple[KeptSlice, ...]]]:
        for number, node in enumerate(nodes):
            for uid, kept in node.wanted.pods.items():
                yield number, uid, self._dated(kept)

    def _dated(self, kept: tuple[KeptSlice, ...]) -> tuple[KeptSlice, ...]:
        """Return kept slices without future dates: a partitioner with a fast clock must not prolong the patience."""
        if all(each.since <= self._now for each in kept):
            return kept
        return tuple(replace(each, since=min(each.since, self._now)) for each in kept)

    def _order(self, entry: tuple[int, str, tuple[KeptSlice, ...]]) -> tuple[int, datetime, int, str]:
        number, uid, kept = entry
        return self._rank.get(uid, -1), since(kept), number, uid

    def _remembered(self, node: PartitionNode) -> dict[str, Failure]:
        """Return the failures of waiting pods, and of unseen pods that may wait."""
        return {
            uid: failure if failure.at <= self._now else replace(failure, at=self._now)
            for uid, failure in node.wanted.failed.items()
            if uid in self._waiting or self._may_come(uid, min(failure.at, self._now))
        }

    def _may_come(self, uid: str, at: datetime) -> bool:
        """Return whether another partitioner may have seen an unseen pod at a time less than `UNSEEN` ago."""
        if uid in self._rules.known or self._now >= at + UNSEEN:
            return False
        self._forgotten_at.append(at + UNSEEN)
        return True

    def _review(self, number: int, uid: str, kept: tuple[KeptSlice, ...]) -> None:
        opening, pod = self._openings[number], self._waiting.get(uid)
        if pod is None:
            if self._may_come(uid, since(kept)) and opening.lost(kept) is None:
                opening.keep(uid, kept)
            return
        node = opening.node
        assigned_pods = self._assigned_pods.setdefault(number, [])
        # Lateness is checked last: for any reason before, the pod could not take the slices in time.
        if uid in self._kept_on:
            taken = TakenBack.of(pod, node, kept, f"the pod has slices on node {self._kept_on[uid]} already")
        elif _asked(kept) != pod.slices:
            taken = TakenBack.of(pod, node, kept, "the pod asks for other slices")
        elif (lost := opening.lost(kept)) is not None:
            taken = TakenBack.of(pod, node, kept, lost.reason, lost_to_others=lost.to_others)
        elif (refusal := self._rules.runs_on(pod, node.name, assigned_pods)) is not None:
            taken = TakenBack.of(pod, node, kept, refusal)
        elif self._now >= self._rules.gives_up_at(kept):
            before = self._failed[number].get(uid)
            self._failed[number][uid] = Failure(self._now, min(1000, before.times + 1 if before else 1))
            reason = f"{_why_late(node, kept)} within {self._rules.patience:g} seconds"
            taken = TakenBack.of(pod, node, kept, reason, failed=True)
        else:
            opening.keep(uid, kept, pod)
            self._kept_on[uid] = node.name
            assigned_pods.append(pod)
            return
        self.taken_back.append(taken)


def _why_late(node: PartitionNode, kept: Sequence[KeptSlice]) -> str:
    """Return why a pod that could run on a node has not taken the slices kept on the node."""
    if not node.offers_kept(kept):
        return "the node did not offer it"
    for name, count in Counter(_names(kept)).items():
        if node.free(name) < count:
            return f"kube-scheduler counted no slice {name} of the node as free"
    return "the pod did not take it"


def _asked(kept: Sequence[KeptSlice]) -> tuple[Slice, ...]:
    """Return the slices that the pod asked for when slices were kept, in the order of `Pod.slices`."""
    return tuple(sorted((named_slice(each.slice) for each in kept), key=attrgetter("rank")))


def displaced(state: NodeState, pod: Pod, waiting: Mapping[str, Pod]) -> list[Pod]:
    """Return the less important pods that may lose slices to a pod, the least important first.

    The node does not offer the slices yet, and no pod on an unknown or unusable GPU holds a slice of the same size.
    """
    pods = (
        waiting[uid]
        for uid, kept in state.kept.items()
        if uid not in state.offered_to and uid in waiting and not any(map(state.scarce.__contains__, _names(kept)))
    )
    return sorted((each for each in pods if each.priority < pod.priority), key=lambda each: (each.priority, each.uid))


def _names(kept: Sequence[KeptSlice]) -> list[str]:
    return [named_slice(each.slice).name for each in kept]
