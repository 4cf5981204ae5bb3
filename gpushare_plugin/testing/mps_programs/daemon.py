"""The control daemon of the stand-in: its sockets and its end, whatever the protocol, and the commands of protocol 2.

Commands and answers are those of version 535, tried out: most mistakes are passed over in silence, memory limits are
told in whole GB from 1 GB on, and anybody may set them. A connection that does not say what it is for keeps everybody
waiting without limit; while one has commands, another that has some is closed at once.

`connect` and `disconnect` are ours: they let a process use a server, and leave it. A process that connects by itself
(`client.py`) is heard, too.
"""

import contextlib
import fcntl
import json
import os
import select
import socket
import subprocess
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from gpushare_plugin.testing.mps_programs.clients import ConnectedClient, Effective, effective
from gpushare_plugin.testing.mps_programs.wire import (
    CLIENT_HELLO,
    DEVICES_VARIABLE,
    HELLO,
    LARGEST_MESSAGE,
    LOG_PIPE,
    PID_FILE,
    PRIVILEGED_SOCKET,
    SERVER_PROGRAM,
    SOCKET,
    behaviour,
    home,
)

_MOST_PERCENT = 100
_MIB_PER_GIB = 1024


@dataclass(slots=True)
class ServerLimits:
    """Limits of the clients of one server, or the defaults for new ones: MiB by ordinal, and percent of the threads."""

    memory_mib: dict[int, int] = field(default_factory=dict)
    threads: float = float(_MOST_PERCENT)


@dataclass(slots=True)
class Server:
    """A server that runs, and who uses it."""

    process: subprocess.Popen[bytes]
    limits: ServerLimits
    clients: list[int] = field(default_factory=list)


