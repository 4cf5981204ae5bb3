"""What each signal does to our programs, as far as a program can say; docs/reliability.md has the whole table.

Imports nothing large, because it takes effect before anything else of a program is imported.
"""

import _thread
import os
import signal
import time
from collections.abc import Callable, Iterable
from types import FrameType

Handler = Callable[[int, FrameType | None], None]

ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
"""These end every program in good order."""

_MEANINGLESS = ("SIGUSR1", "SIGUSR2", "SIGALRM", "SIGVTALRM", "SIGPROF", "SIGIO", "SIGPWR", "SIGSTKFLT")

IGNORED = (
    *(signal.Signals[name] for name in _MEANINGLESS if name in signal.Signals.__members__),
    *range(signal.SIGRTMIN, signal.SIGRTMAX + 1),
)
"""These mean nothing to any program, and would end it in the middle of its work."""

_TO_END = 5.0
"""Seconds that a program for people has to end in good order."""


def set_early(end: Handler, *, stays: bool) -> None:
    """Have `end` called at what ends a program, and nothing happen at what is ignored.

    SIGHUP is among the latter for a program that `stays` when its terminal is gone; others it ends at once.
    """
    set_ending(end)
    disregard((*IGNORED, *((signal.SIGHUP,) if stays else ())))


def set_ending(end: Handler) -> None:
    """Have `end` called at what ends a program."""
    for number in ENDING:
        signal.signal(number, end)


def disregard(numbers: Iterable[int]) -> None:
    """Have nothing happen at these signals.

    A handler is not handed down to programs that this one starts, unlike SIG_IGN, and one that has come already and is
    not handled yet is not complained about.
    """
    for number in numbers:
        signal.signal(number, _nothing)


def end_in_any_case() -> None:
    """Have this process end with status 0 in five seconds, whatever holds it up: output that nobody takes, for example.

    A handler may call this: no lock is taken, as a thread of `threading` would take.
    """
    _thread.start_new_thread(_end_later, ())


def ignore_signals() -> None:
    """Let no signal change how this process ends: the interpreter takes handlers away well before it is gone.

    Not to be called by a handler, during which signals that have come wait.
    """
    from ctypes import c_int, c_void_p, pythonapi  # noqa: PLC0415 - at the end of a program, which starts without it

    numbers = (*ENDING, *IGNORED, signal.SIGHUP)
    # The kernel first: the interpreter complains about a signal that has come where it finds no handler any more, and
    # looks for those that have come before it changes the first handler below.
    for number in numbers:
        pythonapi.PyOS_setsig(c_int(number), c_void_p(signal.SIG_IGN))
    for number in numbers:
        signal.signal(number, signal.SIG_IGN)


def _end_later() -> None:
    time.sleep(_TO_END)
    os._exit(0)


def _nothing(_number: int, _frame: FrameType | None) -> None:
    pass
