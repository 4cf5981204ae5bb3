"""The embedded kubelet does to device plugins what the real one does, over real sockets."""

import asyncio
import base64
import contextlib
import gc
import json
import os
import random
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import grpc
import pytest

from gpushare_plugin.base.errors import GpushareError
from gpushare_plugin.kubelet.api import deviceplugin_pb2 as api
from gpushare_plugin.kubelet.api import deviceplugin_pb2_grpc
from gpushare_plugin.kubelet.api.podresources_pb2 import ListPodResourcesRequest, ListPodResourcesResponse
from gpushare_plugin.kubelet.api.podresources_pb2_grpc import PodResourcesListerStub
from gpushare_plugin.testing.kubelet import (
    AdmissionError,
    Container,
    ContainerStartError,
    DeviceNode,
    EmbeddedKubelet,
    KubeletCrashError,
    Mount,
    Pod,
)
from tests.waiting import PATIENCE

RESOURCE = "aliyun.com/gpu-mem"
OTHER = "nvidia.com/gpu"

Context = grpc.aio.ServicerContext[Any, Any]


def listed(*ids: str, health: str = "Healthy", nodes: Sequence[int] = ()) -> list[api.Device]:
    """Make devices to list, all of one `health` and on the same NUMA nodes."""
    topology = api.TopologyInfo(nodes=[api.NUMANode(ID=node) for node in nodes]) if nodes else None
    return [api.Device(ID=one, health=health, topology=topology) for one in ids]


def numbered(count: int) -> list[api.Device]:
    """Make `count` devices."""
    return listed(*(f"d{number:03}" for number in range(count)))


def pod(count: int, resource: str = RESOURCE, **more: Any) -> Pod:
    """Make a pod of one container that wants `count` of `resource`."""
    return Pod("pod", [Container("main", {resource: count}, **more)])


def seeded(seed: int) -> random.Random:
    """Make a source of chance that repeats itself."""
    return random.Random(seed)  # noqa: S311 -- nothing secret is drawn


def prefers(ids: Sequence[str]) -> Callable[[api.ContainerPreferredAllocationRequest], Sequence[str]]:
    """Prefer `ids`, whatever the request."""
    return lambda _request: ids


@dataclass(eq=False)
class Stream:
    """One ListAndWatch call at a plugin."""

    news: asyncio.Event = field(default_factory=asyncio.Event)
    over: asyncio.Event = field(default_factory=asyncio.Event)
    ended_by_plugin: bool = False

    def end(self) -> None:
        """Return from the call in good order."""
        self.ended_by_plugin = True
        self.news.set()


@dataclass(eq=False)
class Plugin(deviceplugin_pb2_grpc.DevicePluginServicer):
    """A device plugin on a real socket that does as its test says and remembers what it was asked."""

    directory: Path
    devices: Sequence[api.Device] = ()
    resource: str = RESOURCE
    endpoint: str = "plugin.sock"
    options: api.DevicePluginOptions = field(default_factory=api.DevicePluginOptions)
    options_error: str = ""
    answers: Sequence[api.ContainerAllocateResponse] = (api.ContainerAllocateResponse(),)
    allocate_error: str = ""
    preference: Callable[[api.ContainerPreferredAllocationRequest], Sequence[str]] = lambda _request: ()
    preference_error: str = ""
    pre_start_error: str = ""
    during_allocate: Callable[[], Awaitable[object]] | None = None
    during_pre_start: Callable[[], Awaitable[object]] | None = None
    streams: list[Stream] = field(default_factory=list)
    allocated: list[list[str]] = field(default_factory=list)
    preferences: list[api.ContainerPreferredAllocationRequest] = field(default_factory=list)
    pre_started: list[tuple[frozenset[str], float]] = field(default_factory=list)

    async def start(self) -> None:
        """Serve, at a socket whose place was wiped if need be."""
        self._server = grpc.aio.server()
        deviceplugin_pb2_grpc.add_DevicePluginServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix:{self.directory / 'device-plugins' / self.endpoint}")
        await self._server.start()

    async def stop(self) -> None:
        """Vanish."""
        await self._server.stop(None)

    async def again(self) -> None:
        """Serve and register anew, as after a restart of the kubelet."""
        await self.stop()
        await self.start()
        await self.register()

    async def register(self, version: str = "v1beta1", endpoint: str = "", within: float = PATIENCE) -> None:
        """Register with the kubelet of the same directory."""
        request = api.RegisterRequest(
            version=version,
            endpoint=endpoint or self.endpoint,
            resource_name=self.resource,
            options=api.DevicePluginOptions(pre_start_required=True, get_preferred_allocation_available=True),
        )
        async with grpc.aio.insecure_channel(f"unix:{self.directory}/device-plugins/kubelet.sock") as channel:
            await deviceplugin_pb2_grpc.RegistrationStub(channel).Register(request, timeout=within)

    def show(self, devices: Sequence[api.Device]) -> None:
        """Push `devices` on every stream."""
        self.devices = devices
        for stream in self.streams:
            stream.news.set()

    async def GetDevicePluginOptions(  # noqa: N802 -- the name on the wire
        self, _request: api.Empty, context: Context
    ) -> api.DevicePluginOptions:
        """Answer with the options of the test."""
        if self.options_error:
            await context.abort(grpc.StatusCode.INTERNAL, self.options_error)
        return self.options

    async def ListAndWatch(  # noqa: N802 -- the name on the wire
        self, _request: api.Empty, _context: Context
    ) -> AsyncIterator[api.ListAndWatchResponse]:
        """List at once and at each change."""
        stream = Stream()
        self.streams.append(stream)
        try:
            while not stream.ended_by_plugin:
                stream.news.clear()
                yield api.ListAndWatchResponse(devices=self.devices)
                await stream.news.wait()
        finally:
            stream.over.set()

    async def GetPreferredAllocation(  # noqa: N802 -- the name on the wire
        self, request: api.PreferredAllocationRequest, context: Context
    ) -> api.PreferredAllocationResponse:
        """Answer with the preference of the test."""
        (only,) = request.container_requests
        self.preferences.append(only)
        if self.preference_error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, self.preference_error)
        preferred = api.ContainerPreferredAllocationResponse(deviceIDs=self.preference(only))
        return api.PreferredAllocationResponse(container_responses=[preferred])

    async def Allocate(  # noqa: N802 -- the name on the wire
        self, request: api.AllocateRequest, context: Context
    ) -> api.AllocateResponse:
        """Answer with the answers of the test."""
        (only,) = request.container_requests
        self.allocated.append(list(only.devices_ids))
        if self.during_allocate:
            await self.during_allocate()
        if self.allocate_error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, self.allocate_error)
        return api.AllocateResponse(container_responses=self.answers)

    async def PreStartContainer(  # noqa: N802 -- the name on the wire
        self, request: api.PreStartContainerRequest, context: Context
    ) -> api.PreStartContainerResponse:
        """Note the time limit."""
        self.pre_started.append((frozenset(request.devices_ids), context.time_remaining()))
        if self.during_pre_start:
            await self.during_pre_start()
        if self.pre_start_error:
            await context.abort(grpc.StatusCode.INTERNAL, self.pre_start_error)
        return api.PreStartContainerResponse()


