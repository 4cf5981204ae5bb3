"""The kubelet to embed: start it, register plugins with it, give it pods."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from gpushare_plugin.adapters.kubelet.api import deviceplugin_pb2_grpc, podresources_pb2_grpc
from gpushare_plugin.foundation.errors import GpushareError
from gpushare_plugin.testing.kubelet.device_manager.allocator import Allocator
from gpushare_plugin.testing.kubelet.device_manager.checkpoint import NAME as CHECKPOINT_NAME
from gpushare_plugin.testing.kubelet.device_manager.manager import Device, DeviceManager
from gpushare_plugin.testing.kubelet.device_manager.registry import Registry
from gpushare_plugin.testing.kubelet.errors import AdmissionError, ContainerStartError, DeviceManagerError
from gpushare_plugin.testing.kubelet.journal import Disconnection, Journal, Registration
from gpushare_plugin.testing.kubelet.pod_resources import PodResourcesLister
from gpushare_plugin.testing.kubelet.pods import AdmittedPod, Pod, StartedContainer
from gpushare_plugin.testing.kubelet.socket_server import SocketServer


class _Running(NamedTuple):
    """What runs between a start and a stop."""

    registry: Registry
    servers: tuple[SocketServer, ...]


class EmbeddedKubelet:
    """A kubelet in this process: `device-plugins/kubelet.sock` and `pod-resources/kubelet.sock` below `directory`.

    It does what Kubernetes 1.36 does in `pkg/kubelet/cm/devicemanager`, its traps included, and calls plugins over real
    sockets. What it draws at random it draws from `rng`, so a seeded one makes a run repeatable. `clock` (seconds)
    rules the five minutes a resource outlives its plugin and the rate of pod-resources calls: add an offset to a
    running clock rather than stop it. Without `checkpoint` a restart forgets all allocations; that is for tests with
    very many pods. `dial_seconds` is how long a plugin that registered may take to accept the connection.
    """

    def __init__(
        self,
        directory: Path | str,
        *,
        checkpoint: bool = True,
        rng: random.Random | None = None,
        clock: Callable[[], float] = time.monotonic,
        dial_seconds: float = 10.0,
    ) -> None:
        """Prepare a kubelet that is not running yet."""
        self.plugin_directory = Path(directory, "device-plugins")
        self.socket = self.plugin_directory / "kubelet.sock"
        self.pod_resources_socket = Path(directory, "pod-resources", "kubelet.sock")
        self._writes_checkpoint = checkpoint
        self._rng = rng or random.Random()  # noqa: S311 -- nothing secret is drawn
        self._clock = clock
        self._dial_seconds = dial_seconds
        self._refusal: str | None = None
        self._pods: dict[str, Pod] = {}
        self._knows_pods = True
        self._admission = asyncio.Lock()
        self._journal = Journal()
        self._manager = self._new_manager()
        self._allocator = Allocator(self._manager, self._rng)
        self._running: _Running | None = None

    async def __aenter__(self) -> Self:
        """Start."""
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop."""
        await self.stop()

    async def start(self, *, knows_pods: bool = True) -> None:
        """Wipe the sockets in the plugin directory, remember what the checkpoint says, and serve.

        Without `knows_pods` it has yet to hear of its pods (see `learn_pods`), as one that has not reached the API
        server: pod-resources shows none, none is admitted, and what the checkpoint says of them is kept. Raises OSError
        when the directory cannot be used, GpushareError when its path is too long for sockets or the kubelet runs
        already.
        """
        if self._running is not None:
            raise GpushareError("the kubelet is running already: stop it first")
        self._knows_pods = knows_pods
        self._manager = self._new_manager()
        self._manager.remember()
        self._allocator = Allocator(self._manager, self._rng)
        self._wipe_sockets()
        registry = Registry(
            self._manager,
            self.plugin_directory,
            self._journal,
            dial_seconds=self._dial_seconds,
            refusal=lambda: self._refusal,
        )
        lister = PodResourcesLister(self._manager, self._known_pods, clock=self._clock, journal=self._journal)
        pod_resources, plugins = SocketServer(self.pod_resources_socket), SocketServer(self.socket)
        podresources_pb2_grpc.add_PodResourcesListerServicer_to_server(lister, pod_resources.grpc)
        deviceplugin_pb2_grpc.add_RegistrationServicer_to_server(registry, plugins.grpc)
        self._running = _Running(registry, (pod_resources, plugins))
        try:
            for server in self._running.servers:
                await server.start()
        except BaseException:
            await self.stop()
            raise
        self._journal.changed()

    async def stop(self, *, graceful: bool = True) -> None:
        """End all connections and tasks; without `graceful` the sockets stay behind dead, as after a kill.

        Pods stay, as they do in the API server. Stopping twice is fine.
        """
        if self._running is None:
            return
        running, self._running = self._running, None
        try:
            for server in running.servers:
                await server.stop(leave_socket=not graceful)
        finally:
            await running.registry.close()
            self._journal.changed()

    async def restart(self, *, graceful: bool = True, knows_pods: bool = True) -> None:
        """Stop, then start: containers run on, plugins have to register again."""
        await self.stop(graceful=graceful)
        await self.start(knows_pods=knows_pods)

    def learn_pods(self) -> None:
        """Hear of the pods of this node, where it was started without knowing them."""
        self._knows_pods = True
        self._journal.changed()

    @asynccontextmanager
    async def away(self, *, graceful: bool = True) -> AsyncIterator[None]:
        """Be stopped for as long as the block lasts."""
        await self.stop(graceful=graceful)
        try:
            yield
        finally:
            await self.start()

    @property
    def pods(self) -> Mapping[str, Pod]:
        """The pods that are not over, by UID; one that is just being admitted is among them."""
        return dict(self._pods)

    async def admit(self, pod: Pod) -> AdmittedPod:
        """Give every container of `pod` its devices, then start them all; one pod at a time.

        A pod that is known already is checked again, as all are after a reboot of the node. The plugin may take its
        time, as in reality. Raises AdmissionError, upon which the pod is over; ContainerStartError, upon which it is
        not (see `restart_container`); KubeletCrashError where the real kubelet would crash.
        """
        async with self._admission:
            if self._running is None:
                raise GpushareError("the kubelet is not running: start it first")
            if not self._knows_pods:
                raise GpushareError("the kubelet has not heard of any pod yet: let it learn of them first")
            manager, allocator = self._manager, self._allocator
            self._pods[pod.uid] = pod
            self._journal.changed()
            try:
                for container in pod.in_order():
                    await allocator.allocate(pod, container)
            except DeviceManagerError as error:
                self.delete(pod)
                raise AdmissionError(pod, error) from error
            except BaseException:
                # Whoever waited gave up. That cannot happen to the real one, so nothing may be left of it.
                self.delete(pod)
                manager.forget_unfinished()
                raise
        return AdmittedPod(
            pod, {container.name: await self.restart_container(pod, container.name) for container in pod.in_order()}
        )

    async def restart_container(self, pod: Pod, container: str) -> StartedContainer:
        """Start `container` of an admitted `pod` once more, with what was allocated to it then.

        Raises ContainerStartError when a plugin that wants to know of it objects, KeyError for an unknown container.
        """
        try:
            return await self._allocator.start(pod, pod.container(container))
        except DeviceManagerError as error:
            raise ContainerStartError(pod, container, error) from error

    def delete(self, pod: Pod) -> None:
        """End `pod`, whether it finished or was deleted; its devices are freed at the next admission or List."""
        self._pods.pop(pod.uid, None)
        self._journal.changed()

    def refuse_registrations(self, message: str) -> None:
        """Turn away every plugin that registers from now on, with `message`."""
        self._refusal = message

    def accept_registrations(self) -> None:
        """Let plugins in again."""
        self._refusal = None

    @property
    def registrations(self) -> Sequence[Registration]:
        """Every registration answered so far, over all restarts, refused ones among them."""
        return tuple(self._journal.registrations)

    @property
    def disconnections(self) -> Sequence[Disconnection]:
        """Every plugin lost so far because its stream, or one before it, ended; stopping the kubelet does not count."""
        return tuple(self._journal.disconnections)

    @property
    def calls(self) -> Mapping[str, int]:
        """How often each method was called so far, by plugins or on them; 0 for one that never was."""
        return self._journal.calls.copy()

    def capacity(self) -> dict[str, int]:
        """How many devices each resource has; a resource whose plugin is away for five minutes is dropped."""
        return self._manager.capacity()[0]

    def allocatable(self) -> dict[str, int]:
        """How many healthy devices each resource has, in use or not; drops resources as `capacity` does."""
        return self._manager.capacity()[1]

    def devices(self, resource: str) -> dict[str, Device]:
        """List the devices of `resource` by ID, as last listed; after a restart there are none until the next list."""
        return dict(self._manager.devices.get(resource, {}))

    def healthy(self, resource: str) -> frozenset[str]:
        """List the IDs that may be allocated; none while the plugin is away, whatever it listed last."""
        return frozenset(self._manager.healthy.get(resource, ()))

    def allocated(self, resource: str) -> frozenset[str]:
        """List the IDs in use, or not yet freed."""
        return frozenset(self._manager.allocated.get(resource, ()))

    async def wait_for(self, condition: Callable[[Self], object], *, within: float = 30.0) -> None:
        """Wait until `condition` holds; it is asked again after each change. Time alone is no change.

        Raises TimeoutError after `within` seconds, with the present state.
        """
        try:
            async with asyncio.timeout(within):
                await self._journal.wait_until(lambda: condition(self))
        except TimeoutError as error:
            raise TimeoutError(f"what was waited for did not happen within {within:g} s; {self._state()}") from error

    def _state(self) -> str:
        return "; ".join(
            (
                f"running: {self._running is not None}",
                f"capacity: {self.capacity()}",
                f"allocatable: {self.allocatable()}",
                f"allocated: { {resource: len(ids) for resource, ids in self._manager.allocated.items()} }",
                f"pods: {[f'{pod.namespace}/{pod.name}' for pod in self._pods.values()]}",
                f"calls: {dict(self._journal.calls)}",
                f"registrations: {self._journal.registrations}",
                f"disconnections: {self._journal.disconnections}",
            )
        )

    def _new_manager(self) -> DeviceManager:
        return DeviceManager(
            active_pods=lambda: self._pods.keys() if self._knows_pods else None,
            changed=self._journal.changed,
            clock=self._clock,
            checkpoint_file=self.plugin_directory / CHECKPOINT_NAME if self._writes_checkpoint else None,
        )

    def _known_pods(self) -> Iterable[Pod]:
        return self._pods.values() if self._knows_pods else ()

    def _wipe_sockets(self) -> None:
        self.plugin_directory.mkdir(parents=True, exist_ok=True)
        for path in self.plugin_directory.iterdir():
            if path.is_socket():
                path.unlink()
