"""The running daemon under random attacks on every socket and file it reads, while ordinary pods come and go.

Each attack is made once, always in the same order. GPUSHARE_ATTACK_SECONDS says for how long to go on after that, hours
for example, GPUSHARE_ATTACK_SEED is a number for another order, and GPUSHARE_ATTACKS names the only attacks to make.
"""

import gc
import os
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random

import pytest

from tests.process.attack.attacks import ATTACKS, Attack
from tests.process.attack.target import LOG_IN_A_STEP, Size, Target, a_target, size

SECONDS = float(os.environ.get("GPUSHARE_ATTACK_SECONDS", "0"))
SEED = int(os.environ.get("GPUSHARE_ATTACK_SEED", "1"))
CHOSEN = frozenset(filter(None, os.environ.get("GPUSHARE_ATTACKS", "").split(",")))

AT_ONCE = 3
"""Attacks that go on at the same time, at most."""
MORE_DESCRIPTORS = 16
"""Descriptors that may have come: connections that are kept for the next request to the API server or the kubelet."""
MORE_MEMORY = 64
"""MiB by which the daemon may have grown: four messages of 16 MiB, the largest it takes, kept by the allocator."""
MORE_THREADS = (os.cpu_count() or 1) + 4 + 16
"""Threads that may have come: those of asyncio's own pool, and as many of gRPC's as it keeps in reserve."""

Open = list[tuple[Attack, AsyncExitStack]]


def chosen() -> list[Attack]:
    """Return the attacks to make."""
    found = [attack for attack in ATTACKS if not CHOSEN or attack.name in CHOSEN]
    assert found, f"no attacks are called {sorted(CHOSEN)}; there are {[attack.name for attack in ATTACKS]}"
    return found


def campaign(seed: int) -> Iterator[tuple[int, Attack, Random]]:
    """Yield steps for ever, each with a source of randomness of its own: every attack in any order, then again."""
    attacks = chosen()
    number = 0
    while True:
        for attack in Random(f"{seed} {number}").sample(attacks, len(attacks)):  # noqa: S311 - no secret
            number += 1
            yield number, attack, Random(f"{seed} {number}")  # noqa: S311 - no secret


async def step(node: Target, attack: Attack, draw: Random, going_on: Open) -> None:
    """Begin an attack, let pods come and go under it, and perhaps let it go on beside the next."""
    while going_on and (len(going_on) >= AT_ONCE or any(attack.places & other.places for other, _ in going_on)):
        await going_on.pop(0)[1].aclose()
    stack = AsyncExitStack()
    going_on.append((attack, stack))
    await stack.enter_async_context(attack.on(node, draw))
    await node.live(draw)
    node.check()
    await node.healthy()
    if draw.random() < 0.5:
        await going_on.pop(draw.randrange(len(going_on)))[1].aclose()


async def make(node: Target, seconds: float) -> int:
    """Make each attack once, then more for so long, and return how many there were; all have ended then."""
    going_on: Open = []
    ends = time.monotonic() + seconds
    number, said = 0, ""
    try:
        for number, attack, draw in campaign(SEED):
            said = f"step {number}: {attack.name}"
            await step(node, attack, draw, going_on)
            if number >= len(chosen()) and time.monotonic() > ends:
                break
        while going_on:
            await going_on.pop()[1].aclose()
    except BaseException as error:
        others = ", ".join(other.name for other, _ in going_on)
        error.add_note(f"GPUSHARE_ATTACK_SEED={SEED}, {said}; going on: {others or 'nothing'}")
        raise
    return number


async def flat(node: Target, before: Size) -> None:
    """See that nothing has grown but by what is explained; what was cut off may take a moment to be closed."""
    gc.collect()  # gRPC's clients close their connections when nobody has them any more, and these are in circles
    process = node.daemon.process.pid
    most = before.descriptors + MORE_DESCRIPTORS
    await node.until(lambda: size(process).descriptors <= most, lambda: (before, size(process)))
    now = size(process)
    assert now.threads <= before.threads + MORE_THREADS, f"{before} before, {now} now"
    assert now.memory <= before.memory + MORE_MEMORY, f"{before} before, {now} now"


@pytest.mark.long
@pytest.mark.timeout(SECONDS + 600)
# A server of asyncio that is closed just when somebody connects leaves that socket to the garbage collector.
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_random_attacks_do_no_lasting_harm(short_path: Path) -> None:
    """After attacks at random all is as before.

    While it lasts, no unit is given twice, no GPU is used in two ways or beyond its memory, what pods hold stays
    theirs, and the process says that it is well, as it is. Afterwards the same process offers all it offered, every
    unit can be given, MPS has its limits, and memory, descriptors, threads and logs have not grown with the attacks.
    """
    async with a_target(short_path, Random(SEED)) as node:  # noqa: S311 - no secret
        await node.settled()
        await node.probe("/metrics")
        before = await node.settled()
        steps = await make(node, SECONDS)
        try:
            await node.settled()
            node.end_pods()
            await node.full()
            node.end_pods()
            await node.settled()
            await flat(node, before)
            for process in (node.daemon, node.keeper):
                assert len(process.log) <= LOG_IN_A_STEP * steps
                broken = [each for each in process.log if "exception" in each]
                assert not broken, f"tracebacks in the log, the first of {len(broken)}: {broken[0]}"
                assert not process.noise, f"beside the log: {process.noise[:5]}"
        except BaseException as error:
            error.add_note(f"GPUSHARE_ATTACK_SEED={SEED}, after {steps} steps")
            raise
