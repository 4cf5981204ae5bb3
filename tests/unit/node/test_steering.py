"""Tests of `gpushare_plugin.node.pods.steering`."""

import asyncio
import time

from gpushare_plugin.base import structs
from gpushare_plugin.core.holding import Slot
from gpushare_plugin.node.pods.steering import CONFIRMED_WITHIN, PodSteering
from tests.nodes import a_gpu
from tests.unit.kubelet.serving import shared_memory
from tests.unit.node.pods import Seen, a_pod
from tests.unit.sharing.settings import GPU_MEM

RESOURCE = shared_memory(8, 8, 8)
LONG = 3600.0
"""Seconds that no test waits."""


def ids(gpu: int, count: int, first: int = 0) -> list[str]:
    """Return the IDs of units of a GPU."""
    units = RESOURCE.units.by_gpu[RESOURCE.gpus[a_gpu(gpu).uuid]]
    return [unit.id for unit in units[first : first + count]]


async def test_a_call_waits_for_the_watch_to_bring_the_pod() -> None:
    """Nobody known here could be asking, so the watch is behind; other changes than the pod's do not end the wait."""
    seen = Seen()
    steering = PodSteering(seen, longest_wait=LONG)
    waiting = asyncio.create_task(steering.catch_up(RESOURCE, 3))
    await asyncio.sleep(0)
    other = a_pod("other", ("app", 2, {0: 2}))
    seen.show(other)
    await asyncio.sleep(0)
    assert not waiting.done()
    seen.show(other, a_pod("one", ("app", 3, {1: 3})))
    await waiting
    assert steering.promises(RESOURCE, 3) == [{a_gpu(1).uuid: 3}]


async def test_a_call_waits_no_longer_than_it_may() -> None:
    """A pod that the watch does not bring in time is given units by the node alone."""
    steering = PodSteering(Seen(), longest_wait=0.01)
    await steering.catch_up(RESOURCE, 3)
    assert steering.promises(RESOURCE, 3) == []


async def test_a_pause_of_the_process_is_no_wait_for_the_watch() -> None:
    """A process that stood still for longer than a call waits reads what arrived meanwhile before the call goes on."""
    seen = Seen()
    steering = PodSteering(seen, longest_wait=0.5)

    async def called() -> object:
        await steering.catch_up(RESOURCE, 3)
        return steering.promises(RESOURCE, 3)

    waiting = asyncio.create_task(called())
    await asyncio.sleep(0)
    time.sleep(0.6)  # noqa: ASYNC251 - the pause
    for _ in range(10):  # the turns of the loop from the socket to the pod
        await asyncio.sleep(0)
    seen.show(a_pod("one", ("app", 3, {1: 3})))
    assert await waiting == [{a_gpu(1).uuid: 3}]


async def test_no_call_waits_for_a_watch_that_is_down() -> None:
    """Then nothing would come."""
    seen = Seen()
    seen.live = False
    await PodSteering(seen, longest_wait=LONG).catch_up(RESOURCE, 3)


async def test_no_call_waits_where_the_pod_is_known() -> None:
    """Also where it was promised nothing."""
    await PodSteering(Seen(a_pod("one", ("app", 3, None))), longest_wait=LONG).catch_up(RESOURCE, 3)


def test_units_given_to_a_pod_count_until_the_kubelet_shows_their_holder() -> None:
    """A pod that swapped with another one is asked for again, and gets what the other was promised."""
    first, second = a_pod("first", ("app", 3, {1: 3})), a_pod("second", ("app", 3, {2: 3}))
    steering = PodSteering(Seen(first, second), clock=lambda: 0.0)
    steering.allocated(RESOURCE, ids(1, 3))
    assert steering.held == {Slot("first", "c0", GPU_MEM): frozenset(ids(1, 3))}
    steering.learn({Slot("second", "c0", GPU_MEM): frozenset(ids(1, 3))}, 1.0)
    assert steering.held == {Slot("second", "c0", GPU_MEM): frozenset(ids(1, 3))}
    assert steering.promises(RESOURCE, 3)[0] == {a_gpu(2).uuid: 3}


def test_units_that_the_kubelet_never_shows_count_as_given_back() -> None:
    """Another container of the pod got nothing, so the pod failed."""
    now = 0.0
    steering = PodSteering(Seen(a_pod("one", ("app", 3, {1: 3}))), clock=lambda: now)
    steering.allocated(RESOURCE, ids(1, 3))
    steering.learn({}, CONFIRMED_WITHIN / 2)
    assert steering.promises(RESOURCE, 3) == []
    steering.learn({}, CONFIRMED_WITHIN)
    assert steering.promises(RESOURCE, 3) == [{a_gpu(1).uuid: 3}]


