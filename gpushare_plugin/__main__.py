"""The way in, also for `python -m gpushare_plugin`: ready for signals before anything heavy is imported."""

import atexit
import gc
import os
import signal
import sys
from types import FrameType, ModuleType

from gpushare_plugin.foundation.signals.dispositions import (
    ENDING,
    disregard,
    end_in_any_case,
    ignore_signals,
    set_early,
    set_ending,
)

_NOT_USED = (
    *(f"kubernetes.{name}" for name in ("config", "dynamic", "informer", "leaderelection", "stream", "utils", "watch")),
    *(f"kubernetes.aio.{name}" for name in ("dynamic", "leaderelection", "stream", "watch")),
)
"""Modules that the package kubernetes imports for whoever might use them: 300 with all that they import in turn."""

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
    # Nothing that is imported is ever garbage, so nobody need look for any now, nor among all that later.
    gc.disable()
    # structlog would import rich, to draw tracebacks; it takes long, and commands that draw import it themselves.
    sys.modules["rich"] = None  # type: ignore[assignment] # a module that cannot be imported
    # kubernetes would import all of these, which nothing of ours uses.
    for name in _NOT_USED:
        sys.modules[name] = ModuleType(name)
    # pydantic would look for plugins in every package that is installed; gpushare has none, and wants nobody else's.
    os.environ["PYDANTIC_DISABLE_PLUGINS"] = "__all__"
    if sys.argv[1:2] == ["run"]:
        from gpushare_plugin.cli import ahead  # noqa: PLC0415 - the other commands begin nothing

        ahead.begin(sys.argv[1:], os.environ)
    from gpushare_plugin.cli.main import main as run  # noqa: PLC0415 - imports take most of the time to start

    run(_imported)


def kubectl_inspect_gpushare() -> None:
    """Run `gpushare inspect`: kubectl starts this for `kubectl inspect gpushare`, as Aliyun's tool is called."""
    sys.argv.insert(1, "inspect")
    main()


def _imported() -> None:
    """Go on as any process does: what the command needs has been imported, and it is about to begin."""
    for name in ("rich", *_NOT_USED):
        del sys.modules[name]
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
