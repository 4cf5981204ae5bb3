"""Tests of `gpushare_plugin.base.files.regular_file`, on what a hostile hand may put in a file's place."""

import gc
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from gpushare_plugin.base.files.regular_file import open_regular, read_regular


def _socket(file: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(file))


def _link(file: Path) -> None:
    target = file.with_name("target")
    target.write_text("content of another file")
    file.symlink_to(target)


def _dangling(file: Path) -> None:
    file.symlink_to(file.with_name("nothing"))


NO_FILES = pytest.mark.parametrize(
    ("make", "words"),
    [
        (os.mkfifo, r"not a regular file \(prw"),
        (Path.mkdir, "[Ii]s a directory"),
        (_socket, "not a regular file"),
        (_link, "is a symbolic link"),
        (_dangling, "is a symbolic link"),
    ],
)


@NO_FILES
@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_RDWR | os.O_CREAT])
def test_a_file_that_is_not_regular_is_not_opened(
    short_path: Path, make: Callable[[Path], None], words: str, flags: int
) -> None:
    """A pipe does not make us wait, a link does not lead us elsewhere, and the error says what was found where."""
    file = short_path / "file"
    make(file)
    with pytest.raises(OSError, match=words) as caught:
        open_regular(file, flags)
    assert caught.value.filename == str(file)
    assert not (short_path / "nothing").exists()


@NO_FILES
def test_a_file_that_is_not_regular_is_not_read(short_path: Path, make: Callable[[Path], None], words: str) -> None:
    """Reading refuses what opening refuses."""
    file = short_path / "file"
    make(file)
    with pytest.raises(OSError, match=words):
        read_regular(file, 10)


def test_reading_a_file_stops_at_the_limit(tmp_path: Path) -> None:
    """A file of a tebibyte costs no more than the limit."""
    file = tmp_path / "file"
    with file.open("wb") as stream:
        stream.truncate(1 << 40)
    assert read_regular(file, 10) == bytes(10)
    file.write_bytes(b"12345")
    assert read_regular(file, 10) == b"12345"
    with pytest.raises(FileNotFoundError):
        read_regular(tmp_path / "none", 10)


def test_links_are_followed_if_the_caller_allows_links(tmp_path: Path) -> None:
    """A ConfigMap mount is made of links; the target of a link must be a regular file all the same."""
    file = tmp_path / "file"
    _link(file)
    assert read_regular(file, 100, follow_links=True) == b"content of another file"
    file.with_name("target").unlink()
    os.mkfifo(file.with_name("target"))
    with pytest.raises(OSError, match="not a regular file"):
        read_regular(file, 100, follow_links=True)


def test_refused_files_leave_no_descriptors(short_path: Path) -> None:
    """A file that was opened to be looked at is closed again."""
    file = short_path / "pipe"
    os.mkfifo(file)
    gc.collect()  # what earlier tests left to be collected is no file of ours
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(100):
        with pytest.raises(OSError, match="not a regular file"):
            read_regular(file, 10)
    assert len(list(Path("/proc/self/fd").iterdir())) <= before
