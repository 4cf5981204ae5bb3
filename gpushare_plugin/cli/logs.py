"""How commands log: as long as a daemon lives through a queue, else straight to standard error."""

import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import Coroutine, Iterator
from typing import Any

import structlog

from gpushare_plugin import __version__
from gpushare_plugin.foundation.errors import DriverChangedError, GpushareError
from gpushare_plugin.foundation.log import LoopErrors, QueuedLog, queued_log


@contextlib.contextmanager
def daemon_log(form: str, level: str) -> Iterator[QueuedLog]:
    """Log the life of a daemon, in which nothing waits for the log; what ends it too early is logged, and status 1."""
    with queued_log() as lines:
        configure_log(form, level, lines)
        log = structlog.get_logger()
        log.info("starting", version=__version__)
        try:
            yield lines
        except DriverChangedError as error:
            log.error("the NVIDIA driver changed, ending to be started anew", reason=str(error))  # noqa: TRY400 - no defect
            sys.exit(1)
        except GpushareError as error:
            for line in str(error).splitlines():
                log.error("cannot start", reason=line)  # noqa: TRY400 - a mistake in the settings needs no stack
            sys.exit(1)
        except Exception:
            log.exception("gpushare broke; this is a defect of gpushare, please report it")
            sys.exit(1)
        log.info("stopped")


def run_daemon(daemon: Coroutine[Any, Any, None]) -> None:
    """Run a daemon to its end; errors that its event loop meets are logged."""
    with asyncio.Runner() as runner:
        runner.get_loop().set_exception_handler(LoopErrors())
        runner.run(daemon)


def configure_log(form: str, level: str, lines: QueuedLog | None = None) -> None:
    """Log from this level on, to `lines` or, where nobody minds to wait, straight to standard error."""
    renderer: Any = (
        structlog.processors.JSONRenderer() if form == "json" else structlog.dev.ConsoleRenderer(colors=_colours())
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *([structlog.processors.dict_tracebacks] if form == "json" else []),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=(lambda *_: lines) if lines else structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )


def _colours() -> bool:
    """Return whether a person sees the log, on a terminal, and has not asked for no colours (no-color.org)."""
    # Where a queue writes the log, sys.stderr is what libraries print to; a process may have been started without any.
    terminal = sys.__stderr__ is not None and sys.__stderr__.isatty()
    return terminal and not os.environ.get("NO_COLOR")
