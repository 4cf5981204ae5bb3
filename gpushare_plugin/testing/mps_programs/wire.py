"""How the parts of the stand-in speak: commands to a Unix socket, their answers back; and where its files are.

The real daemon speaks in other bytes, but takes turns as this one does (seen with version 535): the socket keeps
messages whole; who connects has to say what for before anybody else is heard, without a time-out.
"""

import contextlib
import json
import os
import socket
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Self

CONTROL_PROGRAM = "nvidia-cuda-mps-control"
SERVER_PROGRAM = "nvidia-cuda-mps-server"

HOME_VARIABLE = "FAKE_MPS"
"""Names the directory of the stand-in; every process of it has this variable."""

ALL_USERS = ("-multiuser-server", "-m", "--multiuser")
"""The options of newer versions with which one server serves all users; version 535 takes the first for a command."""

PROTOCOL_VARIABLE = "CUDA_MPS_PROTOCOL_VERSION"
PROTOCOL_OPTIONS = ("-p", "--protocol")
QUIT = ("-q", "--quit")
"""The options of protocol 3 that end the daemon."""

PIPE_VARIABLE = "CUDA_MPS_PIPE_DIRECTORY"
LOG_VARIABLE = "CUDA_MPS_LOG_DIRECTORY"
DEVICES_VARIABLE = "CUDA_VISIBLE_DEVICES"

SOCKET = "control"
PRIVILEGED_SOCKET = "control_privileged"
LOG_PIPE = "log"
"""Where commands leave what they have to say for the log, a pipe by name in the pipe directory."""
PID_FILE = f"{CONTROL_PROGRAM}.pid"

LIFETIME = 300.0
"""Seconds after which a daemon ends whatever happens: nothing may be left running."""
LOOK_EVERY = 0.1

HELLO = b"UI"
"""The first message of whoever has commands."""
CLIENT_HELLO = b"CLIENT "
"""The beginning of the first message of a program that uses MPS; what it says of itself follows as JSON."""
LARGEST_MESSAGE = 1 << 16
"""Bytes."""


class FakeMpsError(Exception):
    """There is no daemon to speak to, or it says that a command makes no sense."""


def protocol_option(arguments: Sequence[str]) -> str:
    """Return the protocol that the options of a command line ask for; 2 by default."""
    return next((value for option, value in pairwise(arguments) if option in PROTOCOL_OPTIONS), "2")


def home() -> Path:
    """Return the directory of the stand-in that this process belongs to."""
    return Path(os.environ[HOME_VARIABLE])


def behaviour(of: Path, name: str) -> str | None:
    """Return what was asked of the stand-in under this name, None for nothing."""
    try:
        found = json.loads((of / "behaviour.json").read_text()).get(name)
    except FileNotFoundError:
        return None
    return None if found is None else str(found)


def enlist(process: int) -> None:
    """Note a process that must not outlive the stand-in."""
    with (home() / "processes").open("a") as stream:
        stream.write(f"{process}\n")


def note(pipe: Path, text: str) -> None:
    """Say something for the log; a link is followed, as the real programs do."""
    with contextlib.suppress(OSError):
        descriptor = os.open(pipe / LOG_PIPE, os.O_WRONLY | os.O_NONBLOCK)
        with os.fdopen(descriptor, "w") as stream:
            stream.write(f"{text}\n")


class TurnedAwayError(ConnectionError):
    """The daemon closed the connection without an answer: it serves another connection, or it has ended."""


class Prompt:
    """A connection on which the daemon takes commands; it takes one such at a time."""

    def __init__(self, pipe: Path) -> None:
        """Connect and say what the connection is for; raises OSError when there is no daemon."""
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._connection.connect(str(pipe / SOCKET))
            self._connection.sendall(HELLO)
        except OSError:
            self._connection.close()
            raise

    def __enter__(self) -> Self:
        """Return the prompt itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the daemon to others."""
        self._connection.close()

    def ask(self, command: str) -> tuple[int, str]:
        """Return a status and the daemon's answer to one command; raises TurnedAwayError when there is none."""
        try:
            self._connection.sendall(command.encode())
            status, _, answer = self._connection.recv(LARGEST_MESSAGE).decode().partition("\n")
        except ConnectionError as error:
            raise TurnedAwayError(str(error)) from error
        if not status:
            raise TurnedAwayError("the daemon closed the connection")
        return int(status), answer