class Pause:
    """Holds up a plugin's call: `reached` says that it has come, `over` lets it go on."""

    def __init__(self) -> None:
        """Hold up whatever comes."""
        self.reached, self.over = asyncio.Event(), asyncio.Event()

    async def __call__(self) -> None:
        """Wait."""
        self.reached.set()
        await self.over.wait()


@dataclass
class Clock:
    """A running clock that can be put forward, in seconds."""

    ahead: float = 0.0

    def __call__(self) -> float:
        """Tell the time."""
        return time.monotonic() + self.ahead


class Serve(Protocol):
    """Starts a plugin, registers it and waits for the kubelet to take its first list."""

    async def __call__(self, devices: Sequence[api.Device], **more: Any) -> Plugin:
        """Start a plugin that lists `devices`; `more` are its other attributes."""
        ...


@pytest.fixture
def directory() -> Iterator[Path]:
    """Give a directory whose sockets have short paths."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="gs-") as path:
        yield Path(path)


@pytest.fixture
def clock() -> Clock:
    """Give the kubelet's clock."""
    return Clock()


@pytest.fixture
async def kubelet(directory: Path, clock: Clock) -> AsyncIterator[EmbeddedKubelet]:
    """Run a kubelet that draws the same every time."""
    async with EmbeddedKubelet(directory, rng=seeded(1), clock=clock, dial_seconds=0.5) as running:
        yield running


@pytest.fixture
async def serve(directory: Path, kubelet: EmbeddedKubelet) -> AsyncIterator[Serve]:
    """Run plugins until the test ends."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(devices: Sequence[api.Device], **more: Any) -> Plugin:
            plugin = Plugin(directory, devices, **more)
            await plugin.start()
            stack.push_async_callback(plugin.stop)
            await plugin.register()
            await kubelet.wait_for(lambda k: k.devices(plugin.resource).keys() == {one.ID for one in devices})
            return plugin

        yield start


async def list_pods(directory: Path) -> ListPodResourcesResponse:
    """Ask the pod-resources service."""
    async with grpc.aio.insecure_channel(f"unix:{directory}/pod-resources/kubelet.sock") as channel:
        return await PodResourcesListerStub(channel).List(ListPodResourcesRequest())


async def shown(directory: Path) -> dict[str, list[str]]:
    """Ask the pod-resources service for the device IDs of each container."""
    return {
        container.name: sorted(one for devices in container.devices for one in devices.device_ids)
        for resources in (await list_pods(directory)).pod_resources
        for container in resources.containers
    }


def ask_preference(**more: Any) -> api.DevicePluginOptions:
    """Make options that want GetPreferredAllocation."""
    return api.DevicePluginOptions(get_preferred_allocation_available=True, **more)


# Registration


async def test_the_options_that_count_are_those_the_plugin_is_asked_for(kubelet: EmbeddedKubelet, serve: Serve) -> None:
    """Options inside Register are ignored: without GetDevicePluginOptions saying so, no optional call is made."""
    plugin = await serve(listed("a", "b"))
    await kubelet.admit(pod(1))
    assert plugin.preferences == []
    assert plugin.pre_started == []
    assert kubelet.calls["GetDevicePluginOptions"] == 1


async def test_register_answers_once_the_options_were_read(kubelet: EmbeddedKubelet, directory: Path) -> None:
    """A plugin whose options cannot be read is turned away, and told why."""
    plugin = Plugin(directory, options_error="not today")
    await plugin.start()
    with pytest.raises(grpc.aio.AioRpcError, match=r"failed to get device plugin options: .*not today") as caught:
        await plugin.register()
    assert caught.value.code() is grpc.StatusCode.UNKNOWN
    assert kubelet.registrations[0].error is not None
    assert kubelet.calls["ListAndWatch"] == 0
    await plugin.stop()


async def test_a_plugin_of_another_version_is_turned_away(kubelet: EmbeddedKubelet, directory: Path) -> None:
    """Only v1beta1 is spoken."""
    with pytest.raises(grpc.aio.AioRpcError, match='version "v1alpha1" is not supported by kubelet'):
        await Plugin(directory).register(version="v1alpha1")
    assert [one.version for one in kubelet.registrations] == ["v1alpha1"]


@pytest.mark.parametrize(
    "name",
    [
        "gpu",
        "kubernetes.io/gpu",
        "node.kubernetes.io/gpu",
        "requests.a.io/gpu",
        "a/b/c",
        "A.io/gpu",
        "a.io/",
        "a.io/-g",
    ],
)
@pytest.mark.usefixtures("kubelet")
async def test_a_name_that_is_no_extended_resource_is_turned_away(directory: Path, name: str) -> None:
    """A resource is `domain/name`, outside of Kubernetes' own domains."""
    with pytest.raises(grpc.aio.AioRpcError, match=f'the ResourceName "{name}" is invalid'):
        await Plugin(directory, resource=name).register()


async def test_a_plugin_that_does_not_serve_is_turned_away(kubelet: EmbeddedKubelet, directory: Path) -> None:
    """Register waits for the connection, then says that it could not dial."""
    with pytest.raises(grpc.aio.AioRpcError, match="failed to dial device plugin: context deadline exceeded"):
        await Plugin(directory).register()
    assert [one.endpoint for one in kubelet.registrations] == ["plugin.sock"]


async def test_a_plugin_that_gives_up_registering_leaves_nothing(kubelet: EmbeddedKubelet, directory: Path) -> None:
    """A Register call that its caller ends is noted, and nothing of it stays."""
    with pytest.raises(grpc.aio.AioRpcError, match="Deadline Exceeded"):
        await Plugin(directory).register(within=0.1)
    await kubelet.wait_for(lambda k: [one.error for one in k.registrations] == ["the plugin gave up waiting"])
    assert kubelet.capacity() == {}


async def test_registrations_can_be_refused_for_a_while(kubelet: EmbeddedKubelet, serve: Serve) -> None:
    """While they are refused every plugin gets the message; afterwards they are let in again."""
    kubelet.refuse_registrations("come back later")
    with pytest.raises(grpc.aio.AioRpcError, match="come back later"):
        await serve(listed("a"))
    kubelet.accept_registrations()
    await serve(listed("a"), endpoint="again.sock")
    assert [one.error for one in kubelet.registrations] == ["come back later", None]


