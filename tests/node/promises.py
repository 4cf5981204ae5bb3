"""A node whose pods are followed: daemon, embedded kubelet and API server in one process, and pods with promises."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from gpushare_plugin.base.structs import replace
from gpushare_plugin.config.schema.sections import Overuse
from gpushare_plugin.config.sources.choice import Configs
from gpushare_plugin.core.driver_limits import DriverLimits
from gpushare_plugin.core.gpu import Inventory
from gpushare_plugin.core.usage import ContainerUsage
from gpushare_plugin.gpus.host import CGROUP_ROOT, PROCFS
from gpushare_plugin.ledger.annotations import ALLOCATION, PROMISE, read_allocation
from gpushare_plugin.ledger.pod import Share
from gpushare_plugin.node import daemon as app
from gpushare_plugin.node.pods.init_containers import ContainerIds
from gpushare_plugin.node.pods.usage import UsageTracker
from gpushare_plugin.node.status import DaemonStatus, Serving
from gpushare_plugin.testing.cluster import ApiServer
from gpushare_plugin.testing.kubelet import AdmittedPod, Container, EmbeddedKubelet, Pod
from tests.node.living import gone
from tests.nodes import Cards, a_gpu
from tests.nodes import a_node as nodes
from tests.unit.kube.cluster import NODE, a_node
from tests.unit.sharing.settings import GPU_MEM
from tests.waiting import until

MEMORY = "health: {rescanSeconds: 60}\nsharing: {memory: {resources: [{name: aliyun.com/gpu-mem}]}}\n"

Promised = Mapping[str, Mapping[int, int]]
"""Units by the index of the GPU, for each container, or each resource of one."""


def promise(promised: Promised, resource: str = GPU_MEM, node: str = NODE) -> dict[str, str]:
    """Return the annotation that the extender writes with a Binding, for containers that request one resource."""
    return _promise({name: {resource: gpus} for name, gpus in promised.items()}, node)


def promise_of(container: str, promised: Promised) -> dict[str, str]:
    """Return the annotation for a container that requests several resources: their units by the index of the GPU."""
    return _promise({container: promised}, NODE)


def _promise(promised: Mapping[str, Promised], node: str) -> dict[str, str]:
    containers = {
        name: {
            resource: {a_gpu(index).uuid: units for index, units in gpus.items()}
            for resource, gpus in resources.items()
        }
        for name, resources in promised.items()
    }
    return {PROMISE: json.dumps({"version": 1, "node": node, "time": "2026-01-01T00:00:00Z", "containers": containers})}


def a_pod(name: str, *sizes: int, init: Sequence[int] = (), resource: str = GPU_MEM) -> Pod:
    """Return a pod whose containers c0, c1 … ask for so many units, its init containers i0, i1 … for others."""
    return Pod(
        name,
        [Container(f"c{number}", {resource: size}) for number, size in enumerate(sizes)],
        [Container(f"i{number}", {resource: size}) for number, size in enumerate(init)],
    )


def in_api(pod: Pod, node: str | None = NODE, annotations: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return a pod as the API server has it."""

    def container(each: Container) -> dict[str, Any]:
        limits = {name: str(units) for name, units in each.limits.items()}
        return {"name": each.name, "resources": {"limits": limits, "claims": [use._asdict() for use in each.claims]}}

    spec: dict[str, Any] = {
        "containers": [container(each) for each in pod.containers],
        "initContainers": [container(each) for each in pod.init_containers],
        "resourceClaims": [{"name": name, "resourceClaimName": claim} for name, claim in pod.claims.items()],
    }
    if node is not None:
        spec["nodeName"] = node
    metadata = {"name": pod.name, "uid": pod.uid, "annotations": dict(annotations or {})}
    return {"metadata": metadata, "spec": spec, "status": {"phase": "Pending"}}


def path(pod: Pod) -> str:
    """Return where pods of its namespace are."""
    return f"/api/v1/namespaces/{pod.namespace}/pods"


def nodes_of(*memory_gib: int) -> Inventory:
    """Return a node with a GPU for each size."""
    return nodes(*(size * 1024 for size in memory_gib))