class Daemon:
    """The sockets of a control daemon, whoever speaks there; a protocol is a subclass, which knows servers."""

    def __init__(self, pipe: Path, log: Path, until: float) -> None:
        """Take the pipe directory until a moment of the monotonic clock; raises BlockingIOError when another has it."""
        self._lock = (pipe / "control_lock").open("w")
        fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._pipe = pipe
        self._log = log / "control.log"
        self._devices = os.environ.get(DEVICES_VARIABLE, "0").split(",")
        self._until = until
        self._quit_at: float | None = None
        self._prompt: socket.socket | None = None
        self._connected: dict[socket.socket, ConnectedClient] = {}
        self._listener = listen(pipe / SOCKET)
        self._privileged = listen(pipe / PRIVILEGED_SOCKET)
        (pipe / LOG_PIPE).unlink(missing_ok=True)
        os.mkfifo(pipe / LOG_PIPE)
        (pipe / LOG_PIPE).chmod(0o777)
        self._log_pipe = os.open(pipe / LOG_PIPE, os.O_RDWR)
        (pipe / PID_FILE).write_text(f"{os.getpid()}\n")
        self._note(f"Starting control daemon using socket {pipe / SOCKET}")

    def run(self, look_every: float) -> int:
        """Answer until told to quit, the pipe directory is gone, or time is up; return the exit status."""
        while self._pipe.exists() and time.monotonic() < self._until:
            heard = [*([self._prompt] if self._prompt else []), *self._connected, self._listener, *self._doors()]
            ready, _, _ = select.select(heard, [], [], look_every)
            for each in ready:
                if each is self._prompt:
                    self._hear()
                elif each in self._connected:
                    self._leave(each)
                else:
                    self._accept(each)
            if self._quit_at is not None and (time.monotonic() >= self._quit_at or not self._clients()):
                return self._quit()
        self._end_servers()
        return 1

    def _accept(self, listener: socket.socket) -> None:
        """Hear what a connection is for, as long as that takes: no other connection is served meanwhile."""
        connection, _ = listener.accept()
        self._note("Accepting connection...")
        connection.settimeout(max(0.0, self._until - time.monotonic()))
        with contextlib.suppress(OSError):
            message = connection.recv(LARGEST_MESSAGE)
            if message.startswith(CLIENT_HELLO):
                client = ConnectedClient(**json.loads(message.removeprefix(CLIENT_HELLO)))
                found = self._join(listener, client)
                connection.sendall(json.dumps(found).encode())
                self._connected[connection] = client
                return
            if message != HELLO or listener is not self._listener:
                self._note("User did not send valid credentials")
            elif self._prompt is None:
                self._note("NEW UI")
                self._prompt = connection
                return
        connection.close()

    def _leave(self, connection: socket.socket) -> None:
        """Forget a client whose connection has ended."""
        connection.close()
        self._part(self._connected.pop(connection))

    def _hear(self) -> None:
        """Answer one command; the answer to `quit` comes when all is done."""
        assert self._prompt is not None  # noqa: S101 - it has something to say
        with contextlib.suppress(ConnectionError):
            if message := self._prompt.recv(LARGEST_MESSAGE):
                status, answer = self._answer(message.decode(errors="replace").split())
                if self._quit_at is None:
                    self._prompt.sendall(f"{status}\n{answer}".encode())
                return
        self._prompt.close()
        self._prompt = None
        self._note("UI closed")

    def _quit(self) -> int:
        status = 1 if self._clients() else 0
        self._end_servers()
        (self._pipe / PID_FILE).unlink()
        self._note(f"Exit with status {status}")
        if self._prompt is not None:
            # Whoever asked may have gone.
            with self._prompt, contextlib.suppress(ConnectionError):
                self._prompt.sendall(f"{status}\n".encode())
        return status

    def _note(self, text: str) -> None:
        now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
        with self._log.open("a") as stream:
            stream.write(f"[{now} Control {os.getpid():5}] {text}\n")

    # ------------------------------------------------------------------ what a protocol says

    def _doors(self) -> list[socket.socket]:
        """Return the sockets for clients, apart from the first one."""
        return []

    def _join(self, listener: socket.socket, client: ConnectedClient) -> Effective:
        """Let a client use the server behind a socket; return its limits."""
        raise NotImplementedError

    def _part(self, client: ConnectedClient) -> None:
        """Let a client leave its server."""
        raise NotImplementedError

    def _answer(self, words: list[str]) -> tuple[int, str]:
        """Return the exit status and the answer to a command."""
        raise NotImplementedError

    def _clients(self) -> int:
        """Return how many clients there are."""
        raise NotImplementedError

    def _end_servers(self) -> None:
        """End all servers."""
        raise NotImplementedError


