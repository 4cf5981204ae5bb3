"""The entry point, also of `python -m gpushare_plugin`: handles signals before the heavy imports."""

import atexit
import gc
import os
import signal
import sys
from types import FrameType

from gpushare_plugin.base.signals.dispositions import (
    ENDING,
    disregard,
    end_in_any_case,
    ignore_until_gone,
    set_early,
    set_ending,
)

_DAEMONS = (["run"], ["mps"], ["mig"], ["driver-limits"], ["extender"], ["partition"])
"""Commands that run without a terminal until a signal ends them."""


def main() -> None:
    """Run the command line.

    The kernel drops a SIGTERM that the first process of a container does not handle, and the pod would wait for the
    end of its grace period. A daemon installs its own handlers once it runs. Until then SIGHUP, which can tell a daemon
    to read its settings, must not end the daemon.
    """
    daemon = sys.argv[1:2] in _DAEMONS
    set_early(_end_at_once, stays=daemon)
    atexit.register(ignore_until_gone)
    # Imported modules are never garbage: the collector need not look at modules now or later.
    gc.disable()
    # pydantic would look for plugins in all installed packages; gpushare has no plugin and wants none.
    os.environ["PYDANTIC_DISABLE_PLUGINS"] = "__all__"
    # numpy would start a thread for each core of the machine, for products of matrices, which gpushare never computes.
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    from gpushare_plugin.cli.main import main as run  # noqa: PLC0415 - imports take most of the time to start

    run(_daemon_imported if daemon else _imported)


def kubectl_inspect_gpushare() -> None:
    """Run `gpushare inspect`; kubectl starts it for `kubectl inspect gpushare` (Aliyun's tool) and `… cgpu` (ACK's)."""
    sys.argv.insert(1, "inspect")
    main()


def _daemon_imported() -> None:
    """Return to normal garbage collection, after the imports of a daemon's options and before the daemon.

    A daemon has begun nothing before it installs its own handlers, and imports most of its modules until then.
    """
    gc.freeze()
    gc.enable()


def _imported() -> None:
    """Return to normal garbage collection and an orderly end by signals, after imports and before the command."""
    _daemon_imported()
    set_ending(_leave)


def _end_at_once(_number: int, _frame: FrameType | None) -> None:
    # Nothing has begun yet. An exception raised in the middle of an import may be caught by the import, or be lost in
    # a callback of the interpreter, which prints it.
    os._exit(0)


def _leave(_number: int, _frame: FrameType | None) -> None:
    disregard((*ENDING, signal.SIGHUP))
    end_in_any_case()  # the exception may be caught by the interrupted code
    raise SystemExit(0)


if __name__ == "__main__":
    main()
