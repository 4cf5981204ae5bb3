"""The device-plugin RPCs of one resource: from protobuf to units and back; every answer comes from memory.

The answers of `ListAndWatch` are made as bytes (`SerialisedDevices`), and all calls are counted (`Calls`).
"""

import asyncio
import functools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence, Sized
from functools import cache
from itertools import groupby
from operator import attrgetter
from typing import NoReturn, TypeVar

import grpc
import structlog

from gpushare_plugin.base.errors import GpushareError, RequestError
from gpushare_plugin.base.published import Published
from gpushare_plugin.base.text import visible
from gpushare_plugin.core.grant import Grant
from gpushare_plugin.core.pairing import Pairing
from gpushare_plugin.core.recent import RecentAllocations
from gpushare_plugin.core.resource import Resource
from gpushare_plugin.core.unit import KUBELET_MESSAGE_LIMIT, Unit
from gpushare_plugin.kubelet.api import deviceplugin_pb2 as api
from gpushare_plugin.kubelet.api import deviceplugin_pb2_grpc as rpc
from gpushare_plugin.kubelet.device_plugin.steering import Steering, Unsteered
from gpushare_plugin.kubelet.serving.calls import Calls

_HEALTHY = "Healthy"
_UNHEALTHY = "Unhealthy"
_UNSAID = ""
"""No health at all, which takes no bytes: for the kubelet, only a unit with the health `Healthy` is healthy.

Source: pkg/kubelet/cm/devicemanager/manager.go, for the units counted by the kubelet (`genericDeviceUpdateCallback`)
and for the units shown in the status of a pod (`UpdateAllocatedResourcesStatus`).
"""


class SerialisedDevices:
    """Serialises the device lists of one resource; unchanged units of a GPU are serialised only once."""

    def __init__(self) -> None:
        """Start with nothing serialised."""
        self._pieces: dict[str, _Piece] = {}
        self._retired: Mapping[str, Unit] = {}
        self._retired_piece = _Piece(())

    def of(self, resource: Resource) -> bytes:
        """Return a `ListAndWatchResponse`: all units with health and NUMA node, the retired units as Unhealthy.

        `Unhealthy` is the longer word. If the word makes the list longer than the kubelet's limit, unhealthy units are
        listed without a health. No unit is left out, because the kubelet forgets the holder of an unlisted unit. As a
        result, a list is longer than the limit only if the list of the same units, all healthy, is too.
        """
        known, self._pieces = self._pieces, {}
        for gpu, units in resource.units.by_gpu.items():
            piece = known.get(gpu.uuid)
            self._pieces[gpu.uuid] = piece if piece is not None and piece.units is units else _Piece(units)
        if resource.retired is not self._retired:
            self._retired, self._retired_piece = resource.retired, _Piece(tuple(resource.retired.values()))
        whole = self._joined(resource.unhealthy, _UNHEALTHY)
        return whole if len(whole) <= KUBELET_MESSAGE_LIMIT else self._joined(resource.unhealthy, _UNSAID)

    def _joined(self, unhealthy: Collection[str], word: str) -> bytes:
        """Return the list, with `word` as the health of unhealthy units."""
        # The list is one repeated field: joining the bytes of two lists joins the lists.
        pieces = (piece.saying(word if uuid in unhealthy else _HEALTHY) for uuid, piece in self._pieces.items())
        return b"".join((*pieces, self._retired_piece.saying(word)))


class _Piece:
    """A part of a device list: the units of one GPU, or the retired units."""

    def __init__(self, units: Sequence[Unit]) -> None:
        self.units = units
        self._bytes: dict[str, bytes] = {}

    def saying(self, health: str) -> bytes:
        """Return the entries of the units, all with this health."""
        if health not in self._bytes:
            self._bytes[health] = _serialised(self.units, health)
        return self._bytes[health]


def _serialised(units: Iterable[Unit], health: str) -> bytes:
    """Return the entries of `units` in the bytes of protobuf; units that differ only in the ID are built together.

    Every length is one byte: see `core.unit.wire_size`.
    """
    entries = []
    for numa_node, alike in groupby(units, attrgetter("numa_node")):
        rest = _all_but_id(health, numa_node)
        for length, ids in groupby(map(attrgetter("id"), alike), len):
            start = f"{_FIELD_1}{chr(2 + length + len(rest))}{_FIELD_1}{chr(length)}"
            entries.append(f"{start}{(rest + start).join(ids)}{rest}")
    return "".join(entries).encode("latin-1")


_FIELD_1 = "\x0a"
"""The tag before the length of a message's first field: `devices` in the list, `ID` in a device."""


@cache
def _all_but_id(health: str, numa_node: int | None) -> str:
    """Return the bytes of a device after the ID, as text."""
    topology = None if numa_node is None else api.TopologyInfo(nodes=[api.NUMANode(ID=numa_node)])
    return api.Device(health=health, topology=topology).SerializeToString().decode("latin-1")


_log = structlog.get_logger()

