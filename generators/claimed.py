"""A node that gives its GPUs by claim, with pods that come, run and go: what the dashboard shows of claims.

The daemon is the real one, in this process. Its GPUs, its kubelet and kube-scheduler are simulated.
"""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import yaml

from gpushare_plugin.config.sources.choice import Configs
from gpushare_plugin.gpus.simulated import SimulatedSource
from gpushare_plugin.kube.client import NODES, Client
from gpushare_plugin.node import daemon as node
from gpushare_plugin.testing.claims import AllocationError, ClaimScheduler
from gpushare_plugin.testing.cluster import ApiServer
from gpushare_plugin.testing.kubelet import ClaimEntry, Container, EmbeddedKubelet, Pod, PrepareError
from gpushare_plugin.testing.kubelet.dra_manager import Dra, NodeApi
from gpushare_plugin.testing.ports import claim_port

NODE = "node-d"

_API = "/apis/resource.k8s.io/v1"
_CLAIMS, _CLASSES, _SLICES = (
    f"{_API}/namespaces/default/resourceclaims",
    f"{_API}/deviceclasses",
    f"{_API}/resourceslices",
)
_CLASS, _DRIVER = "gpu", "gpu.gpushare.io"
_SIZES = ("4Gi", "8Gi", "8Gi", "16Gi")
_EVERY, _RUNS, _REFUSED, _DELETED = 4, 22, range(30, 60, 3), range(20, 90, 25)
"""Seconds between two pods, those that a pod runs, those at which a claim is refused, and a ResourceSlice deleted."""

Object = dict[str, Any]


class ClaimNode:
    """The node: its daemon and its kubelet."""

    def __init__(self, folder: Path, server: ApiServer, client: Client) -> None:
        """Keep everything below `folder`."""
        for name in ("plugins", "plugins_registry", "cdi"):
            (folder / name).mkdir(parents=True)
        self.port = claim_port()
        self._server = server
        self._scheduler = ClaimScheduler(server.store, NODE)
        self._chance = random.Random(0)  # noqa: S311 - the same for each picture
        self.kubelet = EmbeddedKubelet(folder, rng=self._chance, dra=Dra(NodeApi(client, NODE)))
        gpus, config = folder / "gpus.yaml", folder / "config.yaml"
        gpus.write_text(yaml.safe_dump({"gpus": [{"count": 2, "memory": "40GiB", "name": "NVIDIA A100-SXM4-40GB"}]}))
        memory = {"name": "aliyun.com/gpu-mem", "unit": "GiB", "isolation": "hami-core"}
        config.write_text(yaml.safe_dump({"version": "v1", "dra": {}, "sharing": {"memory": {"resources": [memory]}}}))
        self.daemon = node.Daemon(
            Configs(file=config),
            lambda _: SimulatedSource(gpus),
            self.kubelet.plugin_directory,
            self.kubelet.pod_resources_socket,
            http_address=f"127.0.0.1:{self.port}",
            membership=node.Membership(NODE, server.kubeconfig(folder / "kubeconfig"), cordon_configmap=False),
            claim_specs=folder / "cdi",
            cgroup_root=folder,
        )

    async def live(self, seconds: int) -> None:
        """Let pods with claims come and go for some seconds."""
        pods: dict[int, Pod] = {}
        for second in range(seconds):
            if second % _EVERY == 0:
                pods |= {second: pod} if (pod := await self._admitted(f"claimed-{second}")) else {}
            if second in _REFUSED:
                await self._admitted(f"refused-{second}", {"opaque": {"driver": _DRIVER, "parameters": {"a": "b"}}})
            if second in _DELETED:
                for each in self._server.store.find(_SLICES):
                    self._server.store.delete(_SLICES, each["metadata"]["name"])
            if (over := pods.pop(second - _RUNS, None)) is not None:
                await self.kubelet.end(over)
                self._scheduler.release(over)
            await asyncio.sleep(1)

    async def _admitted(self, name: str, *parameters: Object) -> Pod | None:
        """Run a pod with a share of a GPU; return None where no GPU has room, or the node refuses."""
        asked = {"deviceClassName": _CLASS, "capacity": {"requests": {"memory": self._chance.choice(_SIZES)}}}
        config = [{"requests": ["gpu"], **each} for each in parameters]
        spec = {"devices": {"requests": [{"name": "gpu", "exactly": asked}], "config": config}}
        self._server.store.create(_CLAIMS, {"metadata": {"name": name}, "spec": spec})
        pod = Pod(name, [Container("main", claims=[ClaimEntry("gpu")])], claims={"gpu": name})
        try:
            self._scheduler.schedule(pod)
            await self.kubelet.admit(pod)
        except AllocationError:
            return None
        except PrepareError:
            self.kubelet.delete(pod)
            self._scheduler.release(pod)
            return None
        return pod


@contextlib.asynccontextmanager
async def claim_node(server: ApiServer, folder: Path, tasks: list["asyncio.Task[None]"]) -> AsyncIterator[ClaimNode]:
    """Run the node."""
    server.store.create(NODES, {"metadata": {"name": NODE}, "status": {}})
    server.store.create(_CLASSES, {"metadata": {"name": _CLASS}, "spec": {}})
    async with Client(server.kubeconfig(folder / "kubelet")) as client:
        made = ClaimNode(folder / NODE, server, client)
        async with made.kubelet:
            tasks.append(asyncio.create_task(node.serve(made.daemon)))
            yield made
