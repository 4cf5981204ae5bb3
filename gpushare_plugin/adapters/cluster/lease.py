"""Which of several processes leads, by a Lease of coordination.k8s.io, under the rules of client-go's leaderelection.

A leader is certain of it for `deadline` seconds after it began its last successful renewal; another one takes over once
it has seen no renewal for the Lease's `duration`. Both measure by their own monotonic clock, so wrong wall clocks do
no harm; the times in the Lease are for people. Candidates watch the Lease: so they know when it is renewed, not only
when they look next, and at once where its holder releases it.
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

from gpushare_plugin.adapters.cluster.client import Client, ClusterError, Object, decoded
from gpushare_plugin.adapters.cluster.collection import Collection, Put
from gpushare_plugin.adapters.cluster.objects import Lease, LeaseSpec
from gpushare_plugin.foundation.published import Published
from gpushare_plugin.foundation.tasks import beside, end

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class LeaseTiming:
    """Seconds: how long a Lease counts after a renewal, how long its holder relies on it, and between two attempts.

    `deadline` must be well below `duration`: the difference is what clocks may differ in speed, and what a leader's
    last requests may take.
    """

    duration: int = 15
    deadline: float = 10.0
    retry: float = 2.0


def own_identity() -> str:
    """Return a name that no other process has, not even the next one in the same pod."""
    return f"{os.environ.get('POD_NAME') or socket.gethostname()}_{uuid.uuid4()}"


def leases(namespace: str) -> str:
    """Return the path of the Leases of a namespace."""
    return f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"


async def read_lease(client: Client, namespace: str, name: str) -> Lease:
    """Return a Lease; raises ClusterError."""
    path = f"{leases(namespace)}/{name}"
    return decoded(await client.request("GET", path), Lease, path)


def silence(lease: Lease, now: datetime) -> str | None:
    """Return why nobody holds a Lease at an aware time, in words that its name completes; None where somebody does.

    Clocks that differ less than it lasts do no harm.
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
    """A Lease as the API server was last seen to have it, and when another one was first seen there."""

    def __init__(
        self, client: Client, namespace: str, name: str, annotations: Mapping[str, str], clock: Callable[[], float]
    ) -> None:
        """Have seen nothing yet; whoever writes the Lease leaves these annotations in it."""
        self._client = client
        self._collection = leases(namespace)
        self._name = name
        self._annotations = dict(annotations)
        self._clock = clock
        self._seen_at = -math.inf
        self.path = f"{self._collection}/{name}"
        self.lease: Lease | None = None
        self.freed = asyncio.Event()
        """Set when the watch shows that nobody holds the Lease any more."""

    @property
    def holder(self) -> str:
        """Who held the Lease when it was last seen; empty for nobody."""
        return "" if self.lease is None else self.lease.spec.holder_identity or ""

    @property
    def seconds_left(self) -> float:
        """How long whoever holds the Lease may rely on it without another renewal; 0 where nobody holds it."""
        if self.lease is None or not self.holder:
            return 0.0
        return max(0.0, self._seen_at + (self.lease.spec.lease_duration_seconds or 0) - self._clock())

    async def read(self) -> bool:
        """See the Lease; return whether it exists. Raises ClusterError."""
        try:
            self._see(decoded(await self._client.request("GET", self.path), Lease, self.path))
        except ClusterError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            return False
        return True

    async def write(self, spec: Object, *, exists: bool) -> None:
        """Write the Lease, provided that it still is as it was seen; raises ClusterError."""
        if not exists or self.lease is None:
            identity = {"name": self._name, "annotations": self._annotations}
            body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": identity, "spec": spec}
            answer = await self._client.request("POST", self._collection, body=body)
        else:
            # A merge patch leaves what others may have in the Lease; with the version, it is refused if anybody wrote.
            metadata = {"resourceVersion": self.lease.metadata.resource_version, "annotations": self._annotations}
            merged, body = "application/merge-patch+json", {"metadata": metadata, "spec": spec}
            answer = await self._client.request("PATCH", self.path, body=body, content_type=merged)
        self._see(decoded(answer, Lease, self.path))

    async def follow(self, *, unless: Callable[[], bool]) -> None:
        """See each change of the Lease when it happens, `unless` what the watch shows does not count then; never ends.

        A watch can be behind what was read: the Lease then seems to be renewed later than it was, and is taken later.
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

    `leading` is the number of the term in which this process leads, 0 where it does not lead; another one may have led
    between two terms. Before each step that only the leader may take, ask `term` or `seconds_left`: they look at the
    clock, and are right also where this process was stopped for a while.
    """

    def __init__(  # noqa: PLR0913 - what an election is about
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
        """Be a candidate under `identity`, which no other process has, not even the next one in the same pod.

        Who leads writes `annotations` into the Lease, for those who want to know how it was configured.
        """
        self.leading = Published(0)
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
        """Whether this process leads, for certain."""
        return self.seconds_left > 0

    @property
    def term(self) -> int:
        """The number of the term in which this process leads, for certain; 0 where it does not lead."""
        return self._terms if self.leads else 0

    @property
    def seconds_left(self) -> float:
        """How long this process leads without another renewal; 0 where it does not lead."""
        return max(0.0, self._until - self._clock())

    @property
    def holder(self) -> str:
        """Who held the Lease when it was last seen; empty for nobody."""
        return self._record.holder

    async def run(self) -> None:
        """Take the Lease when it is free, and renew it, until cancelled; then release it for the others.

        Whatever only the leader may do must have ended before this is cancelled.
        """
        try:
            # Of its own Lease a leader knows more than the watch.
            async with beside(self._record.follow(unless=lambda: self.leads)):
                await self._attempt_again_and_again()
        except asyncio.CancelledError:
            # After a defect it is not released: what the leader has begun may still go on.
            await self._release()
            raise

    def seconds_left_in(self, term: int) -> float:
        """Return how long this process leads in a term without another renewal; 0 where it does not lead in it."""
        return self.seconds_left if self.term == term else 0.0

    async def _attempt_again_and_again(self) -> None:
        while True:
            self._record.freed.clear()
            self._report(await self._attempt_in_time())
            self._publish()
            await (asyncio.sleep(min(self._timing.retry, self.seconds_left)) if self.leads else self._stand_by())
            self._publish()

    async def _stand_by(self) -> None:
        """Wait for the next attempt: until the Lease is free, which the watch shows, or has run out."""
        # Candidates that look because time has passed must not all come in the same moment.
        wait = self._timing.retry * random.uniform(1.0, 2.0)  # noqa: S311 - no secret
        if (left := self._record.seconds_left) > 0 and self.holder != self._identity:
            wait = min(wait, left)
        with suppress(TimeoutError):
            async with asyncio.timeout(wait):
                await self._record.freed.wait()

    async def _attempt_in_time(self) -> str:
        """Try to take or renew the Lease, no longer than we lead; return why that failed, if it did."""
        # After an attempt that the server never answers, there is time for another one.
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
        """Take or renew the Lease where it is free or ours; raises ClusterError."""
        if self.leads and self._record.lease is not None:
            # Where nobody else wrote, which is the rule, one request is enough.
            with suppress(ClusterError):
                await self._take(exists=True)
                return
        # Whoever held the Lease relies on it, also where somebody deleted it.
        exists = await self._record.read()
        if self.holder not in {"", self._identity}:
            self._until = -math.inf
            if self._record.seconds_left > 0:
                return
        await self._take(exists=exists)

    async def _take(self, *, exists: bool) -> None:
        """Write that the Lease is ours, provided that it still is as it was seen."""
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
        """Log why an attempt failed, once until it is something else."""
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
            # After a pause of this process the Lease still names it.
            late = "this process could not renew the Lease in time"
            why = late if self.holder == self._identity else f"the Lease is held by {self.holder or 'nobody'}"
            _log.warning("leadership_lost", path=self._record.path, reason=self._failure or why)
        if term:
            _log.info("leadership_acquired", path=self._record.path)
        self.leading.publish(term)

    async def _release(self) -> None:
        """Leave the Lease to the others at once, if it is ours."""
        led, self._until = self.leads, -math.inf
        if led:
            _log.info("leadership_released", path=self._record.path)
        if led or self._writing:
            with suppress(ClusterError, TimeoutError):
                async with asyncio.timeout(self._timing.deadline / 2):
                    await self._give_up()
        self.leading.publish(0)

    async def _give_up(self) -> None:
        # The end may have come in the middle of taking or renewing it.
        exists = await self._record.read() if self._writing else True
        if exists and self.holder == self._identity:
            # Its duration is for clients that do not look at the holder.
            spec = {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": _now()}
            await self._record.write(spec, exists=True)


async def in_each_term(leading: Published[int], work: Callable[[int], Coroutine[Any, Any, None]]) -> None:
    """Do `work`, given the number of the term, in each term that `leading` says; runs until cancelled.

    It is cancelled at the end of the term, and has ended before the next one begins. What it raises, this raises.
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
