"""The daemon's own Unix socket, where `gpushare list` asks for the state of the node.

A client that connects gets one document, and then the end. Nothing is read from it, so nothing that it sends can do
harm. The socket is in a directory of its own within the kubelet's plugin directory. That directory exists wherever a
daemon runs, and only one daemon uses it, see PluginDirectory.claim. A kubelet that starts removes the sockets in it,
but no directory.
"""

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import structlog

from gpushare_plugin.foundation.errors import GpushareError
from gpushare_plugin.foundation.reported import Reported

_log = structlog.get_logger()

LOOK_EVERY = 5.0
"""Seconds between looks whether the socket is still there, and between attempts to create it."""
LONGEST_ANSWER = 5.0
"""Seconds that one client may take; the next one waits. The kubelet has 3 s of them to say what pods hold."""
PATIENCE = 15.0
"""Seconds that a client waits for its whole answer: long enough when two others are before it."""
LARGEST_DOCUMENT = 64 << 20
"""Bytes; a node of thousands of containers needs a few hundred thousand."""
_WAITING_CLIENTS = 8

Document = Callable[[], Awaitable[bytes]]


class DaemonSocketError(GpushareError):
    """No daemon answers at its socket; the message says why."""


def socket_path(plugin_directory: Path) -> Path:
    """Return where the daemon that serves this plugin directory of a kubelet has its own socket."""
    return plugin_directory / "gpushare" / "node.sock"


def ask(path: Path, patience: float = PATIENCE) -> bytes:
    """Return the document of the daemon at `path`; raises DaemonSocketError where it is not there in `patience`."""
    try:
        answer = _received(path, time.monotonic() + patience)
    except TimeoutError as error:
        what = f"the daemon at {path} has not answered completely within {patience:g} s"
        raise DaemonSocketError(f"{what}: it hangs or is stopped, see its log and its pod") from error
    except OSError as error:
        raise DaemonSocketError(f"no daemon answers at {path}: {error.strerror or error}") from error
    if not answer:
        raise DaemonSocketError(f"the daemon at {path} closed the connection without an answer; see its log")
    return answer


def _received(path: Path, end: float) -> bytes:
    """Return all that is sent at `path` until `end`, a time of the monotonic clock; raises OSError."""
    answer = bytearray()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_left(end))
        connection.connect(str(path))
        while True:
            connection.settimeout(_left(end))
            data = connection.recv(1 << 16)
            answer += data
            if not data:
                return bytes(answer)
            if len(answer) > LARGEST_DOCUMENT:
                raise DaemonSocketError(f"{path} answers with more than {LARGEST_DOCUMENT} bytes")


def _left(end: float) -> float:
    """Return the seconds until `end`; raises TimeoutError where none are left."""
    if (left := end - time.monotonic()) <= 0:
        raise TimeoutError
    return left


async def serve_document(path: Path, claim: Callable[[], None], document: Document, every: float = LOOK_EVERY) -> None:
    """Answer each client at `path` with `document()`, one after another, until cancelled.

    `claim` is called before the socket is created, and makes sure that no other daemon uses this path; it raises as
    PluginDirectory.claim does. Every `every` seconds, a socket that cannot be created is tried again, and one that was
    removed is made anew.
    """
    troubles = Reported()
    while True:
        try:
            claim()
            with _listening(path) as listener:
                troubles.is_new("socket", None)
                await _answer_clients(listener, path, document, every)
        except OSError as error:
            if troubles.is_new("socket", reason := error.strerror or str(error)):
                _log.warning("own_socket_unavailable", path=str(path), reason=reason, retry_seconds=every)
            await asyncio.sleep(every)


@contextlib.contextmanager
def _listening(path: Path) -> Iterator[socket.socket]:
    """Listen at `path`, for this user only; what a daemon that was killed left there is removed."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.settimeout(0.0)  # asyncio waits for it
        listener.bind(str(path))
        ours = _identity(path)
        try:
            # Nobody can connect before it listens.
            path.chmod(0o600)
            listener.listen(_WAITING_CLIENTS)
            yield listener
        finally:
            if _identity(path) == ours:
                with contextlib.suppress(OSError):
                    path.unlink()
                    path.parent.rmdir()


async def _answer_clients(listener: socket.socket, path: Path, document: Document, every: float) -> None:
    """Answer clients, one after another, for as long as `path` is the socket that it is now."""
    loop, ours = asyncio.get_running_loop(), _identity(path)
    accepting = loop.create_task(loop.sock_accept(listener))
    try:
        while _identity(path) == ours:
            await asyncio.wait({accepting}, timeout=every)
            if accepting.done():
                connection, _ = accepting.result()
                with connection:
                    await _answer(connection, document)
                accepting = loop.create_task(loop.sock_accept(listener))
    finally:
        accepting.cancel()


async def _answer(connection: socket.socket, document: Document) -> None:
    try:
        async with asyncio.timeout(LONGEST_ANSWER):
            await asyncio.get_running_loop().sock_sendall(connection, await document())
    except (OSError, TimeoutError):
        pass  # the client has gone, or does not read
    except Exception:  # noqa: BLE001 - a defect of the document must not keep the next client from an answer
        _log.exception("own_socket_failed", remedy="report this as a defect of gpushare")


def _identity(path: Path) -> tuple[int, int] | None:
    """Return inode and modification time of a socket, since inodes are reused; None where there is none."""
    try:
        status = os.stat(path, follow_symlinks=False)  # noqa: PTH116 - as the link that it may be
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns
