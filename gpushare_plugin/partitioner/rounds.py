"""Rounds of decisions in one term: after every change, decide, write the wanted slices, and report."""

import asyncio
import time
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime
from http import HTTPStatus

import structlog

from gpushare_plugin.base.reported import Reported
from gpushare_plugin.base.structs import Struct, replace
from gpushare_plugin.base.text import in_words
from gpushare_plugin.kube.client import Client, ClusterError
from gpushare_plugin.kube.collection import Gone
from gpushare_plugin.kube.nodes import judged_node
from gpushare_plugin.kube.objects import ApiNode, ApiPod
from gpushare_plugin.kube.whole_cluster.following import ClusterFollower, Objects
from gpushare_plugin.kube.whole_cluster.wanted_slices import write_wanted
from gpushare_plugin.ledger.node import Node
from gpushare_plugin.observe.metrics.partitioner import PartitionerCounts, PartitionerView
from gpushare_plugin.partition.decide import Decisions, LeftOut, decide
from gpushare_plugin.partition.taking_back import Broken
from gpushare_plugin.partitioner.known import Known
from gpushare_plugin.partitioner.reports import Reports
from gpushare_plugin.slices.wanted import Wanted

_log = structlog.get_logger()

PAUSE = 0.05
"""The least seconds between two rounds; after a longer round, the pause is as long as the round.

Changes during the pause are decided together.
"""

AGAIN = 5.0
"""Seconds until the next round after a failed write."""

AVOIDED = 60.0
"""Seconds for which a node is avoided after the API server has rejected its annotation: other nodes come first."""

MOST_AVOIDED = 64
"""The most nodes avoided at a time: if the API server rejects every write, avoiding nodes does not help."""

WRITES_AT_ONCE = 16
"""The most writes at the same time."""

MOST_UNANSWERED = 8
"""The most writes of one Node remembered until the watch shows whether the API server carried out a write."""

_GRANT = "grant patch of nodes (the chart's ClusterRole of the partitioner does)"
_SEE = "see the answer: an admission policy or webhook may reject it"
_ROOM = f"{_SEE}; annotations of an object have 256 KiB together at most: remove those that nobody needs"
_WAIT = "none is needed if the API server answers again soon"
_REJECTED = {
    HTTPStatus.BAD_REQUEST,
    HTTPStatus.FORBIDDEN,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    HTTPStatus.UNPROCESSABLE_ENTITY,
}
"""The statuses that the API server returns again for the same request."""

_CONSEQUENCE = "{} are decided by what was known of {} before"


class _Write(Struct, frozen=True):
    """A write of wanted slices to a Node."""

    before: Node
    """The node before the write."""
    wanted: Wanted
    """The wanted slices."""
    decisions: Decisions
    """The decisions of the round, for the report after the write."""


class FollowedCluster:
    """Follows the cluster, also while another partitioner leads: a new leader has listed all objects already.

    A new leader may not have seen the last decisions of the leader before. The decisions are on the Nodes, and a write
    fails if the Node has a newer version than the new leader has seen.
    """

    def __init__(self, client: Client, policy: str) -> None:
        """Begin without Nodes and Pods; `policy` is for pods and nodes that name no policy."""
        self.due = asyncio.Event()
        """Set by every change that can affect a decision."""
        self.known = Known(policy, self.due.set)
        """The Nodes and Pods, for decisions."""
        self.gone: Callable[[str], None] = lambda _name: None
        """Called with the name of every removed Node."""
        self.cluster = ClusterFollower(
            client,
            Objects(ApiNode, self._put_node, self._remove_node, _CONSEQUENCE.format("slices", "nodes")),
            Objects(ApiPod, self.known.put_pod, self.known.remove_pod, _CONSEQUENCE.format("slices", "pods")),
        )
        """Lists and watches Nodes and Pods."""

    def _put_node(self, found: ApiNode) -> None:
        self.known.put_node(judged_node(found))

    def _remove_node(self, gone: Gone) -> None:
        self.gone(gone.name)
        self.known.remove_node(gone)


