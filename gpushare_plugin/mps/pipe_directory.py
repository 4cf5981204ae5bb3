"""Clears the pipe directory before the control daemon starts: no file of another process may remain.

Fact: version 535 of `nvidia-cuda-mps-control` opens `control_lock` and `log` in the directory by name and follows
links, even when the program only passes a command on. The program locks `control_lock` with fcntl(2), for writing. A
process able to put a link in the directory could thus make this privileged process write to a file or a device of the
host.
"""

import fcntl
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import structlog

from gpushare_plugin.core.namespaces import SERVER

_log = structlog.get_logger()

_LOCK = "control_lock"
_KINDS = {
    SERVER: stat.S_IFDIR,
    "control": stat.S_IFSOCK,
    "control_privileged": stat.S_IFSOCK,
    _LOCK: stat.S_IFREG,
    "log": stat.S_IFIFO,
    "nvidia-cuda-mps-control.pid": stat.S_IFREG,
}
"""The files left by a control daemon after its end, with their types; only newer versions make the first and the last.

The first has the namespaces of the server, by protocol 3.
"""
_MOST_NAMES = 10
"""The most names of files in a log message."""


def clear(pipe: Path) -> None:
    """Remove everything in `pipe` without following links, unless a control daemon uses the directory; raises OSError.

    Files left by a daemon are removed, too: any process able to read the lock file can hold a shared lock, and the next
    daemon could not take the lock.
    """
    with _opened(pipe) as directory:
        if _is_in_use(directory):
            return
        foreign = [name for name in sorted(_names(directory)) if not _is_the_daemons(directory, name)]
        if foreign:
            _log.warning(
                "mps_pipe_directory_cleaned",
                path=str(pipe),
                found=foreign[:_MOST_NAMES],
                count=len(foreign),
            )
        _empty(directory)


@contextmanager
def _opened(path: str | Path, within: int | None = None) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=within)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _names(directory: int) -> list[str]:
    return os.listdir(directory)


def _is_in_use(directory: int) -> bool:
    """Return whether a daemon holds the lock file; processes with read access only cannot lock the file for writing."""
    if not _is_the_daemons(directory, _LOCK):
        return False
    descriptor = os.open(_LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _is_the_daemons(directory: int, name: str) -> bool:
    try:
        return stat.S_IFMT(os.lstat(name, dir_fd=directory).st_mode) == _KINDS.get(name)
    except FileNotFoundError:
        return False


def _empty(directory: int) -> None:
    """Remove everything in `directory`; the content of a subdirectory is first moved up, so no depth is too much."""
    while names := _names(directory):
        for name in names:
            if not stat.S_ISDIR(os.lstat(name, dir_fd=directory).st_mode):
                os.unlink(name, dir_fd=directory)
                continue
            with _opened(name, within=directory) as below:
                for each in _names(below):
                    os.rename(each, secrets.token_hex(16), src_dir_fd=below, dst_dir_fd=directory)
            os.rmdir(name, dir_fd=directory)
