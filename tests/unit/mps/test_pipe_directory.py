"""Tests of `gpushare_plugin.mps.pipe_directory`, as MPS and its programs meet it."""

import contextlib
import fcntl
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from gpushare_plugin.mps.control import Control, ControlError
from gpushare_plugin.mps.exchange import MpsRoot
from gpushare_plugin.mps.pipe_directory import clear
from gpushare_plugin.testing.mps import FakeMps
from tests.unit.mps.roots import UUIDS
from tests.waiting import PATIENCE

REMOVED = "mps_pipe_directory_cleaned"
DEEP = 1100

READ_ONLY = """
mount --bind {pipe} {pipe} && mount -o remount,bind,ro {pipe} && exec {python} -c '
import pathlib, socket
try:
    pathlib.Path("{pipe}/planted").touch()
    raise SystemExit("the mount can be written to")
except OSError:
    pass
peer = socket.socket(socket.AF_UNIX)
peer.connect("{pipe}/control")
print(peer.recv(5).decode())
'
"""


@contextlib.contextmanager
def warnings_told() -> Iterator[list[Any]]:
    """Yield the warnings that are logged in the block, which the tests' own settings leave out."""
    before = structlog.get_config()["wrapper_class"]
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    try:
        with capture_logs() as told:
            yield told
    finally:
        structlog.configure(wrapper_class=before)


@pytest.mark.parametrize("name", ["log", "control_lock", "control"])
async def test_a_planted_link_is_not_followed(
    mps: FakeMps, root: MpsRoot, control: Control, tmp_path: Path, name: str
) -> None:
    """Whatever name of the daemon's a link has, neither a start nor a question writes to what it points to."""
    target = tmp_path / "device"
    target.write_text("belongs to the host")
    (root.pipe / name).symlink_to(target)
    with warnings_told() as told:
        daemon = await control.start(UUIDS[:1])
    await control.probe()
    assert target.read_text() == "belongs to the host"
    assert mps.pid(root.pipe) == daemon.pid
    assert told[0]["event"] == REMOVED
    assert told[0]["found"] == [name]


def test_foreign_files_in_the_pipe_directory_are_removed(root: MpsRoot, tmp_path: Path) -> None:
    """Files, links, pipes, sockets and directories of any depth are removed, and nothing that links lead to."""
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").touch()
    for link in ("file", "log"):
        (root.pipe / link).symlink_to(tmp_path / "kept")
    os.mkfifo(root.pipe / "control")
    with socket.socket(socket.AF_UNIX) as planted:
        planted.bind(str(root.pipe / "other"))
    below = os.open(root.pipe, os.O_RDONLY)
    for _ in range(DEEP):
        os.mkdir("d", dir_fd=below)
        os.symlink(tmp_path / "kept", "link", dir_fd=below)
        deeper = os.open("d", os.O_RDONLY, dir_fd=below)
        os.close(below)
        below = deeper
    os.close(below)
    clear(root.pipe)
    assert list(root.pipe.iterdir()) == []
    assert (tmp_path / "kept" / "file").exists()


async def test_files_of_a_daemon_that_died_are_removed_in_silence(
    mps: FakeMps, root: MpsRoot, control: Control
) -> None:
    """The next daemon starts."""
    first = await control.start(UUIDS[:1])
    assert mps.crash(root.pipe) == first.pid
    assert await first.ended(within=PATIENCE)
    with warnings_told() as told:
        second = await control.start(UUIDS[:1])
    assert second.pid != first.pid
    assert told == []


async def test_a_daemon_that_lives_keeps_its_files(mps: FakeMps, root: MpsRoot, control: Control) -> None:
    """Where a daemon lives that we cannot see, nothing is touched, and the program says why it does not start."""
    daemon = await control.start(UUIDS[:1])
    (root.pipe / "planted").touch()
    with pytest.raises(ControlError, match="already running"):
        await control.start(UUIDS[:1])
    assert (root.pipe / "planted").exists()
    assert mps.pid(root.pipe) == daemon.pid
    await control.probe()


async def test_a_reader_of_the_lock_keeps_nobody_out(mps: FakeMps, root: MpsRoot, control: Control) -> None:
    """A container can share the lock, for which reading is enough; the daemon starts all the same."""
    (root.pipe / "control_lock").touch()
    program = "import fcntl, sys; f = open(sys.argv[1]); fcntl.lockf(f, fcntl.LOCK_SH); print(flush=True); input()"
    with subprocess.Popen(  # noqa: ASYNC220 - it only holds the lock
        [sys.executable, "-c", program, root.pipe / "control_lock"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as reader:
        assert reader.stdout is not None
        reader.stdout.readline()
        with (root.pipe / "control_lock").open("w") as lock, pytest.raises(BlockingIOError):
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        daemon = await control.start(UUIDS[:1])
        assert mps.pid(root.pipe) == daemon.pid
        reader.kill()


async def test_a_directory_that_cannot_be_cleared_is_refused(mps: FakeMps, root: MpsRoot, control: Control) -> None:
    """A pipe directory that is itself a link is refused with its path, and no daemon starts."""
    root.pipe.rmdir()
    root.pipe.symlink_to(root.log)
    with pytest.raises(ControlError, match=f"{root.pipe} cannot be cleared"):
        await control.start(UUIDS[:1])
    assert mps.processes() == []


def test_sockets_work_on_a_mount_that_is_read_only(root: MpsRoot) -> None:
    """A program connects to a socket on a read-only mount, as a container does, and can make nothing there."""
    if subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode:  # noqa: S607
        pytest.skip("making mounts needs a mount namespace of our own, and this user may not have one")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(root.pipe / "control"))
        listener.listen()
        script = READ_ONLY.format(pipe=root.pipe, python=sys.executable)
        with subprocess.Popen(["unshare", "-m", "sh", "-c", script], stdout=subprocess.PIPE, text=True) as program:  # noqa: S607
            listener.settimeout(30)
            connection, _ = listener.accept()
            with connection:
                connection.sendall(b"hello")
            assert program.stdout is not None
            assert program.stdout.read() == "hello\n"
        assert program.returncode == 0
