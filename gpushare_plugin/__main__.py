"""The way in, also for `python -m gpushare_plugin`: ready for signals before anything heavy is imported."""

import gc
import signal
import sys
from types import FrameType


def main() -> None:
    """Run the command line.

    The first process of a container does not even notice SIGTERM unless it handles it, and the pod would wait out its
    grace period. The daemon installs its own handler once it runs.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _leave)
    _import_log()
    # Nothing that is imported is ever garbage, so nobody need look for any now, nor among all that later.
    gc.disable()
    from gpushare_plugin.cli.commands import main as run  # noqa: PLC0415 - imports take most of the time to start

    gc.freeze()
    gc.enable()
    run()


def _import_log() -> None:
    """Import structlog without rich, which it would take along to draw tracebacks, and which few subcommands need."""
    sys.modules["rich"] = None  # type: ignore[assignment] # a module that cannot be imported
    import structlog  # noqa: F401, PLC0415 - imports take most of the time to start

    del sys.modules["rich"]


def _leave(_number: int, _frame: FrameType | None) -> None:
    raise SystemExit(0)


if __name__ == "__main__":
    main()
