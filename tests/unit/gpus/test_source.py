"""Tests of `gpushare_plugin.gpus.source`."""

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpushare_plugin.base.errors import NoGpuLibraryError
from gpushare_plugin.core.gpu import Inventory
from gpushare_plugin.core.health import GpuEvent
from gpushare_plugin.core.usage import GpuUsage
from gpushare_plugin.gpus.memory_limits import LimitError
from gpushare_plugin.gpus.source import Asked, read_inventory, read_limits
from tests.nodes import a_node

UNKNOWN = LimitError("unknown")


@dataclass
class Host:
    """A host that answers with whatever a function returns or raises."""

    answer: Callable[[], Inventory]

    def read(self) -> Inventory:
        """Answer."""
        return self.answer()

    def sample(self) -> tuple[GpuUsage, ...]:
        """Have no processes."""
        return ()

    def read_limits(self, asked: Sequence[Asked]) -> Mapping[Asked, LimitError]:
        """Know no limits."""
        return dict.fromkeys(asked, UNKNOWN)

    def watch_events(self, report: Callable[[GpuEvent], None], beat: Callable[[], None]) -> None:
        """Have no events."""


class SlowDriver:
    """A driver whose answer takes until it is let go."""

    def __init__(self) -> None:
        """Begin held up."""
        self.asked, self.let_go, self.done = threading.Event(), threading.Event(), threading.Event()

    def read(self) -> Inventory:
        """Answer when let go."""
        self.asked.set()
        self.let_go.wait()
        self.done.set()
        return a_node(1024)

    def sample(self) -> tuple[GpuUsage, ...]:
        """Have no processes."""
        return ()

    def read_limits(self, asked: Sequence[Asked]) -> Mapping[Asked, LimitError]:
        """Know no limits."""
        return dict.fromkeys(asked, UNKNOWN)

    def watch_events(self, report: Callable[[GpuEvent], None], beat: Callable[[], None]) -> None:
        """Have no events."""


async def test_the_answer_of_the_source_reaches_the_caller() -> None:
    """The caller gets what the source reports."""
    assert await read_inventory(Host(lambda: a_node(1024, 2048))) == a_node(1024, 2048)


async def test_memory_limits_reach_the_caller() -> None:
    """Each cgroup and GPU that is asked for has an answer."""
    asked = ("GPU-1", Path("/a")), ("GPU-1", Path("/b"))
    assert await read_limits(Host(lambda: a_node(1024)), asked) == dict.fromkeys(asked, UNKNOWN)


@pytest.mark.parametrize("error", [NoGpuLibraryError("no driver"), ValueError("anything else")])
async def test_an_error_belongs_to_the_caller(error: Exception) -> None:
    """Whatever is raised while the driver is asked is raised where the answer was awaited."""

    def fail() -> Inventory:
        raise error

    with pytest.raises(type(error), match=str(error)):
        await read_inventory(Host(fail))


async def test_a_slow_driver_holds_nobody_up() -> None:
    """While the driver takes its time the event loop goes on."""
    driver = SlowDriver()
    reading = asyncio.create_task(read_inventory(driver))
    assert await asyncio.to_thread(driver.asked.wait, 30)
    assert not reading.done()
    driver.let_go.set()
    assert await reading == a_node(1024)


async def test_a_caller_can_leave_a_hanging_driver() -> None:
    """A caller that stops waiting is free at once, and an answer that comes later is dropped."""
    driver = SlowDriver()
    reading = asyncio.create_task(read_inventory(driver))
    assert await asyncio.to_thread(driver.asked.wait, 30)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert not driver.done.is_set()
    driver.let_go.set()
    assert await asyncio.to_thread(driver.done.wait, 30)


def test_an_answer_after_the_end_is_dropped() -> None:
    """A driver that answers when the event loop is closed already has no effect."""
    driver = SlowDriver()

    async def give_up() -> None:
        reading = asyncio.create_task(read_inventory(driver))
        await asyncio.to_thread(driver.asked.wait, 30)
        reading.cancel()

    asyncio.run(give_up())
    (thread,) = [each for each in threading.enumerate() if each.name == "gpu-inventory"]
    driver.let_go.set()
    thread.join(30)
    assert not thread.is_alive()
