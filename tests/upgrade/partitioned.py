"""Nodes whose GPUs are divided as pods ask, by MPS and by MIG, with a partitioner; and the lives of such a cluster."""

import json
import random
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from itertools import product
from pathlib import Path

from gpushare_plugin.testing.cluster import ApiServer
from gpushare_plugin.testing.mps import FakeMps
from gpushare_plugin.testing.nvml import FakeGpu, FakeNvml
from gpushare_plugin.testing.nvml.mig_profiles import mig_profiles
from tests.process.daemon import Argument, Daemon, process
from tests.upgrade.builds import Build
from tests.upgrade.cluster import Cluster, asked
from tests.upgrade.programs import Program
from tests.upgrade.worker import NODES, Json, Worker, leases
from tests.waiting import until

LABEL = "nos.nebuly.com/gpu-partitioning"
SLICE, INSTANCE = "nvidia.com/gpu-{}gb", "nvidia.com/mig-{}"
GPUS = (40, 24)
"""GiB of each GPU of the node under MPS."""
SIZES = (4, 5, 8, 10, 16, 20, 24, 40)
CARD = "A100-40GB"
CARDS = 2
PROFILES = ("1g.5gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb")
PATIENCE = "60"
"""Seconds that a pod has to take a slice."""

EXPLAINED = (
    "are retired",
    "no longer shares its GPUs",
    "requested number of devices unavailable",
    "none is free and healthy",
    "no healthy devices present",
)
"""Why a pod may be refused: kube-scheduler took a slice that was idle just then, and was being cut anew."""

USUAL = {
    "run": (
        "gpu_not_served_by_mps",
        "gpus_changed",
        # A question about an instance that is being destroyed, by the call that the driver was just answering.
        "gpu_unhealthy: (Not Found|Invalid Argument)$",
        "warning: .* gpushare mig does not run",
    ),
    "mps": (),
    "mig": ("mig_not_done: .* has no room: .* may not be destroyed now",),
}
"""What is no trouble: the program beside the daemon is being exchanged, or MIG instances come and go."""

_OLD_DEFECT = re.compile(r"Unknown child process pid|child process pid \d+ exit status already read")
"""What `gpushare mps` of the old build may print when a signal ends it while a command to the control daemon ends."""


def uuid(index: int) -> str:
    """Return the UUID of a GPU of the node under MPS."""
    return f"GPU-{index:08x}-0000-4000-8000-{index:012x}"


class PartitionedWorker(Worker):
    """A node that is divided `by` one of the two ways, with the program beside the daemon that does it."""

    partitioned = True

    def __init__(self, by: str, server: ApiServer, folder: Path, *arguments: Argument) -> None:
        """Have a folder of its own; `arguments` are those of both programs."""
        self.by = by
        self.root = folder / by / "root"
        super().__init__(f"node-{by}", server, folder / by, "--partitioning", "true", *arguments)
        self.both = arguments
        self.daemon = Program(self._run, USUAL["run"])
        self.helper = Program(self._help, USUAL[by])

    @asynccontextmanager
    async def _help(self, build: Build) -> AsyncIterator[Daemon]:
        async with process(self.by, *self.both, environment={**self.environment, **build.environment}) as daemon:
            yield daemon
            if build.name == "old":
                daemon.log[:] = [each for each in daemon.log if not _OLD_DEFECT.match(str(each.get("found")))]

    def labels(self) -> Json:
        """Have the GPUs of the node divided."""
        return {"labels": {LABEL: self.by}}

    def is_explained(self, message: str) -> bool:
        """Return whether a slice was cut that a pod was bound to."""
        return any(reason in message for reason in EXPLAINED)

    async def stop(self) -> None:
        """End everything."""
        try:
            await super().stop()
        finally:
            await self.helper.stop()


