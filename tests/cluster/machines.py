"""The nodes of a cluster, which come and go, and whose daemons are killed."""

import random
from collections.abc import Container, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

from gpushare_plugin.config.directives import PARTITIONING
from gpushare_plugin.kube.client import NODES, Client
from gpushare_plugin.slices.wanted import WANTED_SLICES
from gpushare_plugin.testing.cluster import ApiServer
from tests.cluster.access import Access, access
from tests.cluster.objects import ALL_PODS, delete, patch
from tests.cluster.worker import NodeKind, Worker


@dataclass(slots=True)
class _Machine:
    worker: Worker
    access: Access
    stack: AsyncExitStack
    killed: bool = False


@dataclass(slots=True)
class Machines:
    """The nodes of a cluster by their names; `workers` are those that are there.

    A daemon that is killed does nothing more that anybody could see.
    """

    server: ApiServer
    client: Client
    folder: Path
    kinds: Mapping[str, NodeKind]
    workers: list[Worker] = field(default_factory=list)
    _machines: dict[str, _Machine] = field(default_factory=dict)
    _starts: int = 0

    @property
    def absent(self) -> list[str]:
        """The names of nodes that are not there."""
        return [name for name in self.kinds if name not in self._machines]

    @property
    def killed(self) -> list[Worker]:
        """The nodes whose daemon was killed and has not been started again."""
        return [each.worker for each in self._machines.values() if each.killed]

    async def come(self, name: str) -> None:
        """Let a node come, with a kubelet that has no pods."""
        self._starts += 1
        stack = AsyncExitStack()
        way = await stack.enter_async_context(access(self.server.store, self.folder / f"{self._starts}.yaml"))
        worker = Worker(name, self.kinds[name], self.folder / f"{self._starts}", self.client, way.kubeconfig)
        await stack.enter_async_context(worker.working(lambda _: None))
        self._machines[name] = _Machine(worker, way, stack)
        self.workers.append(worker)

    async def go(self, name: str) -> None:
        """Let a node go: its machine at once, its Node then, and its pods when they are collected."""
        gone = self._machines.pop(name)
        self.workers.remove(gone.worker)
        gone.access.cut()
        await gone.stack.aclose()
        await self.client.request("DELETE", f"{NODES}/{name}")

    async def register_again(self, worker: Worker) -> None:
        """Delete the Node of a machine that goes on, and its pods with it; its kubelet creates another one."""
        await self.client.request("DELETE", f"{NODES}/{worker.name}")
        await self._delete_pods({worker.name})
        await worker.register()

    async def collect_pods(self) -> None:
        """Delete the pods of nodes that are not there, as Kubernetes' pod garbage collector does."""
        await self._delete_pods(self.absent)

    async def _delete_pods(self, nodes: Container[str]) -> None:
        for pod in self.server.store.find(ALL_PODS):
            if pod["spec"].get("nodeName") in nodes:
                await delete(self.client, pod, at_once=True)

    async def stop(self) -> None:
        """Let all machines end."""
        for each in self._machines.values():
            await each.stack.aclose()

    def late(self, worker: Worker, seconds: float) -> None:
        """Let a daemon see everything that late."""
        self._machines[worker.name].access.late(seconds)

    def lose_answer(self, worker: Worker) -> None:
        """Let a daemon not hear of its next change of the Node."""
        self._machines[worker.name].access.lose_answer()

    def spare(self, worker: Worker) -> None:
        """Let nothing more happen to a daemon."""
        self._machines[worker.name].access.restore()

    async def restart(self, worker: Worker) -> None:
        """Kill a daemon, unless that has been done, and start another one."""
        machine = self._machines[worker.name]
        machine.access.cut()
        await worker.end_daemon()
        machine.access.restore()
        machine.killed = False
        worker.start_daemon()

    def kill_at_write(self, worker: Worker, rng: random.Random) -> None:
        """Let a daemon be killed at one of its next writes."""
        machine = self._machines[worker.name]

        def kill() -> None:
            machine.killed = True
            worker.kill_daemon()

        machine.access.cut_at_write(rng.randrange(3), kill, carried_out=rng.random() < 0.5)

    async def cordon(self, name: str, *, cordoned: bool) -> None:
        """Cordon a node, or no longer."""
        await patch(self.client, f"{NODES}/{name}", {"spec": {"unschedulable": cordoned or None}})

    async def label(self, name: str, *, partitioned: bool) -> None:
        """Label a node to be partitioned, or take the label away."""
        labels = {PARTITIONING: "mps" if partitioned else None}
        await patch(self.client, f"{NODES}/{name}", {"metadata": {"labels": labels}})

    async def annotate(self, name: str, wanted: str | None) -> None:
        """Let something be wanted of a node, None for nothing said."""
        await patch(self.client, f"{NODES}/{name}", {"metadata": {"annotations": {WANTED_SLICES: wanted}}})
