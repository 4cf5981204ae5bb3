"""The form of the lines of the log: JSON for programs, text for people."""

import json
import logging
import os
import re
import sys
import traceback
from typing import Any, TextIO

import structlog
from structlog.dev import Column, ConsoleRenderer, KeyValueColumnFormatter
from structlog.processors import ExceptionRenderer
from structlog.tracebacks import ExceptionDictTransformer
from structlog.typing import EventDict, ExcInfo

from gpushare_plugin.base.log.queue import QueuedLog
from gpushare_plugin.base.text import visible, visible_json

_STYLES = ("\x1b[1m", "\x1b[2m", "\x1b[0m")
"""The control sequences of terminals for bold, faint and normal text (ECMA-48, SGR)."""

_stacks = ExceptionRenderer(ExceptionDictTransformer(show_locals=False))
"""Writes stacks in JSON without the values of variables: a value can be large, secret, or sent by an attacker."""

_WORD = re.compile(r"""[^\s"'=]+""")


class LowestLevel:
    """Drops the lines below a level, which can change while a program runs.

    structlog caches loggers with a level that is part of their class. The level here is looked up at each line.
    """

    def __init__(self, level: str) -> None:
        """Begin with `level`, such as `info`."""
        self.configured = level
        """The level at the start, from an option."""
        self.current = level
        """The lowest level that is logged now."""

    def __call__(self, _logger: object, level: str, event: EventDict) -> EventDict:
        """Return the event of a line of `level`; raise structlog.DropEvent for a line below the current level."""
        if _rank(level) < _rank(self.current):
            raise structlog.DropEvent
        return event


def _rank(level: str) -> int:
    return int(getattr(logging, level.upper()))


def configure_log(form: str, level: str, lines: QueuedLog | None = None) -> LowestLevel:
    """Log in the format `form` to `lines` or, without `lines`, directly to standard error.

    Return the lowest level that is logged, which is `level`, such as `info`, until somebody changes it.
    """
    lowest = LowestLevel(level)
    json_lines = form == "json"
    renderer: Any = structlog.processors.JSONRenderer() if json_lines else console_renderer(colours=_colours())
    structlog.configure(
        processors=[
            lowest,
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso" if json_lines else "%Y-%m-%dT%H:%M:%SZ", utc=True),
            *([_stacks] if json_lines else []),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG),
        logger_factory=(lambda *_: lines) if lines else structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
    return lowest


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