_SERVICE = api.DESCRIPTOR.services_by_name["DevicePlugin"].full_name
Refused = Callable[[str, str, str], None]
"""A function called in the event loop with the name of a refused call, the resource and the reason; returns at once."""

Allocated = Callable[[Resource, Collection[str]], None]
"""A function called in the event loop after each granted `Allocate` call, with the IDs of the units.

The function returns at once.
"""

BeforeStart = Callable[[Resource, Collection[str]], Awaitable[None]]
"""A function called each time before the kubelet starts a container with units of a resource, by their IDs.

The container starts once the function returns. The function takes at most a few seconds, while other calls are
answered, and raises GpushareError to refuse the start; the kubelet tries again later.
"""

_LONGEST_MESSAGE = 4096
"""Characters of an error message; gRPC carries it in a header, and headers end at 8 KiB."""

Context = grpc.aio.ServicerContext[object, object]
Q = TypeVar("Q")
A = TypeVar("A")
Call = Callable[["DevicePluginService", Q, Context], Awaitable[A]]


def _counted(answer: Call[Q, A]) -> Call[Q, A]:
    """Count the status code and the duration of a call; refuse a call that raises GpushareError."""
    name = answer.__name__

    @functools.wraps(answer)
    async def counted(service: "DevicePluginService", request: Q, context: Context) -> A:
        began = time.perf_counter()
        code = grpc.StatusCode.UNKNOWN
        try:
            result = await answer(service, request, context)
        except GpushareError as error:
            invalid = isinstance(error, RequestError)
            code = grpc.StatusCode.INVALID_ARGUMENT if invalid else grpc.StatusCode.FAILED_PRECONDITION
            await service.refuse(name, code, error, context)
        except asyncio.CancelledError:
            code = grpc.StatusCode.CANCELLED
            raise
        else:
            code = grpc.StatusCode.OK
            return result
        finally:
            service.calls.count(name, code.name, time.perf_counter() - began)

    return counted


