"""What runs as `nvidia-cuda-mps-control` and `nvidia-cuda-mps-server`."""

import os
import sys
import time
from pathlib import Path

from gpushare_plugin.testing.mps_programs.wire import (
    ALL_USERS,
    LIFETIME,
    LOOK_EVERY,
    PIPE_VARIABLE,
    SERVER_PROGRAM,
    Prompt,
    TurnedAwayError,
    behaviour,
    enlist,
    home,
    note,
)


def main() -> None:
    """Do what the name and the options of this program say."""
    pipe = Path(os.environ.get(PIPE_VARIABLE, "/tmp/nvidia-mps"))  # noqa: S108 - the real program's default
    if Path(sys.argv[0]).name == SERVER_PROGRAM:
        _serve(pipe)
    elif "-d" not in sys.argv or (ALL_USERS in sys.argv and behaviour(home(), "one user") is not None):
        sys.exit(_converse(pipe))
    else:  # which alone needs the daemon: most runs are one command to it, and start in half the time
        from gpushare_plugin.testing.mps_programs.starting import start  # noqa: PLC0415

        sys.exit(start(pipe))


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
