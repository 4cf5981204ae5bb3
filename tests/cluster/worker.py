"""A node of the cluster: GPUs, the daemon that shares them, and a kubelet that takes its pods from the API server."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gpushare_plugin.base.structs import replace
from gpushare_plugin.config.directives import PARTITIONING
from gpushare_plugin.config.sources.choice import Configs
from gpushare_plugin.core.gpu import Inventory
from gpushare_plugin.core.resource import Resource
from gpushare_plugin.kube.client import NODES, Client
from gpushare_plugin.kube.collection import Gone, Put
from gpushare_plugin.kubelet.allocations.trust import TrustDelays
from gpushare_plugin.mps.exchange import MpsRoot
from gpushare_plugin.node import daemon as app
from gpushare_plugin.node.status import Serving
from gpushare_plugin.slices.slice import SliceKind
from gpushare_plugin.testing.kubelet import AdmissionError, AdmittedPod, EmbeddedKubelet, Pod
from tests.cluster.objects import ALL_PODS, PODS, Object, delete, has_ended, kubelet_pod, objects, patch
from tests.cluster.tasks import alongside
from tests.nodes import Cards
from tests.served import served_by_mps

Lifetime = Callable[[Object], float | None]
"""Returns for how many seconds the containers of a pod run; None for good."""


@dataclass(frozen=True, slots=True)
class NodeKind:
    """What a node has, and how it is configured: the GPUs, and the section `sharing` of the config.

    One that is `partitioned` has the label of nos, MPS that serves its GPUs, and slices that stay retired briefly. Its
    kubelet writes the status of its Node only when it is told to: a real one does so every ten seconds.
    """

    inventory: Inventory
    sharing: dict[str, Any]
    flags: dict[str, Any] | None = None
    partitioned: bool = False


ROOM = {"cpu": "64", "memory": "512Gi", "pods": "110"}
"""What a partitioned node has besides GPUs: where there is no room for a pod, no slice is made for it."""

CLOCK_RATE = 10
"""How much faster a partitioned node's daemon counts the seconds that a unit has been retired."""


