"""The control daemon of the stand-in with protocol 3; each rule names the document that it comes from.

[I] NVIDIA, "Multi-Process Service" r615, MPS v3 Interface (mpsv3-interface). [N] the same, MPS v3 Namespaces
(mpsv3-namespaces). [D] documentation of NVIDIA Dynamo, "Per-GPU Compute and Memory Limits with MPS", which was measured
with driver 615. Nothing of this was seen on a card by gpushare. What no document says, such as the words of errors, and
that a failed command has another exit status than 0, is a guess.
"""

import os
import re
import socket
import subprocess
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpushare_plugin.testing.mps_programs.clients import ConnectedClient, Effective, amount_mib, effective
from gpushare_plugin.testing.mps_programs.daemon import Daemon, listen
from gpushare_plugin.testing.mps_programs.wire import SERVER_PROGRAM, SOCKET, behaviour, home

_NAME = re.compile(r"[a-z0-9_]{1,64}")
"""Lower case, digits and underscores, up to 64 characters [I]."""
_DEFAULT = "default"
"""The namespace that every server has [N]."""
_UNSET = "-"
_MIB_PER_GIB = 1024


class _RefusedError(Exception):
    """A command that cannot be carried out."""


@dataclass(slots=True)
class ServerNamespace:
    """A namespace: its limits on each GPU, its socket, and its clients."""

    directory: Path
    door: socket.socket
    memory_mib: int | None = None
    threads: float | None = None
    priority: int = 0
    clients: list[ConnectedClient] = field(default_factory=list)


@dataclass(slots=True)
class NamedServer:
    """A server with a name, its process, the socket of its default namespace, and its namespaces."""

    process: subprocess.Popen[bytes]
    directory: Path
    door: socket.socket
    namespaces: dict[str, ServerNamespace] = field(default_factory=dict)

    @property
    def clients(self) -> list[tuple[str, ConnectedClient]]:
        """The clients, each with the name of the namespace."""
        return [(name, each) for name, namespace in self.namespaces.items() for each in namespace.clients]


