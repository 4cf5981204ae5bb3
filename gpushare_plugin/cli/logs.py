"""The log of commands: daemons log through a queue, other commands directly to standard error."""

import asyncio
import contextlib
import json
import logging
import os
import re
import sys
import traceback
from collections.abc import Coroutine, Iterator
from typing import Any, TextIO

import structlog
from structlog.dev import Column, ConsoleRenderer, KeyValueColumnFormatter
from structlog.processors import ExceptionRenderer
from structlog.tracebacks import ExceptionDictTransformer
from structlog.typing import ExcInfo

from gpushare_plugin.base.errors import ConfigError, DriverChangedError, GpushareError
from gpushare_plugin.base.log import LoopErrors, QueuedLog, queued_log
from gpushare_plugin.base.text import visible, visible_json
from gpushare_plugin.base.version import __version__

_STYLES = ("\x1b[1m", "\x1b[2m", "\x1b[0m")
"""The control sequences of terminals for bold, faint and normal text (ECMA-48, SGR)."""

_stacks = ExceptionRenderer(ExceptionDictTransformer(show_locals=False))
"""Writes stacks in JSON without the values of variables: a value can be large, secret, or sent by an attacker."""

_WORD = re.compile(r"""[^\s"'=]+""")


@contextlib.contextmanager
def daemon_log(form: str, level: str) -> Iterator[QueuedLog]:
    """Log start and stop of a daemon, which never waits for its log; log a failure and exit with status 1."""
    with queued_log() as lines:
        configure_log(form, level, lines)
        log = structlog.get_logger()
        log.info("starting", version=__version__)
        try:
            yield lines
        except DriverChangedError as error:
            log.error("driver_changed", reason=str(error))  # noqa: TRY400 - no defect
            sys.exit(1)
        except GpushareError as error:
            # A mistake in the config needs no stack.
            for line in str(error).splitlines():
                if isinstance(error, ConfigError):
                    log.error("start_failed", problem=line)  # noqa: TRY400
                else:
                    log.error("start_failed", reason=line)  # noqa: TRY400
            sys.exit(1)
        except Exception:
            log.exception("unexpected_error", remedy="report this as a defect of gpushare")
            sys.exit(1)
        log.info("stopped")


def run_daemon(daemon: Coroutine[Any, Any, None]) -> None:
    """Run a daemon to its end in an event loop whose errors are logged."""
    with asyncio.Runner() as runner:
        runner.get_loop().set_exception_handler(LoopErrors())
        runner.run(daemon)


def configure_log(form: str, level: str, lines: QueuedLog | None = None) -> None:
    """Log in the format `form` from `level` on, to `lines` or, without `lines`, directly to standard error."""
    json_lines = form == "json"
    renderer: Any = structlog.processors.JSONRenderer() if json_lines else console_renderer(colours=_colours())
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso" if json_lines else "%Y-%m-%dT%H:%M:%SZ", utc=True),
            *([_stacks] if json_lines else []),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=(lambda *_: lines) if lines else structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )


def console_renderer(*, colours: bool) -> ConsoleRenderer:
    """Return a renderer of lines for people: time, level, event, then the event's values in the order of the code.

    The code puts sentences last. Absent values are left out.
    """
    bold, dim, end = _STYLES if colours else ("", "", "")
    levels = ConsoleRenderer.get_default_level_styles(colours)
    return ConsoleRenderer(
        sort_keys=False,
        exception_formatter=_write_stack,
        columns=[
            Column("timestamp", KeyValueColumnFormatter(None, dim, end, str)),
            Column("level", lambda _key, level: f"{levels.get(str(level), '')}{str(level).upper():7}{end}"),
            Column("event", KeyValueColumnFormatter(None, bold, end, str)),
            Column("", lambda key, value: "" if value is None else f"{dim}{key}={end}{_spelled(value)}"),
        ],
    )


def _write_stack(stream: TextIO, error: ExcInfo) -> None:
    """Write the stack of a defect with escapes: the message of the error may repeat text from outside gpushare."""
    lines = "".join(traceback.format_exception(*error)).splitlines()
    stream.write("".join(f"\n{visible(line)}" for line in lines))


def _spelled(value: object) -> str:
    """Return a value on one line: a plain word unchanged, any other value in JSON."""
    if isinstance(value, str) and _WORD.fullmatch(value) and visible(value) == value:
        return value
    return visible_json(json.dumps(value, ensure_ascii=False, default=str))


def _colours() -> bool:
    """Return whether the log goes to a terminal and NO_COLOR is not set (no-color.org)."""
    # With a queue, sys.stderr is the catcher of lines from libraries. A process may have no standard error at all.
    terminal = sys.__stderr__ is not None and sys.__stderr__.isatty()
    return terminal and not os.environ.get("NO_COLOR")
