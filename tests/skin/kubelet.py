"""What the kubelet and containers get, for each way, isolation and strategy; and what `run` and `mps` exchange."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Sequence
from pathlib import Path
from typing import Any, Self

import grpc
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

# The messages are those of Kubernetes' own files, and stand for them: what is recorded are their fields.
from gpushare_plugin.kubelet.api import deviceplugin_pb2 as api
from gpushare_plugin.kubelet.api import deviceplugin_pb2_grpc as rpc
from gpushare_plugin.testing.mps import FakeMps
from tests.process.daemon import Daemon, process
from tests.skin.golden import Texts, as_json, masked, unfolded
from tests.waiting import until

GPUS = """\
gpus:
- {name: NVIDIA A10, memory: 24GiB, computeCapability: "8.6", numaNode: 1, count: 8}
- {name: NVIDIA A100-SXM4-40GB, memory: 40GiB, mig: [3g.20gb, 1g.5gb]}
"""
CONFIG = """\
version: v1
flags: {{migStrategy: mixed, mpsRoot: {mps}, plugin: {{{plugin}}}}}
sharing:
  memory:
    resources:
    - {{name: aliyun.com/gpu-mem, unit: 8GiB, devices: [0], frameworkHints: true}}
    - {{name: example.com/hami-mem, unit: 8GiB, devices: [1], isolation: hami-core, compute: requested}}
    - {{name: example.com/mps-mem, unit: 8GiB, devices: [2], isolation: mps}}
  timeSlicing:
    resources:
    - {{name: nvidia.com/gpu, rename: nvidia.com/gpu.shared, devices: [3], replicas: 2}}
    - {{name: nvidia.com/gpu, rename: nvidia.com/gpu.hami, devices: [4], replicas: 2, isolation: hami-core}}
    - {{name: nvidia.com/mig-1g.5gb, rename: nvidia.com/mig-1g.5gb.shared, devices: all, replicas: 2}}
  mps:
    resources:
    - {{name: nvidia.com/gpu, rename: nvidia.com/gpu.mps, devices: [5], replicas: 2}}
    sizes:
    - {{devices: [6], slices: [{{size: 10gb, count: 2}}]}}
"""
"""Each way of sharing with each isolation that it can have, on a GPU of its own; the others are whole."""
STRATEGIES = {
    "envvar": "deviceListStrategy: envvar",
    "volume-mounts": "deviceListStrategy: volume-mounts",
    "cdi-annotations": "deviceListStrategy: cdi-annotations, cdiAnnotationPrefix: example.com/",
    "cdi-cri": "deviceListStrategy: cdi-cri, cdiKind: example.com/gpu",
    "envvar-index-device-specs": "deviceListStrategy: envvar, deviceIDStrategy: index, passDeviceSpecs: true",
}
CORES = "aliyun.com/gpu-core.percentage"
RESOURCES = {
    "aliyun.com/gpu-mem": 3,
    "example.com/hami-mem": 3,
    "example.com/mps-mem": 3,
    CORES: 100,
    "nvidia.com/gpu-10gb": 2,
    "nvidia.com/gpu.shared": 2,
    "nvidia.com/gpu.hami": 2,
    "nvidia.com/mig-1g.5gb.shared": 2,
    "nvidia.com/gpu.mps": 2,
    "nvidia.com/gpu": 1,
    "nvidia.com/mig-3g.20gb": 1,
}
"""The resources with their units."""
OF_THE_MACHINE = ("/dev/nvidiactl", "/dev/nvidia-modeset", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")
MPS_FILES = ("wanted", "status", "modes")
MOST_LISTED = 4
"""Devices of a list that are recorded one by one."""

Answers = dict[str, Any]
"""What a container gets, by resource."""


class RecordingKubelet(rpc.RegistrationServicer):
    """A kubelet that lets every plugin in, keeps what each registers with, and follows its device list."""

    def __init__(self, directory: Path) -> None:
        """Serve in this directory once it is entered."""
        self._directory = directory
        self._server = grpc.aio.server()
        self._following: list[asyncio.Task[None]] = []
        self._stack = contextlib.AsyncExitStack()
        self.registered: dict[str, api.RegisterRequest] = {}
        self.lists: dict[str, api.ListAndWatchResponse] = {}
        self.plugins: dict[str, rpc.DevicePluginAsyncStub] = {}

    async def __aenter__(self) -> Self:
        """Listen."""
        self._directory.mkdir(parents=True)
        rpc.add_RegistrationServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix:{self._directory}/kubelet.sock")
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """End all connections."""
        for task in self._following:
            task.cancel()
        await asyncio.gather(*self._following, return_exceptions=True)
        await self._stack.aclose()
        await self._server.stop(None)

    async def Register(  # noqa: N802 - the name on the wire
        self, request: api.RegisterRequest, _: grpc.aio.ServicerContext[api.RegisterRequest, api.Empty]
    ) -> api.Empty:
        """Let a plugin in."""
        channel = await self._stack.enter_async_context(
            grpc.aio.insecure_channel(f"unix:{self._directory}/{request.endpoint}")
        )
        self.registered[request.resource_name] = request
        self.plugins[request.resource_name] = plugin = rpc.DevicePluginStub(channel)
        self._following.append(asyncio.create_task(self._follow(request.resource_name, plugin)))
        return api.Empty()

    async def _follow(self, resource: str, plugin: "rpc.DevicePluginAsyncStub") -> None:
        with contextlib.suppress(grpc.aio.AioRpcError):
            async for each in plugin.ListAndWatch(api.Empty()):
                self.lists[resource] = each

    def healthy(self, resource: str) -> list[str]:
        """Return the IDs that can be allocated."""
        devices = self.lists.get(resource, api.ListAndWatchResponse()).devices
        return [each.ID for each in devices if each.health == "Healthy"]


@contextlib.asynccontextmanager
async def _node(folder: Path, mps: Path) -> AsyncIterator[tuple[RecordingKubelet, Daemon]]:
    """Run the daemon of a node, with `gpushare mps` beside it."""
    (folder / "gpus.yaml").write_text(GPUS)
    simulated = ("--simulate", folder / "gpus.yaml")
    own = ("--config-file", folder / "config.yaml", "--device-plugin-path", folder / "plugins")
    with FakeMps() as programs:
        async with (
            RecordingKubelet(folder / "plugins") as kubelet,
            process("mps", "--mps-root", mps, *simulated, environment=programs.environment),
            process("run", *own, *simulated, "--mig-root", folder / "mig") as daemon,
        ):
            yield kubelet, daemon


async def recorded(folder: Path) -> Texts:
    """Return what is registered and listed, the answers under each strategy, and the files of the MPS root."""
    mps, file, texts = folder / "mps", folder / "config.yaml", Texts()
    (first, plugin), *others = STRATEGIES.items()
    file.write_text(CONFIG.format(mps=mps, plugin=plugin))
    async with _node(folder, mps) as (kubelet, daemon):
        await until(lambda: {each: len(kubelet.healthy(each)) for each in kubelet.registered} == RESOURCES)
        for each in sorted(RESOURCES):
            texts[f"kubelet/{each.replace('/', '_')}.json"] = _sorted(await _conversation(kubelet, each))
        before = await _allocated(kubelet)
        texts[f"kubelet/allocate/{first}.json"] = _sorted(before)
        for name, plugin in others:
            file.write_text(CONFIG.format(mps=mps, plugin=plugin))

            async def changed(old: Answers = before) -> Answers:
                now = await _allocated(kubelet)
                return now if all(now[each] != old[each] for each in RESOURCES if each != CORES) else {}

            before = await until(changed, lambda: daemon.log)
            texts[f"kubelet/allocate/{name}.json"] = _sorted(before)
        texts |= {f"mps/{each}.json": as_json(unfolded((mps / f"{each}.json").read_text())) for each in MPS_FILES}
        texts["mps/files.txt"] = "".join(f"{each.name}\n" for each in sorted(mps.iterdir()))
    return {name: masked(text, folder=folder) for name, text in texts.items()}


async def _conversation(kubelet: RecordingKubelet, resource: str) -> dict[str, Any]:
    """Return what a plugin registers with and lists, and its answers to a kubelet that admits pods."""
    plugin, ids = kubelet.plugins[resource], kubelet.healthy(resource)
    two = ids[: min(2, len(ids))]
    listed = [_data(each) for each in kubelet.lists[resource].devices]
    return {
        "Register": _data(kubelet.registered[resource]),
        "GetDevicePluginOptions": _data(await plugin.GetDevicePluginOptions(api.Empty())),
        "ListAndWatch": {"count": len(listed), "devices": listed[:MOST_LISTED]},
        "GetPreferredAllocation of one": await _answered(plugin.GetPreferredAllocation(_preferred(ids, (), 1))),
        "GetPreferredAllocation of two": await _answered(plugin.GetPreferredAllocation(_preferred(ids, ids[-1:], 2))),
        "GetPreferredAllocation of too many": await _answered(
            plugin.GetPreferredAllocation(_preferred(ids, (), len(ids) + 1))
        ),
        "PreStartContainer": await _answered(plugin.PreStartContainer(api.PreStartContainerRequest(devices_ids=two))),
        "Allocate of two": await _answered(plugin.Allocate(_allocation(two))),
        "Allocate of an unknown one": await _answered(plugin.Allocate(_allocation(["unknown"]))),
        "Allocate of none": await _answered(plugin.Allocate(_allocation([]))),
    }


async def _allocated(kubelet: RecordingKubelet) -> Answers:
    """Return what a container gets with one unit of each resource."""
    return {
        each: await _answered(kubelet.plugins[each].Allocate(_allocation(kubelet.healthy(each)[:1])))
        for each in RESOURCES
    }


def _allocation(ids: Sequence[str]) -> api.AllocateRequest:
    return api.AllocateRequest(container_requests=[api.ContainerAllocateRequest(devices_ids=ids)])


def _preferred(ids: Sequence[str], included: Sequence[str], size: int) -> api.PreferredAllocationRequest:
    request = api.ContainerPreferredAllocationRequest(
        available_deviceIDs=ids, must_include_deviceIDs=included, allocation_size=size
    )
    return api.PreferredAllocationRequest(container_requests=[request])


async def _answered(call: Awaitable[Message]) -> Any:
    """Return an answer, or the status and the words of a refusal."""
    try:
        return _data(await call)
    except grpc.aio.AioRpcError as error:
        return {"refused": error.code().name, "details": error.details()}


def _data(message: Message) -> dict[str, Any]:
    """Return the fields of a message by their names in the protocol; those that have no value are left out.

    So are device nodes that a container gets where the machine has them, since this one may have some.
    """
    data = MessageToDict(message, preserving_proto_field_name=True)
    for answer in data.get("container_responses", ()):
        if "devices" in answer:
            answer["devices"] = [each for each in answer["devices"] if each["host_path"] not in OF_THE_MACHINE]
    return data


def _sorted(data: Any) -> str:
    """Return data as JSON; the maps of protobuf have no order."""
    return json.dumps(data, indent=1, ensure_ascii=False, sort_keys=True) + "\n"
