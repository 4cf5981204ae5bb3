"""The pods of the node, and how they are let in."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from gpushare_plugin.base.errors import GpushareError
from gpushare_plugin.testing.kubelet.device_manager.allocator import Allocator
from gpushare_plugin.testing.kubelet.shared.errors import (
    AdmissionError,
    ContainerStartError,
    DeviceManagerError,
    DraError,
    PrepareError,
    UnprepareError,
)
from gpushare_plugin.testing.kubelet.shared.pods import AdmittedPod, Pod, StartedContainer

if TYPE_CHECKING:
    from gpushare_plugin.testing.kubelet.dra_manager.manager import ClaimManager


class NodePods:
    """The pods that are not over, as the API server knows them; a kubelet that just started may not have heard of them.

    `heard` is whether it has.
    """

    def __init__(self, changed: Callable[[], None]) -> None:
        """Start without any; `changed` is called after each change."""
        self._pods: dict[str, Pod] = {}
        self._changed = changed
        self.heard = True

    @property
    def all(self) -> Mapping[str, Pod]:
        """Every pod that is not over, by UID."""
        return dict(self._pods)

    def known(self) -> Iterable[Pod]:
        """Return the pods that the kubelet has heard of."""
        return self._pods.values() if self.heard else ()

    def active(self) -> Iterable[str] | None:
        """Return the UIDs of the pods that are not over, None where the kubelet has not heard of its pods."""
        return self._pods.keys() if self.heard else None

    def learn(self) -> None:
        """Have the kubelet hear of them."""
        self.heard = True
        self._changed()

    def add(self, pod: Pod) -> None:
        """Add a pod."""
        self._pods[pod.uid] = pod
        self._changed()

    def delete(self, pod: Pod) -> None:
        """End a pod, if there is such a one."""
        self._pods.pop(pod.uid, None)
        self._changed()


class Admission:
    """Lets pods in, one at a time, and starts their containers."""

    def __init__(
        self,
        pods: NodePods,
        allocator: Callable[[], Allocator],
        claims: Callable[[], "ClaimManager | None"],
        is_running: Callable[[], bool],
    ) -> None:
        """Add to `pods`; `allocator` and `claims` return those of the kubelet that is there now, if `is_running`."""
        self._pods = pods
        self._allocator = allocator
        self._claims = claims
        self._is_running = is_running
        self._one_at_a_time = asyncio.Lock()

    async def admit(self, pod: Pod) -> AdmittedPod:
        """Give every container of `pod` its devices, prepare its claims, then start all; as `EmbeddedKubelet.admit`."""
        async with self._one_at_a_time:
            if not self._is_running():
                raise GpushareError("the kubelet is not running: start it first")
            if not self._pods.heard:
                raise GpushareError("the kubelet has not heard of any pod yet: let it learn of them first")
            await self._allocate(pod, self._allocator())
        await self._prepare(pod)
        return AdmittedPod(pod, {each.name: await self.start(pod, each.name) for each in pod.in_order()})

    async def start(self, pod: Pod, container: str) -> StartedContainer:
        """Start a container with what was allocated to it; raises as `EmbeddedKubelet.restart_container`."""
        claims, found = self._claims(), pod.container(container)
        try:
            cdi_ids = claims.cdi_ids(pod, found) if claims and pod.claims else ()
            started = await self._allocator().start(pod, found)
        except (DeviceManagerError, DraError) as error:
            raise ContainerStartError(pod, container, error) from error
        return replace(started, cdi_devices=(*cdi_ids, *started.cdi_devices))

    async def end(self, pod: Pod) -> None:
        """Unprepare the claims of a pod whose containers have ended, then end the pod; raises UnprepareError."""
        if (claims := self._claims()) and pod.claims:
            try:
                await claims.unprepare(pod.uid, pod.namespace, pod.claims.values())
            except DraError as error:
                raise UnprepareError(pod, error) from error
        self._pods.delete(pod)

    async def _prepare(self, pod: Pod) -> None:
        if not pod.claims:
            return
        claims = self._claims()
        if claims is None:
            raise GpushareError(f"pod {pod.namespace}/{pod.name} has claims: embed the kubelet with `dra`")
        try:
            await claims.prepare(pod)
        except DraError as error:
            raise PrepareError(pod, error) from error

    async def _allocate(self, pod: Pod, allocator: Allocator) -> None:
        self._pods.add(pod)
        try:
            for container in pod.in_order():
                await allocator.allocate(pod, container)
        except DeviceManagerError as error:
            self._pods.delete(pod)
            raise AdmissionError(pod, error) from error
        except BaseException:
            # Whoever waited gave up. That cannot happen to the real one, so nothing may be left of it.
            self._pods.delete(pod)
            allocator.forget_unfinished()
            raise
