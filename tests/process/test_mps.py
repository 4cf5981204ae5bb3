"""Tests of `gpushare mps`: the process between the plugin's files and a control daemon that really runs."""

import asyncio
import contextlib
import os
import signal
import stat
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from gpushare_plugin.gpus.compute_modes import ComputeMode
from gpushare_plugin.gpus.exchange import read_message
from gpushare_plugin.gpus.simulated import SimulatedSource
from gpushare_plugin.mps.exchange import MpsGpu, MpsRoot, MpsSettings, MpsStatus, RememberedModes
from gpushare_plugin.mps.link import MpsLink
from gpushare_plugin.testing.mps import FakeMps
from tests.process.daemon import Argument, Daemon, bad_log, gpushare, process

NODE = "gpus: [{memory: 16GiB, count: 2}]\n"


@pytest.fixture
def mps() -> Iterator[FakeMps]:
    """Make programs for children to find."""
    with FakeMps() as programs:
        yield programs


@pytest.fixture
def root(short_path: Path) -> MpsRoot:
    """Return an MPS root that is not there yet."""
    return MpsRoot(short_path / "run" / "mps")


@pytest.fixture
def node(short_path: Path) -> Path:
    """Describe a node of two GPUs."""
    file = short_path / "gpus.yaml"
    file.write_text(NODE)
    return file


@pytest.fixture
def gpus(node: Path) -> tuple[MpsGpu, ...]:
    """Return both GPUs of the node, each with a limit."""
    return tuple(MpsGpu(uuid=gpu.uuid, memory_limit_mib=2048) for gpu in SimulatedSource(node).read().cards)


@contextlib.asynccontextmanager
async def supervising(
    mps: FakeMps, root: MpsRoot, node: Path, *more: Argument, through: tuple[Argument, ...] = ()
) -> AsyncIterator[Daemon]:
    """Run `gpushare mps`."""
    arguments = ("mps", "--mps-root", root.path, "--simulate", node, "--log-level", "debug", *more)
    async with process(*arguments, environment=mps.environment, through=through) as daemon:
        yield daemon


def link(root: MpsRoot, *gpus: MpsGpu) -> MpsLink:
    """Want these GPUs, as the plugin does."""
    plugin = MpsLink(root, lambda: None)
    plugin.want(MpsSettings(gpus=gpus, active_thread_percentage=50))
    return plugin


def served(root: MpsRoot, *gpus: MpsGpu) -> bool:
    """Return whether exactly these GPUs are served."""
    status = read_message(root.status, MpsStatus)
    return status is not None and status.in_force.gpus == gpus and not status.not_served


async def test_the_supervisor_serves_and_ends_by_sigterm(
    mps: FakeMps, root: MpsRoot, node: Path, gpus: tuple[MpsGpu, ...]
) -> None:
    """Before, it makes its directories; its log tells what the control daemon does."""
    link(root, *gpus)
    async with supervising(mps, root, node) as daemon:
        await daemon.until(lambda: served(root, *gpus), "the GPUs were served")
        await daemon.logged(
            "mps_log_line",
            path=f"{root.log}/control.log",
            text=f"Starting control daemon using socket {root.pipe}/control",
        )
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (root.path, root.pipe, root.log, root.shm)}
        assert modes == {"mps": 0o755, "pipe": 0o755, "log": 0o755, "shm": 0o1777}
        remembered = read_message(root.modes, RememberedModes)
        assert remembered is not None
        assert remembered.modes == {gpu.uuid: ComputeMode.DEFAULT for gpu in gpus}
        assert await daemon.stop() == 0
        assert len(daemon.events("compute_mode_restored")) == 2
    assert mps.processes() == []
    assert not root.modes.exists()
    assert not root.status.exists()