class NamespaceDaemon(Daemon):
    """A control daemon that speaks protocol 3: named servers, and namespaces in them."""

    def __init__(self, pipe: Path, log: Path, until: float) -> None:
        """Have no servers yet."""
        self._servers: dict[str, NamedServer] = {}
        super().__init__(pipe, log, until)

    # ------------------------------------------------------------------ clients

    def _doors(self) -> list[socket.socket]:
        doors = []
        for server in self._living().values():
            doors += [server.door, *(each.door for each in server.namespaces.values())]
        return doors

    def _join(self, listener: socket.socket, client: ConnectedClient) -> Effective:
        """Let a client use the namespace of its socket: of a server, the default one [N]; of the daemon, no limit.

        A namespace without limits has none, whatever those of the server are, and a namespace may exceed them [D]: the
        limits of a server are those of its default namespace [I].
        """
        found = self._behind(listener)
        if found is None:
            return effective(client, {}, 100.0)
        found.clients.append(client)
        memory: dict[str, int | None] = dict.fromkeys(client.devices, found.memory_mib)  # on each GPU [D]
        return effective(client, memory, 100.0 if found.threads is None else found.threads)

    def _behind(self, listener: socket.socket) -> ServerNamespace | None:
        for server in self._servers.values():
            if listener is server.door:
                return server.namespaces[_DEFAULT]
            for each in server.namespaces.values():
                if listener is each.door:
                    return each
        return None

    def _part(self, client: ConnectedClient) -> None:
        for server in self._servers.values():
            for namespace in server.namespaces.values():
                if client in namespace.clients:
                    namespace.clients.remove(client)

    def _clients(self) -> int:
        return sum(len(server.clients) for server in self._living().values())

    def _end_servers(self) -> None:
        for server in self._servers.values():
            _end(server)

    def _living(self) -> dict[str, NamedServer]:
        """Return the servers without those that have ended, as the list does [D]."""
        for name in [name for name, server in self._servers.items() if server.process.poll() is not None]:
            self._note(f"Server {name} exited")
            _end(self._servers.pop(name))
        return self._servers

    # ------------------------------------------------------------------ commands

    def _answer(self, words: list[str]) -> tuple[int, str]:
        """Carry out `<module> <verb> [positional-args] [--key=value] [--flag]` [I]; `quit` stands for `-q` [I]."""
        self._note(f"Cmd:{' '.join(words)}")
        if words == ["quit"]:
            self._quit_at = 0.0
            return 0, ""
        if (behaviour(home(), "ignored") or "\n") in " ".join(words):
            return 0, ""
        try:
            return 0, self._carried_out(words)
        except (_RefusedError, ValueError, TypeError) as error:
            self._note(answer := f"error: {error}")
            return 1, answer

    def _carried_out(self, words: Sequence[str]) -> str:
        module, verb, *rest = [*words[:2], *[""] * (2 - len(words)), *words[2:]]
        method: Callable[..., str] | None = getattr(self, f"_{module}_{verb}".replace("-", "_"), None)
        if not (module and verb) or method is None or module not in {"server", "namespace", "client", "feature"}:
            raise _RefusedError(f"unknown command {' '.join(words)!r}")
        keys = dict(word.removeprefix("--").partition("=")[::2] for word in rest if word.startswith("--"))
        named = {name.replace("-", "_"): value for name, value in keys.items()}
        return method(*[word for word in rest if not word.startswith("--")], **named)

    def _server_create(self, name: str, uid: str = "", allowed_devices: str = "") -> str:
        """Start a server; one whose GPU does not exist is accepted, and ends at once [D]."""
        _refuse_name(name)
        if name in self._living():
            raise _RefusedError(f"server {name} exists")
        directory = self._pipe / name
        directory.mkdir()
        process = subprocess.Popen([SERVER_PROGRAM])  # noqa: S603 - the stand-in itself, from PATH
        server = NamedServer(process, directory, listen(directory / SOCKET))
        self._servers[name] = server
        self._add(server, _DEFAULT)
        if unknown := set(filter(None, allowed_devices.split(","))) - set(self._devices):
            self._note(f"no CUDA-capable device is detected: {', '.join(sorted(unknown))}")
            process.kill()
            process.wait()
        self._note(f"Starting new server {name} for user {uid or os.getuid()}")
        return ""

    def _server_delete(self, name: str, force: str | None = None) -> str:
        """Without --force, refused while there are clients [I]."""
        server = self._server(name)
        if server.clients and force is None:
            raise _RefusedError(f"server {name} has active clients")
        _end(self._servers.pop(name))
        return ""

    def _server_list(self, name: str = "", format: str = "table") -> str:  # noqa: A002 - the name of the option
        """Columns: name, uid, pid, status, pipe-directory, allowed-devices, context-ids [I]."""
        rows = [
            (each, os.getuid(), server.process.pid, "Ready", server.directory, _UNSET, _UNSET)
            for each, server in self._living().items()
            if name in {"", each}
        ]
        return _table(format, "NAME UID PID STATUS PIPE-DIRECTORY ALLOWED-DEVICES CONTEXT-IDS", rows)

    def _server_set(self, name: str, **limits: str) -> str:
        return self._limit(self._server(name).namespaces[_DEFAULT], **limits)

    def _namespace_create(self, name: str, server: str) -> str:
        _refuse_name(name)
        into = self._server(server)
        if name in into.namespaces:
            raise _RefusedError(f"namespace {name} exists")
        self._add(into, name)
        return ""

    def _namespace_delete(self, name: str, server: str, force: str | None = None) -> str:
        """--force allows it with active clients [I]; without, it is taken to be refused then."""
        namespace = self._namespace(name, server)
        if namespace.clients and force is None:
            raise _RefusedError(f"namespace {name} has active clients")
        _close(self._server(server).namespaces.pop(name))
        return ""

    def _namespace_list(self, name: str = "", server: str = "", format: str = "table") -> str:  # noqa: A002 - as above
        """Columns: name, server, server-status, pinned-memory-limit, active-thread-percentage, … [I]; forms: [D]."""
        rows = [
            (each, owner, "Ready", *_told(namespace), namespace.priority, namespace.directory)
            for owner, its in self._living().items()
            for each, namespace in its.namespaces.items()
            if name in {"", each} and server in {"", owner}
        ]
        heads = "NAME SERVER SERVER-STATUS PINNED-MEMORY-LIMIT ACTIVE-THREAD-PERCENTAGE CLIENT-PRIORITY PIPE-DIRECTORY"
        return _table(format, heads, rows)

    def _namespace_set(self, name: str, server: str, **limits: str) -> str:
        return self._limit(self._namespace(name, server), **limits)

    def _namespace_get(self, name: str, server: str, wanted: str) -> str:
        namespace = self._namespace(name, server)
        memory, threads = _told(namespace)
        fields = {"name": name, "server": server, "server-status": "Ready", "pipe-directory": str(namespace.directory)}
        fields |= {"pinned-memory-limit": memory, "active-thread-percentage": threads}
        return _field(fields | {"client-priority": str(namespace.priority)}, wanted)

    def _client_list(self, server: str = "", all: str | None = None, format: str = "table") -> str:  # noqa: A002, ARG002 - as above
        """Columns by the example: pid, server, device, namespace, command [I]."""
        rows = [
            (client.pid, owner, ordinal, name, client.command)
            for owner, its in self._living().items()
            for name, client in its.clients
            for ordinal, _ in enumerate(client.devices)
            if server in {"", owner}
        ]
        return _table(format, "PID SERVER DEVICE NAMESPACE COMMAND", rows)

    def _client_get(self, pid: str, wanted: str) -> str:
        """Tell what the server knows of a client: its namespace, and no limit of its own [I]."""
        for owner, server in self._living().items():
            for name, client in server.clients:
                if str(client.pid) == pid:
                    fields = {"pid": pid, "server": owner, "device": "0", "maws-ns": name, "cmd": client.command}
                    return _field(fields, wanted)
        raise _RefusedError(f"client {pid} not found")

    def _feature_describe(self, format: str = "table") -> str:  # noqa: A002 - as above
        """List the features, which are on by default [I]."""
        rows = [(name, "enabled (default)", name, _UNSET) for name in ("memacct", "context-share")]
        return _table(format, "FEATURE STATE MODULE COVERS", rows)

    # ------------------------------------------------------------------ what they need

    def _server(self, name: str) -> NamedServer:
        if name not in self._living():
            raise _RefusedError(f"server {name} not found")
        return self._servers[name]

    def _namespace(self, name: str, server: str) -> ServerNamespace:
        if name not in (namespaces := self._server(server).namespaces):
            raise _RefusedError(f"namespace {name} not found")
        return namespaces[name]

    def _add(self, server: NamedServer, name: str) -> None:
        """Each namespace has a socket of its own, in a folder of its server's [N]."""
        directory = server.directory / name
        directory.mkdir()
        server.namespaces[name] = ServerNamespace(directory, listen(directory / SOCKET))

    def _limit(self, namespace: ServerNamespace, **limits: str) -> str:
        """At least one option is required; a percentage is 1 to 100, a priority 0 or 1 [I]."""
        if not limits or limits.keys() - {"pinned_memory_limit", "active_thread_percentage", "client_priority"}:
            raise _RefusedError(f"options {sorted(limits)} are not limits")
        if (memory := limits.get("pinned_memory_limit")) is not None:
            namespace.memory_mib = amount_mib(memory)
        if (threads := limits.get("active_thread_percentage")) is not None:
            if not 1 <= float(threads) <= 100:  # noqa: PLR2004 - a percentage
                raise _RefusedError(f"active thread percentage {threads}: 1 to 100 allowed")
            namespace.threads = float(threads)
        namespace.priority = int(limits.get("client_priority", namespace.priority))
        return ""


