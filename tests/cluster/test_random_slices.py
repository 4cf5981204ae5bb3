"""Automatic partitioning together: whatever happens in a cluster, and whoever is killed."""

import asyncio
import os
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from gpushare_plugin.config.directives import PARTITIONING
from gpushare_plugin.kube.client import NODES, Client
from gpushare_plugin.slices.wanted import WANTED_SLICES
from gpushare_plugin.testing.cluster import ApiServer
from gpushare_plugin.testing.kubelet import Container, Pod
from tests.cluster.access import Access, access
from tests.cluster.machines import Machines
from tests.cluster.objects import ALL_PODS, NAMESPACE, Object, has_ended, pod_object
from tests.cluster.running import Cluster, scheduled
from tests.cluster.worker import NodeKind, Worker
from tests.nodes import a_node
from tests.unit.partitioner.partitioners import partitioner

STEPS = int(os.environ.get("GPUSHARE_SLICES_STEPS", "20"))
"""Steps of the test, the same in each run; set the variable for a longer one, and GPUSHARE_SLICES_SEED for others."""

SEED = int(os.environ.get("GPUSHARE_SLICES_SEED", "339"))

EVERY = 40
"""Steps after which things settle once."""

SLICE = "nvidia.com/gpu-{}gb"
GPUS = {"node-0": (40,), "node-1": (40, 24), "node-2": (40,)}
"""GiB of each GPU."""

SIZES = (4, 5, 8, 10, 16, 20, 24, 40)
MOST_PODS = 16
LATE = (0.0, 0.0, 0.05, 0.3)
"""Seconds by which watches are late."""

PATIENCE = 2.0
"""Seconds that pods have to take slices that were made for them."""

SETTLING = 120.0
"""Seconds until a pod that could run counts as forgotten: what it failed to get may be tried again only later."""

EVENTS = f"/api/v1/namespaces/{NAMESPACE}/events"

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
    """Two that decide at once, each with a Lease of its own, and an access of its own to the API server.

    One that is killed does nothing more that anybody could see. Pods have `patience` seconds to take slices.
    """

    def __init__(self, server: ApiServer, folder: Path, patience: float = 60.0) -> None:
        """Start none."""
        self._server = server
        self._folder = folder
        self._patience = patience
        self._running: dict[int, tuple[AsyncExitStack, Access, asyncio.Task[None]]] = {}
        self.killed: set[int] = set()
        self.losses = 0
        """How often one could not report what it did: it was killed, or did not hear that it did something."""
        self._starts = 0

    async def start(self, number: int) -> None:
        """Start one, after it was killed where it runs."""
        await self.stop(number)
        self._starts += 1
        stack = AsyncExitStack()
        # The Lease of one that was killed lasts longer than any test.
        name = f"{number}-{self._starts}"
        way = await stack.enter_async_context(access(self._server.store, self._folder / f"partitioner-{name}.yaml"))
        running = partitioner(way.server, way.kubeconfig, lease=name, patience=self._patience)
        self._running[number] = stack, way, await stack.enter_async_context(running)

    async def stop(self, number: int) -> None:
        """Kill one."""
        self.killed.discard(number)
        if number in self._running:
            stack, way, _ = self._running.pop(number)
            self.losses += 1
            way.cut()
            await stack.aclose()

    def kill_at_write(self, number: int, rng: random.Random) -> None:
        """Let one be killed at one of its next writes."""
        _, way, task = self._running[number]

        def kill() -> None:
            self.killed.add(number)
            task.cancel()

        way.cut_at_write(rng.randrange(4), kill, carried_out=rng.random() < 0.5)

    def late(self, number: int, seconds: float) -> None:
        """Let one see everything that late."""
        _, way, _ = self._running[number]
        way.late(seconds)

    def spare(self, number: int) -> None:
        """Let nothing more happen to one."""
        _, way, _ = self._running[number]
        way.restore()

    def lose_answer(self, number: int) -> None:
        """Let one not hear of its next change of a Node, so that it cannot report what it did there."""
        _, way, _ = self._running[number]
        self.losses += 1
        way.lose_answer()


Event = Callable[["Life"], Coroutine[Any, Any, None]]


