"""The kubelet's end of one connection to a DRA driver."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TypeVar

import grpc

from gpushare_plugin.kubelet.api import dra_v1_pb2 as v1
from gpushare_plugin.kubelet.api import dra_v1beta1_pb2 as v1beta1
from gpushare_plugin.kubelet.api.dra_health_pb2 import NodeWatchResourcesRequest, NodeWatchResourcesResponse
from gpushare_plugin.kubelet.api.dra_health_pb2_grpc import DRAResourceHealthStub
from gpushare_plugin.kubelet.api.dra_v1_pb2_grpc import DRAPluginStub
from gpushare_plugin.kubelet.api.dra_v1beta1_pb2_grpc import DRAPluginStub as DRAPluginV1beta1Stub
from gpushare_plugin.testing.clock import Clock, within
from gpushare_plugin.testing.kubelet.shared.calling import OWN_CONNECTION, Answer, answered
from gpushare_plugin.testing.kubelet.shared.errors import PluginCallError

CALL_SECONDS = 45.0
"""How long a call may take (kubernetes: pkg/kubelet/cm/dra/plugin/dra_plugin.go, defaultClientCallTimeout)."""

Request = TypeVar("Request")

V1, V1BETA1 = "v1.DRAPlugin", "v1beta1.DRAPlugin"

_RECONNECTS = (("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 100))
"""gRPC for Go waits for 1 s and, doubling, up to 2 min; here nobody has to wait for a driver that is back."""


class DriverConnection:
    """The connection to an instance of `driver` at `endpoint`, which serves `service`, one of `V1` and `V1BETA1`.

    `changed` is called when the connection begins or ends, `count` with the name of each method that is called.
    """

    def __init__(  # noqa: PLR0913 - what a connection is made of
        self,
        driver: str,
        endpoint: str,
        service: str,
        clock: Clock,
        *,
        changed: Callable[[], None],
        count: Callable[[str], None],
    ) -> None:
        """Connect, and connect again whenever the connection ends, until `close`."""
        self.driver, self.endpoint, self.service = driver, endpoint, service
        self.connected = False
        self._clock = clock
        self._changed = changed
        self._count = count
        self._channel = grpc.aio.insecure_channel(f"unix:{endpoint}", options=[OWN_CONNECTION, *_RECONNECTS])
        self._watch = asyncio.create_task(self._follow(), name=f"connection to {driver}")

    async def prepare(self, claims: Sequence[v1.Claim]) -> v1.NodePrepareResourcesResponse:
        """Call NodePrepareResources; raises PluginCallError, also after 45 s."""
        self._count("NodePrepareResources")
        request = v1.NodePrepareResourcesRequest(claims=claims)
        if self.service == V1:
            return await self._in_time(DRAPluginStub(self._channel).NodePrepareResources(request, timeout=CALL_SECONDS))
        older = v1beta1.NodePrepareResourcesRequest.FromString(request.SerializeToString())
        call = DRAPluginV1beta1Stub(self._channel).NodePrepareResources(older, timeout=CALL_SECONDS)
        return v1.NodePrepareResourcesResponse.FromString((await self._in_time(call)).SerializeToString())

    async def unprepare(self, claims: Sequence[v1.Claim]) -> v1.NodeUnprepareResourcesResponse:
        """Call NodeUnprepareResources; raises PluginCallError, also after 45 s."""
        self._count("NodeUnprepareResources")
        request = v1.NodeUnprepareResourcesRequest(claims=claims)
        if self.service == V1:
            stub = DRAPluginStub(self._channel)
            return await self._in_time(stub.NodeUnprepareResources(request, timeout=CALL_SECONDS))
        older = v1beta1.NodeUnprepareResourcesRequest.FromString(request.SerializeToString())
        call = DRAPluginV1beta1Stub(self._channel).NodeUnprepareResources(older, timeout=CALL_SECONDS)
        return v1.NodeUnprepareResourcesResponse.FromString((await self._in_time(call)).SerializeToString())

    async def health(self) -> AsyncIterator[NodeWatchResourcesResponse]:
        """Yield every report of the health of devices; raises PluginCallError where the stream breaks."""
        self._count("NodeWatchResources")
        reports = aiter(DRAResourceHealthStub(self._channel).NodeWatchResources(NodeWatchResourcesRequest()))
        while True:
            try:
                yield await answered(anext(reports))
            except StopAsyncIteration:
                return

    async def close(self) -> None:
        """End the connection, and with it every call under way."""
        self._watch.cancel()
        await asyncio.gather(self._watch, return_exceptions=True)
        await self._channel.close()

    async def _in_time(self, call: grpc.aio.UnaryUnaryCall[Request, Answer]) -> Answer:
        try:
            return await within(self._clock, CALL_SECONDS, answered(call))
        except TimeoutError as error:
            call.cancel()
            raise PluginCallError(grpc.StatusCode.DEADLINE_EXCEEDED, "context deadline exceeded") from error

    async def _follow(self) -> None:
        """Keep `connected` true to the connection."""
        while (state := self._channel.get_state(try_to_connect=True)) is not grpc.ChannelConnectivity.SHUTDOWN:
            connected = state is grpc.ChannelConnectivity.READY
            if connected is not self.connected:
                self.connected = connected
                self._changed()
            await self._channel.wait_for_state_change(state)