async def test_a_failed_registration_makes_the_kubelet_forget_the_plugin_it_had(
    kubelet: EmbeddedKubelet, directory: Path, serve: Serve
) -> None:
    """The client is forgotten by its resource's name: when the good plugin leaves later, nobody marks its devices."""
    plugin = await serve(listed("a"))
    with pytest.raises(grpc.aio.AioRpcError, match="failed to dial"):
        await Plugin(directory).register(endpoint="nowhere.sock")
    plugin.streams[0].end()
    await plugin.streams[0].over.wait()
    await plugin.stop()
    with pytest.raises(AdmissionError, match="rpc error: code = Unavailable"):
        await kubelet.admit(pod(1))
    assert kubelet.allocatable() == {RESOURCE: 1}
    assert kubelet.disconnections == ()


# Device lists


async def test_a_list_replaces_all_devices_of_its_resource(kubelet: EmbeddedKubelet, serve: Serve) -> None:
    """What a list does not name is forgotten at once, in use or not; other resources are not touched."""
    plugin = await serve(listed("a", "b"))
    await serve(listed("x"), resource=OTHER, endpoint="other.sock")
    await kubelet.admit(pod(2))
    plugin.show(listed("c"))
    await kubelet.wait_for(lambda k: k.devices(RESOURCE).keys() == {"c"})
    assert kubelet.capacity() == {RESOURCE: 1, OTHER: 1}
    assert kubelet.allocated(RESOURCE) == {"a", "b"}
    admitted = await kubelet.admit(pod(1))
    assert admitted.containers["main"].device_ids == {RESOURCE: {"c"}}


async def test_an_unhealthy_device_counts_but_cannot_be_had(kubelet: EmbeddedKubelet, serve: Serve) -> None:
    """Capacity counts every device, allocatable the healthy ones; any word but Healthy is unhealthy."""
    plugin = await serve([*listed("a"), *listed("b", health="Unhealthy"), *listed("c", health="so so")])
    assert (kubelet.capacity(), kubelet.allocatable()) == ({RESOURCE: 3}, {RESOURCE: 1})
    with pytest.raises(AdmissionError, match=f"unavailable for {RESOURCE}. Requested: 2, Available: 1"):
        await kubelet.admit(pod(2))
    plugin.show(listed("a", "b", "c"))
    await kubelet.wait_for(lambda k: k.healthy(RESOURCE) == {"a", "b", "c"})
    await kubelet.admit(pod(3))


async def test_a_list_over_4_mib_ends_the_stream(kubelet: EmbeddedKubelet, serve: Serve) -> None:
    """The kubelet receives 4 MiB at most: a larger list ends the stream and the plugin's devices with it."""
    plugin = await serve(listed("a"))
    plugin.show(listed(*(f"{number:0100}" for number in range(40_000))))
    await kubelet.wait_for(lambda k: k.disconnections)
    assert "code = ResourceExhausted" in kubelet.disconnections[0].error
    assert (kubelet.capacity(), kubelet.allocatable()) == ({RESOURCE: 1}, {RESOURCE: 0})
    await plugin.streams[0].over.wait()


async def test_a_plugin_that_vanishes_is_remembered_for_five_minutes(
    kubelet: EmbeddedKubelet, serve: Serve, clock: Clock
) -> None:
    """Its devices are unhealthy at once; after five minutes the resource is gone and pods are no longer given any."""
    plugin = await serve(listed("a", "b"))
    await plugin.stop()
    await kubelet.wait_for(lambda k: k.allocatable() == {RESOURCE: 0})
    with pytest.raises(AdmissionError, match="no healthy devices present; cannot allocate unhealthy devices"):
        await kubelet.admit(pod(1))
    clock.ahead = 290
    assert kubelet.capacity() == {RESOURCE: 2}
    clock.ahead = 301
    assert kubelet.capacity() == {}
    assert (await kubelet.admit(pod(1))).containers["main"].device_ids == {}


async def test_a_plugin_that_returns_in_time_is_as_before(kubelet: EmbeddedKubelet, serve: Serve, clock: Clock) -> None:
    """Registering again within the five minutes ends the wait."""
    plugin = await serve(listed("a"))
    plugin.streams[0].end()
    await kubelet.wait_for(lambda k: k.disconnections)
    assert kubelet.disconnections[0].error == "EOF"
    await plugin.register()
    await kubelet.wait_for(lambda k: k.allocatable() == {RESOURCE: 1})
    clock.ahead = 1000
    assert kubelet.capacity() == {RESOURCE: 1}


async def registered_twice(kubelet: EmbeddedKubelet, serve: Serve) -> Plugin:
    """Return a plugin with two streams; the kubelet has taken both lists, the second of which has a device more."""
    plugin = await serve(listed("a"))
    plugin.devices = listed("a", "b")
    await plugin.register()
    await kubelet.wait_for(lambda k: k.allocatable() == {RESOURCE: 2})
    return plugin


async def test_the_end_of_an_old_stream_disconnects_the_new_plugin(kubelet: EmbeddedKubelet, serve: Serve) -> None:
    """After a second registration the end of the first stream takes the second client down, by its resource's name."""
    plugin = await registered_twice(kubelet, serve)
    plugin.streams[0].end()
    await kubelet.wait_for(lambda k: k.allocatable() == {RESOURCE: 0})
    await plugin.streams[1].over.wait()
    with pytest.raises(AdmissionError, match="no healthy devices"):
        await kubelet.admit(pod(1))
    await plugin.register()
    await kubelet.wait_for(lambda k: k.allocatable() == {RESOURCE: 2})


async def test_lists_on_an_old_stream_revive_devices_but_not_their_plugin(
    kubelet: EmbeddedKubelet, serve: Serve, clock: Clock
) -> None:
    """When the newer of two streams ends, lists on the older one still count, yet nobody can be asked to allocate."""
    plugin = await registered_twice(kubelet, serve)
    plugin.streams[1].end()
    await kubelet.wait_for(lambda k: k.allocatable() == {RESOURCE: 0})
    plugin.show(listed("a", "b", "c"))
    await kubelet.wait_for(lambda k: k.allocatable() == {RESOURCE: 3})
    with pytest.raises(AdmissionError, match=f"endpoint {RESOURCE} has been stopped"):
        await kubelet.admit(pod(1))
    clock.ahead = 301
    assert kubelet.capacity() == {}
    plugin.show(listed("d"))
    await kubelet.wait_for(lambda k: "d" in k.devices(RESOURCE))
    with pytest.raises(AdmissionError, match=f"endpoint not found in cache for a registered resource: {RESOURCE}"):
        await kubelet.admit(pod(1))


# Choosing devices


async def test_devices_are_drawn_at_random_without_a_preference(directory: Path) -> None:
    """Which devices, and in which order Allocate names them, is chance; a seed makes it the same again."""

    async def drawn(seed: int) -> list[str]:
        async with EmbeddedKubelet(directory, rng=seeded(seed)) as kubelet:
            plugin = Plugin(directory, numbered(100))
            await plugin.start()
            await plugin.register()
            await kubelet.wait_for(lambda k: k.allocatable() == {RESOURCE: 100})
            await kubelet.admit(one := pod(5))
            kubelet.delete(one)
            await plugin.stop()
            return plugin.allocated[0]

    first, again, other = await drawn(1), await drawn(1), await drawn(2)
    assert first == again
    assert sorted(first) != sorted(other)
    assert first != sorted(first)


