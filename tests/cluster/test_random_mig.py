"""Automatic partitioning by MIG together: whatever happens in a cluster, whatever fails, and whoever is killed."""

import asyncio
import os
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import cast

from gpushare_plugin.gpus.mig_driver import MigPart
from gpushare_plugin.partition.taking_back import DEFAULT_PATIENCE
from gpushare_plugin.testing.kubelet import Container, Pod
from gpushare_plugin.testing.nvml import ErrorCode, FakeGpu, FakeNvml, FakeProcess, mig_profiles
from tests.cluster.mig import MIG, MigWorker, kinds, no_thread_left
from tests.cluster.objects import ALL_PODS, Object, has_ended, pod_object
from tests.cluster.running import Cluster, running_alone
from tests.cluster.test_random_slices import LATE, Partitioners, check_events
from tests.unit.gpus.conftest import Node as Describe
from tests.unit.gpus.conftest import describe
from tests.unit.mig.test_work import STEPS as CALLS
from tests.waiting import until

__all__ = ["describe"]

STEPS = int(os.environ.get("GPUSHARE_MIG_STEPS", "12"))
"""Steps of the test, the same in each run; set the variable for a longer one, and GPUSHARE_MIG_SEED for others."""

SEED = int(os.environ.get("GPUSHARE_MIG_SEED", "1"))

CARD = "A100-40GB"
NODES = {"node-0": 1, "node-1": 2}
"""Cards."""

PROFILES = ("1g.5gb", "1g.5gb", "1g.5gb+me", "1g.10gb", "2g.10gb", "3g.20gb", "3g.20gb", "4g.20gb", "7g.40gb")
MOST_PODS = 12
TWO = 0.2
"""How many of the pods have two containers."""

PATIENCE = 3 * DEFAULT_PATIENCE
"""Seconds to wait: a pod that cannot take its instance gets another one only so much later."""

EXPLAINED = (
    "are retired",
    "no longer shares its GPUs",
    "requested number of devices unavailable",
    "free and healthy",
    "no healthy devices present",
    "code = Canceled",
    "code = Unavailable",
    "endpoint",
)
"""Why pods may fail: kube-scheduler took an instance that was idle just then, or the daemon was killed."""


async def test_instances_in_use_stay_whatever_happens(short_path: Path, describe: Describe) -> None:
    """Pods of random profiles come, run and end; programs are killed, and calls of the driver fail.

    No instance that a pod has is destroyed, none that a program uses is gone, and what can run runs at the end. No pod
    is told twice, without a reason in between, that its instance is being made.
    """
    rng = random.Random(SEED)  # noqa: S311 - the same in each run
    nvml: FakeNvml = describe([FakeGpu(mig_enabled=True, mig_profiles=CARD)] * sum(NODES.values()))
    with no_thread_left():
        async with running_alone(short_path, kinds(short_path, NODES), lambda _: None, SEED, MigWorker) as cluster:
            trial = Trial(cluster, nvml, Partitioners(cluster.server, short_path), rng)
            try:
                for number in (0, 1):
                    await trial.partitioners.start(number)
                for step in range(STEPS):
                    await trial.happen(step)
                    trial.check()
                trial.calm()
                await until(trial.settled, lambda: (SEED, trial.state()), PATIENCE)
                trial.check()
                check_events(cluster, trial.partitioners.losses, Counter())
            finally:
                for number in (0, 1):
                    await trial.partitioners.stop(number)


