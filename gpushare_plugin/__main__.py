"""The way in, also for `python -m gpushare_plugin`: ready for signals before anything heavy is imported."""

import atexit
import gc
import os
import signal
import sys
from types import FrameType

from gpushare_plugin.foundation.signals.dispositions import (
    ENDING,
    disregard,
    end_in_any_case,
    ignore_signals,
    set_early,
    set_ending,
)

_DAEMONS = (["run"], ["mps"], ["mig"], ["extender"], ["partition"])
"""Commands that run until they are told to end, without a terminal."""


def main() -> None:
    """Run the command line.

    The first process of a container does not even notice SIGTERM unless it handles it, and the pod would wait out its
    grace period. A daemon installs its own handlers once it runs; until then SIGHUP, with which it may be told to read
    its settings, must not end it.
    """
    set_early(_end_at_once, stays=sys.argv[1:2] in _DAEMONS)
    atexit.register(ignore_signals)
    # Imported modules are never garbage: the collector need not look at them now, and not later.
    gc.disable()
    # pydantic would look for plugins in every package that is installed; gpushare has none, and wants nobody else's.
    os.environ["PYDANTIC_DISABLE_PLUGINS"] = "__all__"
    from gpushare_plugin.cli.main import main as run  # noqa: PLC0415 - imports take most of the time to start

    run(_imported)


def kubectl_inspect_gpushare() -> None:
    """Run `gpushare inspect`: kubectl starts this for `kubectl inspect gpushare`, as Aliyun's tool is called."""
    sys.argv.insert(1, "inspect")
    main()


def _imported() -> None:
    """Go on as any process does: the modules of the command have been imported, and the command is about to begin."""
    gc.freeze()
    gc.enable()
    set_ending(_leave)


def _end_at_once(_number: int, _frame: FrameType | None) -> None:
    # Nothing is begun yet, and what is raised in the middle of an import may be caught there.
    os._exit(0)


def _leave(_number: int, _frame: FrameType | None) -> None:
    disregard((*ENDING, signal.SIGHUP))
    end_in_any_case()  # what is raised may be caught where it is raised
    raise SystemExit(0)


if __name__ == "__main__":
    main()