async def test_a_preference_is_followed_where_it_makes_sense(kubelet: EmbeddedKubelet, serve: Serve) -> None:
    """Unknown IDs and those in use are left out of the answer, and what is missing is filled at random."""
    plugin = await serve(numbered(100), options=ask_preference(), preference=prefers(["d001", "d002", "nonsense"]))
    await kubelet.admit(pod(2))
    assert sorted(plugin.allocated[0]) == ["d001", "d002"]
    await kubelet.admit(pod(3))
    assert len(plugin.allocated[1]) == 3
    assert not {"d001", "d002", "nonsense"}.intersection(plugin.allocated[1])


async def test_a_preference_for_too_many_is_cut_at_random(kubelet: EmbeddedKubelet, serve: Serve) -> None:
    """Of more devices than were asked for some are taken, not the first ones."""
    preferred = [f"d{number:03}" for number in range(50)]
    plugin = await serve(numbered(100), options=ask_preference(), preference=prefers(preferred))
    await kubelet.admit(pod(3))
    assert set(plugin.allocated[0]) < set(preferred)
    assert sorted(plugin.allocated[0]) != preferred[:3]


async def test_the_plugin_is_asked_even_when_there_is_no_choice(kubelet: EmbeddedKubelet, serve: Serve) -> None:
    """A pod that takes the last devices is asked about as well."""
    plugin = await serve(listed("a", "b"), options=ask_preference())
    await kubelet.admit(pod(2))
    (asked,) = plugin.preferences
    assert (sorted(asked.available_deviceIDs), asked.allocation_size) == (["a", "b"], 2)


async def test_an_error_of_the_preference_fails_the_pod(kubelet: EmbeddedKubelet, serve: Serve) -> None:
    """The pod's message holds the plugin's words, and Allocate is never called."""
    plugin = await serve(listed("a", "b"), options=ask_preference(), preference_error="no GPU has 1 unit free")
    with pytest.raises(AdmissionError, match=r"GetPreferredAllocation rpc failed with err: .*no GPU has 1 unit free"):
        await kubelet.admit(pod(1))
    assert plugin.allocated == []
    assert kubelet.pods == {}


async def test_devices_of_an_init_container_are_used_again(kubelet: EmbeddedKubelet, serve: Serve) -> None:
    """A pod needs the larger of its largest init container and the sum of the others; no preference is asked."""
    plugin = await serve(listed("a", "b", "c"), options=ask_preference())
    containers = [Container("one", {RESOURCE: 1}), Container("two", {RESOURCE: 2})]
    admitted = await kubelet.admit(Pod("pod", containers, init_containers=[Container("init", {RESOURCE: 3})]))
    ids = {name: started.device_ids[RESOURCE] for name, started in admitted.containers.items()}
    assert ids["init"] == {"a", "b", "c"}
    assert ids["one"] | ids["two"] == ids["init"]
    assert [len(one) for one in plugin.allocated] == [3, 1, 2]
    assert len(plugin.preferences) == 1


async def test_devices_that_are_used_again_must_be_included(kubelet: EmbeddedKubelet, serve: Serve) -> None:
    """The size asked about is the container's total, and the devices it has by then are both available and a must."""
    plugin = await serve(
        listed("a", "b", "c", "d"), options=ask_preference(), preference=lambda r: r.must_include_deviceIDs
    )
    await kubelet.admit(
        Pod("pod", [Container("main", {RESOURCE: 3})], init_containers=[Container("init", {RESOURCE: 1})])
    )
    asked = plugin.preferences[1]
    assert list(asked.must_include_deviceIDs) == plugin.allocated[0]
    assert sorted(asked.available_deviceIDs) == ["a", "b", "c", "d"]
    assert asked.allocation_size == 3
    assert set(plugin.allocated[0]) < set(plugin.allocated[1])


async def test_a_sidecar_keeps_its_devices(kubelet: EmbeddedKubelet, serve: Serve) -> None:
    """A restartable init container takes over what an init container left, and nobody after it gets that."""
    await serve(listed("a", "b", "c"))
    init = [Container("init", {RESOURCE: 2}), Container("sidecar", {RESOURCE: 1}, restartable=True)]
    admitted = await kubelet.admit(Pod("pod", [Container("main", {RESOURCE: 2})], init_containers=init))
    ids = {name: started.device_ids[RESOURCE] for name, started in admitted.containers.items()}
    assert ids["sidecar"] < ids["init"]
    assert ids["init"] - ids["sidecar"] < ids["main"]
    assert not ids["sidecar"] & ids["main"]


async def test_another_pod_never_gets_what_an_init_container_left(kubelet: EmbeddedKubelet, serve: Serve) -> None:
    """Devices are used again within one pod only."""
    await serve(listed("a", "b"))
    await kubelet.admit(Pod("pod", [Container("main")], init_containers=[Container("init", {RESOURCE: 2})]))
    with pytest.raises(AdmissionError, match="Requested: 1, Available: 0"):
        await kubelet.admit(pod(1))


TWO_NODES = [*listed("a0", "b0", "c0", nodes=[0]), *listed("a1", "b1", nodes=[1]), *listed("x")]
EVERY = {device.ID for device in TWO_NODES}


@pytest.mark.parametrize(
    ("count", "affinity", "asked"),
    [
        pytest.param(2, {0}, [({"a0", "b0", "c0"}, set())], id="the node has more than enough"),
        pytest.param(3, {0}, [], id="the node has just enough: nothing to ask"),
        pytest.param(4, {0}, [(EVERY, {"a0", "b0", "c0"})], id="the node has too few: all of its own are a must"),
        pytest.param(2, {0, 1}, [({"a0", "b0", "c0", "a1", "b1"}, set())], id="both nodes"),
        pytest.param(2, None, [(EVERY, set())], id="no affinity"),
    ],
)
async def test_numa_affinity_decides_what_the_plugin_is_asked(
    kubelet: EmbeddedKubelet,
    serve: Serve,
    count: int,
    affinity: set[int] | None,
    asked: list[tuple[set[str], set[str]]],
) -> None:
    """Devices on the nodes of the affinity come first: all of them where they do not suffice, a choice otherwise."""
    plugin = await serve(TWO_NODES, options=ask_preference())
    await kubelet.admit(pod(count, numa_affinity=affinity and frozenset(affinity)))
    assert [(set(one.available_deviceIDs), set(one.must_include_deviceIDs)) for one in plugin.preferences] == asked
    assert len(plugin.allocated[0]) == count
    for _, must_include in asked:
        assert must_include <= set(plugin.allocated[0])


