"""Automatic partitioning together: whatever happens in a cluster, and whoever is killed."""

import asyncio
import os
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack
from itertools import product
from pathlib import Path

from gpushare_plugin.testing.cluster import ApiServer
from gpushare_plugin.testing.kubelet import Container, Pod
from tests.cluster.objects import ALL_PODS, Object, has_ended, pod_object
from tests.cluster.running import Cluster, running_alone
from tests.cluster.worker import NodeKind, Worker
from tests.nodes import a_node
from tests.unit.programs.partitioning.partitioners import partitioner
from tests.waiting import until

STEPS = int(os.environ.get("GPUSHARE_SLICES_STEPS", "20"))
"""Steps of the test, the same in each run; set the variable for a longer one, and GPUSHARE_SLICES_SEED for others."""

SEED = int(os.environ.get("GPUSHARE_SLICES_SEED", "1"))

SLICE = "nvidia.com/gpu-{}gb"
GPUS = {"node-0": (40,), "node-1": (40, 24), "node-2": (40,)}
"""GiB of each GPU."""

SIZES = (4, 5, 8, 10, 16, 20, 24, 40)
MOST_PODS = 16
LATE = (0.0, 0.0, 0.05, 0.3)
"""Seconds by which watches are late."""

EXPLAINED = (
    "are retired",
    "no longer shares its GPUs",
    "requested number of devices unavailable",
    "none is free and healthy",
    "no healthy devices present",
    "code = Canceled",
    "code = Unavailable",
    "endpoint",
)
"""Why pods may fail: kube-scheduler took a slice that was idle just then, or the daemon was killed."""


class Partitioners:
    """Two that decide at once, each with a Lease of its own."""

    def __init__(self, server: ApiServer, folder: Path) -> None:
        """Start none."""
        self._server = server
        self._folder = folder
        self._running: dict[int, AsyncExitStack] = {}
        self.starts = 0

    async def start(self, number: int) -> None:
        """Start one, after its end where it runs."""
        await self.stop(number)
        self._running[number] = stack = AsyncExitStack()
        self.starts += 1
        await stack.enter_async_context(partitioner(self._server, self._folder / f"{number}.yaml", lease=f"{number}"))

    async def stop(self, number: int) -> None:
        """Kill one."""
        if number in self._running:
            await self._running.pop(number).aclose()


async def test_whatever_happens_slices_that_are_held_stay(short_path: Path) -> None:
    """Pods of random sizes come, run and end, and all programs are killed: no GPU has too much, and what can run runs.

    No pod is told twice, without a reason in between, that its slice is being made.
    """
    rng = random.Random(SEED)  # noqa: S311 - the same in each run
    kinds = {name: NodeKind(a_node(*(gib * 1024 for gib in gpus)), {}, partitioned=True) for name, gpus in GPUS.items()}
    async with running_alone(short_path, kinds, lambda _: None, SEED) as cluster:
        partitioners = Partitioners(cluster.server, short_path)
        try:
            for number in (0, 1):
                await partitioners.start(number)
            for step in range(STEPS):
                await happen(cluster, partitioners, rng, step)
                for worker in cluster.workers:
                    check(worker)
            cluster.server.watches.delay = 0
            await until(lambda: settled(cluster), lambda: (SEED, state(cluster)))
            for worker in cluster.workers:
                check(worker)
            check_events(cluster, partitioners.starts)
        finally:
            for number in (0, 1):
                await partitioners.stop(number)


async def happen(cluster: Cluster, partitioners: Partitioners, rng: random.Random, step: int) -> None:
    """Let one thing happen, and a moment pass."""
    there = cluster.server.store.find(ALL_PODS)
    ended = [pod for pod in there if has_ended(pod)]
    for pod in ended:
        check_failure(pod)
        await cluster.delete(pod)
    match rng.choice(["pods"] * 4 + ["end"] * 3 + ["daemon", "partitioner", "late", "tick"]):
        case "pods":
            for number in range(min(rng.randint(1, 4), MOST_PODS - len(there))):
                sizes = rng.sample(SIZES[:4], 2) if rng.random() < 0.2 else [rng.choice(SIZES)]
                containers = [Container(f"main-{each}", {SLICE.format(size): 1}) for each, size in enumerate(sizes)]
                await cluster.create(pod_object(Pod(f"pod-{step}-{number}", containers)))
        case "end":
            bound = [pod for pod in there if pod["spec"].get("nodeName") and pod not in ended]
            for pod in rng.sample(bound, min(len(bound), rng.randint(1, 4))):
                await cluster.delete(pod)
        case "daemon":
            await rng.choice(cluster.workers).restart_daemon()
        case "tick":
            rng.choice(cluster.workers).tick()
        case "partitioner":
            await partitioners.start(rng.choice((0, 1)))
        case _:
            cluster.server.watches.delay = rng.choice(LATE)
    await asyncio.sleep(rng.choice((0, 0.02, 0.1, 0.4)))


