"""A child process that is killed before a given line of the code that writes records of claims."""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from types import FrameType
from typing import Any

_WRITING = frozenset(
    {"_record", "write", "keep", "remove", "forget", "_look", "_read_all", "replace_file", "remove_file"}
)
"""The functions that change files; between all others, files stay as they are."""
_OURS = "/gpushare_plugin/"
_KILLED = 9


def killed_before(line: int, work: Callable[[], Awaitable[object]]) -> bool:
    """Do `work` in a child that is killed before the line of this number; return False where it ended before that."""
    child = os.fork()
    if not child:
        try:
            sys.settrace(_Killer(line).call)
            asyncio.run(_awaited(work))
        except BaseException:  # noqa: BLE001 - the status says it
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code in {0, _KILLED}, code
    return code == _KILLED


async def _awaited(work: Callable[[], Awaitable[object]]) -> None:
    await work()


class _Killer:
    """Counts lines, and ends the process at once."""

    def __init__(self, line: int) -> None:
        self._left = line

    def call(self, frame: FrameType, _event: str, _argument: Any) -> Any:
        """Follow the functions that count."""
        return self.line if frame.f_code.co_name in _WRITING and _OURS in frame.f_code.co_filename else None

    def line(self, _frame: FrameType, event: str, _argument: Any) -> Any:
        """Count a line."""
        if event == "line":
            self._left -= 1
            if not self._left:
                os._exit(_KILLED)
        return self.line
