"""Random steps: whatever happens in whatever order, no memory of a GPU is given twice, and nothing is left over."""

import asyncio
import gc
import os
import random
from collections import Counter
from pathlib import Path

import pytest

from gpushare_plugin.node.claims.hand_over import WITHDRAWN_SECONDS
from tests.skipping import SkippingLoop
from tests.unit.node.claims.simulated_daemon import SimulatedDaemon
from tests.unit.node.claims.simulation import GPUS, SimulatedNode, SimulatedPod

STEPS = int(os.environ.get("GPUSHARE_CLAIM_STEPS", "200"))
"""Steps from each seed."""
SEED = int(os.environ.get("GPUSHARE_CLAIM_SEED", "1"))
"""The first seed of what is drawn at random."""


STEPS_BY_WEIGHT = {
    "claim": 60, "together": 25, "units": 40, "end": 80, "force": 8, "again": 12, "wait": 30,
    "config": 12, "fault": 6, "cordon": 6, "recovery": 10,
    "kill": 2, "killed": 30, "begin": 70, "surge": 50, "update": 12, "reboot": 1,
}  # fmt: skip


async def step(node: SimulatedNode) -> None:
    """Do something at random."""
    what = node.rng.choices(list(STEPS_BY_WEIGHT), list(STEPS_BY_WEIGHT.values()))[0]
    if what in {"kill", "killed", "begin", "surge", "update", "reboot"}:
        await change_daemons(node, what)
    elif what in {"config", "fault", "cordon", "recovery"}:
        change_gpus(node, what)
    elif what == "wait":
        await asyncio.sleep(node.rng.choice([0.5, 5.0, 60.0]))
    else:
        await change_pods(node, what)


async def change_daemons(node: SimulatedNode, what: str) -> None:
    """End or begin lives of daemons."""
    match what:
        case "kill" if node.daemons:
            await node.kill(node.rng.choice(node.daemons))
        case "killed":
            await kill_in_work(node)
        case "begin" if node.daemon is None:
            await node.begin()
        case "surge" if node.standing_by is None:
            await node.stand_by()
        case "update" if node.daemon is not None and node.standing_by is not None:
            await asyncio.gather(update(node, node.daemon), *(node.start(pod, node.called()) for pod in some(node)))
            node.done["updated"] += 1
        case "reboot":
            await node.reboot()


async def update(node: SimulatedNode, old: SimulatedDaemon) -> None:
    """Have the daemon that stands by take over."""
    await node.kill(old)
    await node.begin()


async def change_pods(node: SimulatedNode, what: str) -> None:
    """Begin or end pods."""
    with_claims = claimed(node)
    match what:
        case "claim" if (pod := node.claimed_pod()) is not None:
            await node.start(pod, node.called())
        case "together" if node.claimed_pod() is not None:
            await asyncio.gather(*(node.start(pod, node.called()) for pod in some(node)))
        case "units" if node.unit_pod() is not None:
            node.done["units"] += 1
        case "end" if node.pods:
            await node.end(node.rng.choice([*node.pods.values()]), node.called())
        case "force" if with_claims:
            node.force_deletion(node.rng.choice(with_claims))
        case "again" if with_claims:
            await node.start(node.rng.choice(with_claims), node.called())


def claimed(node: SimulatedNode) -> list[SimulatedPod]:
    """Return the pods with claims whose containers have not ended."""
    return [pod for pod in node.pods.values() if pod.claim is not None and not pod.ended]


def some(node: SimulatedNode) -> list[SimulatedPod]:
    """Return some pods with claims, perhaps one of them twice."""
    pods = claimed(node)
    return node.rng.choices(pods, k=3) if pods else []


