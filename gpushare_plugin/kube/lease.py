"""Elects a leader among processes by a Lease of coordination.k8s.io, with the rules of client-go's leaderelection.

A leader is certain to lead for `deadline` seconds from the start of its last successful renewal. Another candidate
takes over after seeing no renewal for the `duration` of the Lease. Both measure with their own monotonic clocks, so
wrong wall clocks do no harm; the times in the Lease are for people. Candidates watch the Lease, so they see a renewal
or a release by the holder at once, and not only at the next attempt.
"""

import asyncio
import math
import os
import random
import socket
import time
import uuid
from collections.abc import Callable, Coroutine, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any

import structlog

from gpushare_plugin.base.published import Published
from gpushare_plugin.base.tasks import beside, end
from gpushare_plugin.kube.client import Client, ClusterError, Object, decoded
from gpushare_plugin.kube.collection import Collection, Put
from gpushare_plugin.kube.objects import Lease, LeaseSpec

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class LeaseTiming:
    """The times of an election, in seconds."""

    duration: int = 15
    """The time for which a Lease counts after a renewal."""
    deadline: float = 10.0
    """The time for which the holder relies on a renewal.

    It must be well below `duration`: the difference allows for clocks of different speed, and for the last requests of
    a leader.
    """
    retry: float = 2.0
    """The time between two attempts."""


def own_identity() -> str:
    """Return a unique name for this process, different even from the next process in the same pod."""
    return f"{os.environ.get('POD_NAME') or socket.gethostname()}_{uuid.uuid4()}"


def leases(namespace: str) -> str:
    """Return the path of the Leases of a namespace."""
    return f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"


async def read_lease(client: Client, namespace: str, name: str) -> Lease:
    """Read and return a Lease; raises ClusterError."""
    path = f"{leases(namespace)}/{name}"
    return decoded(await client.request("GET", path), Lease, path)


def silence(lease: Lease, now: datetime) -> str | None:
    """Return the reason why nobody holds a Lease at the aware time `now`, None if held or if its time is unreadable.

    The reason is the start of a sentence, completed by the name of the Lease. A Lease counts as held for twice its
    duration, so clocks may differ by up to the duration.
    """
    spec = lease.spec
    if not spec.holder_identity:
        return "nobody holds the"
    try:
        seconds = (now - datetime.fromisoformat(spec.renew_time or "")).total_seconds()
    except (TypeError, ValueError):
        return None
    if seconds <= 2 * (spec.lease_duration_seconds or 0):
        return None
    return f"{spec.holder_identity} has not renewed for {seconds:.0f} seconds the"


class _SeenLease:
    """The last seen state of a Lease, and the time at which its last change was seen."""

    def __init__(
        self, client: Client, namespace: str, name: str, annotations: Mapping[str, str], clock: Callable[[], float]
    ) -> None:
        """Have seen nothing yet; each write sets `annotations` on the Lease."""
        self._client = client
        self._collection = leases(namespace)
        self._name = name
        self._clock = clock
        self._seen_at = -math.inf
        self.path = f"{self._collection}/{name}"
        """The path of the Lease."""
        self.lease: Lease | None = None
        """The Lease when it was last seen, None before."""
        self.annotations = dict(annotations)
        """The annotations that each write sets on the Lease."""
        self.freed = asyncio.Event()
        """Set when the watch shows a released Lease."""

    @property
    def holder(self) -> str:
        """The holder of the Lease when the Lease was last seen, empty for nobody."""
        return "" if self.lease is None else self.lease.spec.holder_identity or ""

    @property
    def seconds_left(self) -> float:
        """Seconds until the Lease runs out without another renewal, 0 for a free Lease."""
        if self.lease is None or not self.holder:
            return 0.0
        return max(0.0, self._seen_at + (self.lease.spec.lease_duration_seconds or 0) - self._clock())

    async def read(self) -> bool:
        """Read the Lease and return whether it exists; raises ClusterError."""
        try:
            self._see(decoded(await self._client.request("GET", self.path), Lease, self.path))
        except ClusterError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            return False
        return True

    async def write(self, spec: Object, *, exists: bool) -> None:
        """Write the Lease if its last seen version is still the newest; raises ClusterError."""
        if not exists or self.lease is None:
            identity = {"name": self._name, "annotations": self.annotations}
            body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": identity, "spec": spec}
            answer = await self._client.request("POST", self._collection, body=body)
        else:
            # A merge patch keeps fields of other programs; with the version, the patch fails after any other write.
            metadata = {"resourceVersion": self.lease.metadata.resource_version, "annotations": self.annotations}
            merged, body = "application/merge-patch+json", {"metadata": metadata, "spec": spec}
            answer = await self._client.request("PATCH", self.path, body=body, content_type=merged)
        self._see(decoded(answer, Lease, self.path))

    async def follow(self, *, unless: Callable[[], bool]) -> None:
        """Follow the changes of the Lease with a watch, but ignore changes while `unless` returns True; never ends.

        A watch can be behind a read. The Lease then seems to be renewed later, and this process takes the Lease later.
        """
        consequence = "a Lease that its holder releases is not taken at once, and one that runs out is taken later"
        named = f"metadata.name={self._name}"
        following = Collection(self._client, self._collection, Lease, selector=named, consequence=consequence)
        async with aclosing(following.changes()) as changes:
            async for change in changes:
                if isinstance(change, Put) and not unless():
                    self._see(change.object)
                    if not self.holder:
                        self.freed.set()

    def _see(self, lease: Lease) -> None:
        if self.lease is None or lease.spec != self.lease.spec:
            self._seen_at = self._clock()
        self.lease = lease