@dataclass
class Life:
    """A cluster in which anything happens."""

    cluster: Cluster
    machines: Machines
    partitioners: Partitioners
    rng: random.Random
    order: Iterator[Event]
    """What happens next."""
    number: int = 0
    happened: Counter[str] = field(default_factory=Counter)
    lost: dict[str, int] = field(default_factory=dict)
    """How many reports of partitioners could have been lost when a pod, by its UID, was created."""

    async def step(self) -> None:
        """Let one thing happen, and a moment pass."""
        await self.recover()
        await self.follow_up()
        happens = next(self.order)
        self.happened[happens.__name__] += 1
        await happens(self)
        await asyncio.sleep(self.rng.choice((0, 0.02, 0.1, 0.4)))
        for worker in self.cluster.workers:
            check(worker)

    async def recover(self) -> None:
        """Start what was killed."""
        for worker in self.machines.killed:
            self.happened["daemon was killed at a write"] += 1
            await self.machines.restart(worker)
        for number in sorted(self.partitioners.killed):
            self.happened["partitioner was killed at a write"] += 1
            await self.partitioners.start(number)

    async def follow_up(self) -> None:
        """Do what controllers of Kubernetes do: collect pods of nodes that are gone, and replace those that failed."""
        await self.machines.collect_pods()
        for pod in self.cluster.server.store.find(ALL_PODS):
            if has_ended(pod):
                self.happened["pod was not admitted"] += 1
                check_failure(pod)
                await self.cluster.delete(pod)
                await self.create(pod["spec"]["containers"], pod["spec"].get("priority"))

    async def create(self, containers: Sequence[Object], priority: int | None) -> None:
        """Create a pod."""
        self.number += 1
        limits = [each["resources"]["limits"] for each in containers]
        made = Pod(f"pod-{self.number}", [Container(f"main-{each}", limit) for each, limit in enumerate(limits)])
        found = pod_object(made)
        if priority is not None:
            found["spec"]["priority"] = priority
        self.lost[made.uid] = self.partitioners.losses
        await self.cluster.create(found)

    @property
    def waiting(self) -> list[Object]:
        """The pods that are not bound."""
        return [pod for pod in self.cluster.server.store.find(ALL_PODS) if not pod["spec"].get("nodeName")]

    async def pods_come(self) -> None:
        """Create pods of random sizes."""
        there = len(self.cluster.server.store.find(ALL_PODS))
        for _ in range(min(self.rng.randint(1, 4), MOST_PODS - there)):
            sizes = self.rng.sample(SIZES[:4], 2) if self.rng.random() < 0.2 else [self.rng.choice(SIZES)]
            limits = [{"resources": {"limits": {SLICE.format(size): 1}}} for size in sizes]
            await self.create(limits, self.rng.choice((None, None, 10)))

    async def pods_end(self) -> None:
        """Delete pods that are bound."""
        await self._delete([pod for pod in self.cluster.server.store.find(ALL_PODS) if pod["spec"].get("nodeName")])

    async def waiting_pods_go(self) -> None:
        """Delete pods that wait."""
        await self._delete(self.waiting)

    async def _delete(self, pods: list[Object]) -> None:
        for pod in self.rng.sample(pods, min(len(pods), self.rng.randint(1, 4))):
            await self.cluster.delete(pod)

    async def daemon_is_killed(self) -> None:
        """Kill a daemon wherever it is."""
        if self.cluster.workers:
            await self.machines.restart(self.rng.choice(self.cluster.workers))

    async def daemon_will_be_killed(self) -> None:
        """Kill a daemon at one of its next writes."""
        if self.cluster.workers:
            self.machines.kill_at_write(self.rng.choice(self.cluster.workers), self.rng)

    async def partitioner_is_killed(self) -> None:
        """Kill one that decides wherever it is."""
        await self.partitioners.start(self.rng.randrange(2))

    async def partitioner_will_be_killed(self) -> None:
        """Kill one that decides at one of its next writes."""
        self.partitioners.kill_at_write(self.rng.randrange(2), self.rng)

    async def both_are_killed(self) -> None:
        """Kill a daemon and one that decides at once."""
        await asyncio.gather(self.daemon_is_killed(), self.partitioner_is_killed())

    async def watches_are_late(self) -> None:
        """Let somebody see everything late."""
        late = self.rng.choice(LATE)
        match self.rng.randrange(3):
            case 0:
                self.cluster.server.watches.delay = late
            case 1 if self.cluster.workers:
                self.machines.late(self.rng.choice(self.cluster.workers), late)
            case _:
                self.partitioners.late(self.rng.randrange(2), late)

    async def answer_is_lost(self) -> None:
        """Let the answer to a change of a Node get lost."""
        number = self.rng.randrange(4)
        if number < 2:
            self.partitioners.lose_answer(number)
        elif self.cluster.workers:
            self.machines.lose_answer(self.rng.choice(self.cluster.workers))

    async def annotation_is_lost(self) -> None:
        """Let somebody delete what is wanted of a node, or write what nobody can read."""
        if self.cluster.workers:
            self.partitioners.losses += 1
            await self.machines.annotate(self.rng.choice(self.cluster.workers).name, self.rng.choice((None, "{}", "?")))

    async def scheduler_refuses(self) -> None:
        """Let the scheduler refuse some pods on some nodes, for reasons that nobody else knows."""
        self.cluster.scheduler.cache.refused = {
            pod["metadata"]["uid"]: self.rng.sample(list(GPUS), self.rng.randint(1, 3))
            for pod in self.waiting
            if self.rng.random() < 0.5
        }

    async def patience_ends(self) -> None:
        """Let so much time pass that slices which were not taken are taken back."""
        await asyncio.sleep(PATIENCE)

    async def node_comes_or_goes(self) -> None:
        """Let a node go, or come back without pods."""
        name = self.rng.choice(list(GPUS))
        if name in self.machines.absent:
            await self.machines.come(name)
        else:
            await self.machines.go(name)

    async def node_is_registered_again(self) -> None:
        """Delete the Node of a machine that goes on, which creates another one."""
        if self.cluster.workers:
            await self.machines.register_again(self.rng.choice(self.cluster.workers))

    async def node_is_cordoned_or_not(self) -> None:
        """Cordon a node, or no longer."""
        if self.cluster.workers:
            await self.machines.cordon(self.rng.choice(self.cluster.workers).name, cordoned=self.rng.random() < 0.5)

    async def label_goes_or_comes(self) -> None:
        """Take the label of a node away, or give it back."""
        if self.cluster.workers:
            await self.machines.label(self.rng.choice(self.cluster.workers).name, partitioned=self.rng.random() < 0.7)

    async def settle(self) -> None:
        """Let nothing more happen, and see that every pod runs that could run."""
        await self.recover()
        self.cluster.scheduler.cache.refused = {}
        for number in (0, 1):
            self.partitioners.spare(number)
        for worker in self.cluster.workers:
            self.machines.spare(worker)
        self.cluster.server.watches.delay = 0
        try:
            async with asyncio.timeout(SETTLING):
                while not settled(self.cluster):
                    await self.follow_up()
                    await asyncio.sleep(0.02)
        except TimeoutError as error:
            raise TimeoutError(f"seed {SEED}: {state(self.cluster)}") from error
        for worker in self.cluster.workers:
            check(worker)
        check_events(self.cluster, self.partitioners.losses, self.lost)


