"""A node on this machine: the embedded kubelet, `gpushare run`, and `gpushare mps` where a config needs MPS."""

import asyncio
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import psutil

from gpushare_plugin.mps.exchange import MpsRoot
from gpushare_plugin.observe.daemon_socket import DaemonSocketError, ask, socket_path
from gpushare_plugin.observe.node.report import ClaimedDevice, ForeignProcess, GpuReport, NodeReport, Use, decode
from gpushare_plugin.testing.kubelet import Container, EmbeddedKubelet, Pod, StartedContainer
from real_gpus.containers import Cgroups, Program, RunningContainer, clean_environment, inside

Config = Mapping[str, Any]
Found = TypeVar("Found")

_CONFIG, _MPS = "config.yaml", "mps"
_USUAL_PROTOCOL = 2
_READY_WITHIN = 100.0
"""Seconds that a node may take until all units can be allocated."""
_LOOK_EVERY = 0.2
"""Seconds between two looks at what the daemon reports."""
_SEEN_WITHIN = 15.0
"""Seconds for the daemon to see what programs do: it looks at least every ten seconds."""
_END_WITHIN = 60.0
"""Seconds for the end of a daemon: `gpushare mps` ends the MPS control daemon, its servers and their clients first."""

_OFTEN: Config = {"rescanSeconds": 1}
"""The section `health` of a config with which the daemon looks once a second who uses the GPUs."""


class NodeError(Exception):
    """The node does not come up; the message has the end of the logs."""


@dataclass(frozen=True)
class Machine:
    """What is the same for all nodes on this machine."""

    gpus: Sequence[str]
    """The UUIDs of all GPUs."""
    cgroups: Cgroups
    """Makes the cgroups of pods."""
    driver: str
    """The version of the driver."""
    may_change: bool
    """Whether the compute mode of GPUs may be changed, as `gpushare mps` does."""


@dataclass
class Node:
    """A node that runs, and its containers."""

    machine: Machine
    kubelet: EmbeddedKubelet
    folder: Path
    containers: dict[str, RunningContainer] = field(default_factory=dict)
    pods: dict[str, Pod] = field(default_factory=dict)
    """The pods, by the name that a pod shares with its container."""
    daemon: psutil.Process = field(init=False)
    """The process of the daemon."""
    agent: asyncio.subprocess.Process | None = None
    """The process of `gpushare mps`."""
    ready_at: str = ""
    """When the kubelet could allocate all units, as the log writes times."""
    ready_after: float = 0.0
    """Seconds from the start of the daemon until the kubelet could allocate all units."""

    async def start(self, name: str, limits: Mapping[str, int]) -> RunningContainer:
        """Start a pod of one container, named like the pod; raises AdmissionError where the kubelet refuses."""
        pod = self.pods[name] = Pod(name, [Container(name, limits)])
        return self.running(pod, (await self.kubelet.admit(pod)).containers[name])

    def running(self, pod: Pod, started: StartedContainer) -> RunningContainer:
        """Return the container of a pod of one container, `started` with what it was given."""
        folder = self.folder / "containers" / started.name
        made = RunningContainer(started, self.machine.cgroups.of(pod.uid), folder, self.machine.gpus)
        self.containers[started.name] = made
        return made

    @property
    def config(self) -> Path:
        """The config of the daemon; not there where the daemon runs without one."""
        return self.folder / _CONFIG

    def configure(self, sharing: Config, *, dra: Config | None = None, protocol: int = _USUAL_PROTOCOL) -> None:
        """Write the config of the daemon, with the section `dra` where GPUs are given by claim.

        `protocol` is that of MPS.
        """
        flags = {"mpsRoot": str(self.mps.path), **({"mpsProtocol": protocol} if protocol != _USUAL_PROTOCOL else {})}
        config = {"version": "v1", "flags": flags, "sharing": sharing, "health": _OFTEN}
        self.config.write_text(json.dumps({**config, **({"dra": dra} if dra is not None else {})}))

    async def can_allocate(self, units: Mapping[str, int], within: float = _READY_WITHIN) -> None:
        """Wait until exactly these `units` (resource: units) can be allocated; raises TimeoutError."""
        await self.kubelet.wait_for(lambda seen: seen.allocatable() == units, within=within)

    @property
    def mps(self) -> MpsRoot:
        """The MPS root."""
        return MpsRoot(self.folder / _MPS)

    async def start_agent(self) -> None:
        """Start `gpushare mps`, with mounts as in its pod."""
        root = self.mps
        changing = ["gpushare_plugin", "mps", "--log-level", "debug", "--mps-root", str(root.path)]
        command = changing if self.machine.may_change else ["real_gpus.mps_agent", str(root.path)]
        self.agent = await inside(
            [sys.executable, "-m", *command],
            clean_environment(),
            [("/dev/shm", str(root.shm), False)],  # noqa: S108 - the path of MPS
            self.folder / "agent",
            self.folder / "mps.log",
        )

    async def end_agent(self) -> None:
        """End `gpushare mps` as the end of its pod does."""
        if self.agent is not None:
            await _end(self.agent)

    async def start_outside(self, gpu: str) -> Program:
        """Start a program that is in no pod, on the GPU `gpu`."""
        folder = self.folder / "containers" / "of-no-pod"
        self.containers[""] = RunningContainer.of_no_pod(gpu, folder, self.machine.gpus)
        return await self.containers[""].start()

    def report(self) -> NodeReport | None:
        """Return what the daemon reports of the node, as `gpushare list` shows it; None where nobody answers."""
        with contextlib.suppress(DaemonSocketError):
            return decode(ask(socket_path(self.kubelet.plugin_directory)))
        return None

    async def foreign(self, pid: int) -> ForeignProcess | None:
        """Wait until the daemon reports the process `pid` as foreign; return what the daemon reports."""
        return await self._reported(
            lambda part: next((each for each in _foreign(part) if each.pid == pid), None), lambda _: True
        )

    async def use(self, container: str, known: Callable[[Use], bool], within: float = _SEEN_WITHIN) -> Use | None:
        """Wait until the daemon reports a use of `container` that is `known`; return the last reported use.

        The container has units or a claim, and is named like its pod.
        """
        return await self._reported(
            lambda part: next((each for each in part.uses or () if each.pod == container), None), known, within
        )

    async def _reported(
        self,
        find: Callable[[GpuReport | ClaimedDevice], Found | None],
        known: Callable[[Found], bool],
        within: float = _SEEN_WITHIN,
    ) -> Found | None:
        """Wait until `find` finds in a part of the report what is `known`, at most `within` seconds.

        Returns what was found last.
        """

        async def look() -> tuple[bool, Found | None]:
            report = await asyncio.to_thread(self.report)
            parts: tuple[GpuReport | ClaimedDevice, ...] = ()
            if report is not None:
                parts = (*report.gpus, *(report.claims or ()))
            found = next((each for part in parts if (each := find(part)) is not None), None)
            return found is not None and known(found), found

        return await until(look, within)

    def events(self, name: str) -> Iterator[Mapping[str, Any]]:
        """Yield the events `name` in the logs of the daemon and of `gpushare mps` since all units can be allocated."""
        for log in self.folder.glob("*.log"):
            for line in log.read_text().splitlines():
                with contextlib.suppress(json.JSONDecodeError):
                    entry = json.loads(line)
                    if entry.get("event") == name and entry["timestamp"] > self.ready_at:
                        yield entry


