"""The log of a daemon: a thread writes the lines from a bounded queue, so that no caller waits or fails.

The QueueHandler and QueueListener of the standard library do not fit. A QueueHandler prints a stack when its queue is
full. A QueueListener that ends waits for its writer without limit.
"""

import contextlib
import io
import os
import select
import sys
import threading
from collections.abc import Iterator
from queue import SimpleQueue

import structlog

_log = structlog.get_logger()

CAPACITY = 1 << 20
"""The most bytes of lines in the queue; a line without room is dropped."""
LAST_WORDS = 1.0
"""Seconds that `close` waits for the last lines to be written."""


class QueuedLog:
    """A logger for structlog; every call of a method returns at once and raises nothing."""

    def __init__(self, descriptor: int, capacity: int = CAPACITY) -> None:
        """Start the thread that writes to the file `descriptor`; at most `capacity` bytes wait in the queue."""
        self.descriptor = descriptor
        """The file that the lines go to."""
        self._capacity = capacity
        self._lines = SimpleQueue[bytes]()
        # Reentrant: a destructor may log while its own thread holds the lock.
        self._account = threading.RLock()
        self._waiting = 0
        self._dropped = 0
        self._cut = False
        self._ending = False
        # A daemon thread: a blocked file must not keep the process from ending.
        self._thread = threading.Thread(target=self._write_all, name="log", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        """The number of lines so far that could not be written, or had no room in the queue."""
        return self._dropped

    def info(self, line: str) -> None:
        """Queue a line, whatever its level: structlog has filtered by level already."""
        data = line.encode(errors="backslashreplace") + b"\n"
        with self._account:
            if self._waiting + len(data) > self._capacity:
                self._dropped += 1
                return
            self._waiting += len(data)
        self._lines.put(data)

    debug = warning = error = critical = info

    def close(self, patience: float = LAST_WORDS) -> None:
        """Write the queued lines, for at most `patience` seconds; lines logged afterwards are lost."""
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
            # Only with an empty queue: while lines are being lost, the warning would take the room of another line.
            if written and self._dropped > reported and self._lines.empty():
                lost, reported = self._dropped - reported, self._dropped
                _log.warning("log_lines_lost", count=lost, reason="they could not be written in time")

    def _write(self, line: bytes) -> bool:
        """Write a whole line, after a line end where the line before was cut; return whether the write succeeded."""
        rest = b"\n" + line if self._cut and line else line
        whole = len(rest)
        while rest:
            try:
                rest = rest[os.write(self.descriptor, rest) :]
            except BlockingIOError:
                # Another user of the file has made it non-blocking; the thread has nothing else to do and can wait.
                select.select((), (self.descriptor,), ())
            except OSError:
                self._cut = self._cut or len(rest) < whole
                return False
        self._cut = False
        return True


class _Printed(io.TextIOBase):
    """Standard error for libraries: every line that a library prints becomes an event of the log."""

    def __init__(self) -> None:
        self._rest = ""

    def write(self, text: str) -> int:
        *lines, self._rest = (self._rest + text).split("\n")
        for line in filter(None, lines):
            _log.error("printed_to_stderr", found=line)
        return len(text)


@contextlib.contextmanager
def queued_log() -> Iterator[QueuedLog]:
    """Yield a log to standard error for the block; lines that libraries print to `sys.stderr` are logged, too."""
    # In a process started without standard error, descriptor 2 soon belongs to another file.
    descriptor = sys.stderr.fileno() if sys.stderr is not None else os.open(os.devnull, os.O_WRONLY)
    log = QueuedLog(descriptor)
    try:
        with contextlib.redirect_stderr(_Printed()):
            yield log
    finally:
        log.close()
