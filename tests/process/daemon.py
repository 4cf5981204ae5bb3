"""The `gpushare` command as a child process: its log, its signals, its end."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import aiohttp

from gpushare_plugin.testing.kubelet import AdmittedPod, Container, EmbeddedKubelet, Pod, StartedContainer
from gpushare_plugin.testing.nvml import LIBRARY_NAME
from tests.process.forked import can_fork, forked
from tests.waiting import PATIENCE, until

PROMPT = 30.0
"""Seconds that the end may take, as Kubernetes' own grace period is; what hangs in tests takes longer."""

_LONGEST_LINE = 1 << 20
LOOK_EVERY = 0.05
"""Seconds between looks at what changes without an event of the log."""

Event = dict[str, Any]
Argument = str | Path


@dataclass(frozen=True, slots=True)
class Finished:
    """How a command ended, and everything it printed."""

    status: int
    output: str
    errors: str


async def gpushare(*arguments: Argument, environment: Mapping[str, str] | None = None) -> Finished:
    """Run a command that ends by itself."""
    given = tuple(map(str, arguments))
    if can_fork(given, environment or {}):
        status, printed, complaints = await forked(given, {**_inherited(), **(environment or {})}, PATIENCE)
        return Finished(status, printed.decode(), complaints.decode())
    process = await _start(arguments, environment or {})
    try:
        async with asyncio.timeout(PATIENCE):
            output, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode is not None
    return Finished(process.returncode, output.decode(), errors.decode())


