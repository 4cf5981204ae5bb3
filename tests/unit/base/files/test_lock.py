"""Tests of `base.files.lock`; more of what it promises is tested in `unit/kubelet/test_claim.py`."""

import fcntl
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from gpushare_plugin.base.files.lock import LockedError, is_locked, lock


def test_a_held_lock_is_seen_by_others(short_path: Path) -> None:
    """Whether a lock is held can be asked at any time: that disturbs nobody, and needs no file to be there."""
    file = short_path / "lock"
    assert not is_locked(file)
    assert not file.exists()
    with lock(file) as held:
        assert is_locked(file)
        assert is_locked(file)
        assert held.stands
    assert not is_locked(file)
    with lock(file):
        assert is_locked(file)


def test_a_refusal_names_the_holder(short_path: Path) -> None:
    """Whoever comes second hears which file, and who has it."""
    file = short_path / "lock"
    with lock(file), pytest.raises(LockedError, match=f"process {os.getpid()} on ") as caught:
        lock(file)
    assert str(file) in str(caught.value)
    assert caught.value.holder.startswith(" (process ")


def test_a_lock_whose_path_leads_through_a_file_is_an_error(short_path: Path) -> None:
    """A path through a file is an error of the system, not a lock that is free."""
    (short_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        is_locked(short_path / "file" / "lock")


def test_a_look_at_a_lock_never_hinders_who_takes_the_lock(short_path: Path) -> None:
    """However often others look whether it is held, whoever takes the lock gets it at the first attempt."""
    file = short_path / "lock"
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            is_locked(file)

    looking = threading.Thread(target=look)
    looking.start()
    try:
        for _ in range(500):
            lock(file).close()
    finally:
        over.set()
        looking.join()


def _link(file: Path, target: Path) -> None:
    file.symlink_to(target)


def _hard_link(file: Path, target: Path) -> None:
    file.hardlink_to(target)


@pytest.mark.parametrize("make", [_link, _hard_link])
def test_a_link_in_place_of_the_lock_file_leaves_its_target_unchanged(
    short_path: Path, make: Callable[[Path, Path], None]
) -> None:
    """The file that the link leads to is neither cut nor signed; the error names the link."""
    target, file = short_path / "target", short_path / "lock"
    target.write_text("precious")
    make(file, target)
    with pytest.raises(OSError, match="link") as caught:
        lock(file)
    assert caught.value.filename == str(file)
    assert target.read_text() == "precious"


def test_a_dangling_link_in_place_of_the_lock_file_makes_no_file(short_path: Path) -> None:
    """Nothing is made where the link leads."""
    (short_path / "lock").symlink_to(short_path / "target")
    with pytest.raises(OSError, match="is a symbolic link"):
        lock(short_path / "lock")
    assert not (short_path / "target").exists()


def test_a_pipe_in_place_of_the_lock_file_holds_nobody_up(short_path: Path) -> None:
    """Locking and looking do not wait for somebody at the other end."""
    os.mkfifo(short_path / "lock")
    with pytest.raises(OSError, match="not a regular file"):
        lock(short_path / "lock")
    with pytest.raises(OSError, match="not a regular file"):
        is_locked(short_path / "lock")


def test_a_reader_of_the_file_cannot_lock_it(short_path: Path) -> None:
    """Who can only read the file cannot keep others from the lock for good: that takes the right to write."""
    file = short_path / "lock"
    file.touch()
    with file.open() as reader:
        fcntl.flock(reader, fcntl.LOCK_EX)
        with lock(file) as held:
            assert held.stands