async def test_devices_off_the_affinity_are_taken_before_those_on_no_node(
    kubelet: EmbeddedKubelet, serve: Serve
) -> None:
    """Without a preference the rest comes from other nodes, and only then from devices that are on none."""
    plugin = await serve(TWO_NODES)
    await kubelet.admit(pod(5, numa_affinity=frozenset({0})))
    assert set(plugin.allocated[0]) == {"a0", "b0", "c0", "a1", "b1"}


# Allocate


async def test_every_container_is_allocated_in_a_call_of_its_own(kubelet: EmbeddedKubelet, serve: Serve) -> None:
    """A pod's containers come one call each, in order, and only the first answer of a call is kept."""
    answers = [api.ContainerAllocateResponse(envs={"GPU": "0"}), api.ContainerAllocateResponse(envs={"GPU": "1"})]
    plugin = await serve(listed("a", "b", "c"), answers=answers)
    admitted = await kubelet.admit(Pod("pod", [Container("one", {RESOURCE: 2}), Container("two", {RESOURCE: 1})]))
    assert [len(ids) for ids in plugin.allocated] == [2, 1]
    assert [started.environment for started in admitted.containers.values()] == [{"GPU": "0"}, {"GPU": "0"}]


async def test_an_error_of_allocate_fails_the_pod_and_frees_its_devices(kubelet: EmbeddedKubelet, serve: Serve) -> None:
    """The pod fails with the plugin's words; what earlier containers got is freed with the next admission."""
    plugin = await serve(listed("a", "b"))

    async def refuse_the_second() -> None:
        plugin.allocate_error = "a and b are on two GPUs" if len(plugin.allocated) == 2 else ""

    plugin.during_allocate = refuse_the_second
    failing = Pod("pod", [Container("one", {RESOURCE: 1}), Container("two", {RESOURCE: 1})])
    with pytest.raises(AdmissionError) as caught:
        await kubelet.admit(failing)
    assert caught.value.reason == "UnexpectedAdmissionError"
    assert caught.value.pod is failing
    assert str(caught.value) == (
        "Allocate failed due to rpc error: code = InvalidArgument desc = a and b are on two GPUs, which is unexpected"
    )
    assert kubelet.pods == {}
    assert kubelet.allocated(RESOURCE) == set(plugin.allocated[0])
    await kubelet.admit(pod(2))


async def test_an_answer_for_no_container_fails_the_pod_and_loses_its_devices(
    kubelet: EmbeddedKubelet, serve: Serve
) -> None:
    """The kubelet forgets to give the devices back until a pod that has some is over."""
    plugin = await serve(listed("a", "b"))
    await kubelet.admit(holder := pod(1))
    plugin.answers = ()
    with pytest.raises(AdmissionError, match="no containers return in allocation response"):
        await kubelet.admit(pod(1))
    assert kubelet.allocated(RESOURCE) == {"a", "b"}
    plugin.answers = (api.ContainerAllocateResponse(),)
    kubelet.delete(holder)
    await kubelet.admit(pod(2))


async def test_a_resource_without_a_plugin_is_left_alone(kubelet: EmbeddedKubelet, serve: Serve) -> None:
    """What no plugin ever offered is somebody else's business: the pod is admitted without it."""
    await serve(listed("a"))
    admitted = await kubelet.admit(Pod("pod", [Container("main", {RESOURCE: 1, OTHER: 4, "cpu": 2})]))
    assert admitted.containers["main"].device_ids == {RESOURCE: {"a"}}


async def test_pods_are_admitted_one_after_the_other(kubelet: EmbeddedKubelet, serve: Serve) -> None:
    """A plugin that takes its time in Allocate holds up every other pod of the node."""
    pause = Pause()
    plugin = await serve(listed("a", "b"), during_allocate=pause)
    async with asyncio.TaskGroup() as admissions:
        admissions.create_task(kubelet.admit(pod(1)))
        await pause.reached.wait()
        admissions.create_task(kubelet.admit(pod(1)))
        plugin.show(listed("a", "b", "c"))
        await kubelet.wait_for(lambda k: k.capacity() == {RESOURCE: 3})
        assert kubelet.calls["Allocate"] == 1
        assert len(kubelet.pods) == 1
        pause.over.set()
    assert kubelet.calls["Allocate"] == 2


async def test_a_device_that_vanishes_while_it_is_allocated_crashes_the_kubelet(
    kubelet: EmbeddedKubelet, serve: Serve
) -> None:
    """The embedded one says so instead of ending, and goes on."""
    plugin = await serve(listed("a"))

    async def drop() -> None:
        plugin.show(listed("b"))
        await kubelet.wait_for(lambda k: "b" in k.devices(RESOURCE))

    plugin.during_allocate = drop
    with pytest.raises(KubeletCrashError, match="took a off its list"):
        await kubelet.admit(pod(1))
    plugin.during_allocate = None
    assert (await kubelet.admit(pod(1))).containers["main"].device_ids == {RESOURCE: {"b"}}


async def test_a_plugin_that_vanishes_while_it_allocates_fails_the_pod(kubelet: EmbeddedKubelet, serve: Serve) -> None:
    """The pod fails, its device is free again, and the kubelet serves on."""
    pause = Pause()
    plugin = await serve(listed("a"), during_allocate=pause)
    admission = asyncio.create_task(kubelet.admit(pod(1)))
    await pause.reached.wait()
    await plugin.stop()
    with pytest.raises(AdmissionError, match=r"rpc error: code = (Unavailable|Canceled)"):
        await admission
    assert kubelet.allocated(RESOURCE) == set()
    plugin.during_allocate = None
    await plugin.start()
    await plugin.register()
    await kubelet.wait_for(lambda k: k.allocatable() == {RESOURCE: 1})
    await kubelet.admit(pod(1))


async def test_a_kubelet_that_stops_while_a_plugin_hangs_fails_the_pod(kubelet: EmbeddedKubelet, serve: Serve) -> None:
    """Stopping does not wait for a plugin that never answers."""
    pause = Pause()
    await serve(listed("a"), during_allocate=pause)
    admission = asyncio.create_task(kubelet.admit(pod(1)))
    await pause.reached.wait()
    await kubelet.stop()
    with pytest.raises(AdmissionError, match="the client connection is closing"):
        await admission
    with pytest.raises(GpushareError, match="not running"):
        await kubelet.admit(pod(1))


async def test_an_admission_given_up_leaves_nothing(kubelet: EmbeddedKubelet, serve: Serve) -> None:
    """A test that cancels an admission finds the kubelet as it was."""
    pause = Pause()
    plugin = await serve(listed("a"), during_allocate=pause)
    admission = asyncio.create_task(kubelet.admit(pod(1)))
    await pause.reached.wait()
    admission.cancel()
    with pytest.raises(asyncio.CancelledError):
        await admission
    assert kubelet.pods == {}
    assert kubelet.allocated(RESOURCE) == set()
    plugin.during_allocate = None
    await kubelet.admit(pod(1))