class Daemon:
    """A `gpushare run` of its own.

    `log` has every event so far, `noise` whatever else it printed, which should be nothing.
    """

    def __init__(self, process: asyncio.subprocess.Process, log: "_Pipe | None") -> None:
        """Follow what `process` prints, and what it logs unless a test has that."""
        self.process = process
        self._pipe = log
        self.log: list[Event] = []
        self.noise: list[str] = []
        self._news = asyncio.Event()
        self._following = [asyncio.create_task(self._follow_log()), asyncio.create_task(self._follow_output())]

    def events(self, event: str, **fields: object) -> list[Event]:
        """Return the events of this name so far that have these fields."""
        return [each for each in self.log if each["event"] == event and each.items() >= fields.items()]

    async def logged(self, event: str, *, times: int = 1, **fields: object) -> Event:
        """Wait for an event of this name with these fields, or for so many of them, and return the last."""
        await self.until(lambda: len(self.events(event, **fields)) >= times, f"the event {event!r} with {fields}")
        return self.events(event, **fields)[times - 1]

    async def until(self, condition: Callable[[], object], what: str) -> None:
        """Wait for a condition that the daemon's life makes true: asked at each event, and without any now and then."""
        try:
            async with asyncio.timeout(PATIENCE):
                while not condition():
                    assert not self.gone, f"the daemon ended before {what}: {self}"
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._news.wait(), LOOK_EVERY)
        except TimeoutError as error:
            raise TimeoutError(f"not within {PATIENCE:g} s: {what}: {self}") from error

    async def advertises(self, kubelet: EmbeddedKubelet, resources: Mapping[str, int]) -> None:
        """Wait until the kubelet counts exactly these healthy units."""
        counting = asyncio.create_task(kubelet.wait_for(lambda node: node.allocatable() == resources, within=PATIENCE))
        ending = asyncio.create_task(self._nothing_more())
        try:
            await asyncio.wait([counting, ending], return_when=asyncio.FIRST_COMPLETED)
            assert counting.done(), f"the daemon ended before the kubelet knew {resources}: {self}"
            await counting
        finally:
            counting.cancel()
            ending.cancel()

    @property
    def gone(self) -> bool:
        """Whether nothing can come from it any more."""
        return all(task.done() for task in self._following)

    async def ended(self, within: float = PATIENCE) -> int:
        """Wait for the end of the process and of its log; return the exit status."""
        async with asyncio.timeout(within):
            await self._nothing_more()
            return await self.process.wait()

    async def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal and wait for the end; return the exit status, negative for a signal's own number."""
        self.process.send_signal(number)
        return await self.ended(PROMPT)

    def __str__(self) -> str:
        """Tell the log, for failures."""
        return "\n".join([f"exit status {self.process.returncode}", *map(str, self.log), *self.noise])

    @contextlib.contextmanager
    def unread(self) -> Iterator[None]:
        """Read nothing of its log in the block, so that the pipe it writes to becomes full."""
        assert self._pipe is not None, "a test has the log"
        self._pipe.transport.pause_reading()
        try:
            yield
        finally:
            self._pipe.transport.resume_reading()

    async def _nothing_more(self) -> None:
        await asyncio.wait(self._following)

    async def _follow_log(self) -> None:
        if self._pipe is None:
            return  # a test has the log
        async for line in self._pipe.lines:
            try:
                self.log.append(json.loads(line))
            except ValueError:
                self.noise.append(line.decode())
            self._tell()

    async def _follow_output(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            self.noise.append(line.decode())

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


@contextlib.asynccontextmanager
async def running(
    kubelet: EmbeddedKubelet,
    *arguments: Argument,
    environment: Mapping[str, str] | None = None,
    log: int | None = None,
) -> AsyncIterator[Daemon]:
    """Run the daemon for a kubelet; one that still runs at the end must end well, and leave nothing behind.

    `log` is a file descriptor for its log where a test has it instead.
    """
    directory = kubelet.plugin_directory
    daemon = await _follow(("run", "--device-plugin-path", directory, *arguments), environment or {}, log)
    try:
        yield daemon
        if not daemon.gone:
            assert await daemon.stop() == 0, str(daemon)
            assert {path.name for path in directory.glob("*.sock")} <= {"kubelet.sock"}
        assert_log_is_sound(daemon)
    finally:
        if daemon.process.returncode is None:
            daemon.process.kill()
        await daemon.ended()


@contextlib.asynccontextmanager
async def process(
    *arguments: Argument,
    environment: Mapping[str, str] | None = None,
    log: int | None = None,
    through: tuple[Argument, ...] = (),
) -> AsyncIterator[Daemon]:
    """Run a command that goes on until it is told to end; one that still runs at the end is killed.

    `log` is as for `running`; `through` is a program that becomes the command that follows it, such as unshare(1).
    """
    daemon = await _follow(arguments, environment or {}, log, through)
    try:
        yield daemon
        assert_log_is_sound(daemon)
    finally:
        if daemon.process.returncode is None:
            daemon.process.kill()
        await daemon.ended()


def assert_log_is_sound(daemon: Daemon) -> None:
    """Every line is one event with its level and time, and there is nothing else."""
    assert daemon.noise == [], daemon.noise
    assert all(each.keys() >= {"event", "level", "timestamp"} for each in daemon.log)
    defects = [each for each in daemon.log if "exception" in each or each["event"] == "printed_to_stderr"]
    assert defects == [], defects


async def admit(kubelet: EmbeddedKubelet, resource: str, count: int, name: str = "pod") -> StartedContainer:
    """Let a pod in that asks for so many units, and return its container as started."""
    admitted: AdmittedPod = await kubelet.admit(Pod(name, [Container("main", {resource: count})]))
    return admitted.containers["main"]


def without_library(folder: Path) -> dict[str, str]:
    """Return variables that keep a child process from finding any NVML, also on a machine that has one."""
    (folder / LIBRARY_NAME).touch()
    return {"LD_LIBRARY_PATH": str(folder)}


@contextlib.contextmanager
def bad_log(kind: str) -> Iterator[int]:
    """Open a log on a `full disk`, one whose reader is gone (`reader gone`), or a full pipe that `nobody reads`."""
    if kind == "full disk":
        with Path("/dev/full").open("wb") as log:
            yield log.fileno()
        return
    reader, writer = full_pipe()
    with reader, writer:
        if kind == "reader gone":
            reader.close()
        yield writer.fileno()


def full_pipe() -> tuple[BinaryIO, BinaryIO]:
    """Return the ends of a pipe, to read from and to write to, that takes nothing more until somebody reads."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    for size in (4096, 1):  # a page goes in only where a whole one is free
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(writer, b"\n" * size)
    os.set_blocking(writer, True)
    return os.fdopen(reader, "rb"), os.fdopen(writer, "wb", buffering=0)


class _Pipe(NamedTuple):
    """Where a process writes its log, and its lines; reading can be put off."""

    transport: asyncio.ReadTransport
    lines: asyncio.StreamReader


async def _follow(
    arguments: tuple[Argument, ...],
    environment: Mapping[str, str],
    log: int | None,
    through: tuple[Argument, ...] = (),
) -> Daemon:
    if log is not None:
        return Daemon(await _start(arguments, environment, log, through), None)
    reader, writer = os.pipe()
    try:
        process = await _start(arguments, environment, writer, through)
    finally:
        os.close(writer)
    lines = asyncio.StreamReader(limit=_LONGEST_LINE)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(lines), os.fdopen(reader, "rb")
    )
    return Daemon(process, _Pipe(transport, lines))


async def _start(
    arguments: tuple[Argument, ...],
    environment: Mapping[str, str],
    log: int = asyncio.subprocess.PIPE,
    through: tuple[Argument, ...] = (),
) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(*map(str, through), sys.executable, "-m", "gpushare_plugin", *map(str, arguments)),
        env={**_inherited(), **environment},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=log,
        limit=_LONGEST_LINE,
    )


def _inherited() -> dict[str, str]:
    # The command chooses what gRPC prints; what this process has chosen must not be handed down. A kubelet that this
    # machine has is none of the tests' business, and neither are its CDI specifications.
    inherited = {name: value for name, value in os.environ.items() if name != "GRPC_VERBOSITY"}
    return {**inherited, "POD_RESOURCES_SOCKET": "/no/kubelet.sock", "CDI_SPEC_DIRS": "/no/cdi"}


class ConfigMapMount:
    """A directory as the kubelet mounts a ConfigMap: files are links through `..data`, which is swapped as a whole."""

    def __init__(self, folder: Path, content: str) -> None:
        """Make the mount, with one file."""
        self.file = folder / "config.yaml"
        self._versions = 0
        folder.mkdir()
        self.write(content)
        self.file.symlink_to("..data/config.yaml")

    def write(self, content: str) -> None:
        """Swap in another content, as the kubelet does."""
        self._versions += 1
        folder = self.file.parent
        version = folder / f"..version-{self._versions}"
        version.mkdir()
        (version / "config.yaml").write_text(content)
        new = folder / "..data_tmp"
        new.symlink_to(version.name)
        new.rename(folder / "..data")


async def comes_to_answer(port: int, path: str, expected: tuple[int, str]) -> None:
    """Wait until this is what is answered: the daemon learns a moment after the kubelet that all is registered."""
    found: tuple[int, str] | None = None

    async def answered() -> bool:
        nonlocal found
        found = await answer_at_once(port, path)
        return found == expected

    await until(answered, lambda: f"{path} is to be {expected}, and is {found}")


async def answer(port: int, path: str) -> tuple[int, str]:
    """Return status and body of what is answered at a port of the loopback interface, once somebody listens there."""
    found = await until(lambda: answer_at_once(port, path), lambda: f"nobody listens at port {port}")
    assert found is not None
    return found


async def answer_at_once(port: int, path: str) -> tuple[int, str] | None:
    """Return status and body as `answer` does, or None where nobody listens."""
    async with aiohttp.ClientSession() as session:
        with contextlib.suppress(aiohttp.ClientConnectionError):
            async with session.get(f"http://127.0.0.1:{port}{path}") as response:
                return response.status, await response.text()
    return None