class DevicePluginService(rpc.DevicePluginServicer):
    """Answers the kubelet for one resource, which can be replaced by a resource of the same name at any time."""

    def __init__(  # noqa: PLR0913 - everything that an answer depends on
        self,
        resource: Resource,
        on_streams_changed: Callable[[], None] = lambda: None,
        steering: Steering | None = None,
        pairing: Pairing | None = None,
        refused: Refused = lambda _call, _resource, _reason: None,
        *,
        recent: RecentAllocations | None = None,
        allocated: Allocated = lambda _resource, _ids: None,
        before_start: BeforeStart | None = None,
    ) -> None:
        """Serve the units of `resource`; all resources of a node share one `pairing` and one `recent`.

        `on_streams_changed` is called when the number of open streams changes. `steering` knows the promises to pods;
        without `steering`, none are known. `refused` is called for each refusal, `allocated` after each granted
        `Allocate` call, `before_start` before each start of a container.
        """
        self._allocated = allocated
        self._before_start = before_start
        self._refused = refused
        self.resource = resource
        """The resource served now."""
        self._steering = steering or Unsteered()
        self._pairing = pairing or Pairing(lambda: None)
        self._recent = recent or RecentAllocations()
        self.streams = 0
        """Number of open `ListAndWatch` streams."""
        self.allocations = 0
        """Number of granted `Allocate` calls."""
        self.refusals = {"GetPreferredAllocation": 0, "Allocate": 0, "PreStartContainer": 0}
        """Numbers of refused calls by name."""
        self.calls = Calls()
        """Numbers and durations of all calls but `ListAndWatch`."""
        self._on_streams_changed = on_streams_changed
        self._list = SerialisedDevices()
        self._devices = Published(self._list.of(resource))

    def add_to(self, server: grpc.aio.Server) -> None:
        """Answer the calls to `server`, which has not been started."""
        rpc.add_DevicePluginServicer_to_server(self, server)
        # The generated handler would serialise a list once per stream. Of two handlers, gRPC uses the last added.
        as_bytes: grpc.RpcMethodHandler[api.Empty, bytes] = grpc.unary_stream_rpc_method_handler(
            self.ListAndWatch, request_deserializer=api.Empty.FromString
        )
        server.add_registered_method_handlers(_SERVICE, {"ListAndWatch": as_bytes})

    def replace(self, resource: Resource) -> None:
        """Answer for `resource` from now on, and send its device list over every open stream if the list differs."""
        self.resource = resource
        devices = self._list.of(resource)
        if devices != self._devices.value:
            self._devices.publish(devices)

    def resend(self) -> None:
        """Send the device list once more over every open stream."""
        self._devices.publish(self._devices.value)

    @_counted
    async def GetDevicePluginOptions(self, request: api.Empty, context: Context) -> api.DevicePluginOptions:  # noqa: ARG002, N802 - fixed by gRPC
        """Ask for preferred-allocation calls, and for a call before the start of each container where that matters."""
        asks = self.resource.role == "cores" or self._before_start is not None
        return api.DevicePluginOptions(get_preferred_allocation_available=True, pre_start_required=asks)

    async def ListAndWatch(self, request: api.Empty, context: Context) -> AsyncIterator[bytes]:  # type: ignore[override]  # noqa: ARG002, N802 - fixed by gRPC
        """Send the whole device list, serialised, now and after every change, until the kubelet hangs up."""
        self._count_stream(1)
        try:
            async for devices in self._devices.follow():
                yield devices
        finally:
            self._count_stream(-1)

    @_counted
    async def GetPreferredAllocation(  # noqa: N802 - fixed by gRPC
        self,
        request: api.PreferredAllocationRequest,
        context: Context,  # noqa: ARG002 - fixed by gRPC
    ) -> api.PreferredAllocationResponse:
        """Choose units for each container of the request, with preference for the promised units of a known pod."""

        async def prefer(
            container: api.ContainerPreferredAllocationRequest,
        ) -> api.ContainerPreferredAllocationResponse:
            size = container.allocation_size
            await self._steering.catch_up(self.resource, size)
            resource = self.resource
            chosen = resource.prefer(
                container.available_deviceIDs,
                container.must_include_deviceIDs,
                size,
                self._steering.promises(resource, size),
                self._pairing.partner(resource.role),
                doubtful=self._recent.doubtful(
                    resource, container.available_deviceIDs, container.must_include_deviceIDs
                ),
            )
            return api.ContainerPreferredAllocationResponse(deviceIDs=chosen)

        _refuse_empty(request.container_requests)
        with self._recent.call(self.resource.name, allocates=False):
            answers = [await prefer(container) for container in request.container_requests]
        return api.PreferredAllocationResponse(container_responses=answers)

    @_counted
    async def Allocate(self, request: api.AllocateRequest, context: Context) -> api.AllocateResponse:  # noqa: ARG002, N802 - fixed by gRPC
        """Check the units of each container, and return the grant of each container."""
        _refuse_empty(request.container_requests)
        ids = [id_ for container in request.container_requests for id_ in container.devices_ids]
        if len(set(ids)) != len(ids):
            raise RequestError(f"{self.resource.name}: requested device IDs contain the same ID more than once")
        with self._recent.call(self.resource.name, allocates=True):
            grants = [self._grant(container.devices_ids) for container in request.container_requests]
            self._recent.allocated(self.resource.name, ids)
        for container in request.container_requests:
            self._steering.allocated(self.resource, container.devices_ids)
        self.allocations += 1
        # The answer to the kubelet need not wait for the log, nor for who learns from requests.
        for told in (_log_allocated, self._allocated):
            asyncio.get_running_loop().call_soon(told, self.resource, ids)
        return api.AllocateResponse(container_responses=map(_to_message, grants))

    @_counted
    async def PreStartContainer(  # noqa: N802 - fixed by gRPC
        self,
        request: api.PreStartContainerRequest,
        context: Context,  # noqa: ARG002 - fixed by gRPC
    ) -> api.PreStartContainerResponse:
        """Refuse containers with compute and no GPU: only now all requests of a container are allocated.

        Wait until what a container needs on the host is there.
        """
        self._pairing.check_start(self.resource.name, request.devices_ids)
        if self._before_start is not None:
            await self._before_start(self.resource, request.devices_ids)
        return api.PreStartContainerResponse()

    def _grant(self, ids: Collection[str]) -> Grant:
        resource = self.resource
        grant = resource.allocate(ids, self._steering.recipient(resource, ids), self._pairing.partner(resource.role))
        if (allocated := resource.allocated(ids)) is not None:
            self._pairing.allocated(allocated)
        return grant

    def _count_stream(self, change: int) -> None:
        self.streams += change
        self._on_streams_changed()

    async def refuse(self, call: str, code: grpc.StatusCode, error: GpushareError, context: Context) -> NoReturn:
        """End a call with the reason of its refusal."""
        if call != "PreStartContainer":
            self._pairing.failed()
        self.refusals[call] += 1
        self._refused(call, self.resource.name, str(error))
        await context.abort(code, visible(str(error))[:_LONGEST_MESSAGE])


def _log_allocated(resource: Resource, ids: Sequence[str]) -> None:
    gpus = sorted({resource.units[id_].gpu for id_ in ids})
    _log.info("allocated", resource=resource.name, count=len(ids), gpus=gpus)


def _refuse_empty(container_requests: Sized) -> None:
    if not container_requests:
        raise RequestError("no container request found, at least one expected")


def _to_message(grant: Grant) -> api.ContainerAllocateResponse:
    return api.ContainerAllocateResponse(
        envs=grant.environment,
        mounts=[
            api.Mount(container_path=mount.container_path, host_path=mount.host_path, read_only=mount.read_only)
            for mount in grant.mounts
        ],
        devices=[
            api.DeviceSpec(container_path=node.container_path, host_path=node.host_path, permissions="rw")
            for node in grant.devices
        ],
        annotations=grant.annotations,
        cdi_devices=[api.CDIDevice(name=name) for name in grant.cdi_devices],
    )