_EVENTS = {
    Life.pods_come: 40,
    Life.pods_end: 24,
    Life.waiting_pods_go: 8,
    Life.daemon_is_killed: 5,
    Life.daemon_will_be_killed: 8,
    Life.partitioner_is_killed: 5,
    Life.partitioner_will_be_killed: 8,
    Life.both_are_killed: 5,
    Life.watches_are_late: 8,
    Life.answer_is_lost: 5,
    Life.annotation_is_lost: 3,
    Life.scheduler_refuses: 8,
    Life.patience_ends: 2,
    Life.node_comes_or_goes: 8,
    Life.node_is_registered_again: 4,
    Life.node_is_cordoned_or_not: 5,
    Life.label_goes_or_comes: 8,
}
"""What may happen, and how often."""


def order() -> Iterator[Event]:
    """Yield what happens, which must not depend on what is drawn while it happens."""
    rng = random.Random(SEED)  # noqa: S311 - the same in each run
    while True:
        yield from rng.choices(list(_EVENTS), list(_EVENTS.values()))


async def test_held_slices_stay_whatever_happens(short_path: Path) -> None:
    """Pods, nodes and programs come and go: no GPU has too much, slices that are held stay, and what can run runs.

    No pod is told twice, without a reason in between, that its slice is being made.
    """
    async with lives(short_path) as life:
        for step in range(STEPS):
            await life.step()
            if (step + 1) % EVERY == 0:
                await life.settle()
        await life.settle()
        life.happened.update(event["reason"] for event in life.cluster.server.store.find(EVENTS))
        print(dict(sorted(life.happened.items())))  # noqa: T201 - shown with -s, or where it fails


@asynccontextmanager
async def lives(folder: Path) -> AsyncIterator[Life]:
    """Run a cluster of three nodes with two that decide."""
    kinds = {name: NodeKind(a_node(*(gib * 1024 for gib in gpus)), {}, partitioned=True) for name, gpus in GPUS.items()}
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(ApiServer())
        client = await stack.enter_async_context(Client(server.kubeconfig(folder / "kubeconfig")))
        machines = Machines(server, client, folder, kinds)
        stack.push_async_callback(machines.stop)
        for name in kinds:
            await machines.come(name)
        cluster = await stack.enter_async_context(scheduled(server, machines.workers, client, SEED))
        partitioners = Partitioners(server, folder, PATIENCE)
        for number in (0, 1):
            stack.push_async_callback(partitioners.stop, number)
            await partitioners.start(number)
        yield Life(cluster, machines, partitioners, random.Random(SEED), order())  # noqa: S311 - the same in each run