class Garbage(grpc.GenericRpcHandler):
    """Serves the device-plugin API in bytes, which are no message wherever `good` says nothing."""

    def __init__(self, good: dict[str, bytes]) -> None:
        """Answer a method with its bytes in `good`."""
        self.good = good
        self.worsen = asyncio.Event()

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[Any, Any]":
        """Find what answers a method."""
        method = handler_call_details.method.rpartition("/")[2]
        content = self.good.get(method, b"\xff\xff")

        async def answer(_request: bytes, _context: Context) -> bytes:
            return content

        async def stream(_request: bytes, _context: Context) -> AsyncIterator[bytes]:
            yield content
            await self.worsen.wait()
            yield b"\xff\xff"

        if method == "ListAndWatch":
            return grpc.unary_stream_rpc_method_handler(stream)
        return grpc.unary_unary_rpc_method_handler(answer)


async def test_bytes_that_are_no_message_break_nothing(kubelet: EmbeddedKubelet, directory: Path) -> None:
    """A plugin that talks garbage is turned away or disconnected, its pods fail, and the kubelet serves on."""
    lists = api.ListAndWatchResponse(devices=listed("a")).SerializeToString()
    garbage = Garbage({"GetDevicePluginOptions": b"", "ListAndWatch": lists})
    server = grpc.aio.server(handlers=[garbage])
    server.add_insecure_port(f"unix:{directory}/device-plugins/plugin.sock")
    await server.start()
    await Plugin(directory).register()
    await kubelet.wait_for(lambda k: k.allocatable() == {RESOURCE: 1})
    with pytest.raises(AdmissionError, match="failed to unmarshal the received message"):
        await kubelet.admit(pod(1))
    garbage.worsen.set()
    await kubelet.wait_for(lambda k: k.disconnections)
    assert "failed to unmarshal the received message" in kubelet.disconnections[0].error
    garbage.good = {}
    with pytest.raises(grpc.aio.AioRpcError, match="failed to unmarshal the received message"):
        await Plugin(directory).register()
    await server.stop(None)


# Starting containers


async def test_answers_merge_and_the_first_resource_wins(kubelet: EmbeddedKubelet, serve: Serve) -> None:
    """Of two plugins' answers that clash either may win; what does not clash is all there, the pod's own env on top."""

    def answer(name: str) -> list[api.ContainerAllocateResponse]:
        return [
            api.ContainerAllocateResponse(
                envs={"VISIBLE": name, "OWN": name, f"ONLY_{name}": "1"},
                mounts=[api.Mount(container_path="/m", host_path=f"/{name}", read_only=True)],
                devices=[api.DeviceSpec(container_path="/dev/g", host_path=f"/dev/{name}", permissions="rw")],
                annotations={"note": name},
                cdi_devices=[api.CDIDevice(name="v/c=both"), api.CDIDevice(name=f"v/c={name}")],
            )
        ]

    await serve(listed("a"), answers=answer("a"))
    await serve(listed("b"), answers=answer("b"), resource=OTHER, endpoint="other.sock")
    wanted = Pod("pod", [Container("main", {RESOURCE: 1, OTHER: 1}, env={"OWN": "mine"})])
    await kubelet.admit(wanted)
    winners = set()
    for _ in range(30):
        started = await kubelet.restart_container(wanted, "main")
        winner = started.environment["VISIBLE"]
        winners.add(winner)
        assert started.environment == {"VISIBLE": winner, "OWN": "mine", "ONLY_a": "1", "ONLY_b": "1"}
        assert started.mounts == (Mount("/m", f"/{winner}", read_only=True),)
        assert started.devices == (DeviceNode("/dev/g", f"/dev/{winner}", "rw"),)
        assert started.annotations == {"note": winner}
        assert set(started.cdi_devices) == {"v/c=both", "v/c=a", "v/c=b"}
        assert len(started.cdi_devices) == 3
    assert winners == {"a", "b"}
    assert kubelet.calls["Allocate"] == 2


async def test_a_plugin_that_asks_for_it_is_told_of_each_container_start(
    kubelet: EmbeddedKubelet, directory: Path, serve: Serve
) -> None:
    """PreStartContainer has 30 seconds, on every start; pod-resources shows the devices by then, not in Allocate."""
    seen: list[tuple[str, dict[str, list[str]]]] = []

    async def look(when: str) -> None:
        seen.append((when, await shown(directory)))

    plugin = await serve(
        listed("a"),
        options=api.DevicePluginOptions(pre_start_required=True),
        during_allocate=lambda: look("allocate"),
        during_pre_start=lambda: look("start"),
    )
    await kubelet.admit(one := pod(1))
    await kubelet.restart_container(one, "main")
    assert seen == [("allocate", {"main": []}), ("start", {"main": ["a"]}), ("start", {"main": ["a"]})]
    assert [ids for ids, _ in plugin.pre_started] == [{"a"}, {"a"}]
    assert all(0 < limit < 31 for _, limit in plugin.pre_started)


async def test_a_plugin_may_object_to_a_container_start(kubelet: EmbeddedKubelet, serve: Serve) -> None:
    """The pod stays admitted, and the next start of the container tries again."""
    plugin = await serve(
        listed("a"), options=api.DevicePluginOptions(pre_start_required=True), pre_start_error="MPS is not ready"
    )
    one = pod(1)
    with pytest.raises(ContainerStartError, match=r"PreStartContainer rpc failed with err: .*MPS is not ready"):
        await kubelet.admit(one)
    assert list(kubelet.pods.values()) == [one]
    plugin.pre_start_error = ""
    assert (await kubelet.restart_container(one, "main")).device_ids == {RESOURCE: {"a"}}
    assert kubelet.calls["Allocate"] == 1


async def test_a_container_that_restarts_gets_the_stored_answer(kubelet: EmbeddedKubelet, serve: Serve) -> None:
    """Neither a new answer nor the plugin's absence changes what a container was once given."""
    plugin = await serve(listed("a"), answers=[api.ContainerAllocateResponse(envs={"GPU": "old"})])
    await kubelet.admit(one := pod(1))
    plugin.answers = [api.ContainerAllocateResponse(envs={"GPU": "new"})]
    assert (await kubelet.restart_container(one, "main")).environment == {"GPU": "old"}
    await plugin.stop()
    await kubelet.wait_for(lambda k: k.disconnections)
    assert (await kubelet.restart_container(one, "main")).environment == {"GPU": "old"}


async def test_a_container_cannot_start_once_its_resource_was_dropped(
    kubelet: EmbeddedKubelet, serve: Serve, clock: Clock
) -> None:
    """Five minutes after its plugin left, a container that has devices of it cannot be started again."""
    plugin = await serve(listed("a"))
    await kubelet.admit(one := pod(1))
    await plugin.stop()
    await kubelet.wait_for(lambda k: k.disconnections)
    clock.ahead = 301
    assert kubelet.capacity() == {}
    with pytest.raises(ContainerStartError, match="endpoint not found in cache"):
        await kubelet.restart_container(one, "main")


