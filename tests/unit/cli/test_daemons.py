"""Tests of `gpushare_plugin.cli.daemons`; how daemons start and end is tested with the daemons."""

import asyncio

import structlog
from structlog.testing import capture_logs

from gpushare_plugin.cli.daemons import LoopErrors


def test_errors_of_the_loop_are_told_once_a_minute() -> None:
    """Each kind is, then with how many were not told; a stack only if the error is none of the system."""
    loop, errors = Loop(), LoopErrors()
    full = {"message": "no file", "exception": OSError(24, "Too many open files")}
    before = structlog.get_config()
    structlog.reset_defaults()
    with capture_logs() as told:
        for _ in range(10):
            errors(loop, full)
        errors(loop, {"message": "broken", "exception": ValueError("odd")})
        errors(loop, {"message": "without an exception"})
        loop.now += 61
        errors(loop, full)
    structlog.configure(**before)
    loop.close()
    assert [(each["reason"], each["error"], each["count"], each["exc_info"] is None) for each in told] == [
        ("no file", "[Errno 24] Too many open files", 0, True),
        ("broken", "odd", 0, False),
        ("without an exception", "None", 0, True),
        ("no file", "[Errno 24] Too many open files", 9, True),
    ]


class Loop(asyncio.SelectorEventLoop):
    """A loop whose clock a test sets."""

    now = 1000.0

    def time(self) -> float:
        """Return the time that it is."""
        return self.now
