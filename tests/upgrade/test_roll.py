"""Programs are exchanged one after another for those of a new build, and back, while pods come and go."""

import asyncio
import signal
from pathlib import Path

from tests.upgrade.builds import Build
from tests.upgrade.lives import SEED, STEPS
from tests.upgrade.memory import Extender, Life, living
from tests.upgrade.worker import Worker

ENDS = (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL)
"""How a daemon may end; an extender that is killed keeps its Lease longer than tests wait."""


async def test_programs_are_exchanged_while_pods_come_and_go(short_path: Path, old: Build, new: Build) -> None:
    """Daemons and two extenders are upgraded in any order, and rolled back: nothing that a pod holds changes.

    On the way, extenders of both builds share the Lease, and each leads pods of the other one.
    """
    async with living(short_path, old, old, old, seed=SEED) as life:
        await life.steps(STEPS // 2)
        for build in (new, old):
            await roll(life, build)


async def roll(life: Life, build: Build) -> None:
    """Exchange all programs for those of a build, in random order."""
    parts: list[Worker | Extender] = [*life.cluster.workers.values(), *life.extenders]
    for part in life.rng.sample(parts, len(parts)):
        async with asyncio.TaskGroup() as tasks:
            if isinstance(part, Extender):
                tasks.create_task(part.exchange(build))
            else:
                tasks.create_task(part.exchange(part.daemon, build, life.rng.choice(ENDS)))
            tasks.create_task(life.steps(2))
        await life.settle()
