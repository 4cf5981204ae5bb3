"""Stacks of a running program as text: where each thread and each task is, without values of variables.

The form is that of faulthandler, the most recent call first.

faulthandler can write the stacks of threads from the C code of a signal handler, too, while other threads run. It then
follows frames that those threads are changing, and can end the process: a few dozen signals sufficed, with Python 3.11
to 3.13. So the handler here is one of Python, which runs while no other thread does. The C code serves at signals that
end a process anyway.
"""

import asyncio
import contextlib
import ctypes
import faulthandler
import os
import signal
import stat
from collections.abc import Iterator
from itertools import islice
from types import FrameType

from gpushare_plugin.base.text import visible

MOST_TASKS = 100
"""The most tasks with stacks; faulthandler writes as many threads."""
MOST_FRAMES = 100
"""The most frames of the stack of a task; faulthandler writes as many of a thread."""

_SS_DISABLE = 2
"""For sigaltstack(2), on Linux."""


@contextlib.contextmanager
def threads_written_at(number: signal.Signals, descriptor: int) -> Iterator[None]:
    """Write the stacks of all threads to a file at every signal `number`, then call the handler installed before.

    That also works while the event loop hangs, but not while a library keeps the interpreter from running anything. At
    SIGABRT, and at signals that the kernel sends for a defect, the stacks are written in any case. Those signals end
    the process, unless SIGABRT comes to the first process of a container.

    The write never waits: of a pipe that is full, the rest of the stacks is lost.
    """
    own = _without_waiting(descriptor)
    before = signal.getsignal(number)

    def write(arrived: int, frame: FrameType | None) -> None:
        faulthandler.dump_traceback(own, all_threads=True)
        if callable(before):
            before(arrived, frame)

    faulthandler.enable(own, all_threads=True)
    _handle_signals_on_the_normal_stack()
    signal.signal(number, write)
    try:
        yield
    finally:
        signal.signal(number, before)
        faulthandler.disable()
        os.close(own)


class _Stack(ctypes.Structure):
    """A stack for handlers of signals, as sigaltstack(2) takes it."""

    _fields_ = (("ss_sp", ctypes.c_void_p), ("ss_flags", ctypes.c_int), ("ss_size", ctypes.c_size_t))


def _handle_signals_on_the_normal_stack() -> None:
    """Take back the stack for handlers of signals that faulthandler has given this thread.

    Python's own handlers would use that stack, too (python/cpython#24730). It has some 16 KiB, and signals that come at
    the same time need up to 11 KiB each, for the registers of the processor: they would overflow it.
    """
    ctypes.CDLL(None).sigaltstack(ctypes.byref(_Stack(ss_flags=_SS_DISABLE)), None)


def _without_waiting(descriptor: int) -> int:
    """Return another descriptor of the same file, at which a full pipe refuses instead of waiting, where possible."""
    if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
        # An open file of its own: whoever else writes to the pipe keeps waiting.
        with contextlib.suppress(OSError):
            return os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY | os.O_NONBLOCK)
    return os.dup(descriptor)


def task_stacks() -> Iterator[str]:
    """Yield the stack of each task of the running event loop, in lines; at last, how many are left out, if any."""
    tasks = sorted(asyncio.all_tasks(), key=lambda task: task.get_name())
    for task in tasks[:MOST_TASKS]:
        lines = [_line(frame) for frame in islice(_frames(task.get_coro()), MOST_FRAMES)]
        yield "\n".join(["", f"Task {visible(task.get_name())} (most recent call first):", *reversed(lines)])
    if len(tasks) > MOST_TASKS:
        yield f"\n... and {len(tasks) - MOST_TASKS} more tasks"


def _frames(awaited: object) -> Iterator[FrameType]:
    """Yield the frame of a coroutine or generator, and then the frame of each one that is awaited in turn."""
    while awaited is not None:
        kind = next((each for each in ("cr", "gi", "ag") if hasattr(awaited, f"{each}_frame")), None)
        frame = getattr(awaited, f"{kind}_frame", None)
        if frame is None:  # not written in Python, or ended
            return
        yield frame
        awaited = getattr(awaited, "gi_yieldfrom" if kind == "gi" else f"{kind}_await")


def _line(frame: FrameType) -> str:
    return f'  File "{frame.f_code.co_filename}", line {frame.f_lineno or "???"} in {frame.f_code.co_name}'