def _foreign(part: GpuReport | ClaimedDevice) -> Sequence[ForeignProcess]:
    return part.foreign_processes if isinstance(part, GpuReport) else ()


async def gpushare(*arguments: str | Path) -> tuple[int, str]:
    """Run a command of gpushare on this machine; return the exit status and the output, without one the errors."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gpushare_plugin", *map(str, arguments)),
        env=clean_environment(),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    printed, errors = await process.communicate()
    return process.returncode or 0, (printed or errors).decode(errors="replace")


async def until(look: Callable[[], Awaitable[tuple[bool, Found]]], seconds: float) -> Found:
    """Look until the first part of the answer is true, at most `seconds`; return the second part of the last answer."""
    end = time.monotonic() + seconds
    while True:
        done, found = await look()
        if done or time.monotonic() > end:
            return found
        await asyncio.sleep(_LOOK_EVERY)


@contextlib.asynccontextmanager
async def node(
    machine: Machine, sharing: Config | None, units: Mapping[str, int], *, mps: bool = False, protocol: int = 2
) -> AsyncIterator[Node]:
    """Run a node whose config has this `sharing`, None for no config, once `units` (resource: units) can be allocated.

    `protocol` is that of MPS. Raises NodeError where the node does not come up.
    """
    with node_folder() as folder:
        async with EmbeddedKubelet(folder) as kubelet:
            made = Node(machine, kubelet, folder)
            if sharing is not None:
                made.configure(sharing, protocol=protocol)
            async with serving(made, lambda: made.can_allocate(units), mps=mps):
                yield made


@contextlib.contextmanager
def node_folder() -> Iterator[Path]:
    """Make the folder of a node, which ends with the block."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="gs-") as name:
        folder = Path(name)
        folder.chmod(0o755)  # for programs of other users
        (folder / _MPS / "shm").mkdir(parents=True)
        (folder / "agent").mkdir()
        yield folder


@contextlib.asynccontextmanager
async def serving(
    made: Node, ready: Callable[[], Awaitable[object]], *more: str | Path, mps: bool = False
) -> AsyncIterator[None]:
    """Run the daemon of a node, with `more` arguments, once `ready` has returned; and `gpushare mps` before the daemon.

    Raises NodeError where `ready` raises TimeoutError.
    """
    async with contextlib.AsyncExitStack() as stack:
        if mps:
            await made.start_agent()
            stack.push_async_callback(made.end_agent)
        began = time.monotonic()
        made.daemon = await stack.enter_async_context(_daemon(made.folder, more))
        stack.push_async_callback(_end_containers, made)
        try:
            await ready()
        except TimeoutError as error:
            raise NodeError(f"{error}\n{_ends_of_logs(made.folder)}") from error
        made.ready_after = time.monotonic() - began
        made.ready_at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        yield


def _ends_of_logs(folder: Path) -> str:
    return "\n".join(f"{log.name}: {log.read_text()[-1500:]}" for log in sorted(folder.glob("*.log")))


async def _end_containers(node: Node) -> None:
    for container in node.containers.values():
        await container.end()


@contextlib.asynccontextmanager
async def _daemon(folder: Path, more: Sequence[str | Path]) -> AsyncIterator[psutil.Process]:
    config = folder / _CONFIG
    command = [
        *(sys.executable, "-m", "gpushare_plugin", "run"),
        *(("--config-file", str(config)) if config.exists() else ()),
        *("--device-plugin-path", str(folder / "device-plugins")),
        *("--pod-resources-socket", str(folder / "pod-resources" / "kubelet.sock"), "--log-level", "debug"),
        *map(str, more),
    ]
    with (folder / "run.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(*command, env=clean_environment(), stdout=log, stderr=log)
    try:
        yield psutil.Process(process.pid)
    finally:
        await _end(process)


async def _end(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        await asyncio.wait_for(process.wait(), _END_WITHIN)
    except TimeoutError:
        process.kill()
        await process.wait()
