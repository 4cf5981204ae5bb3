"""What runs as `nvidia-cuda-mps-control` and `nvidia-cuda-mps-server`."""

import ctypes
import os
import subprocess
import sys
import time
from pathlib import Path

from gpushare_plugin.testing.mps.daemon import Daemon
from gpushare_plugin.testing.mps.wire import (
    LOG_VARIABLE,
    PIPE_VARIABLE,
    SERVER_PROGRAM,
    Prompt,
    TurnedAwayError,
    behaviour,
    enlist,
    home,
    note,
)

LIFETIME = 300.0
"""Seconds after which a daemon ends whatever happens: nothing may be left running."""
LOOK_EVERY = 0.1

_READY_VARIABLE = "FAKE_MPS_READY"
"""Set in the daemon itself: the descriptor on which it says that it is ready, or why it cannot be."""
_SET_PTRACER = 0x59616D61
_ANYBODY = -1
"""PR_SET_PTRACER and PR_SET_PTRACER_ANY of prctl(2)."""


def main() -> None:
    """Do what the name and the options of this program say."""
    pipe = Path(os.environ.get(PIPE_VARIABLE, "/tmp/nvidia-mps"))  # noqa: S108 - the real program's default
    if Path(sys.argv[0]).name == SERVER_PROGRAM:
        _serve(pipe)
    elif "-d" not in sys.argv:
        sys.exit(_converse(pipe))
    elif _READY_VARIABLE in os.environ:
        _run_daemon(pipe)
    else:
        sys.exit(_launch(pipe))


def _serve(pipe: Path) -> None:
    enlist(os.getpid())
    end = time.monotonic() + LIFETIME
    while pipe.exists() and time.monotonic() < end:
        time.sleep(LOOK_EVERY)


def _converse(pipe: Path) -> int:
    """Pass commands on as they come; one that is turned away ends in silence, as if all were well."""
    note(pipe, "Connecting to the control daemon")
    status = 0
    try:
        with Prompt(pipe) as prompt:
            for line in filter(str.strip, sys.stdin):
                status, answer = prompt.ask(line.strip())
                sys.stdout.write(f"{answer}\n" if answer else "")
                sys.stdout.flush()
    except TurnedAwayError:
        return 0
    except OSError:
        sys.stdout.write("Cannot find MPS control daemon process\n")
        return 1
    return status


def _launch(pipe: Path) -> int:
    """Start the daemon in a session of its own, and wait until it listens."""
    if (said := behaviour(home(), "start")) is not None:
        sys.stdout.write(f"{said}\n")
        return 1
    if not os.access(pipe, os.W_OK):
        sys.stdout.write(f"Cannot access CUDA_MPS_PIPE_DIRECTORY={pipe}\n")
        return 1
    note(pipe, "Starting a control daemon")
    reading, writing = os.pipe()
    subprocess.Popen(  # noqa: S603 - this program itself
        [*sys.orig_argv],
        env={**os.environ, _READY_VARIABLE: str(writing)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=[writing],
        start_new_session=True,
    )
    os.close(writing)
    with os.fdopen(reading) as stream:
        said = stream.read()
    sys.stdout.write(said.removeprefix("ready"))
    return 0 if said == "ready" else 1


def _run_daemon(pipe: Path) -> None:
    with os.fdopen(int(os.environ.pop(_READY_VARIABLE)), "w") as stream:
        try:
            daemon = Daemon(pipe, Path(os.environ[LOG_VARIABLE]), time.monotonic() + LIFETIME)
        except BlockingIOError:
            stream.write("An instance of this daemon is already running\n")
            return
        enlist(os.getpid())
        _let_others_look()
        stream.write("ready")
    sys.exit(daemon.run(LOOK_EVERY))


def _let_others_look() -> None:
    """Let processes of the same user see our sockets, as root always can; see prctl(2) and the kernel's Yama."""
    ctypes.CDLL(None).prctl(_SET_PTRACER, ctypes.c_ulong(_ANYBODY))
