"""A daemon that gives 8 stand-in GPUs by claim, the API server with the claims, and the calls of a kubelet."""

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

from benchmarks.daemon import GPUS, Config, Node, node
from benchmarks.kubelet.claims import Asked
from benchmarks.processes import MeasuredProcess
from gpushare_plugin.config.schema.sections import Dra
from gpushare_plugin.kube.client import NODES
from gpushare_plugin.kubelet.api import dra_v1_pb2 as api
from gpushare_plugin.kubelet.api.pluginregistration_pb2 import InfoRequest, RegistrationStatus
from gpushare_plugin.kubelet.dra_plugin.sockets import PLUGINS, REGISTRY
from gpushare_plugin.testing.cluster import ApiServer
from gpushare_plugin.testing.kubelet import EmbeddedKubelet

NODE = "gpu-1"
DRIVER = Dra().driver
RESOURCE = "aliyun.com/gpu-mem"
UNITS = GPUS * 80
"""Units of 1 GiB of all GPUs."""
BY_CLAIM: Config = {
    "version": "v1",
    "sharing": {"memory": {"resources": [{"name": RESOURCE, "unit": "GiB", "isolation": "hami-core"}]}},
    "dra": {},
}
"""A config that gives all GPUs by claim, in shares of their memory with a limit."""
NO_CLAIMS: Config = {name: section for name, section in BY_CLAIM.items() if name != "dra"}
"""The same for the device plugin alone."""

_CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
_RESOURCE_SLICES = "/apis/resource.k8s.io/v1/resourceslices"
_LOOK_EVERY = 0.002
_WRITES = frozenset({"create", "update", "patch", "delete", "deletecollection"})

T = TypeVar("T")


