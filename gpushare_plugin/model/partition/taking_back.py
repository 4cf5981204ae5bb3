"""Taking back: for which pods slices are kept further, and for which they are not, with the reason."""

from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from operator import attrgetter

from gpushare_plugin.foundation.structs import Struct, replace
from gpushare_plugin.model.account.pod import Pod
from gpushare_plugin.model.choice.policies import DEFAULT_POLICY
from gpushare_plugin.model.partition.nodes import PartitionNode
from gpushare_plugin.model.partition.search.elsewhere import Offered
from gpushare_plugin.model.partition.search.opening import Opening
from gpushare_plugin.model.partition.search.state import NodeState, blaming
from gpushare_plugin.model.slices.slice import Slice, named_slice
from gpushare_plugin.model.slices.wanted import Failure, KeptSlice

UNSEEN = timedelta(seconds=10)
"""For how long something is remembered of a pod that is not seen: another that decided may have seen it before us."""

DEFAULT_PATIENCE = 60.0
"""Seconds that a pod has to take slices that were made for it, where nothing else is configured."""

LEAST_PATIENCE, MOST_PATIENCE = 1.0, 86400.0
"""What it can be configured to."""

MOST_DOUBLINGS = 6
"""How often the delay doubles before a node is tried again."""

RunsOn = Callable[[Pod, str, Sequence[Pod]], str | None]
"""Says why a pod cannot run on a node, slices aside, beside other waiting pods that come there; None if it can."""


def _nowhere(_pod: Pod) -> None:
    """Offer nothing."""


class Rules(Struct, frozen=True):
    """What is the same for a whole round.

    `known` has the UIDs of all pods that are seen, waiting or not. `patience` is how many seconds a slice is kept for a
    pod that does not take it. `policy` is for pods and nodes that name none. `offered` says for which pods no slice has
    to be made. Slices are decided on nodes that are `avoided`, by their names, only where no other node has room.
    """

    runs_on: RunsOn
    known: Container[str]
    patience: float = DEFAULT_PATIENCE
    policy: str = DEFAULT_POLICY
    offered: Offered = _nowhere
    avoided: Container[str] = frozenset()

    def retry_at(self, failure: Failure) -> datetime:
        """Return when a node is tried again for a pod that did not take its slices there."""
        return failure.at + timedelta(seconds=self.patience * float(1 << min(failure.times, MOST_DOUBLINGS)))

    def gives_up_at(self, kept: Sequence[KeptSlice]) -> datetime:
        """Return when slices are taken back that a pod has not taken."""
        return since(kept) + timedelta(seconds=self.patience)


class TakenBack(Struct, frozen=True):
    """Slices that are not kept any longer for a pod that still waits, and why; they are idle from then on.

    `gpus` are the names of their GPUs in messages. `failed` is whether the pod had time enough to take them, so that
    other nodes are tried first. `taken` is whether another pod has them, and `swapped` whether idle ones are kept
    instead, so that nothing is made for that.
    """

    uid: str
    pod: str
    node: str
    kept: tuple[KeptSlice, ...]
    gpus: tuple[str, ...]
    reason: str
    failed: bool = False
    taken: bool = False
    swapped: bool = False

    @classmethod
    def of(  # noqa: PLR0913 - keywords
        cls,
        pod: Pod,
        node: PartitionNode,
        kept: tuple[KeptSlice, ...],
        reason: str,
        *,
        failed: bool = False,
        taken: bool = False,
    ) -> "TakenBack":
        """Return what is taken back on a node."""
        labels = {gpu.uuid: gpu.label for gpu in node.gpus}
        gpus = tuple(labels.get(each.gpu, each.gpu) for each in kept)
        return cls(pod.uid, pod.label, node.name, kept, gpus, reason, failed, taken)


class Broken(Struct, frozen=True):
    """A pod whose decision met a defect: it gets nothing new, and what is kept for it stays."""

    pod: Pod
    error: Exception


def since(kept: Sequence[KeptSlice]) -> datetime:
    """Return since when slices are kept."""
    return min(each.since for each in kept)


