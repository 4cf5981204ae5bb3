"""Rounds of decisions in one term: each time something has changed, decide, write what is wanted, and report it."""

import asyncio
import time
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime
from http import HTTPStatus

import structlog

from gpushare_plugin.adapters.cluster.client import Client, ClusterError
from gpushare_plugin.adapters.cluster.collection import Gone
from gpushare_plugin.adapters.cluster.nodes import judged_node
from gpushare_plugin.adapters.cluster.objects import ApiNode, ApiPod
from gpushare_plugin.adapters.cluster.whole_cluster.following import ClusterFollower, Objects
from gpushare_plugin.adapters.cluster.whole_cluster.wanted_slices import write_wanted
from gpushare_plugin.foundation.reported import Reported
from gpushare_plugin.foundation.structs import Struct, replace
from gpushare_plugin.foundation.text import in_words
from gpushare_plugin.model.account.node import Node
from gpushare_plugin.model.partition.decide import Decisions, LeftOut, decide
from gpushare_plugin.model.partition.taking_back import Broken
from gpushare_plugin.model.slices.wanted import Wanted
from gpushare_plugin.programs.partitioning.known import Known
from gpushare_plugin.programs.partitioning.reports import Reports
from gpushare_plugin.telemetry.metrics.partitioner import PartitionerCounts, PartitionerView

_log = structlog.get_logger()

PAUSE = 0.05
"""Seconds between two rounds at least, and as long as the last one took: what comes meanwhile is decided together."""

AGAIN = 5.0
"""Seconds until the next round where something could not be written."""

AVOIDED = 60.0
"""Seconds for which other nodes come first after the server has rejected what was decided of a node."""

MOST_AVOIDED = 64
"""Nodes that are avoided at a time: where the server rejects every write, to avoid nodes helps nobody."""

WRITES_AT_ONCE = 16

MOST_UNANSWERED = 8
"""Writes of one Node that are remembered until the watch shows whether the server carried one out."""

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
"""What the server answers again to the same request."""

_CONSEQUENCE = "{} are decided by what was known of {} before"


class _Write(Struct, frozen=True):
    """A write of what is wanted of a node as it was `before`, and all that was decided with it."""

    before: Node
    wanted: Wanted
    decisions: Decisions


class FollowedCluster:
    """Knows the cluster, also while another partitioner leads: so whoever takes over has listed everything before.

    What was decided last may not have been seen. It stands on the Nodes, which are written only as they were seen.
    """

    def __init__(self, client: Client, policy: str) -> None:
        """Know nothing yet; `policy` is for pods and nodes that name none."""
        self.due = asyncio.Event()
        """Set by each change on which a decision can depend."""
        self.known = Known(policy, self.due.set)
        self.gone: Callable[[str], None] = lambda _name: None
        """Called with the name of each Node that is there no more."""
        self.cluster = ClusterFollower(
            client,
            Objects(ApiNode, self._put_node, self._remove_node, _CONSEQUENCE.format("slices", "nodes")),
            Objects(ApiPod, self.known.put_pod, self.known.remove_pod, _CONSEQUENCE.format("slices", "pods")),
        )

    def _put_node(self, found: ApiNode) -> None:
        self.known.put_node(judged_node(found))

    def _remove_node(self, gone: Gone) -> None:
        self.gone(gone.name)
        self.known.remove_node(gone)


class _Avoided:
    """Nodes that others come before for a while, because the server rejected what was decided of them."""

    def __init__(self) -> None:
        """Avoid none."""
        self._until: dict[str, float] = {}

    @property
    def names(self) -> set[str]:
        """The nodes that are avoided now."""
        now = time.monotonic()
        self._until = {name: until for name, until in self._until.items() if until > now}
        return set(self._until)

    def add(self, rejected: AbstractSet[str]) -> set[str]:
        """Avoid nodes from now on, as long as there are not too many; return those that were not avoided before."""
        before = self.names
        for name in sorted(rejected):
            if name in before or len(self._until) < MOST_AVOIDED:
                self._until[name] = time.monotonic() + AVOIDED
        return (rejected & self._until.keys()) - before

    def forget(self, name: str) -> None:
        """Avoid a node no longer."""
        self._until.pop(name, None)