def check(worker: Worker) -> None:
    """Compare what pods were started with to what the kubelet knows, and both to what the GPUs have."""
    held = list(ids(worker))
    assert len(held) == len(set(held)), (SEED, worker.name, held)
    for resource, id_ in held:
        assert id_ in worker.kubelet.devices(resource), (SEED, worker.name, id_)
    healthy = {(resource, id_) for resource in worker.kubelet.capacity() for id_ in worker.kubelet.healthy(resource)}
    for gpu, gib in enumerate(GPUS[worker.name]):
        found = [id_ for _, id_ in healthy | set(held) if int(id_.split("-")[0], 16) == gpu]
        assert sum(map(size_of, found)) <= gib, (SEED, worker.name, found)


def ids(worker: Worker) -> Iterator[tuple[str, str]]:
    """Yield resource and ID of each slice that a container was started with."""
    for admitted in worker.admitted.values():
        for container in admitted.containers.values():
            for resource, found in container.device_ids.items():
                for id_ in found:
                    yield resource, id_


def size_of(id_: str) -> int:
    """Return the GiB of a slice."""
    return int(id_.split("-")[1].removesuffix("gb"))


def settled(cluster: Cluster) -> bool:
    """Return whether every pod runs, has ended, or finds no room by arithmetic."""
    pods = cluster.server.store.find(ALL_PODS)
    coming = [pod for pod in pods if pod["spec"].get("nodeName") and pod["status"]["phase"] == "Pending"]
    leaving = [pod for pod in pods if pod["metadata"].get("deletionTimestamp")]
    if coming or leaving:
        return False
    return not any(has_room(cluster, pod) for pod in pods if not pod["spec"].get("nodeName"))


def has_room(cluster: Cluster, pod: Object) -> bool:
    """Return whether a node has GPUs with room for all slices of a pod beside what pods hold."""
    sizes = [
        int(resource.rpartition("-")[2].removesuffix("gb"))
        for container in pod["spec"]["containers"]
        for resource in container["resources"]["limits"]
    ]
    for worker in cluster.workers:
        used = Counter(dict.fromkeys(range(len(GPUS[worker.name])), 0))
        for _, id_ in ids(worker):
            used[int(id_.split("-")[0], 16)] += size_of(id_)
        for places in product(used, repeat=len(sizes)):
            more = Counter(used)
            for gpu, size in zip(places, sizes, strict=True):
                more[gpu] += size
            if all(gib <= GPUS[worker.name][gpu] for gpu, gib in more.items()):
                return True
    return False


def check_failure(pod: Object) -> None:
    """See that a pod was not admitted only because it was bound to a slice that was being cut, or without a daemon."""
    status = pod["status"]
    assert status["reason"] == "UnexpectedAdmissionError", (SEED, status)
    assert any(reason in status["message"] for reason in EXPLAINED), (SEED, status)


def check_events(cluster: Cluster, starts: int) -> None:
    """See that slices are made for a pod once, and again only after a reason; one may be lost with a partitioner."""
    told: Counter[tuple[str, str]] = Counter()
    for event in cluster.server.store.find("/api/v1/namespaces/default/events"):
        told[event["involvedObject"]["uid"], event["reason"]] += event.get("count", 1)
    for uid in {uid for uid, _ in told}:
        assert told[uid, "SliceBeingMade"] <= 1 + told[uid, "SliceTakenBack"] + (starts > 2), (SEED, uid, told)


def state(cluster: Cluster) -> object:
    """Return which pods wait, and what for."""
    pods = cluster.server.store.find(ALL_PODS)
    waiting = {
        pod["metadata"]["name"]: pod["spec"].get("nodeName") for pod in pods if pod["status"]["phase"] != "Running"
    }
    nodes = {
        node["metadata"]["name"]: (node["metadata"]["annotations"].get("gpushare/wanted-slices"), node["status"])
        for node in cluster.server.store.find("/api/v1/nodes")
    }
    events = [
        each["message"][:200]
        for each in cluster.server.store.find("/api/v1/namespaces/default/events")
        if each["involvedObject"]["name"] in waiting
    ]
    return waiting, nodes, {worker.name: sorted(ids(worker)) for worker in cluster.workers}, events
