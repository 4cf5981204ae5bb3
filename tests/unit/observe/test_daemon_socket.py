"""Tests of `gpushare_plugin.observe.daemon_socket`, over real sockets."""

import asyncio
import contextlib
import socket
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpushare_plugin.observe.daemon_socket import (
    LARGEST_DOCUMENT,
    LONGEST_ANSWER,
    PATIENCE,
    DaemonSocketError,
    Document,
    ask,
    serve_document,
    socket_path,
)
from tests.waiting import until


class Daemon:
    """What a daemon says, and whether it may serve its directory."""

    def __init__(self, path: Path) -> None:
        """Say something short."""
        self.path = path
        self.text = b"a document"
        self.claimed: Exception | None = None
        self.claims = 0

    def claim(self) -> None:
        """Claim the directory."""
        self.claims += 1
        if self.claimed is not None:
            raise self.claimed

    async def document(self) -> bytes:
        """Say it."""
        return self.text

    async def answer(self) -> bytes:
        """Ask as `gpushare list` does."""
        return await asyncio.to_thread(ask, self.path)


@pytest.fixture
def path(short_path: Path) -> Path:
    """Return where a daemon has its socket, in a plugin directory that there is."""
    return socket_path(short_path)


@contextlib.asynccontextmanager
async def serving(daemon: Daemon, document: Document | None = None) -> AsyncIterator[None]:
    """Serve, and wait until somebody can ask."""
    task = asyncio.create_task(serve_document(daemon.path, daemon.claim, document or daemon.document))
    try:
        await until(lambda: daemon.path.is_socket() and connectable(daemon.path))
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


def connectable(path: Path) -> bool:
    """Return whether somebody listens."""
    with socket.socket(socket.AF_UNIX) as client, contextlib.suppress(OSError):
        client.connect(str(path))
        return True
    return False


async def test_every_client_gets_the_whole_document(path: Path) -> None:
    """Also a long one, and each the newest; nobody else on the node may ask."""
    daemon = Daemon(path)
    async with serving(daemon):
        assert await daemon.answer() == b"a document"
        daemon.text = b"another " * 1_000_000
        assert await asyncio.gather(*(daemon.answer() for _ in range(4))) == [daemon.text] * 4
        assert modes(path) == (0o600, 0o700)
    assert left(path) == []


def modes(path: Path) -> tuple[int, int]:
    """Return who may use a socket and its directory."""
    return stat.S_IMODE(path.stat().st_mode), stat.S_IMODE(path.parent.stat().st_mode)


def remove(path: Path) -> None:
    """Remove a socket."""
    path.unlink()


def left(path: Path) -> list[Path]:
    """Return what is in the plugin directory."""
    return list(path.parent.parent.iterdir())


async def test_clients_that_send_or_leave_change_nothing(path: Path) -> None:
    """What a client sends is not read, and one that has gone does not keep the next one from its answer."""
    daemon = Daemon(path)
    daemon.text = b"x" * 1_000_000
    async with serving(daemon):
        for _ in range(3):
            _, writer = await asyncio.open_unix_connection(path)
            writer.write(b"GET / HTTP/1.1\r\n\r\n\x00\xff" * 1000)
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
        assert await daemon.answer() == daemon.text


async def test_a_document_that_fails_is_one_clients_loss(path: Path) -> None:
    """A defect is logged; that client gets nothing, the next one is answered."""
    daemon = Daemon(path)
    failing = True

    async def document() -> bytes:
        if failing:
            raise ZeroDivisionError
        return b"well"

    async with serving(daemon, document):
        with pytest.raises(DaemonSocketError, match="closed the connection without an answer"):
            await daemon.answer()
        failing = False
        assert await daemon.answer() == b"well"


async def test_the_socket_of_a_daemon_that_was_killed_is_replaced(path: Path) -> None:
    """It is in the way of none, and a daemon that ends leaves the socket of its successor alone."""
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with pytest.raises(DaemonSocketError, match=f"no daemon answers at {path}: Connection refused"):
        ask(path)
    first = Daemon(path)
    async with serving(first):
        assert await first.answer() == b"a document"
        remove(path)
        successor = await asyncio.start_unix_server(lambda _reader, writer: writer.close(), path)
    assert connectable(path)
    successor.close()


async def test_a_directory_that_cannot_be_used_is_tried_again(path: Path) -> None:
    """Without a claim no socket is made, so that another daemon's stays; once there is one, there is a socket."""
    daemon = Daemon(path)
    daemon.claimed = FileNotFoundError(2, "No such file or directory")
    task = asyncio.create_task(serve_document(path, daemon.claim, daemon.document, every=0.01))
    await until(lambda: daemon.claims > 2)
    assert not path.parent.exists()
    daemon.claimed = None
    await until(path.is_socket)
    assert await daemon.answer() == b"a document"
    task.cancel()
    await asyncio.wait([task])


def test_a_missing_daemon_is_told_with_the_reason(path: Path) -> None:
    """No file, a directory, and a path that is too long for a socket."""
    for where, why in (
        (path, "No such file or directory"),
        (path.parent.parent, "Connection refused"),
        (path / ("x" * 120), "AF_UNIX path too long"),
    ):
        with pytest.raises(DaemonSocketError, match=why):
            ask(where)


async def test_an_endless_answer_is_not_read_to_its_end(path: Path) -> None:
    """Whatever listens there cannot fill the memory of `gpushare list`."""
    path.parent.mkdir()

    ended = asyncio.Event()

    async def flood(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while True:
                writer.write(bytes(1 << 20))
                await writer.drain()
        writer.transport.abort()
        ended.set()

    async with await asyncio.start_unix_server(flood, path):
        with pytest.raises(DaemonSocketError, match=f"more than {LARGEST_DOCUMENT} bytes"):
            await asyncio.to_thread(ask, path)
        await ended.wait()


async def test_an_answer_that_trickles_in_ends_all_the_same(path: Path) -> None:
    """The time is that of the whole answer, not of each byte; it is longer than another client may take."""
    path.parent.mkdir()
    ended = asyncio.Event()

    async def trickle(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while True:
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(0.01)
        writer.transport.abort()
        ended.set()

    async with await asyncio.start_unix_server(trickle, path):
        with pytest.raises(DaemonSocketError, match=r"has not answered completely within 0\.2 s"):
            await asyncio.to_thread(ask, path, patience=0.2)
        await ended.wait()
    assert PATIENCE > 2 * LONGEST_ANSWER


async def test_a_daemon_that_is_stopped_is_not_waited_for(path: Path) -> None:
    """A process that listens and never answers is told from one that is not there, and the rest is named."""
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as stopped:
        stopped.bind(str(path))
        stopped.listen()
        with pytest.raises(DaemonSocketError, match=f"the daemon at {path} has not answered completely within"):
            await asyncio.to_thread(ask, path, patience=0.05)
