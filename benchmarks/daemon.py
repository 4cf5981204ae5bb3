"""The daemon on a node of stand-in GPUs, registered with a bare kubelet, and the bare server beside it."""

import asyncio
import contextlib
import json
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.kubelet.plugin import Lists, Plugin
from benchmarks.kubelet.registration import RegistrationServer
from benchmarks.processes import MeasuredProcess, python
from gpushare_plugin.testing.nvml import FakeGpu, FakeNvml

GPUS = 8
A100 = FakeGpu(name="NVIDIA A100-SXM4-80GB", memory_mib=81920)
_LOOK_EVERY = 0.005

Config = Mapping[str, Any]

WHOLE: Config = {"version": "v1"}
"""A config that shares nothing: every GPU is one unit."""


def replicas(units: int, gpus: int = GPUS, **health: float) -> Config:
    """Return a config that makes `units` replicas of all GPUs together; `health` is that section."""
    shared = {"name": "nvidia.com/gpu", "replicas": units // gpus}
    return {"version": "v1", "sharing": {"timeSlicing": {"resources": [shared]}}, "health": health}


def memory(unit: str) -> Config:
    """Return a config that shares all GPUs by memory."""
    return {"version": "v1", "sharing": {"memory": {"resources": [{"name": "aliyun.com/gpu-mem", "unit": unit}]}}}


@dataclass(frozen=True, slots=True)
class Node:
    """A folder with all a daemon needs, and the stand-in GPUs it finds."""

    folder: Path
    nvml: FakeNvml

    def configure(self, config: Config) -> None:
        """Write the config file."""
        new = self.folder / "config.new"
        new.write_text(json.dumps(config))
        new.replace(self.folder / "config.json")

    @property
    def pod_resources_socket(self) -> Path:
        """Where the kubelet tells who holds what; nobody listens there unless a measure does."""
        return self.folder / "pod-resources" / "kubelet.sock"

    @property
    def plugin_directory(self) -> Path:
        """Where the kubelet's socket and the daemon's are."""
        return self.folder / "device-plugins"

    def waits_for_events(self) -> int:
        """Return how often the events of the GPUs have been waited for until now."""
        return self.nvml.calls()["nvmlEventSetWait_v2"]

    def daemon(
        self, *arguments: str, interpreter: tuple[str, ...] = ()
    ) -> contextlib.AbstractAsyncContextManager[MeasuredProcess]:
        """Run a daemon on this node; `interpreter` are options for Python itself."""
        return python(
            *interpreter,
            *("-m", "gpushare_plugin", "run", "--config-file", self.folder / "config.json"),
            *("--device-plugin-path", self.plugin_directory),
            *("--pod-resources-socket", self.pod_resources_socket),
            *arguments,
            output=self.folder / "daemon.log",
            environment=self.nvml.environment,
        )


@contextlib.contextmanager
def node(config: Config, gpus: int = GPUS, *, card: FakeGpu = A100, init_delay_ms: int = 0) -> Iterator[Node]:
    """Make a node of so many such cards, whose daemon has this config."""
    with (
        tempfile.TemporaryDirectory(dir="/tmp", prefix="gs-") as folder,
        FakeNvml([card] * gpus, init_delay_ms=init_delay_ms) as nvml,
    ):
        made = Node(Path(folder), nvml)
        made.configure(config)
        yield made


@dataclass(frozen=True, slots=True)
class Serving:
    """A daemon, or a floor in its place, that serves a connected client with one open stream."""

    process: MeasuredProcess
    plugin: Plugin
    lists: Lists
    first_list: bytes

    async def hears_events(self, node: Node, since: int) -> None:
        """Wait until it waits for the events of the GPUs: once more than the `since` times it was waited for before."""

        async def heard() -> None:
            while node.waits_for_events() <= since:  # noqa: ASYNC110 - another process changes it
                await asyncio.sleep(_LOOK_EVERY)

        await self.process.outlives(heard())


@contextlib.asynccontextmanager
async def serving(node: Node, *arguments: str) -> AsyncIterator[Serving]:
    """Run a daemon that has registered its one resource and sent its first list."""
    waits = node.waits_for_events()
    async with RegistrationServer(node.plugin_directory) as kubelet, node.daemon(*arguments) as process:
        registered = await process.outlives(kubelet.next())
        async with connected(process, node.plugin_directory / registered.request.endpoint) as served:
            if "--simulate" not in arguments:
                await served.hears_events(node, waits)
            yield served


@contextlib.asynccontextmanager
async def connected(process: MeasuredProcess, socket: Path) -> AsyncIterator[Serving]:
    """Connect to what `process` serves and wait for its first list."""
    async with Plugin(socket) as plugin:
        lists = plugin.lists()
        first = await process.outlives(lists.next())
        yield Serving(process, plugin, lists, first.content)


@dataclass(frozen=True, slots=True)
class Answers:
    """What a bare server says, always the same: messages as they go over the wire."""

    allocate: bytes = b""
    preferred: bytes = b""
    devices: bytes = b""


@contextlib.asynccontextmanager
async def bare_server(node: Node, answers: Answers, *arguments: str | Path) -> AsyncIterator[Serving]:
    """Run a bare `grpc.aio` server that gives constant answers."""
    with tempfile.TemporaryDirectory(dir=node.folder, prefix="floor-") as name:
        folder, waits = Path(name), node.waits_for_events()
        (folder / "allocate").write_bytes(answers.allocate)
        (folder / "preferred").write_bytes(answers.preferred)
        (folder / "devices").write_bytes(answers.devices)
        socket = folder / "s"
        async with (
            python(
                *("-m", "benchmarks.floors.server", socket, folder, *arguments),
                output=folder / "output",
                environment=node.nvml.environment,
            ) as process,
            connected(process, socket) as served,
        ):
            if "--events" in arguments:
                await served.hears_events(node, waits)
            yield served
