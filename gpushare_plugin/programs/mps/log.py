"""The logs of the control daemon and its servers, followed into ours."""

import asyncio
import contextlib
import logging
import os
import re
import stat
from pathlib import Path
from typing import Any

import structlog

from gpushare_plugin.foundation.files.regular_file import open_regular

_log = structlog.get_logger()

LARGEST_LOG = 8 << 20
"""Bytes after which a log begins anew: it lies in memory, /run is a tmpfs, and each question adds four lines.

The daemon opens its logs for appending (seen with version 535), so one that is cut goes on at its beginning.
"""

LONGEST_LINE = 1024
"""Bytes of a line that are told."""
READ_AT_ONCE = 1 << 16
"""Bytes read before others have their turn."""

AT_ONCE = 200
"""Lines told without a pause; far more than a start, an end and a crash together have."""
EVENTS_A_SECOND = 1.0
ROUTINE_A_SECOND = 20.0
"""Lines told each second after those."""

_LINE = re.compile(r"\[[^\]]*?(?P<part>[A-Z][A-Za-z ]*?) +(?P<pid>\d+)\] (?P<text>.*)")
_ROUTINE = re.compile(
    r"Accepting connection|NEW UI|UI closed|User did not send valid credentials|Cmd:(get_|set_)|[\d.]+[GM]?$"
)
"""What the daemon says of each question it is asked, and of each client that connects."""


class _Teller:
    """Tells lines of one log on one level: some at once, then few each second, with a count of those left out."""

    def __init__(self, log: str, level: int, each_second: float) -> None:
        self._log = log
        self._level = level
        self._each_second = each_second
        self._now = asyncio.get_running_loop().time
        self._left = float(AT_ONCE)
        self._since = self._now()
        self._left_out = 0

    def tell(self, text: str, **fields: Any) -> None:
        self.report()
        if self._may_tell():
            _log.log(self._level, "mps says", log=self._log, text=text, **fields)
        else:
            self._left_out += 1

    def report(self) -> None:
        """Say how many lines were left out, which is a line itself."""
        if self._left_out and self._may_tell():
            _log.log(self._level, "mps says too much, lines were left out", log=self._log, count=self._left_out)
            self._left_out = 0

    def _may_tell(self) -> bool:
        now = self._now()
        self._left = min(AT_ONCE, self._left + (now - self._since) * self._each_second)
        self._since = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


async def follow(file: Path, every: float = 1.0) -> None:
    """Log what is written to `file` from now on, for ever; the file need not be there yet.

    Anybody who reaches the daemon's socket can have it write as much as he likes: no more lines are told than is said
    above, and the others are counted.
    """
    events = _Teller(file.name, logging.INFO, EVENTS_A_SECOND)
    routine = _Teller(file.name, logging.DEBUG, ROUTINE_A_SECOND)
    position = _size(file)
    rest = b""
    while True:
        await asyncio.sleep(every)
        size = _size(file)
        if size < position:  # cut, or made anew
            position, rest = 0, b""
        while position < size and (content := _content(file, position)):
            position += len(content)
            *lines, rest = (rest + content).split(b"\n")
            rest = rest[:LONGEST_LINE]
            for line in lines:
                _tell(line[:LONGEST_LINE].decode(errors="replace"), events, routine)
            await asyncio.sleep(0)
        events.report()
        routine.report()
        if position > LARGEST_LOG:
            _cut(file)


# Whoever could put a link in a log's place would have this process, which is privileged, read or cut another file.


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


def _tell(line: str, events: _Teller, routine: _Teller) -> None:
    match = _LINE.fullmatch(line)
    text = match["text"] if match else line
    fields = {"part": match["part"], "pid": int(match["pid"])} if match else {}
    (routine if _ROUTINE.match(text) else events).tell(text, **fields)
