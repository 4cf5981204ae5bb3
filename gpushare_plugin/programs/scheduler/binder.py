"""Binds pods: chooses GPUs, promises them in memory, and writes promise and node in one request."""

import asyncio
import math
import time
from collections.abc import Callable
from datetime import UTC, datetime

import structlog

from gpushare_plugin.adapters.cluster.accounts import account_pod
from gpushare_plugin.adapters.cluster.binding import BindingError, PodIdentity, Unbound, bind, read_pod
from gpushare_plugin.adapters.cluster.client import Client, ClusterError
from gpushare_plugin.foundation.errors import GpushareError, PlacementError
from gpushare_plugin.model.account.annotations import promise_annotations
from gpushare_plugin.model.account.cluster import ClusterAccount
from gpushare_plugin.model.account.pod import AccountPod
from gpushare_plugin.programs.scheduler.protocol import BindingArguments

_log = structlog.get_logger()

LONGEST_BINDING = 4.0
"""Seconds that a Binding may take; less than what is left of a Lease after its holder has stopped."""

CONFIRMED_WITHIN = 30.0
"""Seconds after which a pod is read from the API server that the watch has not shown as bound."""


class NotBoundError(GpushareError):
    """A pod was not bound."""


class Binder:
    """Binds pods for as long as this process leads.

    Units are promised from the choice until the watch shows the pod on its node, or it is known not to be bound. No
    lock is held meanwhile: what is promised counts for every other pod.
    """

    def __init__(
        self,
        client: Client,
        account: ClusterAccount,
        seconds_left: Callable[[], float],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Promise units of `account`; `seconds_left` says how long this process still leads."""
        self._client = client
        self._account = account
        self._seconds_left = seconds_left
        self._clock = clock
        self._running: dict[str, asyncio.Task[None]] = {}
        self._confirm_at: dict[str, tuple[float, PodIdentity]] = {}

    async def bind(self, asked: BindingArguments) -> None:
        """Bind a pod to a node; asked twice at a time, it is done once. Raises NotBoundError."""
        if (running := self._running.get(asked.pod_uid)) is None:
            running = asyncio.create_task(self._bind(asked))
            self._running[asked.pod_uid] = running
            running.add_done_callback(lambda _: self._running.pop(asked.pod_uid))
        # kube-scheduler that hangs up must not leave it half done.
        await asyncio.shield(running)

    async def _bind(self, asked: BindingArguments) -> None:
        identity = PodIdentity(asked.pod_namespace, asked.pod_name, asked.pod_uid)
        within = min(LONGEST_BINDING, self._seconds_left())
        if within <= 0:
            raise NotBoundError("this extender does not lead any more; kube-scheduler tries again")
        try:
            pod = self._account.pod(asked.pod_uid) or await self._read(identity)
            placement = self._account.reserve(pod, asked.node, math.inf)
        except (PlacementError, ClusterError) as error:
            _log.info("binding_refused", pod=pod_name(asked), node=asked.node, reason=str(error))
            raise NotBoundError(str(error)) from error
        node = self._account.node(asked.node).node
        annotations = promise_annotations(placement, pod.request, node, datetime.now(UTC)) if placement.shares else {}
        self._confirm_at[asked.pod_uid] = self._clock() + CONFIRMED_WITHIN, identity
        try:
            bound_now = await bind(self._client, identity, asked.node, annotations, within)
        except BindingError as error:
            if error.why is not Unbound.UNKNOWN:
                self._forget(asked.pod_uid)
            _log.warning("binding_failed", pod=pod_name(asked), node=asked.node, reason=str(error))
            raise NotBoundError(str(error)) from error
        if bound_now:
            gpus = sorted({share.gpu for share in placement.shares})
            _log.info("pod_bound", pod=pod_name(asked), node=asked.node, gpus=gpus)

    async def _read(self, identity: PodIdentity) -> AccountPod:
        """Return a pod that the watch has not shown yet."""
        found = await read_pod(self._client, identity)
        if found is None or found.metadata.uid != identity.uid:
            raise PlacementError(f"{identity} does not exist any more")
        return account_pod(found)

    async def confirm(self, every: float = 1.0) -> None:
        """Find out what became of pods that the watch did not show as bound in time; runs until cancelled."""
        while True:
            await asyncio.sleep(every)
            for uid, (at, identity) in tuple(self._confirm_at.items()):
                if self._account.reservation(uid) is None:
                    del self._confirm_at[uid]
                elif at <= self._clock() and uid not in self._running:
                    await self._confirm(identity)

    async def _confirm(self, identity: PodIdentity) -> None:
        try:
            found = await read_pod(self._client, identity)
        except ClusterError as error:
            # What may be bound stays promised.
            self._confirm_at[identity.uid] = self._clock() + CONFIRMED_WITHIN, identity
            _log.warning("binding_unconfirmed", pod=f"{identity.namespace}/{identity.name}", reason=str(error))
            return
        if found is not None and found.metadata.uid == identity.uid and found.spec.node_name:
            self._account.put_pod(account_pod(found))
        self._forget(identity.uid)

    def _forget(self, uid: str) -> None:
        self._account.release(uid)
        self._confirm_at.pop(uid, None)


def pod_name(asked: BindingArguments) -> str:
    """Return a pod as the log names it."""
    return f"{asked.pod_namespace}/{asked.pod_name}"
