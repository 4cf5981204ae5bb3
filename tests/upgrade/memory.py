"""Nodes whose GPUs are shared by memory, an extender that places pods on them, and the lives of such a cluster."""

import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path

from gpushare_plugin.testing.cluster import ApiServer
from gpushare_plugin.testing.ports import claim_port
from tests.process.daemon import Daemon, answer, answer_at_once, process
from tests.upgrade.builds import Build
from tests.upgrade.cluster import Cluster, asked
from tests.upgrade.programs import Program
from tests.upgrade.worker import Json, Worker, leases
from tests.waiting import until

MEMORY = "aliyun.com/gpu-mem"
GPUS = {"node-0": (16, 16, 8), "node-1": (16, 8)}
"""GiB of each GPU."""
UNITS = range(1, 13)
"""What pods ask for: no two at a time ask for the same, so that the daemon knows which one the kubelet asks for."""
TWO_GPUS = {"aliyun.com/gpu-count": "2"}
"""Label of a pod that wants its units on two GPUs, as many on each."""

Held = dict[str, dict[str, int]]
"""Units by the name of a pod and the UUID of a GPU."""


def uuid(node: str, index: int) -> str:
    """Return the UUID of a GPU: its first digits name it among those of all nodes."""
    first = f"{int(node.removeprefix('node-')):04x}{index:04x}"
    return f"GPU-{first}-0000-4000-8000-{index:012x}"


def memory_worker(name: str, server: ApiServer, folder: Path) -> Worker:
    """Return a node whose GPUs are shared by memory."""
    gpus = folder / f"{name}.yaml"
    cards = [{"memory": f"{gib}GiB", "uuid": uuid(name, index)} for index, gib in enumerate(GPUS[name])]
    gpus.write_text(json.dumps({"gpus": cards}))
    return Worker(name, server, folder / name, "--simulate", gpus)


class Extender(Program):
    """A place where an extender of one build runs at a time, at the same port."""

    def __init__(self, kubeconfig: Path) -> None:
        """Start none."""
        self.port = claim_port()
        super().__init__(self._run)
        self._kubeconfig = kubeconfig

    def _run(self, build: Build) -> AbstractAsyncContextManager[Daemon]:
        where = ("--listen-address", f"127.0.0.1:{self.port}", "--kubeconfig", self._kubeconfig)
        # The daemons themselves would fill one GPU after another.
        return process("extender", *where, "--placement", "spread", environment=build.environment)

    async def leads(self) -> None:
        """Wait until it answers the scheduler."""
        await self.daemon.logged("extender_ready")

    async def answers(self) -> None:
        """Wait until it answers, if only that it does not lead."""
        await answer(self.port, "/version")


