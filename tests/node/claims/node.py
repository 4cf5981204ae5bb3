"""A node whose GPUs are given by claim: `gpushare run`, an embedded kubelet, an API server and a scheduler."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from gpushare_plugin.kube.client import Client
from gpushare_plugin.testing.claims import ClaimScheduler
from gpushare_plugin.testing.claims.pools import offered
from gpushare_plugin.testing.cluster import ApiServer
from gpushare_plugin.testing.kubelet import ClaimEntry, Container, EmbeddedKubelet, Pod, PrepareError, StartedContainer
from gpushare_plugin.testing.kubelet.dra_manager import Dra, NodeApi
from gpushare_plugin.testing.mps import FakeMps
from gpushare_plugin.testing.nvml import FakeGpu, FakeNvml
from gpushare_plugin.testing.runtime.edits import edits_of
from tests.process.daemon import Argument, Daemon, gpushare, process, running
from tests.unit.kube.cluster import NODE, a_node

DRIVER = "gpu.gpushare.io"
API = "/apis/resource.k8s.io/v1"
SLICES = f"{API}/resourceslices"
CARD = FakeGpu(memory_mib=81920, reserved_mib=0)

Object = dict[str, Any]


class ClaimNode:
    """The parts of the node."""

    def __init__(self, folder: Path, nvml: FakeNvml, server: ApiServer, kubelet: EmbeddedKubelet) -> None:
        """Keep everything below `folder`."""
        self.folder = folder
        self.nvml = nvml
        self.server = server
        self.kubelet = kubelet
        self.cdi = folder / "cdi"
        self.file = folder / "config.yaml"
        self.scheduler = ClaimScheduler(server.store, NODE)
        self.root = folder / "kubelet"
        self.environment = {**nvml.environment, "CDI_SPEC_DIRS": str(self.cdi)}
        self.flags = f"{{mpsRoot: {folder / 'mps'}}}"

    def configure(self, sharing: str, dra: str | None = "{}") -> None:
        """Write a config file."""
        given = f"dra: {dra}\n" if dra is not None else ""
        self.file.write_text(f"flags: {self.flags}\nsharing: {sharing}\n{given}")

    @asynccontextmanager
    async def daemon(self, *more: Argument) -> AsyncIterator[Daemon]:
        """Run `gpushare run`."""
        arguments = (
            *("--config-file", self.file, "--pod-resources-socket", self.kubelet.pod_resources_socket),
            *("--node-name", NODE, "--kubeconfig", self.server.kubeconfig(self.folder / "kubeconfig")),
            *("--pod-namespace", "default", "--pod-name", "gpushare"),
        )
        async with running(self.kubelet, *arguments, *more, environment=self.environment) as daemon:
            yield daemon

    @asynccontextmanager
    async def daemon_alone(self) -> AsyncIterator[Daemon]:
        """Run `gpushare run` without the API server, so that no claim can be served."""
        arguments = "--config-file", self.file, "--pod-resources-socket", self.kubelet.pod_resources_socket
        async with running(self.kubelet, *arguments, environment=self.environment) as daemon:
            yield daemon

    @asynccontextmanager
    async def serving(self, sharing: str, dra: str | None = "{}", *, mps: bool = False) -> AsyncIterator[Daemon]:
        """Run `gpushare run` for a config, with `gpushare mps` where `mps` is set."""
        self.configure(sharing, dra)
        async with AsyncExitStack() as stack:
            if mps:
                await stack.enter_async_context(self.keeper())
            yield await stack.enter_async_context(self.daemon())

    @asynccontextmanager
    async def keeper(self) -> AsyncIterator[FakeMps]:
        """Run `gpushare mps`, with the stand-in for its programs."""
        with FakeMps() as mps:
            self.environment |= mps.environment
            async with process("mps", "--mps-root", self.folder / "mps", environment=self.environment):
                yield mps

    async def listed(self, *arguments: str) -> str:
        """Return what `gpushare list` prints."""
        return (await gpushare("list", "--device-plugin-path", self.kubelet.plugin_directory, *arguments)).output

    async def refused(self, pod: Pod) -> str:
        """Return why the claims of a pod are not prepared."""
        try:
            await self.kubelet.admit(pod)
        except PrepareError as error:
            return str(error)
        raise AssertionError("the claims were prepared")

    def environment_of(self, started: StartedContainer, pod: Mapping[str, str] | None = None) -> Mapping[str, str]:
        """Return the variables of the process of a container whose pod sets some variables itself."""
        edits = edits_of([each for each in started.cdi_devices if each.startswith(DRIVER)], [self.cdi])
        # The container runtime applies CDI devices to the variables of pod and image (containerd, pkg/cri/opts).
        return {**started.environment, **(pod or {}), **edits.environment}

    def mounts_of(self, started: StartedContainer, path: str) -> list[Path]:
        """Return what the CDI devices of claims mount at a path of the container."""
        specs = [json.loads(file.read_text()) for file in self.cdi.glob("*claim_*.json")]
        devices = {f"{each['kind']}={device['name']}": device for each in specs for device in each["devices"]}
        mounts = [mount for name in started.cdi_devices for mount in devices[name]["containerEdits"]["mounts"]]
        return [Path(mount["hostPath"]) for mount in mounts if mount["containerPath"] == path]

    async def devices(self, daemon: Daemon, count: int) -> list[Object]:
        """Wait until the ResourceSlices have so many devices that pods can get, and return the devices.

        The kubelet deletes all ResourceSlices of the node once after its start: devices count only after that.
        """
        await daemon.until(
            lambda: self.wiped and len(self.free) == count, f"{count} devices without taints in ResourceSlices"
        )
        return self.free

    async def connected(self, daemons: int) -> None:
        """Wait until the kubelet can call so many daemons, of which the last asks for claims.

        The log of a daemon says that the kubelet has registered its DRA plugin; the connection comes after that.
        """
        await self.kubelet.wait_for(lambda kubelet: len(kubelet.connected_endpoints) == daemons)

    @property
    def wiped(self) -> bool:
        """Whether the kubelet has deleted the ResourceSlices of earlier drivers, as it does after its start."""
        return any((each.verb, each.resource) == ("deletecollection", "resourceslices") for each in self.server.asked)

    @property
    def free(self) -> list[Object]:
        """The devices that pods can get: without taints, in complete pools, as the allocator sees them."""
        found = offered(self.server.store.find(SLICES), NODE)
        return [each.device for each in found if not each.device.get("taints")]

    @property
    def published(self) -> list[Object]:
        """The devices in the ResourceSlices of the node."""
        return [device for each in self.server.store.find(SLICES) for device in each["spec"].get("devices") or ()]

    @property
    def events(self) -> dict[str, str]:
        """The messages of the Events of the Node, by reason."""
        found = self.server.store.find("/api/v1/namespaces/default/events")
        return {each["reason"]: each["message"] for each in found if each["involvedObject"]["kind"] == "Node"}

    def pod(self, name: str, capacity: dict[str, str] | None = None, **more: Any) -> Pod:
        """Make a pod of one container with a claim of the same name, which asks for this `capacity` of a device."""
        exactly = {"deviceClassName": "gpu", **({"capacity": {"requests": capacity}} if capacity else {}), **more}
        return self.pod_with(name, [{"name": "gpu", "exactly": exactly}], Container("main", claims=[ClaimEntry("gpu")]))

    def pod_of_requests(self, name: str, sizes: Mapping[str, str]) -> Pod:
        """Make a pod of a container for each request of one claim; `sizes` is the memory by the name of the request."""
        requests = [
            {"name": request, "exactly": {"deviceClassName": "gpu", "capacity": {"requests": {"memory": size}}}}
            for request, size in sizes.items()
        ]
        return self.pod_with(name, requests, *(Container(each, claims=[ClaimEntry("gpu", each)]) for each in sizes))

    def pod_with(self, name: str, requests: list[Object], *containers: Container) -> Pod:
        """Make a pod with a claim of the same name with these requests."""
        spec = {"devices": {"requests": requests}}
        claims = f"{API}/namespaces/default/resourceclaims"
        self.server.store.create(claims, {"metadata": {"name": name}, "spec": spec})
        return Pod(name, list(containers), claims={"gpu": name})

    def claim(self, pod: Pod) -> Object:
        """Return the claim of a pod."""
        (found,) = self.server.store.find(f"{API}/namespaces/default/resourceclaims", pod.claims["gpu"])
        return found

    @property
    def left(self) -> set[str]:
        """The files of claims on the node."""
        directory = self.root / "plugins" / DRIVER
        records = (directory / "claims").glob("*.json")
        return {file.name for file in (*records, *self.cdi.glob("*claim*"))}


@asynccontextmanager
async def claim_node(folder: Path, *cards: FakeGpu, driver: str = "570.86.15") -> AsyncIterator[ClaimNode]:
    """Run everything but the daemon."""
    for name in ("cdi", "kubelet", "kubelet/plugins", "kubelet/plugins_registry"):
        (folder / name).mkdir()
    with FakeNvml(list(cards) or [CARD], driver_version=driver) as nvml:
        async with ApiServer() as server, Client(server.kubeconfig(folder / "kubelet.conf")) as client:
            a_node(server)
            server.store.create(f"{API}/deviceclasses", {"metadata": {"name": "gpu"}, "spec": {}})
            async with EmbeddedKubelet(folder / "kubelet", dra=Dra(NodeApi(client, NODE))) as kubelet:
                yield ClaimNode(folder, nvml, server, kubelet)