class AvoidedNodes:
    """Nodes avoided for a while, because the API server rejected their annotation: other nodes come first."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Begin without avoided nodes; `clock` returns seconds."""
        self._clock = clock
        self._until: dict[str, float] = {}

    @property
    def names(self) -> set[str]:
        """The names of the nodes avoided now."""
        now = self._clock()
        self._until = {name: until for name, until in self._until.items() if until > now}
        return set(self._until)

    def add(self, rejected: AbstractSet[str]) -> set[str]:
        """Avoid nodes from now on, at most `MOST_AVOIDED` at a time; return the newly avoided nodes."""
        before = self.names
        for name in sorted(rejected):
            if name in before or len(self._until) < MOST_AVOIDED:
                self._until[name] = self._clock() + AVOIDED
        return (rejected & self._until.keys()) - before

    def forget(self, name: str) -> None:
        """Stop avoiding a node."""
        self._until.pop(name, None)


class Rounds:
    """Decides in rounds while one term of leadership lasts."""

    def __init__(  # noqa: PLR0913, PLR0917 - what a term consists of
        self,
        client: Client,
        following: FollowedCluster,
        policy: str,
        patience: float,
        seconds_left: Callable[[], float],
        reports: Reports,
        counts: PartitionerCounts,
    ) -> None:
        """Decide by the cluster in `following`; `seconds_left` returns the seconds left of the term of leadership."""
        self._client = client
        self._policy = policy
        self._patience = patience
        self._seconds_left = seconds_left
        self._reports = reports
        self._counts = counts
        self._following = following
        self._known = following.known
        self._writing = asyncio.Semaphore(WRITES_AT_ONCE)
        self._failures = Reported()
        self._unwritten: dict[str, ClusterError] = {}
        self._avoided = AvoidedNodes(time.monotonic)
        self._broken = Reported()
        self._left_out = Reported()
        self._kept = 0
        self._unanswered: dict[str, list[_Write]] = {}

    @property
    def forbidden(self) -> str | None:
        """Why decisions cannot be written for lack of a right, with the remedy; None if no right is missing."""
        lacking = (error for error in self._unwritten.values() if error.lacks_right)
        return next((f"{error}; {_GRANT}" for error in lacking), None)

    @property
    def view(self) -> PartitionerView:
        """The figures of a scrape about the cluster and the waiting work."""
        waiting, now = self._known.waiting, datetime.now(UTC)
        return PartitionerView(
            ready=not self._following.cluster.missing,
            nodes=self._known.node_count,
            waiting=len(waiting),
            longest_wait=max((max(0.0, (now - pod.created).total_seconds()) for pod in waiting), default=0.0),
            kept=self._kept,
            unwritten=len(self._unwritten),
            cache_age=self._following.cluster.age,
        )

    async def run(self) -> None:
        """Decide, write and report; runs until cancelled."""
        self._following.gone = self._failures.forget
        with self._known.losses.noted():
            async with asyncio.TaskGroup() as group:
                group.create_task(self._decide_again_and_again())
                group.create_task(self._reports.report_refusals())

    async def _decide_again_and_again(self) -> None:
        due = self._following.due
        _log.info("partitioner_ready", count=self._known.node_count)
        while True:
            due.clear()
            began = time.perf_counter()
            wait = await self._round()
            # In a cluster with constant changes, rounds take at most half of the time.
            await asyncio.sleep(max(PAUSE, time.perf_counter() - began))
            try:
                async with asyncio.timeout(wait):
                    await due.wait()
            except TimeoutError:
                pass  # time alone may decide otherwise

    async def _round(self) -> float | None:
        """Decide and write once; return the seconds until the next round without any change, None for never."""
        began = time.perf_counter()
        self._report_unanswered()
        self._reports.report_lost(self._known.lost())
        now = datetime.now(UTC)
        rules = self._known.rules(now, self._patience, self._policy, self._avoided.names)
        decisions = decide(self._known.nodes, self._known.waiting, now, rules)
        self._kept = sum(len(each.kept) for each in decisions.assigned.values())
        self._counts.rounds.inc()
        self._counts.round_seconds.inc(time.perf_counter() - began)
        self._log_broken(decisions.broken)
        self._log_left_out(decisions.left_out)
        written = await self._write(decisions)
        self._unwritten = {name: error for name, error in self._unwritten.items() if name in decisions.changes}
        self._reports.report(decisions, written, self._known)
        rejected = self._rejected()
        # After a first rejection by the server, the next round follows at once and mostly decides on another node.
        found = self._avoided.add({name for name in rejected if not self._unwritten[name].lacks_right})
        told = {name: reason for name, reason in rejected.items() if name not in found}
        self._reports.report_unwritten(decisions, told)
        if found:
            return 0.0
        if written != decisions.changes.keys():
            return AGAIN
        return None if decisions.next_at is None else max(0.0, (decisions.next_at - now).total_seconds())

    async def _write(self, decisions: Decisions) -> set[str]:
        """Write the wanted slices of nodes; return the names of the written nodes."""
        # A write may be remembered for long, and refusals keep the whole state of the round in memory.
        reported = replace(decisions, changes={}, refused={}, elsewhere={})
        async with asyncio.TaskGroup() as group:
            # Every write names the version of the Node in the decision: the known version may change before the write.
            tasks = {
                name: group.create_task(self._written(name, _Write(self._known.node(name), wanted, reported)))
                for name, wanted in decisions.changes.items()
            }
        return {name for name, task in tasks.items() if task.result()}

    async def _written(self, name: str, write: _Write) -> bool:
        async with self._writing:
            if (within := self._seconds_left()) <= 0:
                return False
            node, wanted = write.before, write.wanted
            try:
                version = await write_wanted(self._client, name, node.uid, node.version, wanted, within)
            except ClusterError as error:
                # Somebody else has written the Node, as the watch will show, or the Node was replaced or deleted.
                if error.status in {HTTPStatus.CONFLICT, HTTPStatus.NOT_FOUND}:
                    self._unwritten.pop(name, None)
                    self._known.conflicted(name, node)
                    return False
                if _may_be_done(error):
                    self._unanswered.setdefault(name, []).append(write)
                    del self._unanswered[name][:-MOST_UNANSWERED]
                self._unwritten[name] = error
                if self._failures.is_new(name, str(error)):
                    _log.warning(
                        "wanted_slices_not_written",
                        node=name,
                        reason=str(error),
                        remedy=_remedy(error),
                        retry_seconds=AGAIN,
                    )
                return False
        self._failures.forget(name)
        self._unwritten.pop(name, None)
        self._avoided.forget(name)
        self._unanswered.pop(name, None)  # never carried out, or this write would have met another version
        self._known.wrote(name, node, wanted, version)
        return True

    def _report_unanswered(self) -> None:
        """Report writes that the API server carried out without an answer, once the watch has shown the writes."""
        for name, writes in tuple(self._unanswered.items()):
            if not self._known.is_as(name, writes[0].before):
                del self._unanswered[name]
                # At most one write was carried out: after it, the version in all other writes was old.
                for write in writes:
                    if self._known.has_written(name, write.before, write.wanted):
                        self._reports.report_written(write.decisions, {name})
                        break

    def _rejected(self) -> dict[str, str]:
        """Return the reason and remedy of rejected writes, by the name of the node.

        Errors that only waiting can solve are left out.
        """
        found = self._unwritten.items()
        return {name: f"{error}; {_remedy(error)}" for name, error in found if error.status in _REJECTED}

    def _log_broken(self, broken: Sequence[Broken]) -> None:
        """Log every pod with a defect in the decision, once for the same defect."""
        for each in broken:
            if self._broken.is_new(each.pod.uid, repr(each.error)):
                _log.error(
                    "slice_decision_broken",
                    pod=each.pod.label,
                    error=in_words(each.error),
                    remedy="report this as a defect of gpushare",
                    exc_info=each.error,
                )
        self._broken.keep({each.pod.uid for each in broken})

    def _log_left_out(self, nodes: Sequence[LeftOut]) -> None:
        """Log every node without decisions, once for the same reason."""
        for each in nodes:
            if self._left_out.is_new(each.node, each.reason):
                _log.warning("node_left_out", node=each.node, reason=each.reason, exc_info=each.error)
        self._left_out.keep({each.node for each in nodes})


def _may_be_done(error: ClusterError) -> bool:
    """Return whether the API server may have carried out the request in spite of the error."""
    return error.sent and (error.status is None or error.status >= HTTPStatus.INTERNAL_SERVER_ERROR)


def _remedy(error: ClusterError) -> str:
    if error.status not in _REJECTED:
        return _WAIT
    if error.status == HTTPStatus.UNPROCESSABLE_ENTITY:
        return _ROOM
    return _GRANT if error.lacks_right else _SEE
