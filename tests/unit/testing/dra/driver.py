"""A DRA driver for the tests of the kit: as small as it can be, and it does what its test says."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from gpushare_plugin.kubelet.api import dra_v1_pb2, dra_v1beta1_pb2
from gpushare_plugin.kubelet.api.dra_health_pb2 import NodeWatchResourcesRequest, NodeWatchResourcesResponse
from gpushare_plugin.kubelet.api.dra_health_pb2_grpc import (
    DRAResourceHealthServicer,
    add_DRAResourceHealthServicer_to_server,
)
from gpushare_plugin.kubelet.api.dra_v1_pb2_grpc import DRAPluginServicer, add_DRAPluginServicer_to_server
from gpushare_plugin.kubelet.api.dra_v1beta1_pb2_grpc import (
    add_DRAPluginServicer_to_server as add_v1beta1_to_server,
)
from gpushare_plugin.kubelet.api.pluginregistration_pb2 import (
    InfoRequest,
    PluginInfo,
    RegistrationStatus,
    RegistrationStatusResponse,
)
from gpushare_plugin.kubelet.api.pluginregistration_pb2_grpc import (
    RegistrationServicer,
    add_RegistrationServicer_to_server,
)

DRIVER = "gpu.example.com"

Context = grpc.aio.ServicerContext[Any, Any]


def device(uid: str) -> dra_v1_pb2.Device:
    """Return the only device that the driver prepares a claim with where a test says nothing else."""
    return dra_v1_pb2.Device(pool_name="node", device_name="gpu-0", cdi_device_ids=[f"example.com/claim={uid}"])


@dataclass(eq=False)
class Driver(RegistrationServicer, DRAPluginServicer, DRAResourceHealthServicer):
    """A driver below the kubelet's root; `instance` is a part of the names of its sockets.

    `devices` makes the devices of a claim. `errors` are by UID of the claim, `skipped` UIDs are left out of answers.
    `during` is awaited in each method of its name.
    """

    root: Path
    name: str = DRIVER
    instance: str = ""
    type: str = "DRAPlugin"
    endpoint: str | None = None
    services: Sequence[str] = ("v1.DRAPlugin", "v1beta1.DRAPlugin")
    devices: Callable[[str], Sequence[dra_v1_pb2.Device]] = lambda uid: [device(uid)]
    errors: dict[str, str] = field(default_factory=dict)
    skipped: set[str] = field(default_factory=set)
    during: dict[str, Callable[[], Awaitable[object]]] = field(default_factory=dict)
    calls: Counter[str] = field(default_factory=Counter)
    statuses: list[RegistrationStatus] = field(default_factory=list)
    prepared: list[list[str]] = field(default_factory=list)
    unprepared: list[list[str]] = field(default_factory=list)
    reports: asyncio.Queue[NodeWatchResourcesResponse | None] = field(default_factory=asyncio.Queue)

    @property
    def registry_socket(self) -> Path:
        """Where it registers."""
        return self.root / "plugins_registry" / f"{self.name}{self.instance}-reg.sock"

    @property
    def socket(self) -> Path:
        """Where it serves."""
        return self.root / "plugins" / self.name / f"dra{self.instance}.sock"

    async def start(self) -> None:
        """Serve, and register once a kubelet looks."""
        await self.serve()
        await self.register()

    async def serve(self) -> None:
        """Serve at the endpoint."""
        self._plugin = grpc.aio.server()
        add_DRAPluginServicer_to_server(self, self._plugin)
        add_v1beta1_to_server(_V1beta1(self), self._plugin)  # type: ignore[arg-type] # by its methods alone
        add_DRAResourceHealthServicer_to_server(self, self._plugin)
        self.socket.parent.mkdir(parents=True, exist_ok=True)
        self._plugin.add_insecure_port(f"unix:{self.socket}")
        await self._plugin.start()

    async def register(self) -> None:
        """Make the socket in the registry."""
        self._registration = grpc.aio.server()
        add_RegistrationServicer_to_server(self, self._registration)
        self.registry_socket.parent.mkdir(parents=True, exist_ok=True)
        self._registration.add_insecure_port(f"unix:{self.registry_socket}")
        await self._registration.start()

    async def leave_registry(self) -> None:
        """Remove the socket in the registry."""
        await self._registration.stop(None)

    async def stop(self) -> None:
        """Vanish, with both sockets."""
        await self.leave_registry()
        await self.stop_serving()

    async def stop_serving(self) -> None:
        """Leave the endpoint, and the socket in the registry where it is."""
        await self._plugin.stop(None)

    async def GetInfo(self, _request: InfoRequest, _context: Context) -> PluginInfo:  # noqa: N802 - on the wire
        """Say who this is."""
        await self._entered("GetInfo")
        endpoint = str(self.socket) if self.endpoint is None else self.endpoint
        return PluginInfo(type=self.type, name=self.name, endpoint=endpoint, supported_versions=self.services)

    async def NotifyRegistrationStatus(  # noqa: N802 - on the wire
        self, request: RegistrationStatus, _context: Context
    ) -> RegistrationStatusResponse:
        """Remember what the kubelet says."""
        self.statuses.append(request)
        await self._entered("NotifyRegistrationStatus")
        return RegistrationStatusResponse()

    async def NodePrepareResources(  # noqa: N802 - on the wire
        self, request: dra_v1_pb2.NodePrepareResourcesRequest, _context: Context
    ) -> dra_v1_pb2.NodePrepareResourcesResponse:
        """Prepare every claim with the same device, whatever its allocation says."""
        uids = [claim.uid for claim in request.claims]
        self.prepared.append(uids)
        await self._entered("NodePrepareResources")
        answers = {
            uid: dra_v1_pb2.NodePrepareResourceResponse(devices=self.devices(uid), error=self.errors.get(uid, ""))
            for uid in uids
            if uid not in self.skipped
        }
        return dra_v1_pb2.NodePrepareResourcesResponse(claims=answers)

    async def NodeUnprepareResources(  # noqa: N802 - on the wire
        self, request: dra_v1_pb2.NodeUnprepareResourcesRequest, _context: Context
    ) -> dra_v1_pb2.NodeUnprepareResourcesResponse:
        """Give claims back."""
        uids = [claim.uid for claim in request.claims]
        self.unprepared.append(uids)
        await self._entered("NodeUnprepareResources")
        answers = {
            uid: dra_v1_pb2.NodeUnprepareResourceResponse(error=self.errors.get(uid, ""))
            for uid in uids
            if uid not in self.skipped
        }
        return dra_v1_pb2.NodeUnprepareResourcesResponse(claims=answers)

    async def NodeWatchResources(  # noqa: N802 - on the wire
        self, _request: NodeWatchResourcesRequest, _context: Context
    ) -> AsyncIterator[NodeWatchResourcesResponse]:
        """Report what the test puts into the queue; None ends the stream."""
        await self._entered("NodeWatchResources")
        while (report := await self.reports.get()) is not None:
            yield report

    async def _entered(self, method: str) -> None:
        self.calls[method] += 1
        if method in self.during:
            await self.during[method]()


class _V1beta1:
    """The same answers in the form of v1beta1."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    async def NodePrepareResources(  # noqa: N802 - on the wire
        self, request: dra_v1beta1_pb2.NodePrepareResourcesRequest, context: Context
    ) -> dra_v1beta1_pb2.NodePrepareResourcesResponse:
        """Prepare as v1 does."""
        self._driver.calls["v1beta1"] += 1
        asked = dra_v1_pb2.NodePrepareResourcesRequest.FromString(request.SerializeToString())
        answer = await self._driver.NodePrepareResources(asked, context)
        return dra_v1beta1_pb2.NodePrepareResourcesResponse.FromString(answer.SerializeToString())

    async def NodeUnprepareResources(  # noqa: N802 - on the wire
        self, request: dra_v1beta1_pb2.NodeUnprepareResourcesRequest, context: Context
    ) -> dra_v1beta1_pb2.NodeUnprepareResourcesResponse:
        """Give back as v1 does."""
        self._driver.calls["v1beta1"] += 1
        asked = dra_v1_pb2.NodeUnprepareResourcesRequest.FromString(request.SerializeToString())
        answer = await self._driver.NodeUnprepareResources(asked, context)
        return dra_v1beta1_pb2.NodeUnprepareResourcesResponse.FromString(answer.SerializeToString())
