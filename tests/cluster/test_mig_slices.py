"""Automatic partitioning by MIG together: pods ask, instances appear, and kube-scheduler as it is does the rest."""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

from gpushare_plugin.kube.client import NODES as API_NODES
from gpushare_plugin.ledger.node_record import GPUS_ANNOTATION, decode
from gpushare_plugin.testing.kubelet import Container, Pod
from gpushare_plugin.testing.nvml import FakeGpu, FakeNvml, FakeProcess
from tests.cluster.mig import MIG, MigWorker, kinds, no_thread_left
from tests.cluster.objects import ALL_PODS, Object, kubelet_pod, pod_object
from tests.cluster.running import Cluster, running_alone
from tests.cluster.test_slices import messages, names, run
from tests.cluster.worker import Worker
from tests.unit.gpus.conftest import Node as Describe
from tests.unit.gpus.conftest import describe
from tests.unit.partitioner.partitioners import partitioner
from tests.waiting import until

__all__ = ["describe"]

NODES = {"node-0": 2, "node-1": 1}
"""Cards."""


@asynccontextmanager
async def divided(folder: Path) -> AsyncIterator[Cluster]:
    """Run two nodes with three cards, and a partitioner."""
    with no_thread_left():
        async with (
            running_alone(folder, kinds(folder, NODES), lambda _: None, seed=1, worker=MigWorker) as made,
            partitioner(made.server, folder / "partitioner"),
        ):
            await until(lambda: all(known(made, worker) for worker in made.workers))
            yield made


def known(cluster: Cluster, worker: Worker) -> bool:
    """Return whether the Node says of each card what it can be divided into."""
    (node,) = cluster.server.store.find(API_NODES, worker.name)
    record = decode(node["metadata"]["annotations"][GPUS_ANNOTATION])
    return sum(each.profiles is not None for each in record.gpus) == len(worker.kind.inventory.cards)


async def test_instances_are_made_for_pods_that_ask(short_path: Path, describe: Describe) -> None:
    """Pods of four profiles fill the cards; one more waits, and is told why; when they are gone, others are made.

    An instance that a program uses stays although no pod has it.
    """
    nvml: FakeNvml = describe([FakeGpu(mig_enabled=True, mig_profiles="A100-40GB")] * 3)
    async with divided(short_path) as cluster:
        workers = [cast("MigWorker", worker) for worker in cluster.workers]
        await ask(cluster, "7g.40gb", 1)
        await ask(cluster, "3g.20gb", 3)
        await ask(cluster, "2g.10gb", 2)
        await run(cluster)
        assert profiles(workers) == [("2g.10gb", "2g.10gb", "3g.20gb"), ("3g.20gb", "3g.20gb"), ("7g.40gb",)]
        assert all(len(messages(cluster, name)) == 1 for name in names(cluster))
        await cluster.create(asking("late", "1g.5gb"))
        await until(lambda: messages(cluster, "late"))
        (message,) = messages(cluster, "late")
        assert message.startswith("SliceNotMade: no slice can be made for nvidia.com/mig-1g.5gb: 2 nodes: no GPU has")
        assert "GPU 0 has 0 of 8 memory slices left, 1 missing" in message

        for each in cluster.pods:
            if each["metadata"]["name"] != "late":
                await cluster.delete(each)
        await until(lambda: names(cluster) == {"late"})
        await run(cluster)
        (waited,) = (each for each in cluster.pods if each["metadata"]["name"] == "late")
        await cluster.delete(waited)
        await until(lambda: not names(cluster))

        idle = {uuid: part for worker in workers for uuid, (_, part) in worker.parts().items()}
        busy = next(uuid for uuid, part in idle.items() if part.place.start < 4)
        nvml.use(busy, FakeProcess(4711))
        await ask(cluster, "4g.20gb", 3)
        # Pods of other profiles must not be bound to instances that are idle until then.
        await until(lambda: any("(processes 4711)" in str(each) for worker in workers for each in worker.status.gpus))
        await until(lambda: [each["status"]["phase"] for each in cluster.pods].count("Running") == 2)
        await ask(cluster, "3g.20gb", 3)
        nvml.leave(busy)
        await run_again(cluster)
        assert profiles(workers) == [("3g.20gb", "4g.20gb")] * 3
        assert [part for worker in workers for part in worker.driver.taken] == []


async def ask(cluster: Cluster, profile: str, count: int) -> None:
    """Create pods that ask for an instance each; return once it is decided where all pods get theirs."""
    for number in range(count):
        await cluster.create(asking(f"{profile.replace('.', '-')}-{number}", profile))
    await until(lambda: all(messages(cluster, name) for name in names(cluster)))


async def run_again(cluster: Cluster) -> None:
    """Wait until all pods run; one that was bound to an instance that was just being destroyed is created again."""

    def states() -> set[str]:
        return {each["status"]["phase"] for each in cluster.server.store.find(ALL_PODS)}

    while states() != {"Running"}:
        await until(lambda: states() <= {"Running", "Failed"})
        for pod in cluster.server.store.find(ALL_PODS):
            if pod["status"]["phase"] == "Failed":
                await cluster.delete(pod)
                await until(lambda: pod["metadata"]["name"] not in names(cluster))  # noqa: B023 - awaited here
                await cluster.create(pod_object(Pod(pod["metadata"]["name"], kubelet_pod(pod).containers)))


def asking(name: str, *profiles: str) -> Object:
    """Return a pod whose containers ask for instances of these profiles."""
    containers = [Container(f"main-{number}", {MIG.format(each): 1}) for number, each in enumerate(profiles)]
    return pod_object(Pod(name, containers))


def profiles(workers: list[MigWorker]) -> list[tuple[str, ...]]:
    """Return the profiles that pods have on each card."""
    found = Counter[str]()
    for worker in workers:
        parts = worker.parts()
        for uuid in worker.used():
            card, part = parts[uuid]
            found[f"{card} {part.place.profile}"] += 1
    cards: dict[str, list[str]] = {}
    for key, count in found.items():
        card, profile = key.split()
        cards.setdefault(card, []).extend([profile] * count)
    return sorted(tuple(sorted(each)) for each in cards.values())
