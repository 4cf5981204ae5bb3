"""The effect of every signal that a program can handle; docs/reliability.md has those that people send.

The module imports nothing large, because signals are set before the rest of a program is imported.
"""

import _thread
import os
import signal
import time
from collections.abc import Callable, Iterable
from types import FrameType

Handler = Callable[[int, FrameType | None], None]
"""A signal handler, called with the number of the signal and the interrupted frame."""

ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
"""Signals that end every program in good order."""

STACKS = signal.SIGUSR1
"""Has a running daemon write its stacks.

containerd and dockerd do the same at this signal (containerd: cmd/containerd/command/main_unix.go, moby:
daemon/debugtrap_unix.go).
"""

MORE_LOG = signal.SIGUSR2
"""Has a running daemon log every line; the next such signal restores the level of its option."""

_NEVER_ENDING = ("SIGUSR1", "SIGUSR2", "SIGALRM", "SIGVTALRM", "SIGPROF", "SIGIO", "SIGPWR", "SIGSTKFLT")

IGNORED = (
    *(signal.Signals[name] for name in _NEVER_ENDING if name in signal.Signals.__members__),
    *range(signal.SIGRTMIN, signal.SIGRTMAX + 1),
)
"""Signals whose default effect would end a program in the middle of its work. Only running daemons know two of them."""

_ALL = (*ENDING, *IGNORED, signal.SIGHUP)

_TO_END = 5.0
"""Seconds that an interactive program has to end in good order."""


def set_early(end: Handler, *, stays: bool) -> None:
    """Call `end` at every signal of ENDING, and do nothing at every signal of IGNORED.

    SIGHUP does nothing to a program that `stays` without its terminal, and ends any other program at once.
    """
    set_ending(end)
    disregard((*IGNORED, *((signal.SIGHUP,) if stays else ())))


def set_ending(end: Handler) -> None:
    """Call `end` at every signal of ENDING."""
    for number in ENDING:
        signal.signal(number, end)


def disregard(numbers: Iterable[int]) -> None:
    """Do nothing at the signals `numbers`.

    The signals get an empty handler instead of SIG_IGN. Programs started by this process do not inherit a handler,
    and the interpreter does not complain about a signal that has come already but is not handled yet.
    """
    for number in numbers:
        signal.signal(number, _nothing)


def end_in_any_case() -> None:
    """End the process with status 0 in five seconds, whatever holds it up, for example output without a reader.

    A signal handler may call the function: unlike `threading`, `_thread` takes no lock.
    """
    _thread.start_new_thread(_end_later, ())


def ignore_signals() -> None:
    """Ignore all signals from now on, as long as the interpreter runs; see `ignore_until_gone` for its end.

    A signal handler must not call the function: signals that have come wait while a handler runs.
    """
    # A thread that the kernel has given a signal before, and that runs only later, passes the signal on to the
    # interpreter, which complains unless the signal has a handler.
    disregard(_ALL)
    _ask_the_kernel_to_ignore()


def ignore_until_gone() -> None:
    """Ignore all signals until the process is gone; called at the end of the interpreter.

    The interpreter removes handlers well before the process ends, and gives a signal that has a handler its default
    effect: only SIG_IGN stays.
    """
    # The kernel first. The interpreter looks for signals that have come before it changes the first handler below, and
    # complains about a signal whose handler is gone.
    _ask_the_kernel_to_ignore()
    for number in _ALL:
        signal.signal(number, signal.SIG_IGN)


def _ask_the_kernel_to_ignore() -> None:
    """Have no more signals given to the process; the handlers of the interpreter stay."""
    from ctypes import c_int, c_void_p, pythonapi  # noqa: PLC0415 - at the end of a program, which starts without it

    for number in _ALL:
        pythonapi.PyOS_setsig(c_int(number), c_void_p(signal.SIG_IGN))


def _end_later() -> None:
    time.sleep(_TO_END)
    os._exit(0)


def _nothing(_number: int, _frame: FrameType | None) -> None:
    pass
