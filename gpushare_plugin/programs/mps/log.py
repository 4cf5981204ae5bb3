"""The logs of the control daemon and its servers, followed into ours."""

import asyncio
import contextlib
import os
import re
from pathlib import Path

import structlog

_log = structlog.get_logger()

LARGEST_LOG = 8 << 20
"""Bytes after which a log begins anew: it lies in memory, /run is a tmpfs, and each question adds four lines.

The daemon opens its logs for appending (seen with version 535), so one that is cut goes on at its beginning.
"""

_LINE = re.compile(r"\[[^\]]*?(?P<part>[A-Z][A-Za-z ]*?) +(?P<pid>\d+)\] (?P<text>.*)")
_ROUTINE = re.compile(
    r"Accepting connection|NEW UI|UI closed|User did not send valid credentials|Cmd:(get_|set_)|[\d.]+[GM]?$"
)
"""What the daemon says of each question it is asked, and of each client that connects."""


async def follow(file: Path, every: float = 1.0) -> None:
    """Log each line that is written to `file` from now on, for ever; the file need not be there yet."""
    position = _size(file)
    rest = b""
    while True:
        await asyncio.sleep(every)
        size = _size(file)
        if size < position:  # cut, or made anew
            position, rest = 0, b""
        if size > position:
            content = _content(file, position)
            position += len(content)
            *lines, rest = (rest + content).split(b"\n")
            for line in lines:
                _tell(file.name, line.decode(errors="replace"))
        if position > LARGEST_LOG:
            with contextlib.suppress(OSError):
                os.truncate(file, 0)


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0


def _content(file: Path, position: int) -> bytes:
    try:
        with file.open("rb") as stream:
            stream.seek(position)
            return stream.read()
    except OSError:
        return b""


def _tell(source: str, line: str) -> None:
    match = _LINE.fullmatch(line)
    text = match["text"] if match else line
    tell = _log.debug if _ROUTINE.match(text) else _log.info
    fields = {"part": match["part"], "pid": int(match["pid"])} if match else {}
    tell("mps says", log=source, text=text, **fields)
