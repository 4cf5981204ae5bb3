"""Programs are exchanged one after another for those of a new build, and back, while pods come and go."""

import asyncio
import signal
from pathlib import Path

import pytest

from tests.upgrade.builds import Build
from tests.upgrade.lives import SEED, STEPS
from tests.upgrade.memory import living
from tests.upgrade.partitioned import dividing
from tests.upgrade.programs import Program
from tests.upgrade.worker import Worker

ENDS = (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL)
"""How a program of a node may end; of those with a Lease one that is killed would keep that for long."""


@pytest.mark.long
async def test_programs_that_place_pods_are_exchanged(short_path: Path, old: Build, new: Build) -> None:
    """Daemons and two extenders are upgraded in any order, and half of them rolled back: what pods hold stays theirs.

    On the way, extenders of both builds share the Lease, and each takes over pods that the other one placed.
    """
    async with living(short_path, old, old, old, seed=SEED) as life:
        await life.steps(STEPS // 4)
        workers = life.cluster.workers.values()
        for build in (new, old):
            parts = [*((each, each.daemon) for each in workers), *((None, each) for each in life.extenders)]
            for worker, program in life.rng.sample(parts, len(parts) if build == new else len(parts) // 2):
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(exchange(worker, program, build, life.rng.choice(ENDS)))
                    tasks.create_task(life.steps(2))
            await life.settle()


@pytest.mark.long
async def test_programs_that_divide_gpus_are_exchanged(short_path: Path, old: Build, new: Build) -> None:
    """Daemons, the programs beside them and two partitioners are upgraded in any order, and half of them rolled back.

    Slices and MIG instances that pods hold stay as they are, and partitioners of both builds share the Lease.
    """
    async with dividing(short_path, old, old, old, old, seed=SEED) as life:
        await life.steps(STEPS // 4)
        workers = life.workers.values()
        for build in (new, old):
            parts = [
                *((each, program) for each in workers for program in (each.daemon, each.helper)),
                *((None, each) for each in life.partitioners),
            ]
            for worker, program in life.rng.sample(parts, len(parts) if build == new else len(parts) // 2):
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(exchange(worker, program, build, life.rng.choice(ENDS)))
                    tasks.create_task(life.steps(1))
            await life.settle()


async def exchange(worker: Worker | None, program: Program, build: Build, end: signal.Signals) -> None:
    """Let the program of a build follow one that runs; one of a node may be killed for that."""
    if worker is None:
        await program.exchange(build)
    else:
        await worker.exchange(program, build, end)