class MpsWorker(PartitionedWorker):
    """A node under MPS."""

    def __init__(self, server: ApiServer, folder: Path, mps: FakeMps) -> None:
        """Have simulated GPUs."""
        gpus = folder / "gpus.yaml"
        cards = [{"memory": f"{gib}GiB", "uuid": uuid(index)} for index, gib in enumerate(GPUS)]
        gpus.write_text(json.dumps({"gpus": cards}))
        super().__init__("mps", server, folder, "--simulate", gpus, "--mps-root", folder / "mps" / "root")
        self.environment |= mps.environment

    def ask(self, rng: random.Random) -> list[dict[str, int]]:
        """Return what the containers of a random pod ask for."""
        sizes = rng.sample(SIZES[:4], 2) if rng.random() < 0.2 else [rng.choice(SIZES)]
        return [{SLICE.format(size): 1} for size in sizes]

    def fits(self, pod: Json) -> bool:
        """Return whether there is room for the slices of a pod beside those that are held."""
        sizes = [int(name.removeprefix("nvidia.com/gpu-").removesuffix("gb")) for name in asked(pod)]
        for places in product(range(len(GPUS)), repeat=len(sizes)):
            more = self.used()
            for gpu, size in zip(places, sizes, strict=True):
                more[gpu] += size
            if all(gib <= GPUS[gpu] for gpu, gib in more.items()):
                return True
        return False

    def used(self) -> Counter[int]:
        """Return how many GiB of each GPU are held."""
        found: Counter[int] = Counter()
        for _, _, id_ in self.ids():
            gpu, size, _ = id_.split("-")
            found[int(gpu, 16)] += int(size.removesuffix("gb"))
        return found

    def check(self) -> None:
        """See that slices have room on their GPUs, and that each container is held to its own."""
        super().check()
        assert all(gib <= GPUS[gpu] for gpu, gib in self.used().items()), list(self.ids())
        for pod in self.admitted.values():
            for container in pod.containers.values():
                (id_,) = (id_ for ids in container.device_ids.values() for id_ in ids)
                limit = container.environment["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"]
                assert limit == f"0={int(id_.split('-')[1].removesuffix('gb')) * 1024}M", (id_, limit)


class MigWorker(PartitionedWorker):
    """A node with cards that are divided into MIG instances."""

    def __init__(self, server: ApiServer, folder: Path, nvml: FakeNvml) -> None:
        """Have the cards of a stand-in."""
        root = folder / "mig" / "root"
        super().__init__("mig", server, folder, "--mig-root", root, "--container-driver-root", folder / "driver-root")
        self.environment |= nvml.environment

    def ask(self, rng: random.Random) -> list[dict[str, int]]:
        """Return what the container of a random pod asks for."""
        return [{INSTANCE.format(rng.choice(PROFILES)): 1}]

    def fits(self, pod: Json) -> bool:
        """Return whether there is room for the instance of a pod beside those that are held."""
        (profile,) = (name.removeprefix("nvidia.com/mig-") for name in asked(pod))
        places, ids = self.places(), {id_ for _, _, id_ in self.ids()}
        held = [[place for instance, place in card.items() if instance in ids] for card in places]
        starts = mig_profiles()[CARD][profile].starts
        return not places or any(_has_room([*each, (profile, start)]) for each in held for start in starts)

    def places(self) -> list[dict[str, tuple[str, int]]]:
        """Return profile and first memory slice of each MIG instance of each card, as `gpushare mig` writes it.

        Nothing before it has looked at all cards.
        """
        try:
            gpus = json.loads((self.root / "status.json").read_text())["gpus"]
        except FileNotFoundError:
            return []
        if len(gpus) < CARDS or not all(card["mig_mode"] for card in gpus):
            return []
        cards = ([(each["place"].split("@"), each["uuids"]) for each in card["instances"]] for card in gpus)
        return [{uuid: (name, int(start)) for (name, start), uuids in card for uuid in uuids} for card in cards]

    def check(self) -> None:
        """See that no instance that a pod has was destroyed."""
        super().check()
        if places := self.places():
            gone = {id_ for _, _, id_ in self.ids()}.difference(*places)
            assert gone == set(), gone


def _has_room(places: Sequence[tuple[str, int]]) -> bool:
    """Return whether these instances can be on one card."""
    known = mig_profiles()[CARD]
    taken = [start + each for profile, start in places for each in range(known[profile].size)]
    counts = Counter(profile for profile, _ in places)
    return len(taken) == len(set(taken)) and all(count <= known[each].count for each, count in counts.items())


class Partitioner(Program):
    """A place where a partitioner of one build runs at a time."""

    def __init__(self, kubeconfig: Path) -> None:
        """Start none."""
        super().__init__(self._run)
        self._kubeconfig = kubeconfig

    def _run(self, build: Build) -> AbstractAsyncContextManager[Daemon]:
        return process(
            "partition", "--kubeconfig", self._kubeconfig, "--patience", PATIENCE, environment=build.environment
        )


