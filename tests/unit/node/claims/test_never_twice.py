"""Random steps: whatever happens in whatever order, no memory of a GPU is given twice, and nothing is left over."""

import asyncio
import os
import random
from pathlib import Path

import pytest

from tests.skipping import SkippingLoop
from tests.unit.node.claims.simulation import GPUS, SimulatedNode, SimulatedPod

STEPS = int(os.environ.get("GPUSHARE_CLAIM_STEPS", "200"))
"""Steps of the test."""
SEED = int(os.environ.get("GPUSHARE_CLAIM_SEED", "1"))
"""The seed of what is drawn at random."""


STEPS_BY_WEIGHT = {
    "claim": 30, "units": 30, "end": 25, "force": 12, "config": 8, "kill": 2, "killed": 12, "begin": 60, "reboot": 1,
    "again": 8, "wait": 16,
}  # fmt: skip


async def step(node: SimulatedNode) -> None:
    """Do something at random."""
    what = node.rng.choices(list(STEPS_BY_WEIGHT), list(STEPS_BY_WEIGHT.values()))[0]
    if what in {"kill", "killed", "begin", "reboot"}:
        await change_daemon(node, what)
    elif what == "config":
        reconfigure(node, by_memory=node.rng.random() < 2 / 3)
    elif what == "wait":
        await asyncio.sleep(node.rng.choice([0.5, 5.0, 60.0]))
    else:
        await change_pods(node, what)


async def change_daemon(node: SimulatedNode, what: str) -> None:
    """End or begin a life of the daemon."""
    match what:
        case "kill":
            await node.kill()
        case "killed" if node.daemon is not None:
            await node.killed_in(some_work(node))
        case "begin" if node.daemon is None:
            await node.begin()
        case "reboot":
            await node.reboot()


async def change_pods(node: SimulatedNode, what: str) -> None:
    """Begin or end a pod."""
    pods, with_claims = list(node.pods.values()), claimed(node)
    match what:
        case "claim" if (pod := node.claimed_pod()) is not None:
            await node.start(pod)
        case "units" if node.unit_pod() is not None:
            node.done["units"] += 1
        case "end" if pods:
            await node.end(node.rng.choice(pods))
        case "force" if with_claims:
            node.force_deletion(node.rng.choice(with_claims))
        case "again" if with_claims:
            await node.start(node.rng.choice(with_claims))


def claimed(node: SimulatedNode) -> list[SimulatedPod]:
    """Return the pods with claims whose containers have not ended."""
    return [pod for pod in node.pods.values() if pod.claim is not None and not pod.ended]


def reconfigure(node: SimulatedNode, *, by_memory: bool) -> None:
    """Give other GPUs by claim, perhaps in another way."""
    node.configure(node.rng.sample(GPUS, node.rng.randint(0, 3)), by_memory=by_memory)
    if node.daemon is not None:
        node.daemon.apply()


async def some_work(node: SimulatedNode) -> None:
    """Have the daemon do something in which it can be killed."""
    with_claims = claimed(node)
    match node.rng.choice(["prepare", "unprepare", "hand-over"]):
        case "prepare" if with_claims:
            await node.start(node.rng.choice(with_claims))
        case "unprepare" if with_claims:
            await node.end(node.rng.choice(with_claims))
        case _:
            reconfigure(node, by_memory=True)
            await asyncio.sleep(60)


async def never_twice(folder: Path) -> None:
    """Do random steps, and end all pods at last."""
    node = SimulatedNode(folder, random.Random(SEED))  # noqa: S311 - nothing secret is drawn
    await node.begin()
    for _ in range(STEPS):
        await step(node)
        node.check()
    if node.daemon is None:
        await node.begin()
    for pod in [*node.pods.values()]:
        await node.end(pod)
    node.configure([], by_memory=True)
    assert node.daemon is not None
    node.daemon.apply()
    await asyncio.sleep(120)
    assert list(node.left) == []
    assert {uuid for each in node.daemon.offer.resources.values() for uuid in each.gpus} == set(GPUS)
    await node.kill()
    assert node.done["started"]
    assert node.done["units"]
    assert node.done["refused"]
    assert node.done["killed"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a killed daemon awaits nothing
def test_never_twice(tmp_path: Path) -> None:
    """In 200 steps, or in as many as GPUSHARE_CLAIM_STEPS says."""
    with asyncio.Runner(loop_factory=SkippingLoop) as runner:
        runner.run(never_twice(tmp_path))
