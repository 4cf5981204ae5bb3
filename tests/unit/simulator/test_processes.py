"""Tests of runs in several processes."""

import os
import signal
from multiprocessing import active_children

import pytest

from gpushare_plugin.base.errors import GpushareError
from gpushare_plugin.simulator.processes import in_processes


def killed_at_three(number: int) -> int:
    """Return the number; at three, the kernel kills the process, as it does when memory runs out."""
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def without_memory(number: int) -> int:
    """Find no memory."""
    raise MemoryError(number)


def endless_from_one(number: int) -> int:
    """Return zero, and nothing for other numbers."""
    while number:
        signal.pause()
    return number


def blocked(_: int) -> set[int]:
    """Return the signals that the process does not get."""
    return set(signal.pthread_sigmask(signal.SIG_BLOCK, ()))


def test_a_killed_process_is_told_with_a_remedy() -> None:
    """The error is a sentence for people, and no process stays behind."""
    with pytest.raises(
        GpushareError, match=r"one of the 2 processes was killed.* needs all 200 runs; use fewer --jobs than 2"
    ):
        list(in_processes(killed_at_three, range(200), 2))
    assert not active_children()


@pytest.mark.parametrize("processes", [1, 2])
def test_want_of_memory_is_told_in_any_number_of_processes(processes: int) -> None:
    """A process that finds no memory is told as one that is killed."""
    with pytest.raises(GpushareError, match=r"memory.* nothing is reported.* fewer nodes or pods"):
        list(in_processes(without_memory, range(2), processes))
    assert not active_children()


def test_who_stops_early_ends_the_processes() -> None:
    """A command that is interrupted does not wait until its processes have finished their work."""
    results = in_processes(endless_from_one, range(3), 2)
    assert next(results) == 0
    results.close()
    assert not active_children()


def test_the_processes_leave_the_keyboard_to_the_command() -> None:
    """Control and C in a terminal reach all processes of a command: only the first one acts on these signals."""
    before = blocked(0)
    for signals in in_processes(blocked, range(2), 2):
        assert {signal.SIGINT, signal.SIGQUIT} <= signals
    assert blocked(0) == before