@pytest.mark.parametrize("kind", ["full disk", "reader gone", "nobody reads"])
async def test_a_log_that_takes_nothing_stops_nothing(
    mps: FakeMps, root: MpsRoot, node: Path, gpus: tuple[MpsGpu, ...], kind: str
) -> None:
    """GPUs are served, and the end is in good order, whatever becomes of the lines; SIGHUP means nothing."""
    link(root, *gpus)
    arguments = ("mps", "--mps-root", root.path, "--simulate", node)
    with bad_log(kind) as log:
        async with process(*arguments, environment=mps.environment, log=log) as daemon:
            await daemon.until(root.status.exists, "it was ready")
            daemon.process.send_signal(signal.SIGHUP)
            await daemon.until(lambda: served(root, *gpus), "the GPUs were served")
            assert await daemon.stop() == 0
    assert mps.processes() == []
    assert not root.modes.exists()


async def test_a_kill_leaves_the_daemon_to_the_next(
    mps: FakeMps, root: MpsRoot, node: Path, gpus: tuple[MpsGpu, ...]
) -> None:
    """After SIGKILL the daemon and its clients go on; the next run takes over the same one, and ends it in the end."""
    plugin = link(root, *gpus)
    async with supervising(mps, root, node) as first:
        await first.until(lambda: served(root, *gpus), "the GPUs were served")
        before = mps.pid(root.pipe)
        server = mps.start_server(root.pipe)
        mps.connect(root.pipe, server, 4711)
        await first.stop(signal.SIGKILL)
    assert mps.pid(root.pipe) == before
    plugin = link(root, *gpus)
    assert all("does not run" in reason for reason in plugin.view.unserved.values())
    assert len(plugin.view.unserved) == 2
    async with supervising(mps, root, node) as second:
        await second.logged("mps_daemon_adopted", pid=before)
        await second.logged("mps_limits_set", pid=before)
        assert mps.ask(root.pipe, f"get_client_list {server}") == "4711"
        assert mps.pid(root.pipe) == before
        assert await second.stop() == 0
    assert mps.processes() == []
    assert not root.modes.exists()


async def test_a_silent_daemon_is_replaced_on_request(
    mps: FakeMps, root: MpsRoot, node: Path, gpus: tuple[MpsGpu, ...]
) -> None:
    """With --replace-silent a daemon that answers nothing is replaced, although a program uses its servers."""
    link(root, *gpus)
    async with supervising(mps, root, node) as first:
        await first.until(lambda: served(root, *gpus), "the GPUs were served")
        mps.connect(root.pipe, mps.start_server(root.pipe), 4711)
        before = mps.pid(root.pipe)
        await first.stop(signal.SIGKILL)
    with mps.fall_silent(root.pipe):
        async with supervising(mps, root, node, "--replace-silent", "true") as daemon:
            await daemon.logged("mps_failed", times=2)
            assert before in mps.processes()
            await daemon.logged("mps_daemon_started")
            assert before not in mps.processes()
            await daemon.until(lambda: served(root, *gpus), "the GPUs were served again")
            assert await daemon.stop() == 0


def size_and_mode(directory: Path) -> tuple[int, int]:
    """Return how many bytes the file system of a directory holds, and who may do what in the directory."""
    system = os.statvfs(directory)
    return system.f_blocks * system.f_frsize, stat.S_IMODE(directory.stat().st_mode)


async def test_shared_memory_has_a_limit(mps: FakeMps, root: MpsRoot, node: Path, gpus: tuple[MpsGpu, ...]) -> None:
    """With --shared-memory what containers share is a file system of that size, and MPS is served as without."""
    try_it = ("unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", "/mnt")
    if (await asyncio.to_thread(subprocess.run, try_it, capture_output=True, check=False)).returncode:
        pytest.skip("making mounts needs a mount namespace of our own, and this user may not have one")
    root.path.mkdir(parents=True)
    link(root, *gpus)
    mounts = f'mount --bind {root.path} {root.path} && mount --make-shared {root.path} && exec "$@"'
    through = ("unshare", "-m", "sh", "-c", mounts, "sh")
    async with supervising(mps, root, node, "--shared-memory", "64MiB", through=through) as daemon:
        await daemon.until(lambda: served(root, *gpus), "the GPUs were served")
        inside = Path("/proc", str(daemon.process.pid), "root", root.shm.relative_to("/"))
        assert size_and_mode(inside) == (64 << 20, 0o1777)
        assert await daemon.stop() == 0
        assert {each["level"] for each in daemon.log} <= {"debug", "info"}


