"""A node of the cluster: GPUs, the daemon that shares them, and a kubelet that takes its pods from the API server."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gpushare_plugin.adapters.cluster.client import NODES, Client
from gpushare_plugin.adapters.cluster.collection import Gone, Put
from gpushare_plugin.config.sources.choice import Configs
from gpushare_plugin.model.gpu import Inventory
from gpushare_plugin.model.resource import Resource
from gpushare_plugin.programs.node import daemon as app
from gpushare_plugin.programs.node.status import Serving
from gpushare_plugin.testing.kubelet import AdmissionError, EmbeddedKubelet, Pod
from tests.cluster.objects import ALL_PODS, PODS, Object, has_ended, kubelet_pod, objects, patch
from tests.cluster.tasks import alongside
from tests.nodes import Cards

Lifetime = Callable[[Object], float | None]
"""Returns for how many seconds the containers of a pod run; None for good."""


@dataclass(frozen=True, slots=True)
class NodeKind:
    """What a node has, and how it is configured: the GPUs, and the section `sharing` of the config."""

    inventory: Inventory
    sharing: dict[str, Any]
    flags: dict[str, Any] | None = None


class Worker:
    """A node whose kubelet admits the pods that are bound to it, and writes what becomes of them."""

    def __init__(self, name: str, kind: NodeKind, folder: Path, client: Client, kubeconfig: Path) -> None:
        """Have a folder of its own; nothing runs yet."""
        folder.mkdir()
        self.name = name
        self.kubelet = EmbeddedKubelet(folder)
        self._client = client
        self._running: dict[str, Pod] = {}
        self._admitting: asyncio.Queue[Object] = asyncio.Queue()
        file = folder / "config.yaml"
        flags = {"mpsRoot": str(folder / "mps"), **(kind.flags or {})}
        file.write_text(yaml.safe_dump({"version": "v1", "flags": flags, "sharing": kind.sharing}))
        self._root = app.Root(
            app.Daemon(
                Configs(file=file),
                lambda _: Cards(kind.inventory),
                self.kubelet.plugin_directory,
                self.kubelet.pod_resources_socket,
                membership=app.Membership(name, kubeconfig, follow_pods=True),
            )
        )

    @property
    def resources(self) -> tuple[Resource, ...]:
        """What the daemon offers."""
        phase = self._root.status.phase
        assert isinstance(phase, Serving)
        return tuple(phase.node.resources)

    @asynccontextmanager
    async def working(self, lifetime: Lifetime) -> AsyncIterator[None]:
        """Run daemon and kubelet; ready once the Node has what the daemon registered."""
        await self._client.request("POST", NODES, body={"metadata": {"name": self.name}, "status": {}})
        async with self.kubelet, alongside(self._root.run(), self._publish(), self._follow()) as tasks:
            tasks.create_task(self._admit(lifetime, tasks))
            await self.kubelet.wait_for(lambda seen: any(seen.allocatable().values()))
            yield

    async def _publish(self) -> None:
        """Write what the device manager counts into the Node."""
        written: dict[str, int] = {}
        while True:
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
                case Gone(uid=uid):
                    if (gone := self._running.pop(uid, None)) is not None:
                        self.kubelet.delete(gone)

    async def _admit(self, lifetime: Lifetime, tasks: asyncio.TaskGroup) -> None:
        while True:
            found = await self._admitting.get()
            pod = kubelet_pod(found)
            try:
                await self.kubelet.admit(pod)
            except AdmissionError as error:
                await self._write(pod, {"phase": "Failed", "reason": error.reason, "message": str(error)})
                continue
            self._running[pod.uid] = pod
            state = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
            await self._write(pod, {"phase": "Running", "containerStatuses": _statuses(pod, state)})
            if (seconds := lifetime(found)) is not None:
                tasks.create_task(self._end(pod, seconds))

    async def _end(self, pod: Pod, after: float) -> None:
        """End a pod: first its containers, then its status says so."""
        await asyncio.sleep(after)
        self._running.pop(pod.uid, None)
        self.kubelet.delete(pod)
        await self._write(
            pod, {"phase": "Succeeded", "containerStatuses": _statuses(pod, {"terminated": {"exitCode": 0}})}
        )

    async def _write(self, pod: Pod, status: Object) -> None:
        await patch(self._client, f"{PODS}/{pod.name}/status", {"status": status})


def _statuses(pod: Pod, state: Object) -> list[Object]:
    return [{"name": each.name, "state": state} for each in pod.containers]