class Life:
    """A cluster in which pods of random sizes come and go."""

    def __init__(self, cluster: Cluster, extenders: Sequence[Extender], kubeconfig: Path, seed: int) -> None:
        """Take over a cluster that works."""
        self.cluster = cluster
        self.extenders = extenders
        self.kubeconfig = kubeconfig
        self.rng = random.Random(seed)  # noqa: S311 - the same in each run
        self.happened: Counter[str] = Counter()

    async def steps(self, count: int) -> None:
        """Let pods come and go so many times; at some of these times, things settle first."""
        for _ in range(count):
            self.cluster.replace_failed()
            self.pods_come() if self.rng.random() < 0.7 else self.pods_go()
            if self.rng.random() < 0.4:
                await self.settle()
            self.check()

    def pods_come(self) -> None:
        """Create some pods."""
        there = {asked(pod)[MEMORY] for pod in self.cluster.pods}
        free = [units for units in UNITS if units not in there]
        for units in self.rng.sample(free, min(len(free), self.rng.randint(1, 3))):
            two = units % 2 == 0 and self.rng.random() < 0.3
            self.happened["pod on two GPUs" if two else "pod"] += 1
            self.cluster.create({MEMORY: units}, labels=TWO_GPUS if two else None)

    def pods_go(self) -> None:
        """Delete some pods, whether they run or not."""
        pods = self.cluster.pods
        for pod in self.rng.sample(pods, min(len(pods), self.rng.randint(1, 2))):
            self.happened["deleted"] += 1
            self.cluster.delete(pod)

    async def settle(self) -> None:
        """Wait until every pod runs that fits, and everybody says the same of it."""
        await until(self._is_settled, self._state)
        await until(lambda: self.promised("gpushare/allocation") == self.held(), self._state)
        await until(self._extender_agrees, self._state)
        self.check()
        self.happened["settled"] += 1

    def _is_settled(self) -> bool:
        self.cluster.replace_failed()
        pods = self.cluster.pods
        if any(pod["metadata"].get("deletionTimestamp") for pod in pods):
            return False
        if any(pod["spec"].get("nodeName") and pod["status"]["phase"] != "Running" for pod in pods):
            return False
        return not any(self.fits(pod) for pod in pods if pod["status"]["phase"] != "Running")

    def fits(self, pod: Json) -> bool:
        """Return whether GPUs of a node have as much left as a pod asks for, by what is held."""
        count = int(pod["metadata"]["labels"].get("aliyun.com/gpu-count", 1))
        each, used = asked(pod)[MEMORY] // count, self.used()
        free = {name: [size - used[uuid(name, index)] for index, size in enumerate(GPUS[name])] for name in GPUS}
        return any(sum(left >= each for left in gpus) >= count for gpus in free.values())

    def held(self) -> Held:
        """Return what the containers of each pod were started with, by the kubelets."""
        names = {pod["metadata"]["uid"]: pod["metadata"]["name"] for pod in self.cluster.pods}
        gpus = {
            uuid(name, index)[4:12]: uuid(name, index) for name, sizes in GPUS.items() for index in range(len(sizes))
        }
        found: dict[str, Counter[str]] = {}
        for worker in self.cluster.workers.values():
            for uid, _, id_ in worker.ids():
                found.setdefault(names.get(uid, uid), Counter())[gpus[id_.split("-")[0]]] += 1
        return {name: dict(units) for name, units in found.items()}

    def used(self) -> Counter[str]:
        """Return how many units of each GPU are held."""
        found: Counter[str] = Counter()
        for units in self.held().values():
            found.update(units)
        return found

    def promised(self, annotation: str) -> Held:
        """Return what an annotation of the pods says that they have, or are to have."""
        found: dict[str, Counter[str]] = {}
        for pod in self.cluster.pods:
            text = (pod["metadata"].get("annotations") or {}).get(annotation)
            for resources in json.loads(text)["containers"].values() if text else ():
                found.setdefault(pod["metadata"]["name"], Counter()).update(resources[MEMORY])
        return {name: dict(units) for name, units in found.items()}

    async def _extender_agrees(self) -> bool:
        """Return whether the extender counts as used what is held."""
        answers = [await answer_at_once(each.port, "/gpushare-scheduler/inspect") for each in self.extenders]
        for status, text in filter(None, answers):
            if status == 200:  # others do not lead
                nodes = json.loads(text)["nodes"]
                counted = {uuid(node["name"], gpu["id"]): gpu["usedGPU"] for node in nodes for gpu in node["devs"]}
                return +Counter(counted) == self.used()
        return False

    def check(self) -> None:
        """See that no GPU has too much, that no unit is held twice, and that who was promised GPUs has got them."""
        for worker in self.cluster.workers.values():
            worker.check()
        sizes = {uuid(name, index): size for name in GPUS for index, size in enumerate(GPUS[name])}
        over = {gpu: units for gpu, units in self.used().items() if units > sizes[gpu]}
        assert over == {}, self._state()
        promised, held = self.promised("gpushare/promise"), self.held()
        bound = {
            pod["metadata"]["name"]: asked(pod)[MEMORY] for pod in self.cluster.pods if pod["spec"].get("nodeName")
        }
        assert {name: sum(units.values()) for name, units in promised.items()} == bound, self._state()
        total: Counter[str] = Counter()
        for units in promised.values():
            total.update(units)
        assert {gpu: units for gpu, units in total.items() if units > sizes[gpu]} == {}, self._state()
        for worker in self.cluster.workers.values():
            for uid in worker.steered & worker.admitted.keys():
                if (name := worker.admitted[uid].pod.name) in promised:
                    self.happened["promise that was kept"] += 1
                    assert held[name] == promised[name], self._state()
        assert leases(self.cluster.server) == {"gpushare-extender"}

    def _state(self) -> object:
        pods = {
            pod["metadata"]["name"]: (asked(pod), pod["spec"].get("nodeName"), pod["status"])
            for pod in self.cluster.pods
        }
        return pods, self.promised("gpushare/promise"), self.promised("gpushare/allocation"), self.held()


@asynccontextmanager
async def living(folder: Path, daemons: Build, *extenders: Build, seed: int) -> AsyncIterator[Life]:
    """Run a cluster with daemons of a build, and an extender of each of these, the first of which leads."""
    async with ApiServer() as server, AsyncExitStack() as stack:
        kubeconfig = server.kubeconfig(folder / "kubeconfig")
        workers = [memory_worker(name, server, folder) for name in GPUS]
        for each in workers:
            stack.push_async_callback(each.stop)
            await each.start(daemons)
        cluster, programs = Cluster(server, workers, seed), [Extender(kubeconfig) for _ in extenders]
        for program, build in zip(programs, extenders, strict=True):
            stack.push_async_callback(program.stop)
            await program.start(build)
            await program.answers()
            cluster.extenders.append(program.port)
        await programs[0].leads()
        async with cluster.working():
            life = Life(cluster, programs, kubeconfig, seed)
            yield life
            await life.settle()
            print(dict(sorted(life.happened.items())))  # noqa: T201 - shown with -s, or where it fails