class Trial:
    """One run: the cluster, and what was done to it."""

    def __init__(self, cluster: Cluster, nvml: FakeNvml, partitioners: Partitioners, rng: random.Random) -> None:
        """Begin with nothing broken."""
        self.cluster = cluster
        self.workers = [cast("MigWorker", worker) for worker in cluster.workers]
        self.partitioners = partitioners
        self._nvml = nvml
        self._rng = rng
        self._used: dict[str, MigPart] = {}

    async def happen(self, step: int) -> None:
        """Let one thing happen, and a moment pass."""
        rng = self._rng
        there = self.cluster.server.store.find(ALL_PODS)
        for pod in filter(has_ended, there):
            check_failure(pod)
            await self.cluster.delete(pod)
        match rng.choice(["pods"] * 4 + ["end"] * 3 + ["kill"] * 3 + ["late", "fail", "use"]):
            case "pods":
                await self._create(step, MOST_PODS - len(there))
            case "end":
                bound = [pod for pod in there if pod["spec"].get("nodeName") and not has_ended(pod)]
                for pod in rng.sample(bound, min(len(bound), rng.randint(1, 4))):
                    await self.cluster.delete(pod)
            case "kill":
                await self._kill()
            case "late":
                self.cluster.server.watches.delay = rng.choice(LATE)
            case "fail":
                self._recover()
                self._nvml.fail(rng.randrange(len(self._nvml.gpus)), rng.choice(CALLS), ErrorCode.UNKNOWN)
            case _:
                self._leave()
                self._use()
        await asyncio.sleep(rng.choice((0, 0.02, 0.1, 0.4)))

    async def _create(self, step: int, most: int) -> None:
        rng = self._rng
        for number in range(min(rng.randint(1, 4), most)):
            profiles = rng.sample(PROFILES[:5], 2) if rng.random() < TWO else [rng.choice(PROFILES)]
            await self.cluster.create(asking(f"pod-{step}-{number}", profiles))

    async def _kill(self) -> None:
        """End a partitioner, a daemon, a `gpushare mig`, or both of a node, and start others."""
        worker = self._rng.choice(self.workers)
        match self._rng.choice(("partitioner", "daemon", "mig", "both")):
            case "partitioner":
                await self.partitioners.start(self._rng.choice((0, 1)))
            case "daemon":
                await worker.restart_daemon()
            case "mig":
                await worker.stop_mig()
                worker.start_mig()
            case _:
                await asyncio.gather(worker.stop_mig(), worker.restart_daemon())
                worker.start_mig()

    def _use(self) -> None:
        """Let a program use an instance, which may be idle."""
        if parts := self._parts():
            uuid = self._rng.choice(sorted(parts))
            self._nvml.use(uuid, FakeProcess(4711))
            if uuid in self._parts():  # it may have been destroyed in the same moment
                self._used[uuid] = parts[uuid]

    def _parts(self) -> dict[str, MigPart]:
        return {uuid: part for worker in self.workers for uuid, (_, part) in worker.parts().items()}

    def calm(self) -> None:
        """Let nothing fail, be late or be in use any longer."""
        self._recover()
        self._leave()
        self.cluster.server.watches.delay = 0

    def _recover(self) -> None:
        for card in range(len(self._nvml.gpus)):
            self._nvml.recover(card)

    def _leave(self) -> None:
        for uuid in self._used:
            self._nvml.leave(uuid)
        self._used.clear()

    def check(self) -> None:
        """Compare what pods were started with to what the driver shows, and that to what a card has."""
        for worker in self.workers:
            assert worker.driver.taken == [], SEED
            used = list(ids(worker))
            parts = worker.parts()
            assert len(used) == len(set(used)), (SEED, worker.name, used)
            for resource, uuid in used:
                assert uuid in parts, (SEED, worker.name, resource, uuid)
                assert resource == MIG.format(parts[uuid][1].place.profile.replace("+", ".")), (SEED, parts[uuid])
            for card in worker.cards:
                of_card = [slice_ for place in worker.driver.parts(card) for slice_ in slices(place)]
                assert len(of_card) == len(set(of_card)), (SEED, of_card)
        there = self._parts()
        assert {uuid: there.get(uuid) and there[uuid].place for uuid in self._used} == {
            uuid: part.place for uuid, part in self._used.items()
        }, SEED

    def settled(self) -> bool:
        """Return whether every pod runs, has ended, or finds no room by arithmetic."""
        pods = self.cluster.server.store.find(ALL_PODS)
        coming = [pod for pod in pods if pod["spec"].get("nodeName") and pod["status"]["phase"] == "Pending"]
        leaving = [pod for pod in pods if pod["metadata"].get("deletionTimestamp")]
        if coming or leaving:
            return False
        return not any(self._has_room(pod) for pod in pods if not pod["spec"].get("nodeName"))

    def _has_room(self, pod: Object) -> bool:
        """Return whether a node has cards with room for all instances of a pod beside what pods have."""
        wanted = [profile_of(each) for each in pod["spec"]["containers"]]
        for worker in self.workers:
            parts = worker.parts()
            held: dict[str, list[tuple[str, int]]] = {card: [] for card in worker.cards}
            for _, uuid in ids(worker):
                card, part = parts[uuid]
                held[card].append((part.place.profile, part.place.start))
            places = [[(card, profile, start) for card in held for start in starts(profile)] for profile in wanted]
            for chosen in product(*places):
                after = {card: list(found) for card, found in held.items()}
                for card, profile, start in chosen:
                    after[card].append((profile, start))
                if all(map(fits, after.values())):
                    return True
        return False

    def state(self) -> object:
        """Return which pods wait, and what for."""
        pods = self.cluster.server.store.find(ALL_PODS)
        waiting = {pod["metadata"]["name"]: pod["status"] for pod in pods if pod["status"]["phase"] != "Running"}
        annotations = [
            (node["metadata"]["annotations"].get("gpushare/wanted-slices"), node["status"].get("allocatable"))
            for node in self.cluster.server.store.find("/api/v1/nodes")
        ]
        events = [
            f"{each['involvedObject']['name']}: {each['message'][:300]}"
            for each in self.cluster.server.store.find("/api/v1/namespaces/default/events")
            if each["involvedObject"]["name"] in waiting
        ]
        held = {worker.name: (sorted(ids(worker)), worker.parts(), worker.status) for worker in self.workers}
        return waiting, annotations, events, held


