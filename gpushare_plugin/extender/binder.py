"""Binds pods: chooses GPUs, promises the units in memory, and writes promise and node in a single request."""

import asyncio
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import structlog

from gpushare_plugin.base.errors import GpushareError, PlacementError
from gpushare_plugin.extender.bindable import NOT_MANAGED, check_identity, check_place, check_waits
from gpushare_plugin.extender.follower import Handover
from gpushare_plugin.kube.client import Client, ClusterError
from gpushare_plugin.kube.identity import ObjectIdentity
from gpushare_plugin.kube.pods import pod_of
from gpushare_plugin.kube.scheduling.binding import (
    BindingError,
    Unbound,
    bind,
    read_node,
    read_pod,
)
from gpushare_plugin.ledger.annotations import ALLOCATION, promise_annotations
from gpushare_plugin.ledger.cluster import ClusterAccount
from gpushare_plugin.ledger.cluster_wide import not_known
from gpushare_plugin.ledger.node import is_of_gpus
from gpushare_plugin.ledger.pod import Pod
from gpushare_plugin.ledger.verdicts import PodPlace

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class BinderTiming:
    """The times of the binder, in seconds."""

    binding: float = 4.0
    """The most that a Binding may take.

    Less than kube-scheduler waits for an extender (5 s), and less than a Lease lasts after its holder has stopped.
    """
    between: float = 5.0
    """The time to wait for the watch to show a pod as bound, before each read of the pod from the API server."""
    abandoned: float = 70.0
    """The age of a Binding after which a pod without a node is certain not to be bound by the Binding.

    The API server ends a request after 60 s (kube-apiserver: --request-timeout), and may carry out the request until
    then.
    """
    every: float = 1.0
    """The time between two searches for pods to read."""


@dataclass(frozen=True, slots=True)
class _Attempt:
    """A Binding on its way."""

    node: str
    """The name of the node to bind to."""
    task: asyncio.Task[None]
    """The task that binds the pod; raises NotBoundError."""


@dataclass(frozen=True, slots=True)
class _Unconfirmed:
    """A pod that may be bound and was not yet shown as bound by the watch."""

    pod: ObjectIdentity
    """The pod."""
    place: PodPlace
    """The node and the promised units of the Binding."""
    annotations: dict[str, str]
    """The annotations of the Binding, the same in each repetition."""
    read_at: float = 0.0
    """The time to read the pod from the API server, on the monotonic clock."""
    certain_at: float = 0.0
    """The time on the monotonic clock after which a pod without a node is certain not to be bound by the Binding."""


_OPEN = {Unbound.UNKNOWN, Unbound.BUSY, Unbound.REJECTED}
"""Failures that leave open whether an earlier Binding of the pod was or will be carried out."""


class NotBoundError(GpushareError):
    """A pod was not bound."""


