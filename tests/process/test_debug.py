"""What people learn of a running daemon: more of its log, its stacks, and `gpushare debug`, which asks for both."""

import asyncio
import contextlib
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpushare_plugin.testing.kubelet import EmbeddedKubelet
from gpushare_plugin.testing.ports import claim_port
from tests.namespaces import unshared
from tests.process.daemon import answer, bad_log, comes_to_answer, gpushare, process, running
from tests.process.test_signals import DAEMONS


async def test_the_level_of_the_log_can_be_changed_while_a_daemon_runs(
    kubelet: EmbeddedKubelet, short_path: Path
) -> None:
    """SIGUSR2 shows lines that the level of --log-level drops, also of loggers that have logged before, and back."""
    gpus = short_path / "gpus.yaml"
    gpus.write_text("gpus: [{memory: 16GiB}]\n")
    async with running(kubelet, "--simulate", gpus, "--log-level", "error") as daemon:
        await daemon.advertises(kubelet, {"aliyun.com/gpu-mem": 16})
        assert daemon.log == []
        daemon.process.send_signal(signal.SIGHUP)
        daemon.process.send_signal(signal.SIGUSR2)
        await daemon.logged("log_level_changed", log_level="debug", level="info")
        daemon.process.send_signal(signal.SIGHUP)
        await daemon.logged("config_reloading", level="info")
        daemon.process.send_signal(signal.SIGUSR2)
        await daemon.logged("log_level_changed", log_level="error", level="info")
        assert await daemon.stop() == 0
        assert daemon.events("stopping") == []


HANGING = """
import ctypes, sys
from gpushare_plugin.cli.daemons import daemon_log, run_daemon

async def hang(secret):
    print("hangs", flush=True)
    if sys.argv[1] == "loop":
        while True:
            pass
    library, lock = ctypes.PyDLL(None), ctypes.create_string_buffer(64)
    library.pthread_mutex_lock(lock)
    library.pthread_mutex_lock(lock)

with daemon_log("json", "error") as log:
    run_daemon(hang("a value that nobody is told"), log)
"""
"""A daemon whose loop hangs for good: in Python, or in a library in C that keeps Python from running anything."""


@pytest.mark.parametrize(("held_by", "asked"), [("loop", signal.SIGUSR1), ("library", signal.SIGABRT)])
async def test_a_daemon_that_hangs_writes_its_stacks(held_by: str, asked: signal.Signals) -> None:
    """The stacks say where, and have no values of variables; where no Python code can run, SIGABRT has them written."""
    hanging = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", HANGING, held_by), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        assert hanging.stdout is not None
        assert hanging.stderr is not None
        assert await hanging.stdout.readline() == b"hangs\n"
        hanging.send_signal(asked)
        told = await hanging.stderr.readuntil(b" in hang\n")
    finally:
        with contextlib.suppress(ProcessLookupError):  # SIGABRT has ended it
            hanging.kill()
        _, rest = await hanging.communicate()
    assert b"hread 0x" in told
    assert b"nobody is told" not in told + rest


BUSY = """
import re, signal, threading
from gpushare_plugin.base.stacks import threads_written_at

def compute():
    while True:
        re.purge()
        re.compile("(a|b)*c[d-f]{2,3}(?P<last>zz|yy(q|r)+)")

signal.signal(signal.SIGUSR1, lambda number, frame: None)
threading.Thread(target=compute, daemon=True).start()
with threads_written_at(signal.SIGUSR1, 2):
    print("computes", flush=True)
    compute()
"""
"""A program that writes its stacks when it is asked, while its threads compute."""


async def test_a_program_lives_however_often_its_stacks_are_written() -> None:
    """Stacks are read while no thread changes them: 100 signals amid threads that compute end no process."""
    busy = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", BUSY), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert busy.stdout is not None
    assert busy.stderr is not None
    try:
        assert await busy.stdout.readline() == b"computes\n"
        for _ in range(100):
            busy.send_signal(signal.SIGUSR1)
            await busy.stderr.readuntil(b" in <module>\n")  # the end of the stack of the main thread
    finally:
        busy.kill()
        await busy.communicate()
    assert busy.returncode == -signal.SIGKILL


async def test_stacks_that_nobody_reads_hold_nothing_up(kubelet: EmbeddedKubelet, short_path: Path) -> None:
    """Where the log is full, stacks are lost, and the daemon goes on."""
    gpus, port = short_path / "gpus.yaml", claim_port()
    gpus.write_text("gpus: [{memory: 16GiB}]\n")
    arguments = ("--simulate", gpus, "--http-address", f"127.0.0.1:{port}")
    with bad_log("nobody reads") as log:
        async with running(kubelet, *arguments, log=log) as daemon:
            await comes_to_answer(port, "/readyz", (200, "ok\n"))
            daemon.process.send_signal(signal.SIGUSR1)
            assert (await answer(port, "/healthz"))[0] == 200
            assert await daemon.stop() == 0


async def test_gpushare_debug_asks_the_daemon_of_its_container(short_path: Path) -> None:
    """It finds the only daemon that sees the files it sees, whatever else runs on the machine, and says what it did."""
    async with DAEMONS["mig"](short_path) as another:
        root = short_path / "own"
        root.mkdir()
        arguments = ("mig", "--mig-root", root, "--container-driver-root", short_path)
        async with process(*arguments, through=unshared("--mount")) as daemon:
            await daemon.logged("starting")
            pid = daemon.process.pid
            inside = ("nsenter", "--target", str(pid), "--user", "--mount", sys.executable, "-m", "gpushare_plugin")
            for what, sent, event in (
                ("log", "SIGUSR2", "log_level_changed"),
                ("stacks", "SIGUSR1", "stacks_written"),
            ):
                done = await asyncio.to_thread(
                    subprocess.run, [*inside, "debug", what], capture_output=True, text=True, check=True
                )
                assert done.stdout == f"{sent} sent to gpushare mig, process {pid}; see its log\n"
                await daemon.logged(event)
            daemon.noise.clear()
            refused = await gpushare("debug", "stacks", "--pid", str(pid))
            assert refused.status == 1
            assert f"process {pid} is no daemon of gpushare in this container" in refused.errors
        assert another.events("stacks_written") == another.events("log_level_changed") == []


async def test_gpushare_debug_leaves_the_choice_among_several_daemons(short_path: Path) -> None:
    """--pid chooses one of them; without it, all are named, and nothing is sent."""
    (short_path / "1").mkdir()
    (short_path / "2").mkdir()
    async with DAEMONS["mig"](short_path / "1") as one, DAEMONS["mig"](short_path / "2") as other:
        refused = await gpushare("debug", "log")
        assert refused.status == 1
        assert "choose one with --pid" in refused.errors
        for each in (one, other):
            assert f"{each.process.pid} (gpushare mig)" in refused.errors
        done = await gpushare("debug", "log", "--pid", str(one.process.pid))
        assert (done.status, done.errors) == (0, "")
        await one.logged("log_level_changed")
        assert other.events("log_level_changed") == []


async def test_gpushare_debug_without_a_daemon_says_where_to_run_it() -> None:
    """In a container without a daemon nothing is sent, and the error says what to do."""
    command = (*unshared("--mount"), sys.executable, "-m", "gpushare_plugin", "debug", "stacks")
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "no daemon of gpushare runs in this container" in done.stderr
    assert "kubectl exec POD -- gpushare debug" in done.stderr