def asking(name: str, profiles: Sequence[str]) -> Object:
    """Return a pod whose containers ask for instances of these profiles."""
    resources = [MIG.format(profile.replace("+", ".")) for profile in profiles]
    return pod_object(Pod(name, [Container(f"main-{number}", {each: 1}) for number, each in enumerate(resources)]))


def profile_of(container: Object) -> str:
    """Return the profile that a container asks for."""
    (resource,) = container["resources"]["limits"]
    name: str = resource.removeprefix(MIG.format(""))
    return name.replace("gb.", "gb+")


def starts(profile: str) -> tuple[int, ...]:
    """Return where instances of a profile can begin."""
    return mig_profiles()[CARD][profile].starts


def fits(places: Sequence[tuple[str, int]]) -> bool:
    """Return whether these instances can be on one card."""
    known = mig_profiles()[CARD]
    taken = [start + each for profile, start in places for each in range(known[profile].size)]
    counts = Counter(profile for profile, _ in places)
    return len(taken) == len(set(taken)) and all(count <= known[each].count for each, count in counts.items())


def slices(part: MigPart) -> range:
    """Return the memory slices of a GPU instance."""
    return range(part.place.start, part.place.start + part.size)


def ids(worker: MigWorker) -> Iterator[tuple[str, str]]:
    """Yield resource and UUID of each instance that a container was started with."""
    for admitted in worker.admitted.values():
        for container in admitted.containers.values():
            for resource, found in container.device_ids.items():
                for id_ in found:
                    yield resource, id_


def check_failure(pod: Object) -> None:
    """See that a pod was not admitted only because its instance was being destroyed, or the daemon was killed."""
    status = pod["status"]
    assert status["reason"] == "UnexpectedAdmissionError", (SEED, status)
    assert any(reason in status["message"] for reason in EXPLAINED), (SEED, status)