class FollowedNode:
    """A node of GPUs whose pods are followed."""

    def __init__(self, server: ApiServer, kubelet: EmbeddedKubelet, folder: Path, *memory_gib: int) -> None:
        """Have GPUs of so many GiB; nothing runs before `start`."""
        self.server = server
        self.kubelet = kubelet
        self.settings = MEMORY
        self.cards = Cards(nodes_of(*memory_gib))
        self.flags = ""
        self.limits_root: Path | None = None
        self.cdi_spec_dirs: tuple[Path, ...] = ()
        self.claim_specs = folder / "claims"
        self.cgroup_root = CGROUP_ROOT
        self.procfs = PROCFS
        self._folder = folder
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the daemon, and wait until it is registered."""
        file = self._write_config()
        kubeconfig = self.server.kubeconfig(self._folder / "kubeconfig")
        daemon = app.Daemon(
            Configs(file=file),
            lambda _: self.cards,
            self.kubelet.plugin_directory,
            self.kubelet.pod_resources_socket,
            membership=app.Membership(NODE, kubeconfig, follow_pods=True),
            driver_limits_root=self.limits_root,
            cdi_spec_dirs=self.cdi_spec_dirs,
            claim_specs=self.claim_specs,
            cgroup_root=self.cgroup_root,
            procfs=self.procfs,
            clock=time.monotonic,
        )
        self._root = app.NodeDaemon(daemon)
        self._task = asyncio.create_task(self._root.run())
        await self.registered()

    async def registered(self) -> None:
        """Wait until the daemon is registered with the kubelet."""
        await self.kubelet.wait_for(lambda seen: any(seen.allocatable().values()))

    def _write_config(self) -> Path:
        file = self._folder / "config.yaml"
        file.write_text(f"flags: {{mpsRoot: {self._folder / 'mps'}{self.flags}}}\n{self.settings}")
        return file

    async def configure(self, settings: str) -> None:
        """Put other settings in effect, and wait until the GPUs that pods hold wait for them."""
        self.settings = settings
        self._write_config()
        phase = self.status.phase
        assert isinstance(phase, Serving)
        phase.reloads.request()
        await until(lambda: phase.snapshot.waiting)

    async def stop(self) -> None:
        """Stop the daemon, and wait until the kubelet knows."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            await gone(self.kubelet)

    async def usages(self, ids: ContainerIds) -> tuple[ContainerUsage, ...]:
        """Let the daemon look at the GPUs now, where containers have these IDs; return what containers use."""
        phase = self.status.phase
        assert isinstance(phase, Serving)

        def loaded() -> UsageTracker | None:
            found = self.status.phase
            return found.usage if isinstance(found, Serving) else None

        tracker = await until(loaded)
        assert tracker is not None
        await tracker.look(phase.snapshot, Overuse(), ids, phase.held_by_claim)
        assert tracker.usage is not None
        return tracker.usage.containers

    @property
    def status(self) -> DaemonStatus:
        """What probes and scrapes are answered."""
        return self._root.status

    def create(self, pod: Pod, promised: Promised | None = None, annotations: Mapping[str, str] | None = None) -> None:
        """Bind a pod to this node, as a scheduler does: with a promise, other annotations, or none."""
        written = promise(promised) if promised is not None else dict(annotations or {})
        self.server.store.create(path(pod), in_api(pod, annotations=written))

    async def bind(
        self, pod: Pod, promised: Promised | None = None, annotations: Mapping[str, str] | None = None
    ) -> None:
        """Bind a pod, and wait until the daemon has seen it."""
        self.create(pod, promised, annotations)
        await until(lambda: pod.uid in self._seen())

    async def admit(self, pod: Pod, promised: Promised | None = None) -> AdmittedPod:
        """Bind a pod, and have the kubelet admit it once the daemon has seen it."""
        await self.bind(pod, promised)
        return await self.kubelet.admit(pod)

    def _seen(self) -> set[str]:
        phase = self.status.phase
        assert isinstance(phase, Serving)
        assert phase.pods is not None
        return {pod.uid for pod in phase.pods.watched.in_order}

    def annotations(self, pod: Pod) -> dict[str, str]:
        """Return the annotations of a pod."""
        (found,) = self.server.store.find(path(pod), pod.name)
        return dict(found["metadata"].get("annotations") or {})

    def has(self, pod: Pod, key: str, value: str) -> bool:
        """Return whether a pod has an annotation with this value."""
        return self.annotations(pod).get(key) == value

    def told(self, pod: Pod) -> dict[str, dict[int, int]]:
        """Return what the daemon wrote that a pod has: units by index of the GPU, for each container."""
        text = self.annotations(pod).get(ALLOCATION)
        return by_container(read_allocation(text)) if text is not None else {}

    async def annotated(self, pod: Pod, expected: Mapping[str, Mapping[int, int]]) -> None:
        """Wait until the daemon has written that a pod has exactly this."""
        await until(lambda: self.told(pod) == expected, lambda: f"{self.annotations(pod)}")


def by_container(shares: Sequence[Share]) -> dict[str, dict[int, int]]:
    """Return the units of each container by the index of the GPU."""
    found: dict[str, dict[int, int]] = {}
    for share in shares:
        found.setdefault(share.container, {})[int(share.gpu[4:12], 16)] = share.units
    return found


def gpus_of(admitted: AdmittedPod, container: str = "c0", resource: str = GPU_MEM) -> dict[int, int]:
    """Return how many units a container has of each GPU, by index."""
    found: dict[int, int] = {}
    for id_ in admitted.containers[container].device_ids[resource]:
        index = int(id_.removeprefix("GPU-")[:8], 16)
        found[index] = found.get(index, 0) + 1
    return dict(sorted(found.items()))


@asynccontextmanager
async def followed(
    server: ApiServer,
    kubelet: EmbeddedKubelet,
    folder: Path,
    *memory_gib: int,
    settings: str = MEMORY,
    limits_root: Path | None = None,
) -> AsyncIterator[FollowedNode]:
    """Run a node of GPUs of so many GiB; with `limits_root`, `gpushare driver-limits` is to run there."""
    a_node(server)
    node = FollowedNode(server, kubelet, folder, *memory_gib)
    node.settings = settings
    if limits_root is not None:
        node.limits_root = limits_root
        node.cards.inventory = replace(node.cards.inventory, driver_limits=DriverLimits(hook="there is no hook"))
    await node.start()
    try:
        yield node
    finally:
        await node.stop()
