"""What each signal does to programs that run long, as processes of their own: docs/reliability.md has a part."""

import asyncio
import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import termios
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from gpushare_plugin.gpus.exchange import write_message
from gpushare_plugin.gpus.simulated import SimulatedSource
from gpushare_plugin.kube.client import NODES
from gpushare_plugin.mig.exchange import MigOrder, MigRoot
from gpushare_plugin.mps.exchange import MpsGpu, MpsRoot, MpsSettings
from gpushare_plugin.mps.link import MpsLink
from gpushare_plugin.testing.cluster import ApiServer
from gpushare_plugin.testing.kubelet import EmbeddedKubelet
from gpushare_plugin.testing.mps import FakeMps
from gpushare_plugin.testing.nvml import FakeGpu, FakeNvml
from gpushare_plugin.testing.ports import claim_port
from tests.process.daemon import Daemon, comes_to_answer, process, running
from tests.waiting import PATIENCE, until

ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
ASKING = (signal.SIGUSR1, signal.SIGUSR2)
IGNORED = (
    signal.SIGPIPE,
    signal.SIGALRM,
    signal.SIGVTALRM,
    signal.SIGPROF,
    signal.SIGIO,
    signal.SIGPWR,
    signal.SIGSTKFLT,
    signal.SIGURG,
    signal.SIGWINCH,
    signal.SIGCHLD,
    signal.SIGCONT,
    *range(signal.SIGRTMIN, signal.SIGRTMAX + 1),
)


@contextlib.asynccontextmanager
async def _run(folder: Path) -> AsyncIterator[Daemon]:
    """Run the daemon of a node, until its resource is registered; at its end its sockets must be gone."""
    gpus = folder / "gpus.yaml"
    gpus.write_text("gpus: [{memory: 16GiB}]\n")
    async with EmbeddedKubelet(folder) as kubelet, running(kubelet, "--simulate", gpus) as daemon:
        await daemon.advertises(kubelet, {"aliyun.com/gpu-mem": 16})
        yield daemon
        assert {path.name for path in kubelet.plugin_directory.glob("*.sock")} == {"kubelet.sock"}


@contextlib.asynccontextmanager
async def _mps(folder: Path) -> AsyncIterator[Daemon]:
    gpus, root = folder / "gpus.yaml", MpsRoot(folder / "mps")
    gpus.write_text("gpus: [{memory: 16GiB}]\n")
    with FakeMps() as mps:
        arguments = ("mps", "--mps-root", root.path, "--simulate", gpus)
        async with process(*arguments, environment=mps.environment) as daemon:
            await daemon.until(root.status.exists, "it was ready")
            yield daemon
        assert not root.status.exists()


@contextlib.asynccontextmanager
async def _mig(folder: Path) -> AsyncIterator[Daemon]:
    root = MigRoot(folder / "mig")
    root.path.mkdir()
    write_message(root.wanted, MigOrder(revision=1, gpus=()))
    with FakeNvml([FakeGpu(mig_enabled=True, mig_profiles="A100-40GB")]) as node:
        arguments = ("mig", "--mig-root", root.path, "--container-driver-root", folder / "driver-root")
        async with process(*arguments, environment=node.environment) as daemon:
            await daemon.until(root.ready.exists, "it was ready")
            yield daemon


@contextlib.asynccontextmanager
async def _extender(folder: Path) -> AsyncIterator[Daemon]:
    async with ApiServer() as server:
        kubeconfig, probes = server.kubeconfig(folder / "kubeconfig"), claim_port()
        addresses = ("--listen-address", f"127.0.0.1:{claim_port()}", "--probe-address", f"127.0.0.1:{probes}")
        async with process("extender", "--kubeconfig", kubeconfig, *addresses) as daemon:
            await comes_to_answer(probes, "/readyz", (200, "ok\n"))
            yield daemon


@contextlib.asynccontextmanager
async def _partition(folder: Path) -> AsyncIterator[Daemon]:
    async with ApiServer() as server:
        kubeconfig, probes = server.kubeconfig(folder / "kubeconfig"), claim_port()
        address = ("--probe-address", f"127.0.0.1:{probes}")
        async with process("partition", "--kubeconfig", kubeconfig, *address) as daemon:
            await comes_to_answer(probes, "/readyz", (200, "ok\n"))
            yield daemon