def test_the_pod_that_got_something_last_is_asked_for_first() -> None:
    """Pods are admitted one after the other: its second container comes before those of other pods."""
    one = a_pod("one", ("app", 2, {0: 2}))
    several = a_pod("several", ("app", 3, {1: 3}), ("app", 2, {1: 2}))
    steering = PodSteering(Seen(one, several), clock=lambda: 0.0)
    assert steering.promises(RESOURCE, 2)[0] == {a_gpu(0).uuid: 2}
    steering.allocated(RESOURCE, ids(1, 3))
    assert steering.promises(RESOURCE, 2)[0] == {a_gpu(1).uuid: 2}
    assert steering.recipient(RESOURCE, ids(1, 2, 3)).pod_units == 5


def test_the_units_of_a_pod_are_known_only_where_the_pod_is() -> None:
    """Two pods of different size could be asking with containers of equal size."""
    one, several = a_pod("one", ("app", 2, {0: 2})), a_pod("several", ("app", 2, {1: 2}), ("app", 3, {1: 3}))
    assert PodSteering(Seen(one, several)).recipient(RESOURCE, ids(0, 2)).pod_units is None
    assert PodSteering(Seen(several)).recipient(RESOURCE, ids(0, 2)).pod_units == 5


def test_pods_that_ended_ask_for_nothing() -> None:
    """What they were promised is not given to others either."""
    ended = structs.replace(a_pod("ended", ("app", 3, {1: 3})), ended=True)
    steering = PodSteering(Seen(ended, a_pod("one", ("app", 3, {2: 3}))))
    assert steering.promises(RESOURCE, 3) == [{a_gpu(2).uuid: 3}]


def test_a_pod_gets_the_promise_of_the_pod_that_has_its_own() -> None:
    """Another pod has what this one was promised: what that one was promised is tried first, then the same GPU."""
    steering = PodSteering(Seen(a_pod("other", ("app", 3, {2: 3})), a_pod("one", ("app", 3, {1: 3}))))
    steering.learn({Slot("other", "c0", GPU_MEM): frozenset(ids(1, 3))}, 1.0)
    assert steering.promises(RESOURCE, 3) == [{a_gpu(2).uuid: 3}, {a_gpu(1).uuid: 3}]


def test_a_pod_for_one_gpu_does_not_swap_with_one_for_several() -> None:
    """Each would get another number of GPUs than it asked for."""
    steering = PodSteering(Seen(a_pod("several", ("app", 4, {0: 2, 1: 2})), a_pod("one", ("app", 4, {2: 4}))))
    steering.learn({Slot("several", "c0", GPU_MEM): frozenset(ids(2, 4))}, 1.0)
    assert steering.promises(RESOURCE, 4) == [{a_gpu(2).uuid: 4}]


def test_several_gpus_are_allowed_exactly_as_promised() -> None:
    """Other numbers of the same GPUs are not."""
    steering = PodSteering(Seen(a_pod("even", ("app", 4, {0: 2, 1: 2}))))
    assert steering.recipient(RESOURCE, [*ids(0, 2), *ids(1, 2)]).promised
    assert not steering.recipient(RESOURCE, [*ids(0, 3), *ids(1, 1)]).promised
    assert not steering.recipient(RESOURCE, [*ids(0, 2), *ids(2, 2)]).promised


def test_a_container_may_have_any_units_of_its_init_container() -> None:
    """The kubelet reuses them at random, without asking; they count for this pod, whatever others were promised."""
    other = a_pod("other", ("app", 4, {0: 3, 1: 1}))
    reusing = a_pod("reusing", ("init", 6, {0: 3, 1: 3}), ("app", 4, {0: 2, 1: 2}))
    steering = PodSteering(Seen(other, reusing), clock=lambda: 0.0)
    steering.allocated(RESOURCE, [*ids(0, 3), *ids(1, 3)])
    reused = [*ids(0, 3), *ids(1, 1)]
    assert steering.recipient(RESOURCE, reused).promised
    assert steering.recipient(RESOURCE, reused).pod_units == 6
    steering.allocated(RESOURCE, reused)
    assert steering.held.keys() == {Slot("reusing", "c0", GPU_MEM), Slot("reusing", "c1", GPU_MEM)}
    assert not steering.recipient(RESOURCE, [*ids(0, 2), *ids(1, 2, 3)]).promised


def test_resources_are_asked_for_until_the_pods_have_them() -> None:
    """Pods that are over or are being deleted are given nothing any more."""
    waiting = a_pod("waiting", ("init", 1, None), ("app", 2, None))
    seen = Seen(waiting)
    steering = PodSteering(seen)
    assert steering.asked_for == {GPU_MEM}
    steering.learn({Slot("waiting", "c0", GPU_MEM): frozenset(ids(0, 1))}, 0.0)
    assert steering.asked_for == {GPU_MEM}
    steering.allocated(RESOURCE, ids(0, 2))
    assert steering.asked_for == frozenset()
    seen.show(structs.replace(waiting, uid="over", ended=True), structs.replace(waiting, uid="ending", ending=True))
    assert steering.asked_for == frozenset()
