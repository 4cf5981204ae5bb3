"""Tests of `gpushare_plugin.kubelet.device_plugin.service`, as a client of its socket."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Collection, Sequence
from pathlib import Path

import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpushare_plugin.base.errors import PlacementError
from gpushare_plugin.base.structs import replace
from gpushare_plugin.core.gpu import Inventory
from gpushare_plugin.core.grant import Recipient
from gpushare_plugin.core.resource import Resource, UnitsOf
from gpushare_plugin.kubelet.api import deviceplugin_pb2 as api
from gpushare_plugin.kubelet.api import deviceplugin_pb2_grpc as rpc
from gpushare_plugin.kubelet.device_plugin.service import DevicePluginService
from gpushare_plugin.kubelet.device_plugin.steering import Unsteered
from tests.nodes import a_gpu
from tests.unit.kubelet.serving import served, shared_memory
from tests.unit.sharing.settings import memory, only, planned
from tests.waiting import until


def prefer(available: list[str], must: list[str], size: int) -> api.PreferredAllocationRequest:
    """Return the request of one container."""
    container = api.ContainerPreferredAllocationRequest(
        available_deviceIDs=available, must_include_deviceIDs=must, allocation_size=size
    )
    return api.PreferredAllocationRequest(container_requests=[container])


def allocate(ids: list[str]) -> api.AllocateRequest:
    """Return the request of one container."""
    return api.AllocateRequest(container_requests=[api.ContainerAllocateRequest(devices_ids=ids)])


async def test_the_options_ask_for_preferences_only(short_path: Path) -> None:
    """The kubelet reads them here, not in the registration."""
    async with served(shared_memory(4), short_path) as plugin:
        options = await plugin.GetDevicePluginOptions(api.Empty())
    assert options.get_preferred_allocation_available
    assert not options.pre_start_required


async def test_the_first_list_is_complete(short_path: Path) -> None:
    """The first message of the stream holds every unit."""
    async with served(shared_memory(4, 8), short_path) as plugin:
        stream = plugin.ListAndWatch(api.Empty())
        assert len((await anext(aiter(stream))).devices) == 12
        stream.cancel()


async def test_every_stream_gets_changed_lists_and_lists_that_are_sent_once_more(short_path: Path) -> None:
    """The same list again is not sent unless somebody asks for it; then every stream gets the same bytes."""
    resource = shared_memory(4, 8)
    service = DevicePluginService(resource)
    async with served(service, short_path) as plugin:
        streams = [aiter(plugin.ListAndWatch(api.Empty())) for _ in range(2)]
        first = [await anext(stream) for stream in streams]
        service.replace(replace(resource, unhealthy={}))
        await plugin.GetDevicePluginOptions(api.Empty())  # long enough for a list to be sent
        service.replace(replace(resource, unhealthy={a_gpu(0).uuid: "XID 79"}))
        changed = [await anext(stream) for stream in streams]
        service.resend()
        again = [await anext(stream) for stream in streams]
    assert first[0] == first[1] != changed[0]
    assert [device.health for device in changed[0].devices] == ["Unhealthy"] * 4 + ["Healthy"] * 8
    assert changed == again


async def test_a_request_goes_through_preference_and_allocation(short_path: Path) -> None:
    """What is preferred is granted, with the card and its limits in the environment."""
    resource = shared_memory(4, 8)
    async with served(resource, short_path) as plugin:
        preferred = await plugin.GetPreferredAllocation(prefer(list(resource.units), [], 5))
        ids = list(preferred.container_responses[0].deviceIDs)
        answer = await plugin.Allocate(allocate(ids))
    environment = answer.container_responses[0].envs
    assert environment["NVIDIA_VISIBLE_DEVICES"] == a_gpu(1).uuid
    assert environment["GPUSHARE_MEMORY_LIMIT_MIB"] == "5120"


async def test_everything_in_a_grant_reaches_the_kubelet(short_path: Path) -> None:
    """Mounts, device nodes, annotations and CDI devices are all in the answer."""
    flags = {
        "plugin": {
            "passDeviceSpecs": True,
            "deviceListStrategy": ["envvar", "volume-mounts", "cdi-cri", "cdi-annotations"],
        }
    }
    resource = only(planned(Inventory((a_gpu(0),)), sharing=memory(), flags=flags))
    async with served(resource, short_path) as plugin:
        answer = (await plugin.Allocate(allocate(list(resource.units)[:1]))).container_responses[0]
    assert [mount.host_path for mount in answer.mounts] == ["/dev/null"]
    assert ("/dev/nvidia0", "rw") in {(node.host_path, node.permissions) for node in answer.devices}
    assert list(answer.annotations.values()) == [f"nvidia.com/gpu={a_gpu(0).uuid}"]
    assert [device.name for device in answer.cdi_devices] == [f"nvidia.com/gpu={a_gpu(0).uuid}"]


async def test_pre_start_does_nothing(short_path: Path) -> None:
    """A kubelet that calls all the same is answered."""
    async with served(shared_memory(4), short_path) as plugin:
        assert await plugin.PreStartContainer(api.PreStartContainerRequest()) == api.PreStartContainerResponse()


async def test_a_container_starts_once_all_is_ready(short_path: Path) -> None:
    """Where something has to be there, the kubelet is asked to ask; other calls are answered while a start waits."""
    ready, seen = asyncio.Event(), list[frozenset[str]]()

    async def before_start(resource: Resource, ids: Collection[str]) -> None:
        seen.append(frozenset(ids))
        await ready.wait()
        if len(ids) > 1:
            raise PlacementError(f"{resource.name}: not ready")

    resource = shared_memory(4)
    ids = list(resource.units)
    async with served(resource, short_path, before_start) as plugin:
        assert (await plugin.GetDevicePluginOptions(api.Empty())).pre_start_required
        start = asyncio.ensure_future(plugin.PreStartContainer(api.PreStartContainerRequest(devices_ids=ids[:1])))
        await until(lambda: seen == [{ids[0]}])
        await plugin.Allocate(allocate(ids[1:2]))
        assert not start.done()
        ready.set()
        assert await start == api.PreStartContainerResponse()
        with pytest.raises(grpc.aio.AioRpcError, match="not ready") as caught:
            await plugin.PreStartContainer(api.PreStartContainerRequest(devices_ids=ids))
        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION


@pytest.mark.parametrize("request_", [api.PreferredAllocationRequest(), api.AllocateRequest()])
async def test_a_request_without_a_container_is_refused(request_: object, short_path: Path) -> None:
    """An empty request is a mistake, not a success."""
    async with served(shared_memory(4), short_path) as plugin:
        call = plugin.Allocate if isinstance(request_, api.AllocateRequest) else plugin.GetPreferredAllocation
        with pytest.raises(grpc.aio.AioRpcError, match="no container request") as refusal:
            await call(request_)  # type: ignore[arg-type] # each with its own
    assert refusal.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_request_that_cannot_be_placed_keeps_its_message(short_path: Path) -> None:
    """The kubelet shows the message to the user, so it arrives whole, also from a node of many GPUs."""
    resource = shared_memory(*[4] * 16)
    async with served(resource, short_path) as plugin:
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await plugin.GetPreferredAllocation(prefer(list(resource.units), [], 5))
    assert refusal.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "GPU 15" in (refusal.value.details() or "")
    assert "up to 4 units would fit" in (refusal.value.details() or "")


FOUR_UNITS = tuple(shared_memory(4).units)
HOSTILE = st.one_of(
    st.text(max_size=80),
    st.sampled_from(["x" * 1000, f"{a_gpu(0).uuid}::0", "00000000-1Gi-999999", "00000000-1Gi--1"]),
    st.sampled_from(FOUR_UNITS),
)


@pytest.fixture
async def plugin(short_path: Path) -> AsyncIterator["rpc.DevicePluginAsyncStub"]:
    """Serve four units and connect to them."""
    async with served(shared_memory(4), short_path) as client:
        yield client


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    ids=st.lists(HOSTILE, max_size=8),
    times=st.sampled_from([1, 1, 1, 2, 1000]),
    must=st.lists(HOSTILE, max_size=3),
    size=st.integers(-(2**31), 2**31 - 1) | st.integers(-1, 5),
)
async def test_hostile_input_gets_an_error_and_harms_nothing(
    ids: list[str], times: int, must: list[str], size: int, plugin: "rpc.DevicePluginAsyncStub"
) -> None:
    """Unknown, doubled, empty and huge ID lists and negative sizes get a readable error; the next good call works."""
    ids *= times
    sound = len(set(ids)) == len(ids) and set(ids) <= set(FOUR_UNITS)
    await _answered_or_refused(plugin.Allocate(allocate(ids)), good=sound and bool(ids))
    can_work = sound and len(set(must)) == len(must) and set(must) <= set(ids) and max(1, len(must)) <= size <= len(ids)
    await _answered_or_refused(plugin.GetPreferredAllocation(prefer(ids, must, size)), good=can_work)
    good = await plugin.GetPreferredAllocation(prefer(list(FOUR_UNITS), [], 4))
    assert set(good.container_responses[0].deviceIDs) == set(FOUR_UNITS)


async def _answered_or_refused(call: Awaitable[object], *, good: bool) -> None:
    if good:
        await call
        return
    with pytest.raises(grpc.aio.AioRpcError, match=r"aliyun\.com/gpu-mem: ") as refusal:
        await call
    assert refusal.value.code() in {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION}


async def test_two_containers_cannot_have_the_same_unit(plugin: "rpc.DevicePluginAsyncStub") -> None:
    """The kubelet asks for one container at a time; whoever asks for more gets no unit twice."""
    container = api.ContainerAllocateRequest(devices_ids=FOUR_UNITS[:1])
    with pytest.raises(grpc.aio.AioRpcError, match="more than once"):
        await plugin.Allocate(api.AllocateRequest(container_requests=[container, container]))


async def test_a_message_beyond_all_measure_is_refused(plugin: "rpc.DevicePluginAsyncStub") -> None:
    """More than a device list could ever hold is not even read; the next good call works."""
    with pytest.raises(grpc.aio.AioRpcError, match="larger than max"):
        await plugin.Allocate(allocate(["x" * 1000] * 20_000))
    await plugin.Allocate(allocate(list(FOUR_UNITS)))


async def test_bytes_that_are_no_message_get_an_error(short_path: Path) -> None:
    """A client that does not speak protobuf is refused, and the next good call works."""
    resource = shared_memory(4)
    async with served(resource, short_path) as plugin:
        async with grpc.aio.insecure_channel(f"unix:{short_path / 'plugin.sock'}") as channel:
            call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/v1beta1.DevicePlugin/Allocate")
            with pytest.raises(grpc.aio.AioRpcError):
                await call(b"\xff\xff\xff nonsense")
        await plugin.Allocate(allocate(list(resource.units)[:1]))


class Promising(Unsteered):
    """Knows of one promise, and lets calls wait until a test says that the watch has caught up."""

    def __init__(self, promise: UnitsOf) -> None:
        """Have promised this."""
        self.promise = promise
        self.waiting = asyncio.Event()
        self.caught_up = asyncio.Event()
        self.given: list[str] = []

    async def catch_up(self, resource: Resource, size: int) -> None:  # noqa: ARG002 - as every `Steering`
        """Wait for the test."""
        self.waiting.set()
        await self.caught_up.wait()

    def promises(self, resource: Resource, size: int) -> Sequence[UnitsOf]:  # noqa: ARG002 - as every `Steering`
        """Return the promise."""
        return [self.promise]

    def recipient(self, resource: Resource, ids: Collection[str]) -> Recipient:
        """Return that the pod is known where it gets what was promised."""
        return Recipient(7, promised=resource.gpus_of(ids) == self.promise)

    def allocated(self, resource: Resource, ids: Collection[str]) -> None:  # noqa: ARG002 - as every `Steering`
        """Keep the IDs."""
        self.given += ids


async def test_promises_are_followed_and_a_call_that_waits_holds_up_no_other(short_path: Path) -> None:
    """While one preference waits for the watch, allocations are answered; then it names what was promised."""
    resource = shared_memory(4, 4)
    promise = {a_gpu(0).uuid: 1, a_gpu(1).uuid: 1}
    steering = Promising(promise)
    ids = list(resource.units)
    async with served(DevicePluginService(resource, steering=steering), short_path) as plugin:
        waiting = asyncio.create_task(_answer(plugin.GetPreferredAllocation(prefer(ids, [], 2))))
        await steering.waiting.wait()
        split = await plugin.Allocate(allocate([ids[0], ids[-1]]))
        assert not waiting.done()
        steering.caught_up.set()
        preferred = await waiting
        with pytest.raises(grpc.aio.AioRpcError, match="a share cannot span GPUs"):
            await plugin.Allocate(allocate([*ids[:2], ids[-1]]))
    assert resource.gpus_of(preferred.container_responses[0].deviceIDs) == promise
    assert split.container_responses[0].envs["ALIYUN_COM_GPU_MEM_POD"] == "7"
    assert steering.given == [ids[0], ids[-1]]


@pytest.mark.parametrize(
    ("promise", "must"),
    [
        ({0: 2}, []),
        ({0: 4}, []),
        ({0: 3}, [1]),
        ({9: 3}, []),
    ],
)
def test_a_promise_that_cannot_be_kept_is_left_out(promise: dict[int, int], must: list[int]) -> None:
    """Another number, no room, units elsewhere already, a GPU that is not there: the node chooses itself."""
    resource = shared_memory(3, 8)
    ids = {index: [unit.id for unit in resource.units.by_gpu[resource.gpus[a_gpu(index).uuid]]] for index in (0, 1)}
    chosen = resource.prefer(
        ids[1] + ids[0][:2] if not must else list(resource.units),
        [ids[index][0] for index in must],
        3,
        [{a_gpu(gpu).uuid: units for gpu, units in promise.items()}],
    )
    assert resource.gpus_of(chosen) == {a_gpu(1).uuid: 3}


def test_units_that_are_about_to_go_are_preferred_last() -> None:
    """A pod takes one that stays; where there is no other, it gets one that was to go."""
    resource = shared_memory(2, 2)
    going = [unit.id for unit in resource.units.by_gpu[resource.gpus[a_gpu(0).uuid]]]
    resource = replace(resource, withdrawn=frozenset(going))
    assert resource.gpus_of(resource.prefer(list(resource.units), [], 1)) == {a_gpu(1).uuid: 1}
    assert resource.gpus_of(resource.prefer(going, [], 1)) == {a_gpu(0).uuid: 1}


async def _answer(call: Awaitable[api.PreferredAllocationResponse]) -> api.PreferredAllocationResponse:
    return await call
