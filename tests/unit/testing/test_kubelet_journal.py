"""Tests of `gpushare_plugin.testing.kubelet.shared.journal`: no state that is waited for is missed."""

import asyncio

import pytest

from gpushare_plugin.testing.kubelet.shared.journal import Journal


async def waiting(journal: Journal, seen: list[int], wanted: int) -> asyncio.Task[None]:
    """Wait until the last state is the one that is wanted."""
    task = asyncio.create_task(journal.wait_until(lambda: seen[-1] == wanted))
    await asyncio.sleep(0)
    return task


async def test_a_state_that_ends_at_once_is_seen() -> None:
    """Two changes without a pause between them are two states."""
    journal, seen = Journal(), [0]
    task = await waiting(journal, seen, 1)
    for state in (1, 2):
        seen.append(state)
        journal.changed()
    await task


async def test_a_change_may_be_noted_before_it_is_made() -> None:
    """What is noted first and changed then, without a pause, is seen as well."""
    journal, seen = Journal(), [0]
    task = await waiting(journal, seen, 1)
    journal.changed()
    seen.append(1)
    await task


async def test_a_condition_that_breaks_is_an_error_of_the_waiter() -> None:
    """The error neither breaks what changed nor is waited for without end."""
    journal, seen = Journal(), [0]
    task = await waiting(journal, seen, 1)
    seen.clear()
    journal.changed()
    with pytest.raises(IndexError):
        await task
