"""Node and scheduler together: random pods over twenty nodes."""

import os
import random
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gpushare_plugin.node.pods.reconciler import LOOK_EVERY
from gpushare_plugin.testing.kubelet import Container, Pod
from tests.cluster.objects import Object, amounts, has_ended, pod_object
from tests.cluster.running import Cluster, running, used
from tests.cluster.worker import NodeKind, Worker
from tests.nodes import a_mig_node, a_node
from tests.unit.sharing.settings import GPU_MEM, memory, time_slicing
from tests.waiting import until

PODS = int(os.environ.get("GPUSHARE_CLUSTER_PODS", "120"))
"""Pods of the test, the same in each run; set the variable for a longer one, and GPUSHARE_CLUSTER_SEED for others."""

PATIENCE = 4 * LOOK_EVERY
"""Seconds to wait: a daemon that could not learn what its pods have looks again only so much later."""

WHOLE, SHARED, MIG = "nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.5gb"

SHARES_GPUS = time_slicing({"name": WHOLE, "replicas": 4}, renameByDefault=True)
KINDS = (
    *[NodeKind(a_node(*(8192,) * 4), memory())] * 7,
    *[NodeKind(a_node(8192, 16384, 4096), memory(placement="spread"))] * 4,
    *[NodeKind(a_node(*(8192,) * 3), SHARES_GPUS)] * 4,
    *[NodeKind(a_node(*(8192,) * 8), {})] * 3,
    *[NodeKind(a_mig_node(("1g.5gb",) * 7, ("1g.5gb",) * 4), {}, {"migStrategy": "mixed"})] * 2,
)
NODES = {f"node-{number}": kind for number, kind in enumerate(KINDS)}

POD_KINDS = ("memory", "memory", "large", "several", "init", "sidecar", "gpu-count", "replicas", "gpus", "mig")

_LONGEST = 1.0
"""Seconds that containers run which end."""


def random_pod(number: int, rng: random.Random) -> dict[str, Any]:
    """Return a pod of any kind that fits an empty node."""

    def containers(name: str, most: int, *sizes: int, restartable: bool = False) -> list[Container]:
        return [Container(f"{name}-{each}", {GPU_MEM: rng.randint(1, most)}, restartable=restartable) for each in sizes]

    labels = {}
    init: list[Container] = []
    kind = rng.choice(POD_KINDS)
    match kind:
        case "memory":
            main = containers("main", 4, 0)
        case "large":
            main = [Container("main", {GPU_MEM: rng.randint(5, 8)})]
        case "several":
            main = containers("main", 2, 0, 1, 2)
        case "init":
            main, init = containers("main", 3, 0, 1), containers("init", 6, 0)
        case "sidecar":
            main, init = containers("main", 3, 0), containers("proxy", 3, 0, restartable=True)
        case "gpu-count":
            count = rng.choice((2, 3))
            labels["aliyun.com/gpu-count"] = str(count)
            main = [Container("main", {GPU_MEM: count * rng.randint(1, 4)})]
        case "replicas":
            main = [Container("main", {SHARED: rng.randint(1, 3)})]
        case "gpus":
            main = [Container("main", {WHOLE: rng.randint(1, 4)})]
        case _:
            main = [Container("main", {MIG: rng.randint(1, 2)}), Container("other", {MIG: 1})]
    # Whatever stays must leave room for the largest that still comes.
    stays = rng.random() < (0.05 if kind in {"large", "replicas", "gpus", "mig"} else 0.3)
    name = f"{'stays' if stays else 'ends'}-{number}"
    return pod_object(Pod(name, main, init), labels=labels, owner=rng.choice((None, "one", "two")))


