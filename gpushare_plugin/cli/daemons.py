"""How every daemon runs: the log of its start, its end and its failures, its event loop, its exit status."""

import asyncio
import contextlib
import sys
from collections.abc import Coroutine, Iterator
from typing import Any

import structlog

from gpushare_plugin.base.errors import ConfigError, DriverChangedError, GpushareError
from gpushare_plugin.base.log.form import configure_log
from gpushare_plugin.base.log.queue import queued_log
from gpushare_plugin.base.reported import Repeats
from gpushare_plugin.base.version import __version__
from gpushare_plugin.cli.diagnosis import DaemonLog, diagnosable

_log = structlog.get_logger()

LOOP_ERROR_PAUSE = 60.0
"""Seconds between two lines about errors of the same kind in the event loop."""
MOST_LOOP_ERRORS = 32
"""The most kinds of errors in the event loop that are told apart at a time."""


@contextlib.contextmanager
def daemon_log(form: str, level: str) -> Iterator[DaemonLog]:
    """Log start and stop of a daemon, which never waits for its log; log a failure and exit with status 1."""
    with queued_log() as lines:
        log = DaemonLog(lines, configure_log(form, level, lines))
        _log.info("starting", version=__version__)
        try:
            yield log
        except DriverChangedError as error:
            _log.error("driver_changed", reason=str(error))
            sys.exit(1)
        except GpushareError as error:
            # A mistake in the config needs no stack.
            for line in str(error).splitlines():
                if isinstance(error, ConfigError):
                    _log.error("start_failed", problem=line)
                else:
                    _log.error("start_failed", reason=line)
            sys.exit(1)
        except Exception:  # noqa: BLE001 - a defect of any kind is an event of the log
            _log.exception("unexpected_error", remedy="report this as a defect of gpushare")
            sys.exit(1)
        _log.info("stopped")


def run_daemon(daemon: Coroutine[Any, Any, None], log: DaemonLog) -> None:
    """Run a daemon to its end in an event loop whose errors are logged; signals ask for stacks and for more lines."""
    with asyncio.Runner() as runner:
        runner.get_loop().set_exception_handler(LoopErrors())
        runner.run(_diagnosable(daemon, log))


async def _diagnosable(daemon: Coroutine[Any, Any, None], log: DaemonLog) -> None:
    with diagnosable(log):
        await daemon


class LoopErrors:
    """An exception handler of an event loop: logs a line from time to time, where asyncio prints a stack every time."""

    def __init__(self) -> None:
        """Begin without logged errors."""
        self._repeats = Repeats(LOOP_ERROR_PAUSE, MOST_LOOP_ERRORS)

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log an error, with a stack unless it is an OSError; only count an error whose type was logged lately."""
        error = context.get("exception")
        kept_back = self._repeats.untold(str(type(error)), loop.time())
        if kept_back is None:
            return
        _log.error(
            "event_loop_error",
            reason=context["message"],
            error=str(error),
            count=kept_back,
            exc_info=None if isinstance(error, OSError) else error,
        )
