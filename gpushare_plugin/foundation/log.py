"""The log of a daemon: lines wait in a bounded queue and one thread writes them, so that no other part waits or fails.

The QueueHandler and QueueListener of the standard library do not fit: the one prints a stack when its queue is full,
and the other, when it ends, waits for its writer without limit.
"""

import asyncio
import contextlib
import io
import os
import select
import sys
import threading
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any

import structlog

from gpushare_plugin.foundation.reported import Repeats

_log = structlog.get_logger()

CAPACITY = 1 << 20
"""Bytes of the lines that may wait to be written; what comes when there is no room is dropped."""
LAST_WORDS = 1.0
"""Seconds that the end waits for lines to be written."""
LOOP_ERROR_PAUSE = 60.0
"""Seconds between two lines about errors of one kind that the event loop meets."""
MOST_LOOP_ERRORS = 32
"""Kinds of them that are told apart at a time."""


class QueuedLog:
    """A logger for structlog, from whose methods every call returns at once, and none raises."""

    def __init__(self, descriptor: int, capacity: int = CAPACITY) -> None:
        """Start the thread that writes to the file `descriptor`; at most `capacity` bytes wait for it."""
        self._descriptor = descriptor
        self._capacity = capacity
        self._lines = SimpleQueue[bytes]()
        # A destructor may log while its thread is in here already.
        self._account = threading.RLock()
        self._waiting = 0
        self._dropped = 0
        self._cut = False
        self._ending = False
        # A daemon thread: a file that takes nothing must not keep the process from ending.
        self._thread = threading.Thread(target=self._write_all, name="log", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        """Lines so far that could not be written, or for which there was no room."""
        return self._dropped

    def info(self, line: str) -> None:
        """Have a line written; of every level, for structlog has done the choosing."""
        data = line.encode(errors="backslashreplace") + b"\n"
        with self._account:
            if self._waiting + len(data) > self._capacity:
                self._dropped += 1
                return
            self._waiting += len(data)
        self._lines.put(data)

    debug = warning = error = critical = info

    def close(self, patience: float = LAST_WORDS) -> None:
        """Write what waits, for at most `patience` seconds; what is logged from now on is lost."""
        self._ending = True
        self._lines.put(b"")
        self._thread.join(patience)

    def _write_all(self) -> None:
        reported = 0
        while not (self._ending and self._lines.empty()):
            line = self._lines.get()
            written = self._write(line)
            with self._account:
                self._waiting -= len(line)
                self._dropped += not written
            # While lines are being lost, this line would take the place of others.
            if written and self._dropped > reported and self._lines.empty():
                lost, reported = self._dropped - reported, self._dropped
                _log.warning("log_lines_lost", count=lost, reason="they could not be written in time")

    def _write(self, line: bytes) -> bool:
        """Write a line whole, on a line of its own; return whether that was possible."""
        rest = b"\n" + line if self._cut and line else line
        whole = len(rest)
        while rest:
            try:
                rest = rest[os.write(self._descriptor, rest) :]
            except BlockingIOError:
                # Whoever shares the file has chosen not to wait; this thread has nothing else to do.
                select.select((), (self._descriptor,), ())
            except OSError:
                self._cut = self._cut or len(rest) < whole
                return False
        self._cut = False
        return True


class LoopErrors:
    """An exception handler of an event loop: a line now and then, where asyncio prints a stack each time."""

    def __init__(self) -> None:
        """Have logged nothing yet."""
        self._repeats = Repeats(LOOP_ERROR_PAUSE, MOST_LOOP_ERRORS)

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log an error, with its stack unless it is the system's, or count it if one like it was logged lately."""
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


class _Printed(io.TextIOBase):
    """Standard error as libraries see it: each line they print is an event of the log."""

    def __init__(self) -> None:
        self._rest = ""

    def write(self, text: str) -> int:
        *lines, self._rest = (self._rest + text).split("\n")
        for line in filter(None, lines):
            _log.error("printed_to_stderr", found=line)
        return len(text)


@contextlib.contextmanager
def queued_log() -> Iterator[QueuedLog]:
    """Write to standard error through a queue until the end of the block, also what others print there."""
    # In a process that was started without, its number soon belongs to some other file.
    descriptor = sys.stderr.fileno() if sys.stderr is not None else os.open(os.devnull, os.O_WRONLY)
    log = QueuedLog(descriptor)
    try:
        with contextlib.redirect_stderr(_Printed()):
            yield log
    finally:
        log.close()