async def test_the_plugin_hears_of_a_crash_of_the_daemon(
    mps: FakeMps, root: MpsRoot, node: Path, gpus: tuple[MpsGpu, ...]
) -> None:
    """The view of the plugin says that the daemon died, and that another one serves."""
    plugin = link(root, *gpus)
    async with supervising(mps, root, node) as daemon:
        await daemon.until(lambda: served(root, *gpus), "the GPUs were served")
        first = mps.crash(root.pipe)

        def told() -> bool:
            plugin.want(MpsSettings(gpus=gpus, active_thread_percentage=50))
            return f"(process {first}) has ended" in plugin.view.unserved.get(gpus[0].uuid, "")

        await daemon.until(told, "the crash was told")
        await daemon.until(lambda: served(root, *gpus), "the GPUs were served again")
        assert mps.pid(root.pipe) != first
        assert await daemon.stop() == 0


async def test_a_second_process_is_refused(mps: FakeMps, root: MpsRoot, node: Path, gpus: tuple[MpsGpu, ...]) -> None:
    """There is one a root: the second says which process has it and ends; the first goes on."""
    link(root, *gpus)
    async with supervising(mps, root, node) as first:
        await first.until(lambda: served(root, *gpus), "the GPUs were served")
        arguments = ("mps", "--mps-root", root.path, "--simulate", node)
        second = await gpushare(*arguments, environment=mps.environment)
        assert second.status == 1
        assert f"another gpushare mps (process {first.process.pid} on " in second.errors
        assert str(root.path) in second.errors
        assert served(root, *gpus)
        assert await first.stop() == 0


async def test_the_daemon_does_not_notice_an_upgrade_of_the_plugin(
    mps: FakeMps, root: MpsRoot, node: Path, gpus: tuple[MpsGpu, ...]
) -> None:
    """Plugin and daemon may come in any order."""
    async with supervising(mps, root, node) as daemon:
        await daemon.until(lambda: served(root), "it was ready")
        link(root, *gpus)
        await daemon.until(lambda: served(root, *gpus), "the GPUs were served")
        before = mps.pid(root.pipe)
        upgraded = MpsLink(root, lambda: None)
        assert served(root, *gpus)
        upgraded.want(MpsSettings(gpus=gpus, active_thread_percentage=50))
        assert upgraded.view.unserved == {}
        assert mps.pid(root.pipe) == before
        assert await daemon.stop() == 0


async def test_the_environment_names_the_root(mps: FakeMps, root: MpsRoot, node: Path) -> None:
    """MPS_ROOT is the same as --mps-root, and SIGINT the same as SIGTERM."""
    environment = {**mps.environment, "MPS_ROOT": str(root.path), "SIMULATE": str(node)}
    async with process("mps", environment=environment) as daemon:
        await daemon.until(root.status.exists, "it was ready")
        assert await daemon.stop(signal.SIGINT) == 0


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: path / ("x" * 80), "at most"),
        (lambda path: path / "file" / "mps", "cannot be used"),
    ],
)
async def test_a_root_that_cannot_be_used_ends_the_process_untouched(
    short_path: Path, node: Path, make: object, words: str
) -> None:
    """The process says so and ends before it touches anything."""
    (short_path / "file").touch()
    assert callable(make)
    finished = await gpushare("mps", "--mps-root", make(short_path), "--simulate", node)
    assert finished.status == 1
    assert words in finished.errors


async def test_a_limit_that_is_no_size_is_refused(root: MpsRoot, node: Path) -> None:
    """A limit of the shared memory that cannot be read is refused with the nearest right one; nothing was touched."""
    finished = await gpushare("mps", "--mps-root", root.path, "--simulate", node, "--shared-memory", "1gb")
    assert finished.status == 2
    assert '"1gb"' in finished.errors
    assert "GiB" in finished.errors
    assert not root.path.exists()
