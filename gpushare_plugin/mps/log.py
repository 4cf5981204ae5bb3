"""The logs of the control daemon and of the MPS servers, followed into the log of `gpushare mps`."""

import asyncio
import contextlib
import logging
import os
import re
import stat
from pathlib import Path
from typing import Any

import structlog

from gpushare_plugin.base.files.regular_file import open_regular

_log = structlog.get_logger()

LARGEST_LOG = 8 << 20
"""Bytes after which a log is truncated: the log lies in memory (/run is a tmpfs), and every question adds four lines.

The daemon opens the logs for appending (seen with version 535) and therefore continues a truncated log at the beginning
of the file.
"""

LONGEST_LINE = 1024
"""The most bytes of a line that are logged."""
READ_AT_ONCE = 1 << 16
"""The most bytes of a log that are read before the event loop can run another task."""

AT_ONCE = 200
"""Lines logged without a pause: far more than a start, an end and a crash write together."""
EVENTS_A_SECOND = 1.0
"""Lines about anything but routine that are logged per second after the first `AT_ONCE` lines."""
ROUTINE_A_SECOND = 20.0
"""Routine lines (see `_ROUTINE`) that are logged per second after the first `AT_ONCE` lines."""

_LINE = re.compile(r"\[[^\]]*?(?P<part>[A-Z][A-Za-z ]*?) +(?P<pid>\d+)\] (?P<text>.*)")
_ROUTINE = re.compile(
    r"Accepting connection|NEW UI|UI closed|User did not send valid credentials|Cmd:(get_|set_)|[\d.]+[GM]?$"
)
"""Matches the lines that the daemon writes about every question and about every connecting client."""


class _Lines:
    """Logs lines of one log on one level: some at once, then a few per second, with a count of the dropped lines."""

    def __init__(self, path: str, level: int, each_second: float) -> None:
        self._path = path
        self._level = level
        self._each_second = each_second
        self._now = asyncio.get_running_loop().time
        self._left = float(AT_ONCE)
        self._since = self._now()
        self._dropped = 0

    def log(self, text: str, **fields: Any) -> None:
        self.log_dropped()
        if self._may_log():
            _log.log(self._level, "mps_log_line", path=self._path, text=text, **fields)
        else:
            self._dropped += 1

    def log_dropped(self) -> None:
        """Log the number of dropped lines, if any; the message counts towards the limit of lines, too."""
        if self._dropped and self._may_log():
            _log.log(self._level, "mps_log_lines_dropped", path=self._path, count=self._dropped)
            self._dropped = 0

    def _may_log(self) -> bool:
        now = self._now()
        self._left = min(AT_ONCE, self._left + (now - self._since) * self._each_second)
        self._since = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


async def follow(file: Path, every: float = 1.0) -> None:
    """Log the lines written to `file` from now on, until cancelled; the file may appear later.

    `every` is the pause between two looks at the file, in seconds. Any process with access to the daemon's socket can
    make the daemon write without limit: lines beyond the limits above are counted instead of logged.
    """
    events = _Lines(str(file), logging.INFO, EVENTS_A_SECOND)
    routine = _Lines(str(file), logging.DEBUG, ROUTINE_A_SECOND)
    position = _size(file)
    rest = b""
    while True:
        await asyncio.sleep(every)
        size = _size(file)
        if size < position:  # truncated, or recreated
            position, rest = 0, b""
        while position < size and (content := _content(file, position)):
            position += len(content)
            *lines, rest = (rest + content).split(b"\n")
            rest = rest[:LONGEST_LINE]
            for line in lines:
                _log_line(line[:LONGEST_LINE].decode(errors="replace"), events, routine)
            await asyncio.sleep(0)
        events.log_dropped()
        routine.log_dropped()
        if position > LARGEST_LOG:
            _cut(file)


# A link in place of a log would make this privileged process read or truncate another file.


def _size(file: Path) -> int:
    try:
        status = file.lstat()
    except OSError:
        return 0
    return status.st_size if stat.S_ISREG(status.st_mode) else 0


def _content(file: Path, position: int) -> bytes:
    try:
        with os.fdopen(open_regular(file, os.O_RDONLY), "rb") as stream:
            stream.seek(position)
            return stream.read(READ_AT_ONCE)
    except OSError:
        return b""


def _cut(file: Path) -> None:
    with contextlib.suppress(OSError), os.fdopen(open_regular(file, os.O_RDWR), "r+b") as stream:
        stream.truncate(0)


def _log_line(line: str, events: _Lines, routine: _Lines) -> None:
    match = _LINE.fullmatch(line)
    text = match["text"] if match else line
    fields = {"part": match["part"], "pid": int(match["pid"])} if match else {}
    (routine if _ROUTINE.match(text) else events).log(text, **fields)
