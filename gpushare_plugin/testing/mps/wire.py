"""How the parts of the stand-in speak: commands to a Unix socket, their answers back; and where its files are."""

import contextlib
import json
import os
import socket
from pathlib import Path

CONTROL_PROGRAM = "nvidia-cuda-mps-control"
SERVER_PROGRAM = "nvidia-cuda-mps-server"

HOME_VARIABLE = "FAKE_MPS"
"""Names the directory of the stand-in; every process of it has this variable."""

PIPE_VARIABLE = "CUDA_MPS_PIPE_DIRECTORY"
LOG_VARIABLE = "CUDA_MPS_LOG_DIRECTORY"
DEVICES_VARIABLE = "CUDA_VISIBLE_DEVICES"

SOCKET = "control"
PRIVILEGED_SOCKET = "control_privileged"
LOG_PIPE = "log"
"""Where commands leave what they have to say for the log, a pipe by name in the pipe directory."""
PID_FILE = f"{CONTROL_PROGRAM}.pid"


class FakeMpsError(Exception):
    """There is no daemon to speak to, or it says that a command makes no sense."""


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


def converse(pipe: Path, commands: str) -> tuple[int, str]:
    """Return the daemon's status and its answers; raises OSError when there is no daemon, or it goes away."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(pipe / SOCKET))
        connection.sendall(commands.encode())
        connection.shutdown(socket.SHUT_WR)
        with connection.makefile() as stream:
            status, _, answers = stream.read().partition("\n")
    if not status:
        raise ConnectionResetError("the daemon has ended")
    return int(status), answers