async def test_a_container_the_pod_does_not_have_cannot_start(kubelet: EmbeddedKubelet) -> None:
    """The error names those it has."""
    with pytest.raises(KeyError, match="has no container 'other'; it has main"):
        await kubelet.restart_container(pod(1), "other")


# Life of the kubelet


async def test_every_list_and_every_allocation_is_written_down(kubelet: EmbeddedKubelet, serve: Serve) -> None:
    """The checkpoint has the form of the real one: healthy IDs by resource, and one entry an allocation."""
    answer = api.ContainerAllocateResponse(envs={"GPU": "0"})
    plugin = await serve([*listed("a", nodes=[0, 1]), *listed("b", health="Unhealthy")], answers=[answer])
    file = kubelet.plugin_directory / "kubelet_internal_checkpoint"
    assert json.loads(file.read_text())["Data"] == {"PodDeviceEntries": [], "RegisteredDevices": {RESOURCE: ["a"]}}
    await kubelet.admit(one := pod(1))
    entry = {
        "PodUID": one.uid,
        "ContainerName": "main",
        "ResourceName": RESOURCE,
        "DeviceIDs": {"0": ["a"], "1": ["a"]},
        "AllocResp": base64.b64encode(answer.SerializeToString()).decode(),
    }
    assert json.loads(file.read_text())["Data"]["PodDeviceEntries"] == [entry]
    plugin.show(listed("a", "b"))
    await kubelet.wait_for(lambda k: k.healthy(RESOURCE) == {"a", "b"})
    assert json.loads(file.read_text())["Data"]["RegisteredDevices"] == {RESOURCE: ["a", "b"]}


async def test_a_checkpoint_that_cannot_be_written_fails_pods_only(kubelet: EmbeddedKubelet, serve: Serve) -> None:
    """Device lists are taken all the same."""
    plugin = await serve(listed("a"))
    file = kubelet.plugin_directory / "kubelet_internal_checkpoint"
    file.unlink()
    file.mkdir()
    plugin.show(listed("a", "b"))
    await kubelet.wait_for(lambda k: k.allocatable() == {RESOURCE: 2})
    with pytest.raises(AdmissionError, match='failed to write checkpoint file "kubelet_internal_checkpoint"'):
        await kubelet.admit(pod(1))


async def test_a_restart_replays_the_checkpoint(kubelet: EmbeddedKubelet, serve: Serve) -> None:
    """What containers were given outlives a restart; devices are none until the plugin registers again."""
    answer = api.ContainerAllocateResponse(envs={"GPU": "0"}, cdi_devices=[api.CDIDevice(name="v/c=0")])
    plugin = await serve([*listed("a", nodes=[0, 1]), *listed("b")], answers=[answer])
    before = (await kubelet.admit(one := pod(2))).containers["main"]
    await kubelet.restart()
    assert (kubelet.capacity(), kubelet.allocatable()) == ({RESOURCE: 0}, {RESOURCE: 0})
    assert kubelet.allocated(RESOURCE) == {"a", "b"}
    assert await kubelet.restart_container(one, "main") == before
    with pytest.raises(AdmissionError, match="no healthy devices present"):
        await kubelet.admit(pod(1))
    await plugin.again()
    await kubelet.wait_for(lambda k: k.allocatable() == {RESOURCE: 2})
    with pytest.raises(AdmissionError, match="Requested: 1, Available: 0"):
        await kubelet.admit(pod(1))
    assert kubelet.calls["Allocate"] == 1


async def test_a_pod_may_ask_again_before_its_plugin_is_back(
    kubelet: EmbeddedKubelet, serve: Serve, clock: Clock
) -> None:
    """After a reboot pods fail in three ways, by how far the plugin has come; one that is ready costs no new call."""
    plugin = await serve(listed("a"))
    await kubelet.admit(first := pod(1))
    await kubelet.restart()
    await plugin.again()
    await kubelet.wait_for(lambda k: k.allocatable() == {RESOURCE: 1})
    await kubelet.admit(first)
    assert kubelet.calls["Allocate"] == 1

    plugin.show([*listed("a", health="Unhealthy"), *listed("b")])
    await kubelet.wait_for(lambda k: k.healthy(RESOURCE) == {"b"})
    with pytest.raises(AdmissionError, match="previously allocated devices are no longer healthy; cannot allocate"):
        await kubelet.admit(first)

    await kubelet.admit(second := pod(1))
    await kubelet.restart()
    with pytest.raises(AdmissionError, match="no healthy devices present; cannot allocate unhealthy devices"):
        await kubelet.admit(second)

    await plugin.again()
    await kubelet.wait_for(lambda k: k.allocatable() == {RESOURCE: 1})
    await kubelet.admit(pod(1))
    await kubelet.restart()
    clock.ahead = 301
    assert kubelet.capacity() == {}
    with pytest.raises(AdmissionError, match=f"cannot allocate unregistered device {RESOURCE}"):
        await kubelet.admit(pod(1))


async def test_a_container_cannot_change_its_request(kubelet: EmbeddedKubelet, serve: Serve) -> None:
    """A pod that comes back under its UID with another limit is refused."""
    await serve(listed("a", "b"))
    await kubelet.admit(one := pod(1))
    changed = Pod(one.name, [Container("main", {RESOURCE: 2})], uid=one.uid)
    with pytest.raises(AdmissionError, match=f'changed request for resource "{RESOURCE}" from 1 to 2'):
        await kubelet.admit(changed)


async def test_a_restart_without_a_checkpoint_forgets(directory: Path) -> None:
    """No file is written, and a container that starts after a restart is allocated anew."""
    async with EmbeddedKubelet(directory, checkpoint=False) as kubelet:
        plugin = Plugin(directory, listed("a"))
        await plugin.start()
        await plugin.register()
        await kubelet.wait_for(lambda k: k.allocatable() == {RESOURCE: 1})
        await kubelet.admit(one := pod(1))
        assert [path.name for path in kubelet.plugin_directory.iterdir() if path.is_file()] == []
        await kubelet.restart()
        assert kubelet.capacity() == {}
        assert kubelet.allocated(RESOURCE) == set()
        await plugin.again()
        await kubelet.wait_for(lambda k: k.allocatable() == {RESOURCE: 1})
        assert (await kubelet.restart_container(one, "main")).device_ids == {RESOURCE: {"a"}}
        assert len(plugin.allocated) == 2
        plugin.options = api.DevicePluginOptions(pre_start_required=True)
        await kubelet.restart()
        await plugin.again()
        await kubelet.wait_for(lambda k: k.allocatable() == {RESOURCE: 1})
        with pytest.raises(ContainerStartError, match="no devices found allocated in local cache"):
            await kubelet.restart_container(one, "main")
        await plugin.stop()


