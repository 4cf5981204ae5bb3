"""Automatic partitioning together: pods ask, slices appear, and kube-scheduler as it is does the rest."""

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from gpushare_plugin.testing.kubelet import Container, Pod
from tests.cluster.objects import ALL_PODS, NAMESPACE, Object, pod_object, stored
from tests.cluster.running import Cluster, running_alone
from tests.cluster.worker import NodeKind
from tests.nodes import a_node
from tests.unit.partitioner.partitioners import partitioner
from tests.waiting import until

SLICE = "nvidia.com/gpu-{}"
EVENTS = f"/api/v1/namespaces/{NAMESPACE}/events"

POD_OF_NOS: Object = {
    "metadata": {"name": "mps-partitioning-example"},
    "spec": {
        "hostIPC": True,
        "securityContext": {"runAsUser": 1000},
        "containers": [
            {
                "name": "sleepy",
                "image": "busybox:latest",
                "command": ["sleep", "120"],
                "resources": {"limits": {SLICE.format("10gb"): 1}},
            }
        ],
    },
}
"""The pod of nos' documentation."""

NODES = {
    "node-0": NodeKind(a_node(40960, 40960), {}, partitioned=True),
    "node-1": NodeKind(a_node(40960), {}, partitioned=True),
}


@asynccontextmanager
async def partitioned(folder: Path) -> AsyncIterator[Cluster]:
    """Run two nodes with three GPUs of 40 GiB, and a partitioner."""
    async with (
        running_alone(folder, NODES, lambda _: None, seed=1) as made,
        partitioner(made.server, folder / "partitioner"),
    ):
        yield made


async def test_slices_are_made_for_pods_that_ask(short_path: Path) -> None:
    """The pod of nos runs unchanged; others fill the cards, and when they are gone, idle slices are cut anew."""
    async with partitioned(short_path) as cluster:
        await cluster.create(stored(POD_OF_NOS))
        await run(cluster)
        (pod,) = cluster.pods
        environment = cluster.started(pod).containers["sleepy"].environment
        assert environment["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=10240M"
        (message,) = messages(cluster, "mps-partitioning-example")
        assert message.startswith("SliceBeingMade: slice nvidia.com/gpu-10gb is being made on GPU ")

        # In any other order what is left may be on several GPUs, too little on each.
        for group in ([("10gb", "20gb")], [("20gb",)] * 3, [("5gb",)] * 4):
            for number, sizes in enumerate(group):
                await cluster.create(asking(f"more-{sizes[-1]}-{len(sizes)}-{number}", *sizes))
            await run(cluster)
        assert Counter(used(cluster).values()) == {40: 3}
        await cluster.create(asking("late", "5gb"))
        await until(lambda: messages(cluster, "late"))
        assert messages(cluster, "late")[0].startswith(
            "SliceNotMade: no slice can be made for nvidia.com/gpu-5gb: 2 nodes"
        )

        for each in cluster.pods:
            if each["metadata"]["name"] != "late":
                await cluster.delete(each)
        for number in range(3):
            await cluster.create(asking(f"other-{number}", "35gb"))
        await until(lambda: {"late", *(f"other-{number}" for number in range(3))} == names(cluster))
        await run(cluster)
        assert Counter(used(cluster).values()) == {40: 1, 35: 2}


def asking(name: str, *sizes: str) -> Object:
    """Return a pod whose containers ask for slices of these sizes."""
    containers = [Container(f"main-{number}", {SLICE.format(size): 1}) for number, size in enumerate(sizes)]
    return pod_object(Pod(name, containers))


def names(cluster: Cluster) -> set[str]:
    """Return the names of all pods that are there."""
    return {each["metadata"]["name"] for each in cluster.server.store.find(ALL_PODS)}


async def run(cluster: Cluster) -> None:
    """Wait until all pods that are there run."""
    there = names(cluster)

    def running() -> bool:
        return {each["metadata"]["name"] for each in cluster.pods if each["status"]["phase"] == "Running"} >= there

    await until(running, lambda: [(each["metadata"]["name"], each["status"]) for each in cluster.pods])


def messages(cluster: Cluster, pod: str) -> Sequence[str]:
    """Return the reason and message of each Event of a pod."""
    found = cluster.server.store.find(EVENTS)
    return [f"{each['reason']}: {each['message']}" for each in found if each["involvedObject"]["name"] == pod]


def used(cluster: Cluster) -> Counter[tuple[str, str]]:
    """Return how many GiB of each GPU the containers have, by the kubelets."""
    found: Counter[tuple[str, str]] = Counter()
    for worker in cluster.workers:
        for admitted in worker.admitted.values():
            for container in admitted.containers.values():
                for ids in container.device_ids.values():
                    for gpu, size, _ in (each.split("-") for each in ids):
                        found[worker.name, gpu] += int(size.removesuffix("gb"))
    return found
