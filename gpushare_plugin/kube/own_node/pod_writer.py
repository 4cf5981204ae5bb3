"""Writes annotations of the pods of this node, after comparing the desired and the present annotations."""

import asyncio
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus

import structlog

from gpushare_plugin.base.published import Published, changes
from gpushare_plugin.kube.client import PODS, Client, ClusterError
from gpushare_plugin.kube.identity import ObjectIdentity
from gpushare_plugin.kube.names import FIELD_MANAGER
from gpushare_plugin.kube.own_node.pods import REMEDY, OwnPods, Patience
from gpushare_plugin.ledger.pod import Pod

_log = structlog.get_logger()

Annotations = Mapping[str, str]
"""The values of annotations, by key."""

BETWEEN_WRITES = 1.0
"""Seconds between two rounds of writes; the time between two writes into one pod is at least as long."""

WRITE_AGAIN = 60.0
"""Seconds until the same annotations are written into the same pod again, whatever the result of the last write."""

CONSEQUENCE = "annotations of pods do not show which GPUs the pods have"
"""The consequence of a failure to write, for the log."""

_OF_ONE_POD = frozenset({400, HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT, 413, HTTPStatus.UNPROCESSABLE_ENTITY})
"""Statuses that concern a single pod; annotations of other pods can still be written."""


class PodWriter:
    """Keeps gpushare's annotations on the pods of this node up to date."""

    def __init__(self, client: Client, pods: OwnPods, clock: Callable[[], float] = time.monotonic) -> None:
        """Write into the pods of `pods`; `clock` returns a monotonic time in seconds."""
        self._client = client
        self._pods = pods
        self._clock = clock
        self._written: dict[str, tuple[Annotations, float]] = {}
        self._backoff = client.timing.backoff()
        self._forbidden = Patience(client.timing)
        self._told = False

    async def write(self, desired: Published[Mapping[str, Annotations]]) -> None:
        """Keep the annotations of pods in line with the newest value, by UID of the pods; runs until cancelled."""
        async for _ in changes(desired, self._pods.changed):
            while not await self._round(desired):
                pass
            await asyncio.sleep(BETWEEN_WRITES)

    async def _round(self, desired: Published[Mapping[str, Annotations]]) -> bool:
        """Write the differences; return whether all pods were tried, or False after a failure and a wait."""
        self._written = {uid: each for uid, each in self._written.items() if uid in desired.value}
        for uid, annotations in desired.value.items():
            pod = self._pods.get(uid)
            if pod is None or not self._is_due(pod, annotations):
                continue
            try:
                await self._apply(pod, annotations)
            except ClusterError as error:
                if error.status not in _OF_ONE_POD:
                    await self._wait_out(error)
                    return False
                if not _is_gone(error):
                    _log.warning("pod_not_annotated", pod=pod.label, reason=str(error))
            self._written[uid] = annotations, self._clock()
            self._backoff.reset()
        return True

    def _is_due(self, pod: Pod, annotations: Annotations) -> bool:
        if pod.ended or annotations.items() <= set(pod.written):
            return False
        before = self._written.get(pod.uid)
        # After a write, the watch may not have shown the annotations yet, or another program writes the same keys.
        return before is None or before[0] != annotations or self._clock() - before[1] >= WRITE_AGAIN

    async def _apply(self, pod: Pod, annotations: Annotations) -> None:
        """Apply exactly these annotations to a pod, and remove any further annotations owned by gpushare.

        The apply goes to the status of the pod: the right to write the status excludes changes to the spec.
        """
        identity = {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {**identity, "annotations": dict(annotations)}}
        path = ObjectIdentity(pod.namespace, pod.name, pod.uid).path
        await self._client.apply(f"{path}/status", FIELD_MANAGER, body)

    async def _wait_out(self, error: ClusterError) -> None:
        """Wait until the next attempt; a missing right to write is logged once, with longer and longer waits."""
        if error.status != HTTPStatus.FORBIDDEN:
            await self._client.wait_out(error, self._backoff, PODS, CONSEQUENCE)
            return
        if not self._told:
            _log.error("pods_forbidden", path=PODS, reason=str(error), consequence=CONSEQUENCE, remedy=REMEDY)
        self._told = True
        await self._forbidden.wait()


def _is_gone(error: ClusterError) -> bool:
    """Return whether an error means that the pod is gone; with the UID, an apply never touches a new pod of its name.

    To the API server, an apply with another UID is an attempt to change the UID: invalid, and not a conflict.
    """
    if error.status == HTTPStatus.UNPROCESSABLE_ENTITY:
        return "metadata.uid" in str(error)
    return error.status in {HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT}