class Binder:
    """Binds pods in each term of leadership.

    A promise lasts from the choice of the GPUs until the watch shows the pod on its node, or until the pod is certain
    not to be bound, also beyond the end of the term. The binder needs no lock: each choice counts all earlier promises.
    """

    def __init__(
        self,
        client: Client,
        account: ClusterAccount,
        handover: Callable[[], Handover],
        timing: BinderTiming | None = None,
        schedulers: Collection[str] = (),
    ) -> None:
        """Bind nothing before the first term; `handover` makes the Handover of each term.

        Promises are made in `account`. Only pods of `schedulers` are bound; empty `schedulers` stand for any scheduler.
        """
        self._client = client
        self._account = account
        self._timing = timing or BinderTiming()
        self._schedulers = schedulers
        self._attempts: dict[str, _Attempt] = {}
        self._unconfirmed: dict[str, _Unconfirmed] = {}
        self._seconds_left: Callable[[], float] = lambda: 0.0
        self._begin = handover
        self._handover = handover()
        self._closed = True

    @property
    def promises(self) -> int:
        """The number of pods with a promise that the watch has not yet shown as bound."""
        return sum(self._account.reservation(uid) is not None for uid in self._unconfirmed)

    async def bind(self, pod: ObjectIdentity, node: str) -> None:
        """Bind a pod to a node, once for all simultaneous calls; raises NotBoundError."""
        if self._closed:
            raise NotBoundError("this extender stops leading; kube-scheduler tries again")
        attempt = self._attempts.get(pod.uid)
        if attempt is None:
            attempt = _Attempt(node, asyncio.create_task(self._bind_in_time(pod, node)))
            self._attempts[pod.uid] = attempt
            attempt.task.add_done_callback(lambda task: self._ended(pod.uid, task))
        elif attempt.node != node:
            raise NotBoundError(f"{pod} is being bound to node {attempt.node}; retry when that has ended")
        # A kube-scheduler that hangs up must not leave the Binding half done.
        await asyncio.shield(attempt.task)

    def open(self, seconds_left: Callable[[], float]) -> None:
        """Begin a term, after the end of the former term; `seconds_left` returns how long this process still leads."""
        self._seconds_left = seconds_left
        self._handover = self._begin()
        self._closed = False

    async def close(self) -> None:
        """Bind no more, and wait for the end of the Bindings on their way: only then may another extender lead."""
        self._closed = True
        if self._attempts:
            await asyncio.wait([attempt.task for attempt in self._attempts.values()])

    async def confirm(self) -> None:
        """Read each pod not shown as bound by the watch in time, and act on the result; runs until cancelled."""
        while True:
            await asyncio.sleep(self._timing.every)
            for uid, waiting in tuple(self._unconfirmed.items()):
                if self._account.reservation(uid) is None:
                    self._unconfirmed.pop(uid, None)  # it may have ended while another pod was read
                elif waiting.read_at <= time.monotonic() and uid not in self._attempts:
                    await self._confirm(waiting)

    def _ended(self, uid: str, task: asyncio.Task[None]) -> None:
        del self._attempts[uid]
        if not task.cancelled():
            task.exception()  # retrieved here, because every waiting request may have gone

    async def _bind_in_time(self, pod: ObjectIdentity, node: str) -> None:
        """Bind a pod, and end before this process stops leading; raises NotBoundError."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(self._timing.binding, self._seconds_left())
        try:
            async with asyncio.timeout_at(deadline):
                known = await self._bindable(pod, node)
            if known is not None:
                await self._bind(pod, known, node, deadline)
        except TimeoutError as error:
            raise NotBoundError(
                f"{pod}, or what is on node {node}, could not be read in time; kube-scheduler tries again"
            ) from error
        except (PlacementError, ClusterError) as error:
            failed = isinstance(error, ClusterError)
            report = _log.warning if failed else _log.info
            report("binding_failed" if failed else "binding_refused", pod=pod.label, node=node, reason=str(error))
            raise NotBoundError(str(error)) from error

    async def _bindable(self, pod: ObjectIdentity, node: str) -> Pod | None:
        """Return a pod that may be bound to a node, or None for a pod already bound to the node.

        Pod and node are read from the API server for each Binding; otherwise the checked fields of every pod and node
        would have to be kept in memory. Raises PlacementError and ClusterError.
        """
        if node not in self._account.nodes:
            raise PlacementError(f"{not_known(node)}; expected a node of this cluster: kube-scheduler tries again")
        found = check_identity(pod, await read_pod(self._client, pod))
        known = pod_of(found)
        if known.node == node and not known.ended:
            return None
        check_waits(known, found, self._schedulers)
        # Another plugin may serve GPUs that the account does not decide; kube-scheduler asks about such pods, too.
        if not self._account.concerns(known.request) and not any(map(is_of_gpus, known.request.amounts)):
            raise PlacementError(f"pod {known.label} {NOT_MANAGED}")
        check_place(known, found, node, await read_node(self._client, node))
        await self._handover.complete_on(node)
        return known

    async def _bind(self, pod: ObjectIdentity, known: Pod, node: str, deadline: float) -> None:
        """Promise units and bind; raises PlacementError and ClusterError."""
        if (within := deadline - asyncio.get_running_loop().time()) <= 0:
            raise PlacementError("this extender does not lead any more")
        earlier = self._account.reservation(pod.uid) is not None
        annotations: dict[str, str] = {}
        gpus: list[str] = []
        if self._account.concerns(known.request):
            # The promise lasts until the watch shows the pod: no time alone says that the pod was not bound.
            place = self._account.reserve(known, node)
            gpus = sorted({share.gpu for share in place.shares})
            annotations = self._expected(pod, known, place).annotations
        try:
            bound_now = await bind(self._client, pod, node, annotations, within)
        except BindingError as error:
            # The API server may still carry out an earlier Binding without an answer.
            if error.why not in (_OPEN if earlier else {Unbound.UNKNOWN}):
                self._forget(pod.uid)
            raise
        if bound_now:
            self._handover.bound(pod.uid)
            _log.info("pod_bound", pod=pod.label, node=node, gpus=gpus)

    def _expected(self, pod: ObjectIdentity, known: Pod, place: PodPlace) -> _Unconfirmed:
        """Expect the watch to show a pod as bound; a Binding repeated with the same place keeps its annotations."""
        waiting = self._unconfirmed.get(pod.uid)
        if waiting is None or waiting.place != place:
            annotations = self._annotations(known, place) if place.shares else {}
            waiting = _Unconfirmed(pod, place, annotations)
        waiting = replace(waiting, certain_at=time.monotonic() + self._timing.abandoned)
        self._expect(waiting)
        return waiting

    def _expect(self, waiting: _Unconfirmed) -> None:
        self._unconfirmed[waiting.pod.uid] = replace(waiting, read_at=time.monotonic() + self._timing.between)

    def _annotations(self, known: Pod, place: PodPlace) -> dict[str, str]:
        """Return the annotations of the Binding, which replace annotations of the pod with the same names."""
        node = self._account.node_named(place.node)
        annotations = promise_annotations(place, known.request, node, datetime.now(UTC))
        # Before a pod is on a node, no daemon has written a holding: an earlier annotation is false.
        return annotations if known.allocation is None else {**annotations, ALLOCATION: ""}

    async def _confirm(self, waiting: _Unconfirmed) -> None:
        """End the promise to a pod that is gone or certainly not bound; the watch ends the promise to a bound pod."""
        pod = waiting.pod
        try:
            found = await read_pod(self._client, pod)
        except ClusterError as error:
            _log.warning("binding_unconfirmed", pod=pod.label, reason=str(error))
            self._expect(waiting)
            return
        if self._unconfirmed.get(pod.uid) is not waiting:
            return  # a new Binding of the pod began meanwhile
        node = None if found is None or found.metadata.uid != pod.uid else found.spec.node_name
        if node == waiting.place.node or (node == "" and time.monotonic() < waiting.certain_at):
            self._expect(waiting)
        else:
            self._forget(pod.uid)

    def _forget(self, uid: str) -> None:
        self._account.release(uid)
        self._unconfirmed.pop(uid, None)
