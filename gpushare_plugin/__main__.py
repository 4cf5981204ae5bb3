"""The way in, also for `python -m gpushare_plugin`: ready for signals before anything heavy is imported."""

import signal
from types import FrameType


def main() -> None:
    """Run the command line.

    The first process of a container does not even notice SIGTERM unless it handles it, and the pod would wait out its
    grace period. The daemon installs its own handler once it runs.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _leave)
    from gpushare_plugin.cli import main as run  # noqa: PLC0415 - imports take most of the time to start

    run()


def _leave(_number: int, _frame: FrameType | None) -> None:
    raise SystemExit(0)


if __name__ == "__main__":
    main()