class LegacyDaemon(Daemon):
    """A control daemon that speaks protocol 2."""

    def __init__(self, pipe: Path, log: Path, until: float) -> None:
        """Have no servers yet."""
        self._defaults = ServerLimits()
        self._servers: dict[int, Server] = {}
        super().__init__(pipe, log, until)

    def _join(self, listener: socket.socket, client: ConnectedClient) -> Effective:  # noqa: ARG002 - there is one socket
        """Start a server for the first client; a server's limits are those of its GPUs, by number."""
        if not self._living():
            self._do_start_server("-uid", "0")
        server = self._servers[self._living()[0]]
        server.clients.append(client.pid)
        numbers = {uuid: number for number, uuid in enumerate(self._devices)}
        limits = {uuid: server.limits.memory_mib.get(numbers.get(uuid, -1)) for uuid in client.devices}
        return effective(client, limits, server.limits.threads)

    def _part(self, client: ConnectedClient) -> None:
        for server in self._servers.values():
            if client.pid in server.clients:
                server.clients.remove(client.pid)

    def _answer(self, words: list[str]) -> tuple[int, str]:
        self._note(f"Cmd:{' '.join(words)}")
        name, *arguments = words
        if behaviour(home(), "ignored") == name:
            return 0, ""
        method = getattr(self, f"_do_{name}", None)
        try:
            answer = f'Unknown command "{name}"' if method is None else str(method(*arguments))
        except (ValueError, TypeError):
            answer = ""
        except KeyError as error:
            answer = f"Server {error.args[0]} not found"
        if answer:
            self._note(answer)
        return 0, answer

    # ------------------------------------------------------------------ commands

    def _do_get_server_list(self) -> str:
        return "\n".join(map(str, self._living()))

    def _do_start_server(self, _option: str, user: str) -> str:
        process = subprocess.Popen([SERVER_PROGRAM])  # noqa: S603 - the stand-in itself, from PATH
        limits = ServerLimits(dict(self._defaults.memory_mib), self._defaults.threads)
        self._servers[process.pid] = Server(process, limits)
        self._note(f"Starting new server {process.pid} for user {user}")
        return ""

    def _do_get_client_list(self, server: str) -> str:
        return "\n".join(map(str, self._server(server).clients))

    def _do_connect(self, server: str, client: str) -> str:
        self._server(server).clients.append(int(client))
        return ""

    def _do_disconnect(self, server: str, client: str) -> str:
        self._server(server).clients.remove(int(client))
        return ""

    def _do_set_default_active_thread_percentage(self, percentage: str) -> str:
        return _limit_threads(self._defaults, percentage)

    def _do_get_default_active_thread_percentage(self) -> str:
        return str(self._defaults.threads)

    def _do_set_active_thread_percentage(self, server: str, percentage: str) -> str:
        return _limit_threads(self._server(server).limits, percentage)

    def _do_get_active_thread_percentage(self, server: str) -> str:
        return str(self._server(server).limits.threads)

    def _do_set_default_device_pinned_mem_limit(self, device: str, limit: str) -> str:
        return self._limit_memory(self._defaults, device, limit)

    def _do_get_default_device_pinned_mem_limit(self, device: str) -> str:
        return _told(self._defaults, device)

    def _do_set_device_pinned_mem_limit(self, server: str, device: str, limit: str) -> str:
        return self._limit_memory(self._server(server).limits, device, limit)

    def _do_get_device_pinned_mem_limit(self, server: str, device: str) -> str:
        return _told(self._server(server).limits, device)

    def _do_quit(self, _option: str = "", seconds: str = "inf") -> str:
        self._quit_at = time.monotonic() + float(seconds)
        return ""

    # ------------------------------------------------------------------ what they need

    def _living(self) -> list[int]:
        return [pid for pid, server in self._servers.items() if server.process.poll() is None]

    def _server(self, pid: str) -> Server:
        if int(pid) not in self._living():
            raise KeyError(pid)
        return self._servers[int(pid)]

    def _clients(self) -> int:
        return sum(len(self._servers[pid].clients) for pid in self._living())

    def _limit_memory(self, limits: ServerLimits, device: str, limit: str) -> str:
        ordinal, amount = int(device), int(limit[:-1]) * (_MIB_PER_GIB if limit[-1] == "G" else 1)
        if ordinal < len(self._devices) and amount:
            limits.memory_mib[ordinal] = amount
        else:
            limits.memory_mib.pop(ordinal, None)
        return ""

    def _end_servers(self) -> None:
        for server in self._servers.values():
            server.process.kill()
            server.process.wait()


def _limit_threads(limits: ServerLimits, percentage: str) -> str:
    if 0 < float(percentage) <= _MOST_PERCENT:
        limits.threads = float(percentage)
    return str(limits.threads)


def _told(limits: ServerLimits, device: str) -> str:
    amount = limits.memory_mib.get(int(device))
    if amount is None:
        return ""
    return f"{amount}M" if amount < _MIB_PER_GIB else f"{amount // _MIB_PER_GIB}G"


def listen(path: Path) -> socket.socket:
    """Return a socket that listens at a path, in place of one left there."""
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(path))
    listener.listen()
    return listener