def change_gpus(node: SimulatedNode, what: str) -> None:
    """Change a GPU, or who gets which GPUs and how."""
    match what:
        case "config":
            node.configure(node.rng.sample(GPUS, node.rng.randint(0, 3)), by_memory=node.rng.random() < 2 / 3)
        case "fault":
            node.faults.add(node.rng.choice(GPUS))
        case "cordon":
            node.cordons.add(node.rng.choice(GPUS))
        case _:
            node.faults.clear()
            node.cordons.clear()
    node.done[what] += 1
    if node.daemon is not None:
        node.daemon.applies()


async def kill_in_work(node: SimulatedNode) -> None:
    """Have a daemon do something in which it is killed, perhaps beside another daemon."""
    if not node.daemons:
        return
    daemon, pods = node.rng.choice(node.daemons), claimed(node)
    what = node.rng.choice(["prepare", "unprepare", "together", "hand-over", "start"])
    if what == "start" and daemon is node.standing_by and node.daemon is not None:
        await node.kill(node.daemon)
        await node.killed_in(daemon, node.begin())
    elif what in {"prepare", "unprepare"} and pods:
        pod = node.rng.choice(pods)
        await node.killed_in(daemon, (node.start if what == "prepare" else node.end)(pod, daemon))
    elif what == "together":
        await node.killed_in(daemon, *(node.start(pod, node.called()) for pod in some(node)))
    else:
        change_gpus(node, "config")
        await node.killed_in(daemon, asyncio.sleep(60))


async def never_twice(folder: Path, seed: int) -> Counter[str]:
    """Do random steps, end all pods at last, and return how often things happened."""
    node = SimulatedNode(folder, random.Random(seed))  # noqa: S311 - nothing secret is drawn
    await node.begin()
    for _ in range(STEPS):
        await step(node)
        node.check()
    if node.daemon is None:
        await node.begin()
    for pod in [*node.pods.values()]:
        await node.end(pod, node.called())
    node.configure([], by_memory=True)
    change_gpus(node, "recovery")
    await asyncio.sleep(120)
    assert list(node.left) == []
    assert node.daemon is not None
    assert {uuid for each in node.daemon.offer.resources.values() for uuid in each.gpus} == set(GPUS)
    for daemon in node.daemons:
        await node.kill(daemon)
    return node.done


# The end of a process closes its files, and has no warnings: daemons that are killed here leave both.
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning", "ignore:coroutine .* never awaited:RuntimeWarning")
def test_never_twice(tmp_path: Path) -> None:
    """In 200 steps from each of five seeds, or in as many as GPUSHARE_CLAIM_STEPS says; everything happens."""
    done: Counter[str] = Counter()
    for seed in range(SEED, SEED + 5):
        (folder := tmp_path / f"seed-{seed}").mkdir()
        with asyncio.Runner(loop_factory=SkippingLoop) as runner:
            done += runner.run(never_twice(folder, seed))
        gc.collect()
    assert {"started", "refused", "units", "config", "fault", "cordon", "recovery", "killed", "updated"} <= done.keys()


async def claim_that_comes_late(folder: Path) -> None:
    """Have a GPU go to the device plugin beside a daemon that knows the config of before."""
    node = SimulatedNode(folder, random.Random(SEED))  # noqa: S311 - nothing secret is drawn
    await node.begin()
    await node.stand_by()
    node.configure([], by_memory=True)
    assert node.daemon is not None
    node.daemon.applies()
    await asyncio.sleep(2 * WITHDRAWN_SECONDS)
    assert {uuid for each in node.daemon.offer.resources.values() for uuid in each.gpus} == set(GPUS)
    pod = node.claimed_pod()
    assert pod is not None
    await node.start(pod, node.standing_by)
    assert node.done == {"refused": 1}
    for daemon in node.daemons:
        await node.kill(daemon)


def test_a_gpu_that_left_is_in_no_claim_of_a_daemon_that_stands_by(tmp_path: Path) -> None:
    """The scheduler allocates by old ResourceSlices, and the daemon has not heard of the new config."""
    with asyncio.Runner(loop_factory=SkippingLoop) as runner:
        runner.run(claim_that_comes_late(tmp_path))
