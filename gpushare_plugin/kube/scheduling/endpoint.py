"""The target of a Service without a selector: one of several pods writes its own address into the EndpointSlice.

With a selector, a Service would reach all ready pods. A standby pod would then either get requests that it cannot
answer, or count as not ready. With a pod that is not ready, no rolling update and no drain of a node would finish.
"""

import asyncio
import ipaddress
import math
import time
from collections.abc import Callable
from http import HTTPStatus

from gpushare_plugin.kube.client import Client, ClusterError, Object
from gpushare_plugin.kube.identity import ObjectIdentity

WRITE_AGAIN = 10.0
"""Seconds until the EndpointSlice is written again: a former leader may have written its own address late."""

_LOOK_AGAIN = 0.5


class Endpoint:
    """The only endpoint of a Service without a selector; the EndpointSlice has the name of the Service."""

    def __init__(  # noqa: PLR0913 - the parts of an endpoint
        self,
        client: Client,
        service: str,
        pod: ObjectIdentity,
        address: str,
        *,
        port: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare an endpoint at `address` and `port` of `pod`; raises ValueError if `address` is no IP address.

        The EndpointSlice is in the namespace of the pod, and is deleted together with the pod.
        """
        self._client = client
        self._collection = f"/apis/discovery.k8s.io/v1/namespaces/{pod.namespace}/endpointslices"
        self._service = service
        self._pod = pod
        self._address = address
        self._port = port
        self._clock = clock
        self._family = f"IPv{ipaddress.ip_address(address).version}"

    async def publish(self, answers: Callable[[], bool]) -> None:
        """Point the Service at this pod while `answers` returns True; runs until cancelled."""
        path = f"{self._collection}/{self._service}"
        backoff = self._client.timing.backoff()
        written_at = -math.inf
        while True:
            if not answers():
                written_at = -math.inf
            elif (now := self._clock()) - written_at >= WRITE_AGAIN:
                try:
                    await self._write(path)
                except ClusterError as error:
                    await self._client.wait_out(error, backoff, path, "the Service does not lead to this pod")
                    continue
                backoff.reset()
                written_at = now  # another pod may have written while the answer was on its way
            await asyncio.sleep(_LOOK_AGAIN)

    async def _write(self, path: str) -> None:
        slice_ = self._slice()
        try:
            await self._client.request("PATCH", path, body=slice_, content_type="application/merge-patch+json")
        except ClusterError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            await self._client.request("POST", self._collection, body=slice_)

    def _slice(self) -> Object:
        owner = {"apiVersion": "v1", "kind": "Pod", "name": self._pod.name, "uid": self._pod.uid}
        target = {"kind": "Pod", "name": self._pod.name, "uid": self._pod.uid}
        return {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": self._service,
                "labels": {
                    "kubernetes.io/service-name": self._service,
                    "endpointslice.kubernetes.io/managed-by": "gpushare",
                },
                "ownerReferences": [owner],
            },
            "addressType": self._family,
            "endpoints": [{"addresses": [self._address], "conditions": {"ready": True}, "targetRef": target}],
            "ports": [{"name": "extender", "port": self._port, "protocol": "TCP"}],
        }
