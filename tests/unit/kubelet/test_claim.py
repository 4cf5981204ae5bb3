"""Tests of `gpushare_plugin.kubelet.device_plugin.directory`, with processes that really compete."""

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare_plugin.kubelet.device_plugin.directory import LOCK_FILE, AlreadyServedError, claim
from tests.waiting import PATIENCE

NOBODY = 65534

HOLD = """
import sys
from pathlib import Path
from gpushare_plugin.kubelet.device_plugin.directory import claim
held = claim(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.readline()
print("stands" if held.stands else "lost", flush=True)
"""
TRY = """
import sys
from pathlib import Path
from gpushare_plugin.kubelet.device_plugin.directory import AlreadyServedError, claim
try:
    claim(Path(sys.argv[1])).close()
except AlreadyServedError as error:
    sys.exit(f"refused: {error}")
"""
WAIT = "import sys; print('running', flush=True); sys.stdin.readline()"


@contextlib.contextmanager
def child(program: str, *arguments: str, close_fds: bool = True) -> Iterator[subprocess.Popen[str]]:
    """Run a Python program that has printed its first line."""
    with subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        close_fds=close_fds,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        try:
            yield process
        finally:
            process.kill()


def attempt(directory: Path) -> subprocess.CompletedProcess[str]:
    """Let another process claim the directory for a moment."""
    return subprocess.run(
        [sys.executable, "-c", TRY, str(directory)], capture_output=True, text=True, check=False, timeout=PATIENCE
    )


