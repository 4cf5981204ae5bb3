"""Tests of `gpushare_plugin.base.stacks`; stacks of threads are tested with processes that get the signal."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Generator

from gpushare_plugin.base.stacks import MOST_FRAMES, MOST_TASKS, task_stacks


class _Turns:
    """What a coroutine can await without an event: a generator that waits for turns of the loop."""

    def __await__(self) -> Generator[None, None, None]:
        yield from _turns()


def _turns() -> Generator[None, None, None]:
    while True:
        yield


async def _first(secret: str) -> None:
    await _second(secret)


async def _second(_secret: str) -> None:
    await _Turns()


async def _deep(depth: int, event: asyncio.Event) -> None:
    await (_deep(depth - 1, event) if depth else event.wait())


async def _of(*work: Awaitable[object]) -> list[str]:
    """Return the stacks of tasks that do this work, in the order of their names, and end the tasks."""
    tasks = [asyncio.create_task(_done(each), name=f"work {number:03}") for number, each in enumerate(work)]
    await asyncio.sleep(0)
    own = asyncio.current_task()
    assert own is not None
    own.set_name("zzz")  # after those
    stacks = list(task_stacks())
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return stacks


async def _done(work: Awaitable[object]) -> None:
    await work


async def test_the_stack_of_a_task_has_all_that_awaits() -> None:
    """From the innermost call to the outermost, through generators, each with its line, and without any value."""
    stack, _own = await _of(_first("a value that nobody is told"))
    head, *lines = stack.strip().splitlines()
    assert head == "Task work 000 (most recent call first):"
    assert [line.rpartition(" in ")[2] for line in lines] == ["_turns", "__await__", "_second", "_first", "_done"]
    assert all(line.startswith('  File "') and ", line " in line for line in lines)
    assert "nobody is told" not in stack


async def test_stacks_of_tasks_are_bounded() -> None:
    """Of many tasks so many are written, and how many more there are; of a deep stack so many calls."""
    event = asyncio.Event()
    stacks = await _of(*(event.wait() for _ in range(MOST_TASKS + 9)))
    assert len(stacks) == MOST_TASKS + 1
    assert stacks[-1].strip() == "... and 10 more tasks"
    deep, _own = await _of(_deep(2 * MOST_FRAMES, event))
    assert len(deep.strip().splitlines()) == 1 + MOST_FRAMES


async def _counting(event: asyncio.Event) -> AsyncIterator[int]:
    await event.wait()
    yield 1


async def test_what_cannot_be_looked_into_ends_the_stack() -> None:
    """An asynchronous generator that is iterated hides what it awaits; the task has the rest of its stack."""

    async def iterate() -> None:
        async for _ in _counting(asyncio.Event()):
            pass

    stack, _own = await _of(iterate())
    assert [line.rpartition(" in ")[2] for line in stack.strip().splitlines()[1:]] == ["iterate", "_done"]
