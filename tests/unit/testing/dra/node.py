"""A node with an embedded kubelet, an API server and a driver, for the tests of the kit."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpushare_plugin.kube.client import Client
from gpushare_plugin.testing.clock import MovedClock
from gpushare_plugin.testing.cluster import ApiServer
from gpushare_plugin.testing.kubelet import ClaimEntry, Container, EmbeddedKubelet, Pod
from gpushare_plugin.testing.kubelet.dra_manager import Dra, NodeApi
from tests.unit.testing.dra.driver import DRIVER, Driver
from tests.waiting import until

NODE = "gpu-1"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"


@dataclass(eq=False, slots=True)
class DraNode:
    """The parts of the node; `clock` rules the DRA manager."""

    kubelet: EmbeddedKubelet
    clock: MovedClock
    server: ApiServer
    driver: Driver

    async def register(self, driver: Driver | None = None) -> None:
        """Start a driver, the node's own if none is named, and wait until the kubelet can call it."""
        driver = driver or self.driver
        before = len(driver.statuses)
        await driver.start()
        await self.clock.skip(1)
        await self.kubelet.wait_for(
            lambda kubelet: (
                len(driver.statuses) > before
                and not kubelet.is_registering
                and str(driver.socket) in kubelet.connected_endpoints
            )
        )

    async def until_asked(self, verb: str, status: int, times: int) -> None:
        """Wait until requests of a verb were answered with a status so many times."""
        await until(lambda: sum((each.verb, each.status) == (verb, status) for each in self.server.asked) >= times)

    def pod(self, *names: str, name: str = "pod", claims: Sequence[ClaimEntry] | None = None) -> Pod:
        """Make a pod of one container that uses these claims, which are allocated and reserved for the pod."""
        made = Pod(
            name,
            [Container("main", claims=[ClaimEntry(each) for each in names] if claims is None else claims)],
            claims={each: each for each in names},
        )
        for each in names:
            self.reserve(each, made)
        return made

    def reserve(self, name: str, *pods: Pod, drivers: Sequence[str] = (DRIVER,)) -> None:
        """Make a claim that is allocated on devices of `drivers`, or add to the pods for which it is reserved."""
        found = self.server.store.find(CLAIMS, name)
        users = [*(found[0]["status"]["reservedFor"] if found else ()), *map(_user, pods)]
        if found:
            self.server.store.patch(CLAIMS, name, {"status": {"reservedFor": users}})
            return
        results = [{"request": "gpu", "driver": each, "pool": NODE, "device": "gpu-0"} for each in drivers]
        status = {"allocation": {"devices": {"results": results}}, "reservedFor": users}
        self.server.store.create(CLAIMS, {"metadata": {"name": name}, "spec": _spec(), "status": status})

    def uid(self, name: str) -> str:
        """Return the UID of a claim."""
        return str(self.server.store.find(CLAIMS, name)[0]["metadata"]["uid"])


def _user(pod: Pod) -> dict[str, str]:
    return {"resource": "pods", "name": pod.name, "uid": pod.uid}


def _spec() -> dict[str, Any]:
    return {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": DRIVER}}]}}


@asynccontextmanager
async def dra_node(root: Path, **settings: Any) -> AsyncIterator[DraNode]:
    """Run a kubelet and an API server for as long as the block lasts; the driver is not started."""
    clock = MovedClock()
    async with ApiServer() as server, Client(server.kubeconfig(root / "kubeconfig")) as client:
        dra = Dra(NodeApi(client, NODE), clock, **settings)
        async with EmbeddedKubelet(root, dra=dra) as kubelet:
            yield DraNode(kubelet, clock, server, Driver(root))