Program = Callable[[Path], AbstractAsyncContextManager[Daemon]]
DAEMONS: dict[str, Program] = {
    "run": _run,
    "mps": _mps,
    "mig": _mig,
    "extender": _extender,
    "partition": _partition,
}


async def _stopped_and_continued(pid: int) -> None:
    """Suspend a process, and have it go on; SIGTSTP does nothing where a run has no terminal."""
    os.kill(pid, signal.SIGSTOP)
    await until(lambda: _state(pid) == "T")
    os.kill(pid, signal.SIGCONT)
    await until(lambda: _state(pid) != "T")


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def _ignored(pid: int) -> set[int]:
    status = Path(f"/proc/{pid}/status").read_text()
    (mask,) = (int(line.split()[1], 16) for line in status.splitlines() if line.startswith("SigIgn"))
    return {number for number in signal.valid_signals() if mask >> (number - 1) & 1}


@pytest.mark.parametrize("number", ENDING, ids=lambda number: number.name)
@pytest.mark.parametrize("program", DAEMONS)
async def test_a_daemon_ends_in_order_and_ignores_signals_that_mean_nothing(
    short_path: Path, program: str, number: signal.Signals
) -> None:
    """SIGALRM and its like leave a daemon as it is, SIGHUP too; it can be suspended; three signals end it with 0."""
    async with DAEMONS[program](short_path) as daemon:
        for each in (*IGNORED, signal.SIGHUP):
            daemon.process.send_signal(each)
        await _stopped_and_continued(daemon.process.pid)
        assert await daemon.stop(number) == 0
        assert [each["reason"] for each in daemon.events("stopping")] == [number.name]


@pytest.mark.parametrize("program", DAEMONS)
async def test_a_daemon_tells_what_it_does_when_signals_ask(short_path: Path, program: str) -> None:
    """SIGUSR1 has it write the stacks of threads and tasks as text, SIGUSR2 log every line, and then as before."""
    async with DAEMONS[program](short_path) as daemon:
        daemon.process.send_signal(signal.SIGUSR1)
        await daemon.logged("stacks_written")
        assert sum("hread 0x" in line for line in daemon.noise) >= 2
        assert [line for line in daemon.noise if line.startswith("Task ")]
        assert any("in until_stopped" in line for line in daemon.noise)
        daemon.noise.clear()
        for level in ("debug", "info"):
            daemon.process.send_signal(signal.SIGUSR2)
            await daemon.logged("log_level_changed", log_level=level)
        assert await daemon.stop() == 0


async def test_a_daemon_that_ends_is_asked_in_vain(short_path: Path) -> None:
    """The same signals beside the one that ends it change nothing of its end, whenever they come."""
    async with _run(short_path) as daemon:
        # Not `process.send_signal`: it may collect the exit status before the one that waits for it.
        reference = os.pidfd_open(daemon.process.pid)
        try:
            daemon.process.send_signal(signal.SIGTERM)
            # Fewer than the interpreter can keep until the event loop turns, over all of the end.
            for _ in range(100):
                for number in ASKING:
                    with contextlib.suppress(ProcessLookupError):
                        signal.pidfd_send_signal(reference, number)
                await asyncio.sleep(0.01)
        finally:
            os.close(reference)
        assert await daemon.ended() == 0
        daemon.noise.clear()


LATE = """
import asyncio, ctypes, os, signal
from gpushare_plugin.base.signals.ending import until_stopped

signal.signal(signal.SIGUSR1, lambda number, frame: None)
libc = ctypes.CDLL(None)
libc.signal.restype, libc.signal.argtypes = ctypes.c_void_p, (ctypes.c_int, ctypes.c_void_p)
handler = libc.signal(signal.SIGUSR1, None)

async def work():
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.Event().wait()

asyncio.run(until_stopped(work()))
ctypes.CFUNCTYPE(None, ctypes.c_int)(handler)(signal.SIGUSR1)
"""
"""A program that ends by a signal, and in which a thread then handles a signal that the kernel had given it before."""


async def _ends_without_a_word(program: str) -> None:
    ending = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stderr=subprocess.PIPE)
    _, errors = await ending.communicate()
    assert (ending.returncode, errors) == (0, b"")


async def test_a_signal_that_a_thread_handles_late_is_no_complaint() -> None:
    """On a busy machine a thread can run the handler of a signal when the program has begun to end."""
    await _ends_without_a_word(LATE)


