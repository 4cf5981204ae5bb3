"""Tests of `gpushare_plugin.base.published`."""

import asyncio

from gpushare_plugin.base.published import Published, changes


async def test_every_follower_sees_the_value_now_and_the_newest_later() -> None:
    """A follower that comes late or is slow misses values between, never the last one."""
    number = Published(1)
    seen = number.follow()
    assert await anext(seen) == 1
    number.publish(2)
    number.publish(3)
    assert await anext(seen) == 3
    assert await anext(number.follow()) == number.value == 3


async def test_followers_wake_when_the_value_is_replaced() -> None:
    """Waiting ends with the next value, for all who wait."""
    number = Published(1)
    followers = [number.follow() for _ in range(3)]
    for follower in followers:
        await anext(follower)
    waiting = [asyncio.ensure_future(anext(follower)) for follower in followers]
    await asyncio.sleep(0)
    assert not any(waiter.done() for waiter in waiting)
    number.publish(2)
    assert await asyncio.gather(*waiting) == [2, 2, 2]


async def test_a_follower_of_several_values_wakes_for_each() -> None:
    """The first turn comes at once, others after any of the values was replaced, however often meanwhile."""
    one, other = Published(1), Published("a")
    following = changes(one, other)
    await anext(following)
    one.publish(2)
    one.publish(3)
    await anext(following)
    assert (one.value, other.value) == (3, "a")
    waiting = asyncio.ensure_future(anext(following))
    await asyncio.sleep(0)
    assert not waiting.done()
    other.publish("b")
    await waiting