@contextlib.contextmanager
def unprivileged() -> Iterator[None]:
    """Be somebody to whom the permissions of files mean something."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def is_free(directory: Path) -> bool:
    """Return whether the directory can be claimed."""
    try:
        claim(directory).close()
    except AlreadyServedError:
        return False
    return True


@pytest.fixture
def open_path(short_path: Path) -> Path:
    """Make a directory that everybody may write to, however the one around it is closed."""
    short_path.chmod(0o777)
    return short_path


def test_a_second_process_is_refused_and_the_first_unharmed(short_path: Path) -> None:
    """The refusal names the directory, the process that has it, and what to do; the first one keeps its claim."""
    with child(HOLD, str(short_path)) as first:
        second = attempt(short_path)
        assert second.returncode == 1
        assert second.stderr.startswith(f"refused: another gpushare (process {first.pid} on {os.uname().nodename}) ")
        assert str(short_path) in second.stderr
        assert "stop it first" in second.stderr
        assert "rolling update" in second.stderr
        assert first.communicate("go on\n", timeout=PATIENCE)[0] == "stands\n"
    assert attempt(short_path).returncode == 0


def test_a_killed_process_frees_the_directory(short_path: Path) -> None:
    """After SIGKILL the next one need not wait or clean up, and what the dead one wrote is no obstacle."""
    with child(HOLD, str(short_path)) as first:
        assert not is_free(short_path)
        first.kill()
        first.wait(PATIENCE)
        assert (short_path / LOCK_FILE).read_text().startswith(f"{first.pid}\n")
        with claim(short_path) as next_one:
            assert next_one.stands
            assert (short_path / LOCK_FILE).read_text().startswith(f"{os.getpid()}\n")


@pytest.mark.parametrize("content", [b"", b"4194304\nelsewhere\n", b"\xff\xfe", b"1\n2\n3\n", b"x" * 100_000])
def test_a_stale_file_is_no_obstacle(short_path: Path, content: bytes) -> None:
    """Only the lock counts, not that the file is there or what is in it."""
    (short_path / LOCK_FILE).write_bytes(content)
    with claim(short_path):
        assert (short_path / LOCK_FILE).read_text() == f"{os.getpid()}\n{os.uname().nodename}\n"


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"12", b"me\nhere\n", b"1\n\x1b[31m\n"])
def test_an_unreadable_signature_is_left_out(short_path: Path, content: bytes) -> None:
    """The refusal is clear, and prints no rubbish, when the file does not tell who has the directory."""
    with claim(short_path):
        (short_path / LOCK_FILE).write_bytes(content)
        with pytest.raises(AlreadyServedError, match=rf"^another gpushare serves {short_path}, "):
            claim(short_path)


def test_a_process_cannot_claim_a_directory_twice(short_path: Path) -> None:
    """Two parts of one process, in one thread or two, are as good as two processes."""
    answers: list[bool] = []
    with claim(short_path) as held:
        assert not is_free(short_path)
        thread = threading.Thread(target=lambda: answers.append(is_free(short_path)))
        thread.start()
        thread.join()
        assert held.stands
    assert answers == [False]
    assert is_free(short_path)


def test_programs_do_not_inherit_the_claim(short_path: Path) -> None:
    """A program started while we hold the claim does not hold it when we are gone."""
    held = claim(short_path)
    with child(WAIT, close_fds=False) as program:
        descriptors = Path(f"/proc/{program.pid}/fd").iterdir()
        assert str(short_path / LOCK_FILE) not in {str(each.readlink()) for each in descriptors}
        held.close()
        assert is_free(short_path)


def test_a_forked_child_does_not_keep_the_directory(short_path: Path) -> None:
    """A child that is a copy of this process has the descriptor, but what we give up is free."""
    reading, writing = os.pipe()
    held = claim(short_path)
    process = os.fork()
    if process == 0:
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    os.close(reading)
    try:
        assert not is_free(short_path)
        held.close()
        assert is_free(short_path)
    finally:
        os.close(writing)
        os.waitpid(process, 0)


def test_a_claim_ends_once_and_leaves_the_file(short_path: Path) -> None:
    """Closing twice is harmless, also for the claim of somebody else that came between."""
    first = claim(short_path)
    first.close()
    assert not first.stands
    with claim(short_path) as second:
        first.close()
        assert second.stands
        assert not is_free(short_path)
    assert [path.name for path in short_path.iterdir()] == [LOCK_FILE]


def test_a_directory_made_anew_is_another(short_path: Path) -> None:
    """A claim does not stand on a directory that was removed, or removed and made again; the new one can be claimed."""
    directory = short_path / "device-plugins"
    directory.mkdir()
    with claim(directory) as old:
        (directory / LOCK_FILE).unlink()
        directory.rmdir()
        assert not old.stands
        directory.mkdir()
        with claim(directory) as new:
            assert new.stands
            assert not old.stands


def test_a_missing_directory_is_an_error_of_the_system(short_path: Path) -> None:
    """No directory is not a second daemon; nothing is made in its place."""
    with pytest.raises(FileNotFoundError):
        claim(short_path / "missing")
    assert not (short_path / "missing").exists()


def test_a_read_only_directory_is_an_error_of_the_system(open_path: Path) -> None:
    """Nothing can be served where no socket can be made, so nothing is claimed, whether the file is there or not."""
    file = open_path / LOCK_FILE
    with unprivileged():
        file.touch(0o400)
    open_path.chmod(0o555)
    with unprivileged(), pytest.raises(PermissionError):
        claim(open_path)
    open_path.chmod(0o777)
    file.unlink()
    open_path.chmod(0o555)
    with unprivileged(), pytest.raises(PermissionError):
        claim(open_path)


def test_claims_leave_no_descriptors(short_path: Path) -> None:
    """Claims taken, refused and given up leave no file of theirs open; what other tests leave is not counted."""
    for _ in range(100):
        with claim(short_path):
            assert not is_free(short_path)
            assert [path.parent for path in open_files() if path.is_relative_to(short_path)] == [short_path]
    assert [path for path in open_files() if path.is_relative_to(short_path)] == []


def open_files() -> list[Path]:
    """Return what the descriptors of this process stand for."""
    files = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # closed since, such as the one that listed them
            files.append(descriptor.readlink())
    return files