def _refuse_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise _RefusedError(f"invalid name {name!r}")


def _told(namespace: ServerNamespace) -> tuple[str, str]:
    """Return the limits as the list has them: 20G, 30.00 [D]. No document says how 3000M is told."""
    mib = namespace.memory_mib
    whole = mib is not None and (mib % _MIB_PER_GIB == 0 or behaviour(home(), "whole gb") is not None)
    memory = _UNSET if mib is None else f"{mib // _MIB_PER_GIB}G" if whole and mib >= _MIB_PER_GIB else f"{mib}M"
    return memory, _UNSET if namespace.threads is None else f"{namespace.threads:.2f}"


def _field(fields: dict[str, str], wanted: str) -> str:
    if wanted not in fields:
        raise _RefusedError(f"unknown field {wanted!r}")
    return fields[wanted]


def _table(form: str, heads: str, rows: Iterable[tuple[object, ...]]) -> str:
    """Return rows as --format=<table|csv>[,noheader] asks for them [I]."""
    kind, *more = form.split(",")
    if kind not in {"table", "csv"} or more not in ([], ["noheader"]):
        raise _RefusedError(f"unknown format {form!r}")
    texts = [] if more else [tuple(heads.split())]
    texts += [tuple(map(str, row)) for row in rows]
    return "\n".join(("," if kind == "csv" else "  ").join(text) for text in texts)


def _end(server: NamedServer) -> None:
    server.process.kill()
    server.process.wait()
    for namespace in server.namespaces.values():
        _close(namespace)
    server.door.close()
    (server.directory / SOCKET).unlink()
    server.directory.rmdir()


def _close(namespace: ServerNamespace) -> None:
    namespace.door.close()
    (namespace.directory / SOCKET).unlink()
    namespace.directory.rmdir()
