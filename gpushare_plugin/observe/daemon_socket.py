"""The daemon's own Unix socket, where `gpushare list` asks for the state of the node.

A connected client gets one document, and then the end of the connection. The daemon reads nothing from the client, so
nothing sent by the client can do harm. The socket is in a directory of its own within the kubelet's plugin directory.
The plugin directory exists wherever a daemon runs, and only one daemon uses the plugin directory, see
PluginDirectory.claim. A starting kubelet removes sockets from the plugin directory, but no directory.
"""

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import structlog

from gpushare_plugin.base.errors import GpushareError
from gpushare_plugin.base.reported import Reported

_log = structlog.get_logger()

LOOK_EVERY = 5.0
"""Seconds between two checks that the socket still exists, and between two attempts to create the socket."""
LONGEST_ANSWER = 5.0
"""Seconds that an answer may take while the next client waits; the kubelet has 3 s of the time to report holdings."""
PATIENCE = 15.0
"""Seconds that a client waits for the whole answer: long enough behind two earlier clients."""
LARGEST_DOCUMENT = 64 << 20
"""The most bytes of a document; a node with thousands of containers needs a few hundred thousand."""
_WAITING_CLIENTS = 8

Document = Callable[[], Awaitable[bytes]]
"""Returns the document for a client."""


class DaemonSocketError(GpushareError):
    """No daemon answers at the socket; the message says why."""


def socket_path(plugin_directory: Path) -> Path:
    """Return the path of the daemon's own socket, for the kubelet's plugin directory `plugin_directory`."""
    return plugin_directory / "gpushare" / "node.sock"


def ask(path: Path, patience: float = PATIENCE) -> bytes:
    """Return the document of the daemon at `path`.

    Raises DaemonSocketError if no daemon answers, or the whole document has not arrived within `patience` seconds.
    """
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
    """Return everything sent at `path` until `end`, a time of the monotonic clock; raises OSError."""
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
    """Return the seconds until `end`; raises TimeoutError if `end` has passed."""
    if (left := end - time.monotonic()) <= 0:
        raise TimeoutError
    return left


async def serve_document(path: Path, claim: Callable[[], None], document: Document, every: float = LOOK_EVERY) -> None:
    """Answer every client at `path` with `document()`, one client after another, until cancelled.

    `claim` is called before the socket is created, and makes sure that no second daemon uses `path`; the function
    raises the errors of PluginDirectory.claim. Every `every` seconds, a failed creation of the socket is tried again,
    and a removed socket is created anew.
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
    """Listen at `path`, for the user of this process only; a socket left by a killed daemon is removed first."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.settimeout(0.0)  # non-blocking, as asyncio requires
        listener.bind(str(path))
        ours = _identity(path)
        try:
            # No client can connect before the socket listens.
            path.chmod(0o600)
            listener.listen(_WAITING_CLIENTS)
            yield listener
        finally:
            if _identity(path) == ours:
                with contextlib.suppress(OSError):
                    path.unlink()
                    path.parent.rmdir()


async def _answer_clients(listener: socket.socket, path: Path, document: Document, every: float) -> None:
    """Answer clients, one after another, for as long as the socket at `path` stays the same."""
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
    except Exception:  # noqa: BLE001 - after a defect of the document, the next client still gets an answer
        _log.exception("own_socket_failed", remedy="report this as a defect of gpushare")


def _identity(path: Path) -> tuple[int, int] | None:
    """Return inode and modification time of a socket (inodes are reused); None without a socket."""
    try:
        status = os.stat(path, follow_symlinks=False)  # noqa: PTH116 - no link is followed
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns
