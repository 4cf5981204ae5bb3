"""The kubelet to embed: start it, register plugins with it, give it pods."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gpushare_plugin.base.errors import GpushareError
from gpushare_plugin.testing.kubelet.admission import Admission, NodePods
from gpushare_plugin.testing.kubelet.device_manager.allocator import Allocator
from gpushare_plugin.testing.kubelet.device_manager.checkpoint import NAME as CHECKPOINT_NAME
from gpushare_plugin.testing.kubelet.device_manager.manager import DeviceManager
from gpushare_plugin.testing.kubelet.device_manager.registry import Registry
from gpushare_plugin.testing.kubelet.pod_resources import PodResourcesLister
from gpushare_plugin.testing.kubelet.services import Services
from gpushare_plugin.testing.kubelet.shared.journal import Journal
from gpushare_plugin.testing.kubelet.shared.pods import AdmittedPod, Pod, StartedContainer
from gpushare_plugin.testing.kubelet.view import KubeletView
from gpushare_plugin.testing.running import Running

if TYPE_CHECKING:
    from gpushare_plugin.testing.kubelet.dra_manager.dra import Dra, DraManager


class EmbeddedKubelet(KubeletView, Running):
    """A kubelet in this process: `device-plugins/kubelet.sock` and `pod-resources/kubelet.sock` below `directory`.

    It does what Kubernetes 1.36 does in `pkg/kubelet/cm/devicemanager`, its traps included, and calls plugins over real
    sockets. What it draws at random it draws from `rng`, so a seeded one makes a run repeatable. `clock` (seconds)
    rules the five minutes a resource outlives its plugin and the rate of pod-resources calls: add an offset to a
    running clock rather than stop it. Without `checkpoint` a restart forgets all allocations; that is for tests with
    very many pods. `dial_seconds` is how long a plugin that registered may take to accept the connection. With
    `knows_sockets`, a plugin whose stream ends leaves one of another socket alone, as in Kubernetes 1.37. With `dra` it
    prepares ResourceClaims, by DRA drivers that register in `plugins_registry/`, as `pkg/kubelet/cm/dra` does.
    """

    def __init__(  # noqa: PLR0913 - the settings of a kubelet
        self,
        directory: Path | str,
        *,
        checkpoint: bool = True,
        rng: random.Random | None = None,
        clock: Callable[[], float] = time.monotonic,
        dial_seconds: float = 10.0,
        knows_sockets: bool = False,
        dra: "Dra | None" = None,
    ) -> None:
        """Prepare a kubelet that is not running yet."""
        self.plugin_directory = Path(directory, "device-plugins")
        self.socket = self.plugin_directory / "kubelet.sock"
        self.pod_resources_socket = Path(directory, "pod-resources", "kubelet.sock")
        self._writes_checkpoint = checkpoint
        self._rng = rng or random.Random()  # noqa: S311 -- nothing secret is drawn
        self._clock = clock
        self._dial_seconds = dial_seconds
        self._knows_sockets = knows_sockets
        self._directory = Path(directory)
        self._settings = dra
        self._refusal: str | None = None
        self._records = asyncio.Event()
        self._records.set()
        self._services: Services | None = None
        journal = Journal()
        pods = NodePods(journal.changed)
        super().__init__(pods, journal, self._new_manager(pods, journal), lambda: self._services is not None)
        self._allocator = Allocator(self._manager, self._rng, self._records)
        self._admission = Admission(
            pods,
            lambda: self._allocator,
            lambda: self._dra.claims if self._dra else None,
            lambda: self._services is not None,
        )

    async def start(self, *, knows_pods: bool = True) -> None:
        """Remove the sockets in the plugin directory, restore the checkpoint, and serve.

        Without `knows_pods` it has yet to hear of its pods (see `learn_pods`), as one that has not reached the API
        server: pod-resources shows none, none is admitted, and what the checkpoint has of them is kept. Raises OSError
        when the directory cannot be used, GpushareError when its path is too long for sockets or the kubelet runs
        already.
        """
        if self._services is not None:
            raise GpushareError("the kubelet is running already: stop it first")
        self._node_pods.heard = knows_pods
        self._manager = self._new_manager(self._node_pods, self._journal)
        self._manager.remember()
        self._allocator = Allocator(self._manager, self._rng, self._records)
        self._dra = self._new_dra()
        self._services = self._new_services()
        try:
            await self._services.start()
        except BaseException:
            await self.stop()
            raise
        self._journal.changed()

    async def stop(self, *, graceful: bool = True) -> None:
        """End all connections and tasks; without `graceful` the sockets stay behind dead, as after a kill.

        Pods stay, as they do in the API server. Stopping twice is fine.
        """
        if self._services is None:
            return
        services, self._services = self._services, None
        try:
            await services.stop(leave_sockets=not graceful)
        finally:
            self._journal.changed()

    async def restart(self, *, graceful: bool = True, knows_pods: bool = True) -> None:
        """Stop, then start: containers run on, plugins have to register again."""
        await self.stop(graceful=graceful)
        await self.start(knows_pods=knows_pods)

    @asynccontextmanager
    async def away(self, *, graceful: bool = True) -> AsyncIterator[None]:
        """Be stopped for as long as the block lasts."""
        await self.stop(graceful=graceful)
        try:
            yield
        finally:
            await self.start()

    def learn_pods(self) -> None:
        """Hear of the pods of this node, where it was started without knowing them."""
        self._node_pods.learn()

    async def admit(self, pod: Pod) -> AdmittedPod:
        """Give every container of `pod` its devices, one pod at a time, prepare its claims, then start all containers.

        A pod that is known already is checked again, as all are after a reboot of the node. The plugin may take its
        time, as in reality. Claims of several pods are prepared side by side. Raises AdmissionError, upon which the pod
        is over; PrepareError and ContainerStartError, upon which it is not (admit it again, or see
        `restart_container`); KubeletCrashError where the real kubelet would crash.
        """
        return await self._admission.admit(pod)

    @asynccontextmanager
    async def before_recording(self) -> AsyncIterator[None]:
        """Stay, for as long as the block lasts, between the answer of a plugin to `Allocate` and what follows from it.

        The real one is there for a moment only. Others can list pod-resources meanwhile, and pods can end.
        """
        self._records.clear()
        try:
            yield
        finally:
            self._records.set()

    async def restart_container(self, pod: Pod, container: str) -> StartedContainer:
        """Start `container` of an admitted `pod` once more, with what was allocated to it then.

        Raises ContainerStartError when a plugin that wants to know of it objects, KeyError for an unknown container.
        """
        return await self._admission.start(pod, container)

    async def end(self, pod: Pod) -> None:
        """End `pod` after its containers have ended: unprepare its claims, so that it is not Terminating any more.

        Raises UnprepareError where a driver is away or objects; the pod is still there then, and the kubelet tries
        again after 10 to 15 s (kubernetes: pkg/kubelet/pod_workers.go).
        """
        await self._admission.end(pod)

    def delete(self, pod: Pod) -> None:
        """Have `pod` vanish; its devices are freed at the next admission or List, its claims within a minute."""
        self._node_pods.delete(pod)

    def refuse_registrations(self, message: str) -> None:
        """Turn away every plugin that registers from now on, with `message`."""
        self._refusal = message

    def accept_registrations(self) -> None:
        """Let plugins in again."""
        self._refusal = None

    def _new_manager(self, pods: NodePods, journal: Journal) -> DeviceManager:
        return DeviceManager(
            active_pods=pods.active,
            changed=journal.changed,
            clock=self._clock,
            checkpoint_file=self.plugin_directory / CHECKPOINT_NAME if self._writes_checkpoint else None,
        )

    def _new_dra(self) -> "DraManager | None":
        if self._settings is None:
            return None
        return self._settings.manager(self._directory, self._journal, self._node_pods.active)

    def _new_services(self) -> Services:
        registry = Registry(
            self._manager,
            self.plugin_directory,
            self._journal,
            dial_seconds=self._dial_seconds,
            refusal=lambda: self._refusal,
            knows_sockets=self._knows_sockets,
        )
        lister = PodResourcesLister(
            self._manager,
            self._node_pods.known,
            clock=self._clock,
            journal=self._journal,
            claims=self._dra.claims if self._dra else None,
        )
        return Services(registry, lister, self._dra, plugins=self.socket, pod_resources=self.pod_resources_socket)
