"""What lies in the pipe directory before the control daemon starts: nothing that another process made.

Fact: version 535 of `nvidia-cuda-mps-control` opens `control_lock` and `log` there by name and follows links, also
when it only passes a command on, and locks the first one with fcntl(2), for writing. So whoever could put a link there
would have this process, which is privileged, write to a file or a device of the host.
"""

import fcntl
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import structlog

_log = structlog.get_logger()

_LOCK = "control_lock"
_KINDS = {
    "control": stat.S_IFSOCK,
    "control_privileged": stat.S_IFSOCK,
    _LOCK: stat.S_IFREG,
    "log": stat.S_IFIFO,
    "nvidia-cuda-mps-control.pid": stat.S_IFREG,
}
"""What control daemons leave when they end; the last one only newer versions make."""
_MOST_NAMES = 10


def clear(pipe: Path) -> None:
    """Take away everything in `pipe`, following no link, unless a control daemon lives there; raises OSError.

    What the daemon leaves goes, too: any process that can read its lock can share it, and then the next daemon cannot
    take it.
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
    """Return whether a daemon has its lock; those who may only read the directory cannot lock it for writing."""
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
    """Remove all in `directory`; what lies deeper is first moved up, so that no depth is too much."""
    while names := _names(directory):
        for name in names:
            if not stat.S_ISDIR(os.lstat(name, dir_fd=directory).st_mode):
                os.unlink(name, dir_fd=directory)
                continue
            with _opened(name, within=directory) as below:
                for each in _names(below):
                    os.rename(each, secrets.token_hex(16), src_dir_fd=below, dst_dir_fd=directory)
            os.rmdir(name, dir_fd=directory)
