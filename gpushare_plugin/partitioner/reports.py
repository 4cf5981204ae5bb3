"""Reports of the decisions for people: Events on the pods, log messages and counts."""

import asyncio
import time
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from datetime import UTC, datetime

import structlog

from gpushare_plugin.base.reported import Reported
from gpushare_plugin.kube.events.event import Event, of_pod
from gpushare_plugin.observe import events as kinds
from gpushare_plugin.observe.events import EventKind
from gpushare_plugin.observe.metrics.partitioner import PartitionerCounts
from gpushare_plugin.partition import words
from gpushare_plugin.partition.decide import Assigned, Decisions
from gpushare_plugin.partition.refusal import NoSlice
from gpushare_plugin.partition.taking_back import TakenBack
from gpushare_plugin.partitioner.known import Known
from gpushare_plugin.slices.slice import named_slice
from gpushare_plugin.slices.wanted import KeptSlice

_log = structlog.get_logger()


class Reports:
    """Reports the decisions of one process: a decision about a pod is reported once, until the decision changes."""

    def __init__(self, put: Callable[[Event], None], counts: PartitionerCounts) -> None:
        """Pass Events to `put`, and count in `counts`."""
        self._put = put
        self._counts = counts
        self._refused = Reported()
        self._unwritten = Reported()
        self._counted = Reported()
        self._refusals: Mapping[str, NoSlice] = {}
        self._decided = asyncio.Event()
        self._expected: dict[str, datetime] = {}

    def report(self, decisions: Decisions, written: Collection[str], known: Known) -> None:
        """Report the decisions of a round, slices only on the nodes `written`; `known` may have changed since then."""
        self.report_written(decisions, written)
        for refusal in decisions.refused.values():
            why = "never" if refusal.problem else "no_room"
            if self._counted.is_new(refusal.pod.uid, why):
                self._counts.refusals.labels(why).inc()
        self._counted.keep(decisions.refused.keys())
        self._count_offered(decisions, known)
        self._refusals = decisions.refused
        self._decided.set()

    def report_written(self, decisions: Decisions, written: Collection[str]) -> None:
        """Report the slices that were made or taken back on the nodes `written`.

        Swaps of slices are in the log only: they are frequent, since kube-scheduler gives a slice to any like pod.
        """
        swapped = {
            taken.uid
            for taken in decisions.taken_back
            if taken.swapped and decisions.assigned[taken.uid].node in written
        }
        for taken in decisions.taken_back:
            if taken.node in written and taken.uid not in swapped:
                self._taken_back(taken)
        for assigned in decisions.assigned.values():
            if assigned.how and assigned.node in written:
                _log.info("slice_assigned", pod=assigned.pod, node=assigned.node, slices=_names(assigned.kept))
                if assigned.uid not in swapped:
                    self._assigned(assigned)

    def report_lost(self, lost: Iterable[TakenBack]) -> None:
        """Report lost slices, which no decision has taken back."""
        for taken in lost:
            self._taken_back(taken)

    def report_unwritten(self, decisions: Decisions, rejected: Mapping[str, str]) -> None:
        """Tell pods about decided slices that cannot be written; `rejected` has the reasons, by name of the node."""
        waiting = {uid: each for uid, each in decisions.assigned.items() if each.how and each.node in rejected}
        self._unwritten.keep(waiting.keys())
        for uid, assigned in waiting.items():
            message = words.unwritten(assigned, rejected[assigned.node])
            if self._unwritten.is_new(uid, message):
                self._tell(kinds.SLICE_NOT_MADE, assigned.pod, uid, message)

    async def report_refusals(self) -> None:
        """Report the refusals of the last round; runs until cancelled.

        Finding the reasons for many different pods takes longer than the decision. The reports are therefore made
        beside the rounds, with pauses, and take at most half of the time.
        """
        while True:
            await self._decided.wait()
            self._decided.clear()
            began = time.perf_counter()
            refusals, texts = self._refusals, dict[Hashable, str]()
            self._refused.keep(refusals.keys())
            for uid, refusal in refusals.items():
                if uid in self._refusals:  # no later round has served the pod
                    self._refusal(refusal, texts)
                    await asyncio.sleep(0)
            await asyncio.sleep(time.perf_counter() - began)

    def _assigned(self, assigned: Assigned) -> None:
        for kept, how in zip(assigned.kept, assigned.how, strict=True):
            if how != "idle":
                self._counts.made.labels(named_slice(kept.slice).name).inc()
        self._tell(kinds.SLICE_BEING_MADE, assigned.pod, assigned.uid, words.assignment(assigned))
        self._expected.setdefault(assigned.uid, assigned.created)

    def _taken_back(self, taken: TakenBack) -> None:
        for kept in taken.kept:
            self._counts.taken_back.labels(named_slice(kept.slice).name).inc()
        self._tell(kinds.SLICE_TAKEN_BACK, taken.pod, taken.uid, words.taken_back(taken))
        _log.info("slice_taken_back", pod=taken.pod, node=taken.node, slices=_names(taken.kept), reason=taken.reason)

    def _refusal(self, refusal: NoSlice, texts: dict[Hashable, str]) -> None:
        pod = refusal.pod
        if (message := texts.get(refusal.alike)) is None:
            message = texts[refusal.alike] = words.refusal(refusal)
        if self._refused.is_new(pod.uid, message):
            self._tell(kinds.SLICE_NOT_MADE, pod.label, pod.uid, message)

    def _count_offered(self, decisions: Decisions, known: Known) -> None:
        """Count the waits of pods whose slices are offered by the node now, or taken by the pod."""
        now = datetime.now(UTC)
        for uid, created in tuple(self._expected.items()):
            assigned = decisions.assigned.get(uid)
            offered = assigned is not None and known.offers_kept(assigned.node, assigned.kept)
            if assigned is not None and not offered:
                continue
            del self._expected[uid]
            if offered or known.is_bound(uid):
                self._counts.waits.observe(max(0.0, (now - created).total_seconds()))

    def _tell(self, kind: EventKind, pod: str, uid: str, message: str) -> None:
        namespace, _, name = pod.partition("/")
        self._put(Event(of_pod(namespace, name, uid), kind.reason, kind.type, kind.action, message))


def _names(kept: Iterable[KeptSlice]) -> list[str]:
    return [each.slice for each in kept]
