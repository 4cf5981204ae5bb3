"""Looks into a running daemon, by signals: its stacks, and more lines of its log.

Signals come from the node alone, from the user of the daemon or from root: no port of the network has to be guarded.
"""

import contextlib
from collections.abc import Iterator
from typing import NamedTuple

import structlog

from gpushare_plugin.base.log.form import LowestLevel
from gpushare_plugin.base.log.queue import QueuedLog
from gpushare_plugin.base.signals.dispositions import MORE_LOG, STACKS
from gpushare_plugin.base.signals.ending import on_signal
from gpushare_plugin.base.stacks import task_stacks, threads_written_at

_log = structlog.get_logger()


class DaemonLog(NamedTuple):
    """The log of a running daemon."""

    lines: QueuedLog
    """The queue of its lines."""
    lowest: LowestLevel
    """The lowest level of lines that are logged."""


@contextlib.contextmanager
def diagnosable(log: DaemonLog) -> Iterator[None]:
    """Answer the signals MORE_LOG and STACKS while the running event loop does the body of the context."""
    on_signal(MORE_LOG, lambda: _change(log.lowest))
    on_signal(STACKS, lambda: _write_tasks(log.lines))
    with threads_written_at(STACKS, log.lines.descriptor):
        yield


def _change(lowest: LowestLevel) -> None:
    """Log every line from now on, or again those from the configured level on; a line says so in either case."""
    level = lowest.configured if lowest.current == "debug" else "debug"
    lowest.current = "debug"  # for the line below
    _log.info("log_level_changed", log_level=level)
    lowest.current = level


def _write_tasks(lines: QueuedLog) -> None:
    # As text, like the stacks of threads, and whatever the level of the log: a person waits for them.
    for stack in task_stacks():
        lines.info(stack)
    _log.info("stacks_written")