class Election:
    """One candidate for one Lease.

    Before each step reserved for the leader, ask `term` or `seconds_left`: both look at the clock, and are right even
    after this process was stopped for a while.
    """

    def __init__(  # noqa: PLR0913 - the settings of an election
        self,
        client: Client,
        namespace: str,
        name: str,
        identity: str,
        *,
        annotations: Mapping[str, str] | None = None,
        timing: LeaseTiming | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Be a candidate under the name `identity`, unique to this process, see `own_identity`.

        The leader writes `annotations` into the Lease: its settings, for other programs.
        """
        self.leading = Published(0)
        """The number of the term in which this process leads, 0 without the lead.

        Another process may have led between two terms.
        """
        self._record = _SeenLease(client, namespace, name, annotations or {}, clock)
        self._identity = identity
        self._timing = timing or LeaseTiming()
        self._clock = clock
        self._until = -math.inf
        self._terms = 0
        self._writing = False
        self._failure = ""

    @property
    def leads(self) -> bool:
        """Whether this process is certain to lead."""
        return self.seconds_left > 0

    @property
    def term(self) -> int:
        """The number of the term in which this process is certain to lead, 0 without the lead."""
        return self._terms if self.leads else 0

    @property
    def seconds_left(self) -> float:
        """Seconds for which this process leads without another renewal, 0 without the lead."""
        return max(0.0, self._until - self._clock())

    @property
    def holder(self) -> str:
        """The holder of the Lease when the Lease was last seen, empty for nobody."""
        return self._record.holder

    async def run(self) -> None:
        """Take the Lease when it is free and renew it, until cancelled; then release it for other candidates.

        All work reserved for the leader must have ended before the cancellation.
        """
        try:
            # A leader knows more of its own Lease than the watch.
            async with beside(self._record.follow(unless=lambda: self.leads)):
                await self._attempt_again_and_again()
        except asyncio.CancelledError:
            # After a defect the Lease is not released: work begun by the leader may still go on.
            await self._release()
            raise

    def announce(self, annotations: Mapping[str, str]) -> None:
        """Have the next renewals write these annotations, too, into the Lease."""
        self._record.annotations.update(annotations)

    def seconds_left_in(self, term: int) -> float:
        """Return the seconds for which this process leads in `term` without another renewal, 0 in any other term."""
        return self.seconds_left if self.term == term else 0.0

    async def _attempt_again_and_again(self) -> None:
        while True:
            self._record.freed.clear()
            self._report(await self._attempt_in_time())
            self._publish()
            await (asyncio.sleep(min(self._timing.retry, self.seconds_left)) if self.leads else self._stand_by())
            self._publish()

    async def _stand_by(self) -> None:
        """Wait before the next attempt: until the watch shows a free Lease, the Lease runs out, or time has passed."""
        # A random time keeps the candidates from coming all at the same moment.
        wait = self._timing.retry * random.uniform(1.0, 2.0)  # noqa: S311 - no secret
        if (left := self._record.seconds_left) > 0 and self.holder != self._identity:
            wait = min(wait, left)
        with suppress(TimeoutError):
            async with asyncio.timeout(wait):
                await self._record.freed.wait()

    async def _attempt_in_time(self) -> str:
        """Try to take or renew the Lease, no longer than this process leads; return the failure, empty on success."""
        # Half the deadline leaves time for another attempt if the server never answers.
        within = self._timing.deadline / 2
        try:
            async with asyncio.timeout(min(within, self.seconds_left or within)):
                await self._attempt()
        except ClusterError as error:
            # Another candidate was faster.
            return "" if error.status == HTTPStatus.CONFLICT else str(error)
        except TimeoutError:
            return "no answer of the API server in time"
        return ""

    async def _attempt(self) -> None:
        """Take a free Lease, or renew the own Lease; raises ClusterError."""
        if self.leads and self._record.lease is not None:
            # Usually nobody else has written the Lease, and a single request is enough.
            with suppress(ClusterError):
                await self._take(exists=True)
                return
        # The last holder relies on the Lease, even after somebody deleted the Lease.
        exists = await self._record.read()
        if self.holder not in {"", self._identity}:
            self._until = -math.inf
            if self._record.seconds_left > 0:
                return
        await self._take(exists=exists)

    async def _take(self, *, exists: bool) -> None:
        """Write this process as the holder if the last seen version of the Lease is still the newest."""
        began = self._clock()
        now = _now()
        spec: dict[str, str | int] = {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": self._timing.duration,
            "renewTime": now,
        }
        before = self._record.lease.spec if exists and self._record.lease is not None else LeaseSpec()
        if before.holder_identity != self._identity:
            spec |= {"acquireTime": now, "leaseTransitions": (before.lease_transitions or 0) + exists}
        self._writing = True
        await self._record.write(spec, exists=exists)
        self._writing = False
        if began >= self._until:
            self._terms += 1
        self._until = began + self._timing.deadline

    def _report(self, failure: str) -> None:
        """Log the failure of an attempt, unless the last attempt failed in the same way."""
        if failure not in {"", self._failure}:
            _log.warning(
                "api_request_failed",
                path=self._record.path,
                reason=failure,
                consequence=(
                    "this process stops leading unless it can renew its Lease in time"
                    if self.leading.value
                    else "this process does not lead before it can read and write the Lease"
                ),
                retry_seconds=self._timing.retry,
            )
        self._failure = failure

    def _publish(self) -> None:
        term = self.term
        if term == self.leading.value:
            return
        if self.leading.value:
            # After a pause of this process, the Lease may still name this process.
            late = "this process could not renew the Lease in time"
            why = late if self.holder == self._identity else f"the Lease is held by {self.holder or 'nobody'}"
            _log.warning("leadership_lost", path=self._record.path, reason=self._failure or why)
        if term:
            _log.info("leadership_acquired", path=self._record.path)
        self.leading.publish(term)

    async def _release(self) -> None:
        """Release the Lease at once for other candidates if this process holds it."""
        led, self._until = self.leads, -math.inf
        if led:
            _log.info("leadership_released", path=self._record.path)
        if led or self._writing:
            with suppress(ClusterError, TimeoutError):
                async with asyncio.timeout(self._timing.deadline / 2):
                    await self._give_up()
        self.leading.publish(0)

    async def _give_up(self) -> None:
        # The cancellation may have come in the middle of taking or renewing the Lease.
        exists = await self._record.read() if self._writing else True
        if exists and self.holder == self._identity:
            # The short duration is for clients that do not look at the holder.
            spec = {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": _now()}
            await self._record.write(spec, exists=True)


async def in_each_term(leading: Published[int], work: Callable[[int], Coroutine[Any, Any, None]]) -> None:
    """Run `work` with the number of the term in every term of `leading`; runs until cancelled.

    The work is cancelled at the end of its term, and has ended before the next term begins. Raises the errors of the
    work.
    """
    async for term in leading.follow():
        if term:
            async with beside(work(term)) as task:
                await _ended(leading, term)
                end(task)


async def _ended(leading: Published[int], term: int) -> None:
    async for now in leading.follow():
        if now != term:
            return


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