def check(worker: Worker) -> None:
    """Compare what pods were started with to what the kubelet knows, and both to what the GPUs have."""
    held = list(ids(worker))
    assert len(held) == len(set(held)), (SEED, worker.name, held)
    for resource, id_ in held:
        assert id_ in worker.kubelet.devices(resource), (SEED, worker.name, id_)
    healthy = {(resource, id_) for resource in worker.kubelet.capacity() for id_ in worker.kubelet.healthy(resource)}
    for gpu, gib in enumerate(GPUS[worker.name]):
        found = [id_ for _, id_ in healthy | set(held) if gpu_of(id_) == gpu]
        assert sum(gib if is_whole(id_) else size_of(id_) for id_ in found) <= gib, (SEED, worker.name, found)


def ids(worker: Worker) -> Iterator[tuple[str, str]]:
    """Yield resource and ID of each slice that a container was started with."""
    for admitted in worker.admitted.values():
        for container in admitted.containers.values():
            for resource, found in container.device_ids.items():
                for id_ in found:
                    yield resource, id_


def is_whole(id_: str) -> bool:
    """Return whether a device is a whole GPU, which a node without the label offers."""
    return id_.startswith("GPU-")


def gpu_of(id_: str) -> int:
    """Return the number of the GPU of a device."""
    return int(id_.removeprefix("GPU-").split("-")[0], 16)


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
    for worker in usable(cluster):
        used = Counter(dict.fromkeys(range(len(GPUS[worker.name])), 0))
        for _, id_ in ids(worker):
            used[gpu_of(id_)] += size_of(id_)
        for places in product(used, repeat=len(sizes)):
            more = Counter(used)
            for gpu, size in zip(places, sizes, strict=True):
                more[gpu] += size
            if all(gib <= GPUS[worker.name][gpu] for gpu, gib in more.items()):
                return True
    return False


def usable(cluster: Cluster) -> list[Worker]:
    """Return the nodes where slices can be made."""
    nodes = {node["metadata"]["name"]: node for node in cluster.server.store.find(NODES)}
    return [
        worker
        for worker in cluster.workers
        if (nodes[worker.name]["metadata"].get("labels") or {}).get(PARTITIONING) == "mps"
        and not (nodes[worker.name].get("spec") or {}).get("unschedulable")
    ]


def check_failure(pod: Object) -> None:
    """See that a pod was not admitted only because it was bound to a slice that was being cut, or without a daemon."""
    status = pod["status"]
    assert status["reason"] == "UnexpectedAdmissionError", (SEED, status)
    assert any(reason in status["message"] for reason in EXPLAINED), (SEED, status)


def check_events(cluster: Cluster, lost: int, before: Mapping[str, int]) -> None:
    """See that slices are made for a pod once, and again only after a reason, of which at most so many were `lost`.

    `before` is how many of them were lost before a pod was created.
    """
    events: dict[str, list[Object]] = {}
    for found in cluster.server.store.find(EVENTS):
        events.setdefault(found["involvedObject"]["uid"], []).append(found)
    for uid, of_pod in events.items():
        told: Counter[str] = Counter()
        for event in of_pod:
            told[event["reason"]] += event.get("count", 1)
        most = 1 + told["SliceTakenBack"] + lost - before[uid]
        words = [(event["reason"], event.get("count", 1), event["message"]) for event in of_pod]
        assert told["SliceBeingMade"] <= most, (SEED, uid, words)


def state(cluster: Cluster) -> object:
    """Return which pods wait, and what for."""
    pods = cluster.server.store.find(ALL_PODS)
    waiting = {
        pod["metadata"]["name"]: pod["spec"].get("nodeName") for pod in pods if pod["status"]["phase"] != "Running"
    }
    nodes = {
        node["metadata"]["name"]: (node["metadata"].get("annotations", {}).get(WANTED_SLICES), node["status"])
        for node in cluster.server.store.find(NODES)
    }
    events = [
        each["message"][:200] for each in cluster.server.store.find(EVENTS) if each["involvedObject"]["name"] in waiting
    ]
    return waiting, nodes, {worker.name: sorted(ids(worker)) for worker in cluster.workers}, events