@pytest.mark.long
async def test_no_pod_fails_admission_and_everybody_counts_alike(short_path: Path) -> None:
    """Random pods are placed by GPU: the kubelet admits each, and account and pod-resources agree at the end."""
    seed = int(os.environ.get("GPUSHARE_CLUSTER_SEED", "1"))
    rng = random.Random(seed)  # noqa: S311 - no secret

    def lifetime(pod: Object) -> float | None:
        return None if pod["metadata"]["name"].startswith("stays") else rng.uniform(0, _LONGEST)

    async with running(short_path, NODES, lifetime, seed) as cluster:
        for number in range(PODS):
            await cluster.create(random_pod(number, rng))
        await until(lambda: all(settled(pod) for pod in cluster.pods), lambda: (seed, state(cluster)), PATIENCE)
        assert not [pod for pod in cluster.pods if pod["status"]["phase"] == "Failed"], (seed, beside_failed(cluster))
        for worker in cluster.workers:
            await cluster.units_by_pod_resources(worker)  # when it is asked, a kubelet frees what ended pods had
            await until(partial(alike, cluster, worker), partial(both, cluster, worker), PATIENCE)
            await check_pod_resources(cluster, worker)
        assert await cluster.used_by_extender() == by_index(cluster), seed


def alike(cluster: Cluster, worker: Worker) -> bool:
    """Return whether account and kubelet agree on each GPU of a node."""
    counted, there = both(cluster, worker)
    return counted == there


def both(cluster: Cluster, worker: Worker) -> tuple[Counter[tuple[str, str]], dict[tuple[str, str], int]]:
    """Return the units of each resource and GPU of a node by the account, and by its kubelet."""
    counted: Counter[tuple[str, str]] = Counter()
    for (_, resource, gpu), units in cluster.units_by_account(worker).items():
        counted[resource, gpu] += units
    return counted, used(worker)


def beside_failed(cluster: Cluster) -> list[object]:
    """Return what is known of each pod on a node where a pod failed: what it asked for, was promised and has."""
    failed = {pod["spec"]["nodeName"] for pod in cluster.pods if pod["status"]["phase"] == "Failed"}
    return [
        (node, pod["metadata"]["name"], amounts(pod), pod["metadata"].get("annotations"), pod["status"])
        for node in sorted(failed)
        for pod in cluster.pods
        if pod["spec"].get("nodeName") == node
    ]


async def check_pod_resources(cluster: Cluster, worker: Worker) -> None:
    """Compare what each pod has by the account and by pod-resources, which shows no init containers that ended."""
    shown, counted = await cluster.units_by_pod_resources(worker), cluster.units_by_account(worker)
    starting = {pod["metadata"]["name"] for pod in cluster.pods if any(map(ends, pod["spec"]["initContainers"]))}
    assert {key: units for key, units in shown.items() if key[0] not in starting} == {
        key: units for key, units in counted.items() if key[0] not in starting
    }
    assert shown <= counted


def ends(init_container: Object) -> bool:
    """Return whether an init container is no sidecar."""
    return init_container.get("restartPolicy") != "Always"


def by_index(cluster: Cluster) -> dict[str, dict[int, int]]:
    """Return the units of memory that are used on each GPU of each node, by the kubelets."""
    found = {}
    for worker in cluster.workers:
        for resource in worker.resources:
            if resource.name == GPU_MEM:
                units = used(worker)
                found[worker.name] = {gpu.index: units.get((GPU_MEM, uuid), 0) for uuid, gpu in resource.gpus.items()}
    return found


def settled(pod: Object) -> bool:
    """Return whether nothing more will happen to a pod."""
    return has_ended(pod) or (pod["status"]["phase"] == "Running" and pod["metadata"]["name"].startswith("stays"))


def state(cluster: Cluster) -> object:
    """Return how far the pods are."""
    waiting = {pod["metadata"]["name"] for pod in cluster.pods if not settled(pod)}
    failures = [each for each in cluster.scheduler.failures if each.split(":")[0] in waiting]
    return Counter(pod["status"]["phase"] for pod in cluster.pods), waiting, failures[-5:]