class ClaimNode:
    """The node: its daemons are processes, the API server is part of this process."""

    def __init__(self, gpus: Node, server: ApiServer, kubelet: EmbeddedKubelet) -> None:
        """Make the directories of the kubelet and of CDI, and the Node."""
        self._gpus = gpus
        self.server = server
        server.anonymous = True  # for the floor
        self.kubelet = kubelet
        self.kubeconfig = server.kubeconfig(gpus.folder / "kubeconfig")
        self.cdi = gpus.folder / "cdi"
        for directory in (self.cdi, gpus.folder / REGISTRY, gpus.folder / PLUGINS):
            directory.mkdir()
        server.store.update(NODES, NODE, {("metadata", "labels", "kubernetes.io/hostname"): NODE}, "kubelet")

    def daemon(self) -> contextlib.AbstractAsyncContextManager[MeasuredProcess]:
        """Run a daemon."""
        return self._gpus.daemon(
            *("--kubeconfig", str(self.kubeconfig), "--node-name", NODE),
            *("--kubelet-root", str(self._gpus.folder), "--cdi-spec-dirs", str(self.cdi)),
        )

    @contextlib.asynccontextmanager
    async def served(self) -> AsyncIterator[Asked]:
        """Run a daemon that has published its GPUs, and connect to it as the kubelet does."""
        async with self.daemon() as process, self.connected(process) as asked:
            await process.outlives(self.published())
            yield asked

    @contextlib.asynccontextmanager
    async def connected(self, process: MeasuredProcess) -> AsyncIterator[Asked]:
        """Connect to a daemon as soon as it can be called, and say that it is registered."""
        registration = await process.outlives(until_there(self._sockets(REGISTRY)))
        (endpoint,) = self._sockets(f"{PLUGINS}/{DRIVER}")()
        async with Asked(endpoint, registration[0]) as asked:
            await asked.registration.GetInfo(InfoRequest())
            await asked.registration.NotifyRegistrationStatus(RegistrationStatus(plugin_registered=True))
            yield asked

    async def published(self, gpus: int = GPUS) -> None:
        """Wait until the ResourceSlices have so many GPUs."""
        await until_there(lambda: len(self.devices) == gpus)

    @property
    def devices(self) -> list[str]:
        """The names of the devices in the ResourceSlices."""
        found = self.server.store.find(_RESOURCE_SLICES)
        return [device["name"] for each in found for device in each["spec"].get("devices") or ()]

    def wipe(self) -> None:
        """Delete the ResourceSlices, as a kubelet does that starts."""
        for each in self.server.store.find(_RESOURCE_SLICES):
            self.server.store.delete(_RESOURCE_SLICES, each["metadata"]["name"])

    @property
    def writes(self) -> list[str]:
        """Each write that the API server has answered."""
        return [f"{each.verb} {each.resource}" for each in self.server.asked if each.verb in _WRITES]

    def claim(self, number: int) -> api.Claim:
        """Make a claim that has 1 GiB of one of the GPUs, and is reserved for a pod."""
        result = {"request": "gpu", "driver": DRIVER, "pool": NODE, "device": self.devices[number % len(self.devices)]}
        share = {"shareID": str(uuid4()), "consumedCapacity": {"memory": "1Gi", "compute": "0"}}
        pod = {"resource": "pods", "name": f"pod-{number}", "uid": str(uuid4())}
        allocation = {"devices": {"results": [result | share]}}
        made = {
            "metadata": {"name": f"claim-{uuid4()}"},
            "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]}},
            "status": {"allocation": allocation, "reservedFor": [pod]},
        }
        metadata = self.server.store.create(_CLAIMS, made)["metadata"]
        return api.Claim(namespace="default", name=metadata["name"], uid=metadata["uid"])

    async def has_status(self, claim: api.Claim) -> None:
        """Wait until the daemon has written into a claim what became of it."""
        await until_there(lambda: self._status(claim).get("devices"))

    async def has_condition(self, claim: api.Claim) -> None:
        """Wait until the daemon has written into a claim whether the limit is in effect, after a look at the usage."""
        await until_there(lambda: [each for each in self._status(claim).get("devices", ()) if each.get("conditions")])

    def delete(self, claim: api.Claim) -> None:
        """Delete a claim."""
        self.server.store.delete(_CLAIMS, claim.name)

    def _status(self, claim: api.Claim) -> dict[str, Any]:
        (found,) = self.server.store.find(_CLAIMS, claim.name)
        status: dict[str, Any] = found["status"]
        return status

    def url(self, claim: api.Claim) -> str:
        """Return where the claim is read."""
        return f"http://127.0.0.1:{self.server.port}{_CLAIMS}/{claim.name}"

    def files(self, claim: api.Claim) -> tuple[Path, Path]:
        """Return the files of a claim that is prepared: its record, and its CDI specification."""
        (specification,) = self.cdi.glob(f"*{claim.uid}.json")
        return self._gpus.folder / PLUGINS / DRIVER / "claims" / f"{claim.uid}.json", specification

    def _sockets(self, directory: str) -> Callable[[], list[Path]]:
        return functools.partial(_found, self._gpus.folder / directory)


def _found(directory: Path) -> list[Path]:
    return list(directory.glob("*.sock"))


async def until_there(look: Callable[[], T]) -> T:
    """Look again and again until something is there."""
    while not (found := look()):  # noqa: ASYNC110 - another process, or the server's own task, brings it about
        await asyncio.sleep(_LOOK_EVERY)
    return found


async def prepare(asked: Asked, claims: Iterable[api.Claim]) -> None:
    """Have claims prepared, one call after another; raises RuntimeError for one that is refused."""
    for claim in claims:
        answer = await asked.calls.NodePrepareResources(api.NodePrepareResourcesRequest(claims=[claim]))
        if error := answer.claims[claim.uid].error:
            raise RuntimeError(error)


async def unprepare(asked: Asked, claim: api.Claim) -> None:
    """Have a claim given back."""
    await asked.calls.NodeUnprepareResources(api.NodeUnprepareResourcesRequest(claims=[claim]))


@contextlib.asynccontextmanager
async def claim_node(config: Config = BY_CLAIM) -> AsyncIterator[ClaimNode]:
    """Make a node of a cluster; its daemon is still to be started."""
    with node(config) as gpus:
        # A GPU is given by claim once the kubelet shows that no pod has units of the GPU.
        async with ApiServer() as server, EmbeddedKubelet(gpus.folder) as kubelet:
            yield ClaimNode(gpus, server, kubelet)
