"""What runs as `nvidia-cuda-mps-control` and `nvidia-cuda-mps-server`."""

import os
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from gpushare_plugin.testing.mps_programs.wire import (
    ALL_USERS,
    LIFETIME,
    LOOK_EVERY,
    PIPE_VARIABLE,
    PROTOCOL_OPTIONS,
    QUIT,
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
    elif "-d" not in sys.argv or _refused(sys.argv):
        sys.exit(_converse(pipe, _commands(sys.argv[1:])))
    else:  # which alone needs the daemon: most runs are one command to it, and start in half the time
        from gpushare_plugin.testing.mps_programs.starting import start  # noqa: PLC0415

        sys.exit(start(pipe))


def _serve(pipe: Path) -> None:
    enlist(os.getpid())
    end = time.monotonic() + LIFETIME
    while pipe.exists() and time.monotonic() < end:
        time.sleep(LOOK_EVERY)


def _refused(arguments: Sequence[str]) -> bool:
    """Return whether this version has no such option, and takes it for a command."""
    one_user = behaviour(home(), "one user") is not None and not set(ALL_USERS).isdisjoint(arguments)
    return one_user or (behaviour(home(), "protocol 2") is not None and not set(PROTOCOL_OPTIONS).isdisjoint(arguments))


def _commands(arguments: Sequence[str]) -> Iterable[str]:
    """Return the command on the command line, as with protocol 3, or those of the input."""
    if not set(QUIT).isdisjoint(arguments):
        return ["quit"]
    return [" ".join(arguments)] if arguments and "-d" not in arguments else filter(str.strip, sys.stdin)


def _converse(pipe: Path, commands: Iterable[str]) -> int:
    """Pass commands on as they come; one that is turned away ends in silence, as if all were well."""
    note(pipe, "Connecting to the control daemon")
    status = 0
    try:
        with Prompt(pipe) as prompt:
            for line in commands:
                status, answer = prompt.ask(line.strip())
                sys.stdout.write(f"{answer}\n" if answer else "")
                sys.stdout.flush()
    except TurnedAwayError:
        return 0
    except OSError:
        sys.stdout.write("Cannot find MPS control daemon process\n")
        return 1
    return status
