"""A node whose GPU is given by claim: with an API server, a scheduler, and CDI specifications that are applied."""

import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gpushare_plugin.kube.client import NODES, Client
from gpushare_plugin.testing.claims import ClaimScheduler
from gpushare_plugin.testing.cluster import ApiServer, Store
from gpushare_plugin.testing.kubelet import ClaimEntry, Container, EmbeddedKubelet, Mount, Pod, StartedContainer
from gpushare_plugin.testing.kubelet.dra_manager import Dra, NodeApi
from gpushare_plugin.testing.runtime.edits import edits_of
from real_gpus.containers import RunningContainer
from real_gpus.node import Config, Machine, Node, node_folder, serving, until

_NODE, _CLASS = "gpu-1", "gpu"
_API = "/apis/resource.k8s.io/v1"
_CLAIMS = f"{_API}/namespaces/default/resourceclaims"
_DRIVER = "gpu.gpushare.io"
"""The name of the DRA driver, which the section `dra` of a config can change."""
_OFFERED_WITHIN = 30.0
"""Seconds for a change of the devices in ResourceSlices."""


@dataclass
class ClaimNode(Node):
    """A node that gives its GPU by claim."""

    store: Store = field(default_factory=Store)
    """What the API server has."""

    @property
    def cdi(self) -> Path:
        """The directory of CDI specifications."""
        return self.folder / "cdi"

    @property
    def offered(self) -> int:
        """The number of devices that claims can get."""
        slices = self.store.find(f"{_API}/resourceslices")
        return sum(not device.get("taints") for each in slices for device in each["spec"].get("devices") or ())

    async def offers(self, devices: int, within: float = _OFFERED_WITHIN) -> bool:
        """Wait until claims can get so many devices, at most `within` seconds; return whether they can."""

        async def look() -> tuple[bool, bool]:
            found = self.offered == devices
            return found, found

        return await until(look, within)

    def ask(self, name: str, capacity: Mapping[str, str], env: Mapping[str, str]) -> None:
        """Make a pod of one container with a claim for so much of a GPU; empty for no size."""
        exactly = {"deviceClassName": _CLASS, **({"capacity": {"requests": dict(capacity)}} if capacity else {})}
        spec = {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}
        self.store.create(_CLAIMS, {"metadata": {"name": name}, "spec": spec})
        self.pods[name] = Pod(name, [Container(name, env=env, claims=[ClaimEntry("gpu")])], claims={"gpu": name})

    def schedule(self, name: str) -> None:
        """Allocate the claim of a pod; raises AllocationError."""
        ClaimScheduler(self.store, _NODE).schedule(self.pods[name])

    async def start_by_claim(
        self, name: str, capacity: Mapping[str, str] | None = None, env: Mapping[str, str] | None = None
    ) -> RunningContainer:
        """Start a pod of one container, which sets `env`, with a claim for so much of a GPU; None for no size.

        Raises AllocationError, and PrepareError where the daemon refuses.
        """
        self.ask(name, capacity or {}, env or {})
        self.schedule(name)
        pod = self.pods[name]
        started = (await self.kubelet.admit(pod)).containers[name]
        return self.running(pod, _with_edits(started, self.cdi))

    async def end_by_claim(self, name: str) -> None:
        """End a pod with a claim, and give the claim back; raises UnprepareError."""
        await self.containers[name].end()
        pod = self.pods[name]
        await self.kubelet.end(pod)
        ClaimScheduler(self.store, _NODE).release(pod)

    @property
    def left(self) -> list[str]:
        """The names of the files that the daemon has of claims."""
        records = (self.folder / "plugins" / _DRIVER / "claims").glob("*.json")
        return sorted(file.name for file in (*records, *self.cdi.glob(f"{_DRIVER}-claim_*")))


def _with_edits(started: StartedContainer, cdi: Path) -> StartedContainer:
    """Return a container with the edits of CDI, which runtimes apply after the env of the pod (containerd, pkg/cri)."""
    edits = edits_of(started.cdi_devices, [cdi])
    mounts = [Mount(each["containerPath"], each["hostPath"], "ro" in each["options"]) for each in edits.mounts]
    environment = {**started.environment, **edits.environment}
    return replace(started, environment=environment, mounts=(*started.mounts, *mounts))


@contextlib.asynccontextmanager
async def claim_node(
    machine: Machine, sharing: Config, dra: Config | None, units: Mapping[str, int], *, mps: bool = False
) -> AsyncIterator[ClaimNode]:
    """Run a node with this config once the `units` can be allocated, and one device by claim if there is a `dra`.

    Raises NodeError where the node does not come up.
    """
    with node_folder() as folder:
        for name in ("cdi", "plugins", "plugins_registry"):
            (folder / name).mkdir()
        async with ApiServer() as server, Client(server.kubeconfig(folder / "kubelet.conf")) as client:
            server.store.update(NODES, _NODE, {("metadata", "labels", "kubernetes.io/hostname"): _NODE}, "kubelet")
            server.store.create(f"{_API}/deviceclasses", {"metadata": {"name": _CLASS}, "spec": {}})
            async with EmbeddedKubelet(folder, dra=Dra(NodeApi(client, _NODE))) as kubelet:
                made = ClaimNode(machine, kubelet, folder, store=server.store)
                made.configure(sharing, dra=dra)

                async def ready() -> None:
                    await made.can_allocate(units)
                    if not await made.offers(0 if dra is None else 1):
                        raise TimeoutError(f"claims can get {made.offered} devices")

                more: tuple[Any, ...] = ("--kubeconfig", folder / "kubelet.conf", "--cdi-spec-dirs", made.cdi)
                async with serving(made, ready, "--node-name", _NODE, *more, mps=mps):
                    yield made