class Worker:
    """A node whose kubelet admits the pods that are bound to it, and writes what becomes of them."""

    divided_by: SliceKind = "mps"
    """How the GPUs of one that is partitioned are divided."""

    def __init__(self, name: str, kind: NodeKind, folder: Path, client: Client, kubeconfig: Path) -> None:
        """Have a folder of its own; nothing runs yet."""
        folder.mkdir()
        self.name = name
        self.kind = kind
        self.kubelet = EmbeddedKubelet(folder)
        self._ticks = asyncio.Event()
        self.admitted: dict[str, AdmittedPod] = {}
        """The pods that run, by UID."""
        self._client = client
        self._mps = MpsRoot(folder / "mps")
        self._ended: set[str] = set()
        self._admitting: asyncio.Queue[Object] = asyncio.Queue()
        file = folder / "config.yaml"
        flags = {"mpsRoot": str(self._mps.path), **(kind.flags or {})}
        file.write_text(yaml.safe_dump({"version": "v1", "flags": flags, "sharing": kind.sharing}))
        self._specification = app.Daemon(
            Configs(file=file),
            lambda _: Cards(kind.inventory),
            self.kubelet.plugin_directory,
            self.kubelet.pod_resources_socket,
            membership=app.Membership(name, kubeconfig, follow_pods=True),
        )
        if kind.partitioned:
            self._specification = replace(
                self._specification,
                partitioning=True,
                trust_delays=TrustDelays(unknown=0),
                clock=lambda: CLOCK_RATE * time.monotonic(),
            )
        self._root = app.NodeDaemon(self._specification)
        self._daemon: asyncio.Task[None] | None = None

    @property
    def resources(self) -> tuple[Resource, ...]:
        """What the daemon offers."""
        phase = self._root.status.phase
        assert isinstance(phase, Serving)
        return tuple(phase.node.resources)

    @asynccontextmanager
    async def working(self, lifetime: Lifetime) -> AsyncIterator[None]:
        """Run daemon and kubelet; ready once the Node has what the daemon registered."""
        await self.register()
        with ExitStack() as stack:
            if self.kind.partitioned and self.divided_by == "mps":
                stack.enter_context(served_by_mps(self._mps, self.kind.inventory))
            async with self.kubelet, alongside(self._publish(), self._follow()) as tasks:
                self._daemon = tasks.create_task(self._root.run())
                tasks.create_task(self._admit(lifetime, tasks))
                if not self.kind.partitioned:
                    await self.kubelet.wait_for(lambda seen: any(seen.allocatable().values()))
                self._tasks = tasks
                yield

    async def register(self) -> None:
        """Create the Node, as the kubelet does that finds none when it starts."""
        labels, room = ({PARTITIONING: self.divided_by}, ROOM) if self.kind.partitioned else ({}, {})
        counts = {name: str(count) for name, count in self.kubelet.allocatable().items()}
        status = {"capacity": counts, "allocatable": room | counts}
        node = {"metadata": {"name": self.name, "labels": labels}, "status": status}
        await self._client.request("POST", NODES, body=node)

    async def restart_daemon(self) -> None:
        """End the daemon wherever it is, and start another one."""
        await self.end_daemon()
        self.start_daemon()

    def kill_daemon(self) -> None:
        """Let the daemon end wherever it is."""
        assert self._daemon is not None
        self._daemon.cancel()

    async def end_daemon(self) -> None:
        """End the daemon wherever it is."""
        assert self._daemon is not None
        self._daemon.cancel()
        await asyncio.wait([self._daemon])

    def start_daemon(self) -> None:
        """Start another daemon."""
        self._root = app.NodeDaemon(self._specification)
        self._daemon = self._tasks.create_task(self._root.run())

    def tick(self) -> None:
        """Have the kubelet of a partitioned node write the status of its Node."""
        self._ticks.set()

    async def _publish(self) -> None:
        """Write what the device manager counts into the Node."""
        written: dict[str, int] = {}
        while True:
            if self.kind.partitioned:
                await self._ticks.wait()
                self._ticks.clear()
            else:
                await self.kubelet.wait_for(lambda seen: seen.allocatable() != written, within=3600)  # noqa: B023 - as it is
            written = self.kubelet.allocatable()
            counts = {name: str(count) for name, count in written.items()}
            await patch(
                self._client, f"{NODES}/{self.name}/status", {"status": {"capacity": counts, "allocatable": counts}}
            )

    async def _follow(self) -> None:
        """Take in the pods that are bound to this node, in the order in which the watch shows them."""
        seen: set[str] = set()
        async for change in objects(self._client, ALL_PODS, f"spec.nodeName={self.name}"):
            match change:
                case Put(pod):
                    uid = pod["metadata"]["uid"]
                    if uid not in seen and not has_ended(pod):
                        seen.add(uid)
                        self._admitting.put_nowait(pod)
                    if pod["metadata"].get("deletionTimestamp"):
                        self._stop(uid)
                        await delete(self._client, pod, at_once=True)
                case Gone(uid=uid):
                    self._stop(uid)

    def _stop(self, uid: str) -> None:
        """End the containers of a pod, also of one that is not admitted yet."""
        self._ended.add(uid)
        if (gone := self.admitted.pop(uid, None)) is not None:
            self.kubelet.delete(gone.pod)

    async def _admit(self, lifetime: Lifetime, tasks: asyncio.TaskGroup) -> None:
        while True:
            found = await self._admitting.get()
            pod = kubelet_pod(found)
            if pod.uid in self._ended:
                continue
            try:
                admitted = await self.kubelet.admit(pod)
            except AdmissionError as error:
                await self._write(pod, {"phase": "Failed", "reason": error.reason, "message": str(error)})
                continue
            self.admitted[pod.uid] = admitted
            if pod.uid in self._ended:
                self._stop(pod.uid)
                continue
            state = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
            await self._write(pod, {"phase": "Running", "containerStatuses": _statuses(pod, state)})
            if (seconds := lifetime(found)) is not None:
                tasks.create_task(self._end(pod, seconds))

    async def _end(self, pod: Pod, after: float) -> None:
        """End a pod: first its containers, then its status says so."""
        await asyncio.sleep(after)
        if pod.uid not in self.admitted:
            return
        self._stop(pod.uid)
        await self._write(
            pod, {"phase": "Succeeded", "containerStatuses": _statuses(pod, {"terminated": {"exitCode": 0}})}
        )

    async def _write(self, pod: Pod, status: Object) -> None:
        await patch(self._client, f"{PODS}/{pod.name}/status", {"status": status})


def _statuses(pod: Pod, state: Object) -> list[Object]:
    return [{"name": each.name, "state": state} for each in pod.containers]