class Rounds:
    """Decides for as long as one term of leadership lasts."""

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
        """Decide by what `following` knows; `seconds_left` says how long this process still leads in this term."""
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
        self._avoided = _Avoided()
        self._broken = Reported()
        self._left_out = Reported()
        self._kept = 0
        self._unanswered: dict[str, list[_Write]] = {}

    @property
    def forbidden(self) -> str | None:
        """Why nothing that is decided can be written, with the remedy; None where a right is not what is missing."""
        lacking = (error for error in self._unwritten.values() if error.lacks_right)
        return next((f"{error}; {_GRANT}" for error in lacking), None)

    @property
    def view(self) -> PartitionerView:
        """What a scrape shows of the cluster, and of how much there is to do."""
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
        """Decide; runs until cancelled."""
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
            # In a cluster that never rests, rounds take half of the time at most.
            await asyncio.sleep(max(PAUSE, time.perf_counter() - began))
            try:
                async with asyncio.timeout(wait):
                    await due.wait()
            except TimeoutError:
                pass  # time alone may decide otherwise

    async def _round(self) -> float | None:
        """Decide and write once; return after how many seconds to do so again, whatever happens; None for never."""
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
        # What the server rejects for the first time is decided again at once, mostly on another node.
        found = self._avoided.add({name for name in rejected if not self._unwritten[name].lacks_right})
        told = {name: reason for name, reason in rejected.items() if name not in found}
        self._reports.report_unwritten(decisions, told)
        if found:
            return 0.0
        if written != decisions.changes.keys():
            return AGAIN
        return None if decisions.next_at is None else max(0.0, (decisions.next_at - now).total_seconds())

    async def _write(self, decisions: Decisions) -> set[str]:
        """Write what is wanted of nodes; return those where that is done."""
        # A write may be remembered for long, and refusals hold all that the round knew.
        reported = replace(decisions, changes={}, refused={}, offered={})
        async with asyncio.TaskGroup() as group:
            # Each with the version that was decided on, which may be another one before its turn comes.
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
                # Somebody has written meanwhile, which the watch shows; or the Node is another one, or gone.
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
        self._unanswered.pop(name, None)  # or else the version would be another one
        self._known.wrote(name, node, wanted, version)
        return True

    def _report_unanswered(self) -> None:
        """Report what was written although the server did not say so, once the watch has shown that."""
        for name, writes in tuple(self._unanswered.items()):
            if not self._known.is_as(name, writes[0].before):
                del self._unanswered[name]
                # The first that was carried out made the version of all others an old one.
                for write in writes:
                    if self._known.has_written(name, write.before, write.wanted):
                        self._reports.report_written(write.decisions, {name})
                        break

    def _rejected(self) -> dict[str, str]:
        """Return why the server does not take what was decided of nodes, with the remedy; to wait is none."""
        found = self._unwritten.items()
        return {name: f"{error}; {_remedy(error)}" for name, error in found if error.status in _REJECTED}

    def _log_broken(self, broken: Sequence[Broken]) -> None:
        """Log each pod whose decision met a defect, once."""
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
        """Log each node for which nothing is decided, once."""
        for each in nodes:
            if self._left_out.is_new(each.node, each.reason):
                _log.warning("node_left_out", node=each.node, reason=each.reason, exc_info=each.error)
        self._left_out.keep({each.node for each in nodes})


def _may_be_done(error: ClusterError) -> bool:
    """Return whether the server may have done what it did not confirm."""
    return error.sent and (error.status is None or error.status >= HTTPStatus.INTERNAL_SERVER_ERROR)


def _remedy(error: ClusterError) -> str:
    if error.status not in _REJECTED:
        return _WAIT
    if error.status == HTTPStatus.UNPROCESSABLE_ENTITY:
        return _ROOM
    return _GRANT if error.lacks_right else _SEE