CROWDED = """
import asyncio, os, signal
from gpushare_plugin.base.signals.ending import until_stopped

async def work():
    loop = asyncio.get_running_loop()
    for _ in range(100_000):
        loop.call_soon_threadsafe(lambda: None)
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.Event().wait()

asyncio.run(until_stopped(work()))
"""
"""A program that is asked to end while no more bytes that wake its event loop find room."""


async def test_a_signal_amid_many_calls_of_threads_is_no_complaint() -> None:
    """However much other threads have for the event loop, a signal ends the program without a word."""
    await _ends_without_a_word(CROWDED)


@contextlib.asynccontextmanager
async def _watching(folder: Path, *, nodes: int = 1, output: int = subprocess.PIPE) -> AsyncIterator[Process]:
    """Run `gpushare inspect --watch` on a cluster of so many nodes with Aliyun's plugin."""
    resources = {"aliyun.com/gpu-mem": "16", "aliyun.com/gpu-count": "1"}
    async with ApiServer() as server:
        for number in range(nodes):
            status = {"capacity": resources, "allocatable": resources}
            server.store.create(NODES, {"metadata": {"name": f"n{number}"}, "status": status})
        environment = {**os.environ, "KUBECONFIG": str(server.kubeconfig(folder / "kubeconfig"))}
        # With it, Python drops the rest of a line that a signal interrupts, and does not wait for a reader.
        environment.pop("PYTHONUNBUFFERED", None)
        command = (sys.executable, "-m", "gpushare_plugin", "inspect", "--watch", "-o", "json")
        watching = await asyncio.create_subprocess_exec(
            *command, env=environment, stdout=output, stderr=subprocess.PIPE
        )
        try:
            async with asyncio.timeout(PATIENCE):
                yield watching
        finally:
            if watching.returncode is None:
                watching.kill()
                await watching.wait()


@pytest.mark.parametrize("number", ENDING, ids=lambda number: number.name)
async def test_a_command_that_goes_on_ends_in_order_and_ignores_other_signals(
    short_path: Path, number: signal.Signals
) -> None:
    """`gpushare inspect --watch`: what a terminal sends to end it does, without a traceback or a core dump."""
    async with _watching(short_path) as watching:
        assert watching.stdout is not None
        await watching.stdout.readline()
        for each in (*IGNORED, *ASKING):
            watching.send_signal(each)
        await _stopped_and_continued(watching.pid)
        watching.send_signal(number)
        _, errors = await watching.communicate()
        assert (watching.returncode, errors) == (0, b"")


async def test_a_command_whose_output_nobody_reads_ends_all_the_same(short_path: Path) -> None:
    """`gpushare inspect --watch` in a pipe to a program that hangs: Ctrl-C ends it, with status 0, without a word."""
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb"), os.fdopen(writer, "wb") as output:
        size = fcntl.fcntl(output, fcntl.F_SETPIPE_SZ, 4096)
        async with _watching(short_path, nodes=100, output=output.fileno()) as watching:
            await until(lambda: _waiting_in(reader) == size)
            watching.send_signal(signal.SIGINT)
            _, errors = await watching.communicate()
            assert (watching.returncode, errors) == (0, b"")


def _waiting_in(pipe: int) -> int:
    """How many bytes nobody has read yet."""
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


async def test_a_daemon_hands_no_ignored_signals_down(short_path: Path) -> None:
    """It handles them by doing nothing, so that NVIDIA's MPS control daemon, which it starts, has the defaults."""
    gpus, root = short_path / "gpus.yaml", MpsRoot(short_path / "mps")
    gpus.write_text("gpus: [{memory: 16GiB}]\n")
    gpu = MpsGpu(uuid=SimulatedSource(gpus).read().cards[0].uuid, memory_limit_mib=2048)
    MpsLink(root, lambda: None).want(MpsSettings(gpus=(gpu,), active_thread_percentage=50))
    with FakeMps() as mps:
        arguments = ("mps", "--mps-root", root.path, "--simulate", gpus)
        async with process(*arguments, environment=mps.environment) as daemon:
            await daemon.logged("mps_log_line", path=f"{root.log}/control.log")
            # Python itself ignores these two, and the stand-in for NVIDIA's program is in Python, too.
            assert _ignored(mps.pid(root.pipe)) == {signal.SIGPIPE, signal.SIGXFSZ}
            assert await daemon.stop() == 0
