"""Starting the control daemon of the stand-in, as `nvidia-cuda-mps-control -d` does."""

import ctypes
import os
import subprocess
import sys
import time
from pathlib import Path

from gpushare_plugin.testing.mps_programs.daemon import Daemon, LegacyDaemon
from gpushare_plugin.testing.mps_programs.wire import (
    LIFETIME,
    LOG_VARIABLE,
    LOOK_EVERY,
    PROTOCOL_VARIABLE,
    behaviour,
    enlist,
    home,
    note,
    protocol_option,
)

_READY_VARIABLE = "FAKE_MPS_READY"
"""Set in the daemon itself: the descriptor on which it says that it is ready, or why it cannot be."""
_SET_PTRACER = 0x59616D61
_ANYBODY = -1
"""PR_SET_PTRACER and PR_SET_PTRACER_ANY of prctl(2)."""


def start(pipe: Path) -> int:
    """Start the daemon, or be it; return the exit status."""
    return _run_daemon(pipe) if _READY_VARIABLE in os.environ else _launch(pipe)


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


def _run_daemon(pipe: Path) -> int:
    with os.fdopen(int(os.environ.pop(_READY_VARIABLE)), "w") as stream:
        try:
            daemon = _of_protocol()(pipe, Path(os.environ[LOG_VARIABLE]), time.monotonic() + LIFETIME)
        except BlockingIOError:
            stream.write("An instance of this daemon is already running\n")
            return 0
        enlist(os.getpid())
        _let_others_look()
        stream.write("ready")
    return daemon.run(LOOK_EVERY)


def _of_protocol() -> type[Daemon]:
    """Return the kind of daemon that the environment or the command line asks for; the environment counts more.

    Source: NVIDIA, "Multi-Process Service" r615, MPS v3 Interface.
    """
    if os.environ.get(PROTOCOL_VARIABLE, protocol_option(sys.argv)) != "3":
        return LegacyDaemon
    from gpushare_plugin.testing.mps_programs.daemon3 import NamespaceDaemon  # noqa: PLC0415 - only where asked for

    return NamespaceDaemon


def _let_others_look() -> None:
    """Let processes of the same user see our sockets, as root always can; see prctl(2) and the kernel's Yama."""
    ctypes.CDLL(None).prctl(_SET_PTRACER, ctypes.c_ulong(_ANYBODY))