class Review:
    """The review of all slices that are kept: in order of the pods, so that of two for one room the first keeps it."""

    def __init__(self, nodes: Sequence[PartitionNode], waiting: Sequence[Pod], now: datetime, rules: Rules) -> None:
        """Review `nodes` for pods that wait, in the order in which they are served."""
        self._waiting = {pod.uid: pod for pod in waiting}
        self._rank = {pod.uid: rank for rank, pod in enumerate(waiting)}
        self._now = now
        self._rules = rules
        self.taken_back: list[TakenBack] = []
        self.broken: list[Broken] = []
        self._forgotten_at: list[datetime] = []
        self._beside: dict[int, list[Pod]] = {}
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
        """When something is forgotten that is remembered of a pod that is not seen; None for never."""
        return min(self._forgotten_at, default=None)

    def _all(self, nodes: Sequence[PartitionNode]) -> Iterator[tuple[int, str, tuple[KeptSlice, ...]]]:
        for number, node in enumerate(nodes):
            for uid, kept in node.wanted.pods.items():
                yield number, uid, self._dated(kept)

    def _dated(self, kept: tuple[KeptSlice, ...]) -> tuple[KeptSlice, ...]:
        """Return what is kept, since now where another one's clock was ahead: or else it would be kept for longer."""
        if all(each.since <= self._now for each in kept):
            return kept
        return tuple(replace(each, since=min(each.since, self._now)) for each in kept)

    def _order(self, entry: tuple[int, str, tuple[KeptSlice, ...]]) -> tuple[int, datetime, int, str]:
        number, uid, kept = entry
        return self._rank.get(uid, -1), since(kept), number, uid

    def _remembered(self, node: PartitionNode) -> dict[str, Failure]:
        """Return the failures of pods that wait, or may wait unseen."""
        return {
            uid: failure if failure.at <= self._now else replace(failure, at=self._now)
            for uid, failure in node.wanted.failed.items()
            if uid in self._waiting or self._may_come(uid, min(failure.at, self._now))
        }

    def _may_come(self, uid: str, at: datetime) -> bool:
        """Return whether a pod that is not seen may be one that another partitioner saw at a time."""
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
        beside = self._beside.setdefault(number, [])
        # That the pod is late counts last: for any other reason it could not take its slices.
        if uid in self._kept_on:
            taken = TakenBack.of(pod, node, kept, f"the pod has slices on node {self._kept_on[uid]} already")
        elif _asked(kept) != pod.slices:
            taken = TakenBack.of(pod, node, kept, "the pod asks for other slices")
        elif (lost := opening.lost(kept)) is not None:
            taken = TakenBack.of(pod, node, kept, lost.reason, taken=lost.taken)
        elif (refusal := self._rules.runs_on(pod, node.name, beside)) is not None:
            taken = TakenBack.of(pod, node, kept, refusal)
        elif self._now >= self._rules.gives_up_at(kept):
            before = self._failed[number].get(uid)
            self._failed[number][uid] = Failure(self._now, min(1000, before.times + 1 if before else 1))
            reason = f"{_why_late(node, kept)} within {self._rules.patience:g} seconds"
            taken = TakenBack.of(pod, node, kept, reason, failed=True)
        else:
            opening.keep(uid, kept, pod)
            self._kept_on[uid] = node.name
            beside.append(pod)
            return
        self.taken_back.append(taken)


def _why_late(node: PartitionNode, kept: Sequence[KeptSlice]) -> str:
    """Return why a pod that could run on a node has not taken its slices there."""
    if not node.offers(kept):
        return "the node did not offer it"
    for name, count in Counter(_names(kept)).items():
        if node.free(name) < count:
            return f"kube-scheduler counted no slice {name} of the node as free"
    return "the pod did not take it"


def _asked(kept: Sequence[KeptSlice]) -> tuple[Slice, ...]:
    """Return the slices that a pod asked for, in the order of `Pod.slices`."""
    return tuple(sorted((named_slice(each.slice) for each in kept), key=attrgetter("rank")))


def displaced(state: NodeState, pod: Pod, waiting: Mapping[str, Pod]) -> list[Pod]:
    """Return the pods whose slices a more important pod may have, the least important first.

    The node does not offer them yet, and no pod whose GPU is not known can hold them.
    """
    pods = (
        waiting[uid]
        for uid, kept in state.kept.items()
        if uid not in state.offered and uid in waiting and not any(map(state.scarce.__contains__, _names(kept)))
    )
    return sorted((each for each in pods if each.priority < pod.priority), key=lambda each: (each.priority, each.uid))


def _names(kept: Sequence[KeptSlice]) -> list[str]:
    return [named_slice(each.slice).name for each in kept]