@pytest.mark.parametrize("damage", ["", "[]", '{"Data": {}, "Checksum": 1}', "{"])
async def test_a_damaged_checkpoint_is_started_without(
    kubelet: EmbeddedKubelet, serve: Serve, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The kubelet says so and starts as on a new node."""
    await serve(listed("a"))
    await kubelet.admit(pod(1))
    async with kubelet.away():
        (kubelet.plugin_directory / "kubelet_internal_checkpoint").write_text(damage)
    assert kubelet.allocated(RESOURCE) == set()
    assert "starting without a checkpoint" in caplog.text


async def test_devices_of_a_pod_that_is_over_are_freed_late(
    kubelet: EmbeddedKubelet, directory: Path, serve: Serve
) -> None:
    """They stay in use until the next admission or the next List, which shows active pods only."""
    await serve(listed("a"))
    await kubelet.admit(first := pod(1))
    kubelet.delete(first)
    assert kubelet.allocated(RESOURCE) == {"a"}
    await kubelet.admit(second := pod(1))
    assert await shown(directory) == {"main": ["a"]}
    kubelet.delete(second)
    assert kubelet.allocated(RESOURCE) == {"a"}
    assert await shown(directory) == {}
    assert kubelet.allocated(RESOURCE) == set()


async def test_pod_resources_lists_each_device_by_itself(
    kubelet: EmbeddedKubelet, directory: Path, serve: Serve
) -> None:
    """One entry a device and NUMA node, sidecars shown, init containers that end not; no UID, no other resources."""
    await serve([*listed("a", nodes=[0, 1]), *listed("b", "c")])
    init = [Container("init", {RESOURCE: 1}), Container("sidecar", {RESOURCE: 1}, restartable=True)]
    one = Pod("pod", [Container("main", {RESOURCE: 2}), Container("plain")], init_containers=init, namespace="team")
    admitted = await kubelet.admit(one)
    (resources,) = (await list_pods(directory)).pod_resources
    assert (resources.namespace, resources.name) == ("team", "pod")
    assert [container.name for container in resources.containers] == ["sidecar", "main", "plain"]
    for container in resources.containers:
        entries = [(entry.resource_name, *entry.device_ids) for entry in container.devices]
        ids = admitted.containers[container.name].device_ids.get(RESOURCE, ())
        assert sorted(entries) == sorted((RESOURCE, name) for name in ids for _ in range(2 if name == "a" else 1))


async def test_pod_resources_limits_the_rate_of_calls(directory: Path) -> None:
    """Ten calls at once, then a hundred a second; the others are rejected."""
    now = 0.0
    async with EmbeddedKubelet(directory, clock=lambda: now) as kubelet:
        for _ in range(10):
            await list_pods(directory)
        with pytest.raises(grpc.aio.AioRpcError, match="rejected by rate limit") as caught:
            await list_pods(directory)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        now = 0.01
        await list_pods(directory)
        assert kubelet.calls["List"] == 11


async def test_a_start_wipes_the_sockets_in_the_plugin_directory(kubelet: EmbeddedKubelet, serve: Serve) -> None:
    """Every socket goes, plugins' among them; other files stay, and there is a new kubelet.sock."""
    await serve(listed("a"))
    (kubelet.plugin_directory / "file").touch()
    await kubelet.restart(graceful=False)
    assert sorted(path.name for path in kubelet.plugin_directory.iterdir()) == [
        "file",
        "kubelet.sock",
        "kubelet_internal_checkpoint",
    ]
    await serve(listed("b"), resource=OTHER)


@pytest.mark.parametrize("graceful", [True, False])
async def test_a_kubelet_that_leaves_ends_streams_until_it_is_back(
    kubelet: EmbeddedKubelet, serve: Serve, *, graceful: bool
) -> None:
    """Sockets are removed in good order, and left behind dead by a kill."""
    plugin = await serve(listed("a"))
    async with kubelet.away(graceful=graceful):
        await plugin.streams[0].over.wait()
        for path in (kubelet.socket, kubelet.pod_resources_socket):
            assert path.exists() is not graceful
        with pytest.raises(OSError), socket.socket(socket.AF_UNIX) as caller:  # noqa: PT011 -- refused, or not found
            caller.connect(str(kubelet.socket))
        assert kubelet.allocatable() == {RESOURCE: 0}
    await plugin.again()
    await kubelet.wait_for(lambda k: k.allocatable() == {RESOURCE: 1})


async def test_starting_twice_is_an_error_and_stopping_twice_is_not(kubelet: EmbeddedKubelet) -> None:
    """A kubelet runs once."""
    with pytest.raises(GpushareError, match="running already"):
        await kubelet.start()
    await kubelet.stop()
    await kubelet.stop()


async def test_a_path_too_long_for_a_socket_is_refused(directory: Path) -> None:
    """The error says how long a path may be; nothing stays behind."""
    with pytest.raises(GpushareError, match="a socket's path at most 107"):
        await EmbeddedKubelet(directory / ("x" * 90)).start()


async def test_a_kubelet_that_stopped_leaves_nothing(directory: Path) -> None:
    """No task and no file stays open, whatever its plugins were doing."""

    async def live() -> None:
        async with EmbeddedKubelet(directory) as kubelet:
            plugins = [Plugin(directory, listed("a"), endpoint=f"{one}.sock") for one in ("first", "second")]
            for plugin in plugins:
                await plugin.start()
                await plugin.register()
            await kubelet.wait_for(lambda k: k.calls["ListAndWatch"] == 2 and k.allocatable() == {RESOURCE: 1})
            await kubelet.admit(pod(1))
            await kubelet.restart(graceful=False)
        for plugin in plugins:
            await plugin.stop()

    def open_files() -> int:
        gc.collect()
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 -- a path would open the directory once more

    await live()
    files, tasks = open_files(), asyncio.all_tasks()
    for _ in range(20):
        await live()
    assert asyncio.all_tasks() == tasks
    # gRPC closes its files a little later, in its own time; what leaks would leak every time.
    assert open_files() < files + 20


async def test_waiting_in_vain_tells_the_present_state(kubelet: EmbeddedKubelet, serve: Serve) -> None:
    """The error names what there is, so that a failing test can be read."""
    await serve(listed("a"))
    with pytest.raises(TimeoutError, match=r"within 0.05 s; .*allocatable: {'aliyun.com/gpu-mem': 1}.*'Register': 1"):
        await kubelet.wait_for(lambda k: k.allocatable() == {}, within=0.05)


async def test_hundreds_of_pods_get_devices_of_their_own(directory: Path) -> None:
    """All pods are on one node."""
    async with EmbeddedKubelet(directory, checkpoint=False) as kubelet:
        plugin = Plugin(directory, numbered(600), options=ask_preference())
        await plugin.start()
        await plugin.register()
        await kubelet.wait_for(lambda k: k.allocatable() == {RESOURCE: 600})
        for _ in range(300):
            await kubelet.admit(pod(2))
        assert len({one for ids in plugin.allocated for one in ids}) == 600
        await plugin.stop()
