"""A node whose GPUs are given by claim, with a way to limit memory: daemon, agents, runtime and programs."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from gpushare_plugin.base.memory import MIB
from gpushare_plugin.claims.devices import device_name
from gpushare_plugin.kube.client import Client
from gpushare_plugin.ledger.quantity import rounded_up
from gpushare_plugin.testing.claims import AllocationError, ClaimScheduler
from gpushare_plugin.testing.cluster import ApiServer
from gpushare_plugin.testing.kubelet import ClaimEntry, Container, EmbeddedKubelet, Pod, StartedContainer
from gpushare_plugin.testing.kubelet.dra_manager import Dra, NodeApi
from gpushare_plugin.testing.kubelet.shared.pods import Mount
from gpushare_plugin.testing.runtime.edits import edits_of
from tests.node.claims.node import API, SLICES
from tests.node.limited import LimitedNode, Machine, Program
from tests.nodes import a_gpu
from tests.unit.kube.cluster import NODE, a_node
from tests.waiting import until

Object = dict[str, Any]
CLAIMS = f"{API}/namespaces/default/resourceclaims"
USE = "gpus"
"""The name of the claim in each pod."""


def request(name: str, memory_gib: int | None = None, **more: object) -> Object:
    """Return a request for a share of a GPU."""
    capacity = {} if memory_gib is None else {"capacity": {"requests": {"memory": f"{memory_gib}Gi"}}}
    return {"name": name, "exactly": {"deviceClassName": "gpu", **capacity, **more}}


def uses(name: str, *requests: str, sidecar: bool = False) -> Container:
    """Return a container that names these requests of the claim of the pod, or the claim as a whole."""
    return Container(name, claims=[ClaimEntry(USE, each) for each in requests or ("",)], restartable=sidecar)


class ClaimingNode(LimitedNode):
    """A node of two GPUs of 16 GiB that are given by claim."""

    def __init__(self, server: ApiServer, kubelet: EmbeddedKubelet, machine: Machine) -> None:
        """Have no pods yet; nothing runs before `start`."""
        super().__init__(server, kubelet, machine)
        self.claim_specs = machine.spec_dir
        self.scheduler = ClaimScheduler(server.store, NODE)

    async def registered(self) -> None:
        """Wait until claims can be prepared."""
        await self.kubelet.wait_for(lambda kubelet: bool(kubelet.connected_drivers))

    async def served(self) -> None:
        """Wait until claims can have both GPUs."""
        await until(lambda: self.taints == [[], []], lambda: f"{self.taints}")

    @property
    def taints(self) -> list[list[str]]:
        """The keys of the taints of each device in the ResourceSlices."""
        devices = [each for one in self.server.store.find(SLICES) for each in one["spec"].get("devices") or ()]
        return [[taint["key"] for taint in each.get("taints") or ()] for each in devices]

    def claim(self, name: str, *requests: Object) -> None:
        """Make a claim with these requests."""
        self.server.store.create(CLAIMS, {"metadata": {"name": name}, "spec": {"devices": {"requests": requests}}})

    async def run_by_claim(self, pod: Pod) -> None:
        """Run the containers of a pod with a claim that was made; init containers end once their limits hold."""
        await until(lambda: self._scheduled(pod))
        await self.bind(pod)
        started = (await self.kubelet.admit(pod)).containers
        for each in pod.in_order():
            program = self._begin(pod, started[each.name], self.promised(pod, each))
            if each in pod.init_containers and not each.restartable:
                await self.holds()
                self.end([program])

    def _scheduled(self, pod: Pod) -> bool:
        """Schedule a pod, unless the ResourceSlices are gone for a moment: a kubelet that starts deletes them once."""
        try:
            self.scheduler.schedule(pod)
        except AllocationError:
            return False
        return True

    def promised(self, pod: Pod, container: Container) -> Mapping[int, int]:
        """Return the shares of a container by the allocation of its claim, in MiB by the index of the GPU."""
        (claim,) = self.server.store.find(CLAIMS, pod.claims[USE])
        named = {use.request for use in container.claims}
        index = {device_name(a_gpu(number).uuid): number for number in range(2)}
        found: dict[int, int] = {}
        for each in claim["status"]["allocation"]["devices"]["results"]:
            if named & {"", each["request"]} and "shareID" in each and not each.get("adminAccess"):
                mib = rounded_up(each["consumedCapacity"]["memory"]) // MIB
                found[index[each["device"]]] = found.get(index[each["device"]], 0) + mib
        return found

    def _begin(self, pod: Pod, started: StartedContainer, promised: Mapping[int, int]) -> Program:
        edits = edits_of(started.cdi_devices, [self.claim_specs])
        mounts = [Mount(each["containerPath"], each["hostPath"], "ro" in each["options"]) for each in edits.mounts]
        environment = {**started.environment, **edits.environment}
        given = replace(started, environment=environment, mounts=(*started.mounts, *mounts))
        return super()._begin(pod, given, promised)


@asynccontextmanager
async def claiming(made: Machine, settings: str = "") -> AsyncIterator[ClaimingNode]:
    """Run kubelet, daemon and agents on a machine, perhaps with other `settings`, until claims can have both GPUs."""
    folder = made.folder / "kubelet"
    for name in ("", "plugins", "plugins_registry"):
        (folder / name).mkdir()
    async with ApiServer() as server, Client(server.kubeconfig(made.folder / "kubelet.conf")) as client:
        a_node(server)
        server.store.create(f"{API}/deviceclasses", {"metadata": {"name": "gpu"}, "spec": {}})
        async with EmbeddedKubelet(folder, dra=Dra(NodeApi(client, NODE))) as kubelet:
            node = ClaimingNode(server, kubelet, made)
            node.settings = f"{settings or made.way.settings}dra: {{}}\n"
            async with node.running():
                yield node
