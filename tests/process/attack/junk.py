"""What attackers send and leave lying about."""

import contextlib
import errno
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

from gpushare_plugin.testing.nvml import ErrorCode

MANY_BYTES = 32 << 20
"""More than any file that is read may hold."""


def text(draw: Random, length: int = 40) -> str:
    """Return characters of every kind, without those that UTF-8 cannot spell."""
    return "".join(
        chr(draw.choice([draw.randrange(32), draw.randrange(32, 127), draw.randrange(0xA0, 0xD800)]))
        for _ in range(length)
    )


def label(draw: Random) -> str:
    """Return what an API server takes for the value of a label."""
    return "".join(draw.choices("abcABC012-_.", k=draw.randrange(60))).join("xx")


def json(draw: Random) -> bytes:
    """Return JSON, or nearly, of another shape than anybody expects."""
    return draw.choice(
        [
            b"", b"{", b"null", b"[]", b"0", b'""', b"\xff\xfe{}", b'{"Data": null}', b"[" * 100_000, b'{"a":' * 5_000,
            b'{"Data": {"PodDeviceEntries": 7}}',
            b'{"Data": {"PodDeviceEntries": [{"ResourceName": 1, "DeviceIDs": {"-1": [null, {}]}}]}}',
            b'{"Data": {"PodDeviceEntries": [{"DeviceIDs": "GPU-1"}]}, "Checksum": "x"}',
            b'{"version": 1, "gpus": [{"uuid": "\xc3\x28"}]}', b'{"version": 1, "modes": {"GPU-1": -1}}',
            b'{"version": 1e999, "in_force": {"gpus": [{"uuid": "../../etc"}]}}', draw.randbytes(300),
        ]
    )  # fmt: skip


def code(draw: Random) -> int:
    """Return an error of NVML, but the one that says that the driver is another than at the start."""
    return draw.choice([*(set(ErrorCode) - {ErrorCode.LIB_RM_VERSION_MISMATCH}), 12345])


# ---------------------------------------------------------------------- things in place of a file


def _pipe(path: Path, _draw: Random) -> None:
    os.mkfifo(path)


def _directory(path: Path, _draw: Random) -> None:
    path.mkdir()


def _huge(path: Path, _draw: Random) -> None:
    with path.open("wb") as stream:
        stream.truncate(MANY_BYTES)


def _link_to_itself(path: Path, _draw: Random) -> None:
    path.symlink_to(path.name)


def _link_to_endless(path: Path, _draw: Random) -> None:
    path.symlink_to("/dev/zero")


def _dangling_link(path: Path, _draw: Random) -> None:
    path.symlink_to("nowhere")


def _socket(path: Path, _draw: Random) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


def _wrong_words(path: Path, draw: Random) -> None:
    path.write_bytes(json(draw))


def _nothing(_path: Path, _draw: Random) -> None:
    pass


def _unreadable(path: Path, _draw: Random) -> None:
    path.touch(mode=0)


THINGS: tuple[Callable[[Path, Random], None], ...] = (
    _pipe, _directory, _huge, _link_to_itself, _link_to_endless, _dangling_link, _socket, _wrong_words, _wrong_words,
    _wrong_words, _nothing, _unreadable,
)  # fmt: skip


@contextlib.contextmanager
def in_place_of(path: Path, draw: Random) -> Iterator[None]:
    """Have something else where a file is; in the end the file is back, unless its owner has made it anew meanwhile."""
    aside = path.with_name(f"{path.name}.aside")
    thing = draw.choice(THINGS)
    while True:
        with contextlib.suppress(FileNotFoundError):
            path.rename(aside)
        try:
            thing(path, draw)
            break
        except OSError as error:
            # Its owner was quicker and made it anew.
            if error.errno not in {errno.EEXIST, errno.EADDRINUSE}:
                raise
    ours = identity(path)
    try:
        yield
    finally:
        if identity(path) == ours:
            remove(path)
            with contextlib.suppress(FileNotFoundError):
                aside.rename(path)
        else:
            aside.unlink(missing_ok=True)


def identity(path: Path) -> tuple[int, int] | None:
    """Return what tells a file from another one of its name, None for none."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_ctime_ns


def remove(path: Path) -> None:
    """Remove whatever lies there, and never what a link leads to."""
    if path.is_dir() and not path.is_symlink():
        path.rmdir()
    else:
        path.unlink(missing_ok=True)