class SlicesLife:
    """A cluster in which pods come and go that ask for slices of MPS and for MIG instances."""

    def __init__(
        self,
        cluster: Cluster,
        workers: Sequence[MpsWorker | MigWorker],
        partitioners: Sequence[Partitioner],
        kubeconfig: Path,
        seed: int,
    ) -> None:
        """Take over a cluster that works."""
        self.cluster = cluster
        self.workers = {worker.by: worker for worker in workers}
        self.partitioners = partitioners
        self.kubeconfig = kubeconfig
        self.rng = random.Random(seed)  # noqa: S311 - the same in each run
        self.happened: Counter[str] = Counter()

    async def steps(self, count: int) -> None:
        """Let pods come and go so many times; at some of these times, things settle first."""
        for _ in range(count):
            self.cluster.replace_failed()
            if self.rng.random() < 0.7:
                self.pods_come()
            else:
                self.pods_go()
            if self.rng.random() < 0.3:
                await self.settle()
            self.check()

    def pods_come(self) -> None:
        """Create a pod for each of the nodes."""
        for worker in self.workers.values():
            self.happened[f"pod for {worker.by}"] += 1
            self.cluster.create(*worker.ask(self.rng))

    def pods_go(self) -> None:
        """Delete some pods, whether they run or not."""
        pods = self.cluster.pods
        for pod in self.rng.sample(pods, min(len(pods), self.rng.randint(1, 3))):
            self.happened["deleted"] += 1
            self.cluster.delete(pod)

    async def settle(self) -> None:
        """Wait until every pod runs that finds room."""
        await until(self._is_settled, self.state)
        self.check()
        self.happened["settled"] += 1

    def _is_settled(self) -> bool:
        self.cluster.replace_failed()
        pods = self.cluster.pods
        if any(pod["metadata"].get("deletionTimestamp") for pod in pods):
            return False
        if any(pod["spec"].get("nodeName") and pod["status"]["phase"] != "Running" for pod in pods):
            return False
        return not any(self._of(pod).fits(pod) for pod in pods if pod["status"]["phase"] != "Running")

    def _of(self, pod: Json) -> MpsWorker | MigWorker:
        """Return the only node that can have a pod."""
        return self.workers["mig" if any("/mig-" in name for name in asked(pod)) else "mps"]

    def check(self) -> None:
        """See that nodes and their kubelets agree."""
        for worker in self.workers.values():
            worker.check()
        assert leases(self.cluster.server) == {"gpushare-partitioner"}

    async def recut(self) -> None:
        """Divide GPUs anew, from many slices to one that is all of a GPU, and back: whatever is idle makes room."""
        for asks in (self._small(), self._whole(), self._small()):
            for pod in self.cluster.pods:
                self.cluster.delete(pod)
            await until(lambda: not self.cluster.pods)
            for each in asks:
                self.cluster.create({each: 1})
            await self.settle()
            assert all(pod["status"]["phase"] == "Running" for pod in self.cluster.pods), self.state()

    def _small(self) -> list[str]:
        return [*[SLICE.format(16)] * 2, *[INSTANCE.format("2g.10gb")] * 4]

    def _whole(self) -> list[str]:
        # A smaller slice could be on the larger GPU.
        return [SLICE.format(max(GPUS)), *[INSTANCE.format("7g.40gb")] * CARDS]

    def events(self, reason: str) -> list[Json]:
        """Return the Events of pods with this reason."""
        found = self.cluster.server.store.find("/api/v1/namespaces/default/events")
        return [each for each in found if each["reason"] == reason]

    def state(self) -> object:
        """Return what there is, for failures."""
        pods = [(pod["metadata"]["name"], dict(asked(pod)), pod["status"]) for pod in self.cluster.pods]
        nodes = [
            (each["metadata"].get("annotations"), each["status"]) for each in self.cluster.server.store.find(NODES)
        ]
        logs = [str(each) for each in self._logs()]
        return pods, nodes, [sorted(each.ids()) for each in self.workers.values()], logs

    def _logs(self) -> Iterator[Daemon]:
        for worker in self.workers.values():
            yield from (each.daemon for each in (worker.daemon, worker.helper) if each.runs)
        yield from (each.daemon for each in self.partitioners if each.runs)


@asynccontextmanager
async def dividing(
    folder: Path, daemons: Build, helpers: Build, *partitioners: Build, seed: int
) -> AsyncIterator[SlicesLife]:
    """Run a node under MPS and one with MIG, and partitioners of these builds, the first of which leads."""
    card = FakeGpu(mig_enabled=True, mig_profiles=CARD)
    async with ApiServer() as server, AsyncExitStack() as stack:
        kubeconfig = server.kubeconfig(folder / "kubeconfig")
        mps, nvml = stack.enter_context(FakeMps()), stack.enter_context(FakeNvml([card] * CARDS))
        workers: list[MpsWorker | MigWorker] = [MpsWorker(server, folder, mps), MigWorker(server, folder, nvml)]
        for each in workers:
            stack.push_async_callback(each.stop)
            await each.helper.start(helpers)
            await each.start(daemons)
        programs = [Partitioner(kubeconfig) for _ in partitioners]
        for program, build in zip(programs, partitioners, strict=True):
            stack.push_async_callback(program.stop)
            await program.start(build)
            if program is programs[0]:
                await program.daemon.logged("partitioner_ready")
        cluster = Cluster(server, workers, seed)
        async with cluster.working():
            life = SlicesLife(cluster, workers, programs, kubeconfig, seed)
            yield life
            await life.settle()
            print(dict(sorted(life.happened.items())))  # noqa: T201 - shown with -s, or where it fails
