"""Prepares the claims of pods before their containers start, and unprepares them after their containers ended."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from gpushare_plugin.kubelet.api.dra_v1_pb2 import Claim, NodePrepareResourceResponse
from gpushare_plugin.testing.clock import Clock
from gpushare_plugin.testing.kubelet.dra_manager.claims import ClaimCache, ClaimInfo, PreparedDevice
from gpushare_plugin.testing.kubelet.dra_manager.driver import DriverConnection
from gpushare_plugin.testing.kubelet.dra_manager.drivers import Drivers
from gpushare_plugin.testing.kubelet.dra_manager.node_api import NodeApi
from gpushare_plugin.testing.kubelet.shared.errors import DraError, PluginCallError
from gpushare_plugin.testing.kubelet.shared.pods import Container, Pod

RECONCILE_SECONDS = 60.0
"""kubernetes: pkg/kubelet/cm/dra/manager.go, defaultReconcilePeriod."""

log = logging.getLogger(__name__)


class ClaimAnswer(Protocol):
    """What both answers of a driver have for each claim."""

    @property
    def error(self) -> str:
        """Why the claim was not done; empty where it was."""
        ...


class ClaimManager:
    """The claims of the pods of this node (kubernetes: pkg/kubelet/cm/dra/manager.go).

    `active_pods` are the UIDs of the pods that are not over, None before the kubelet has heard of its pods; `changed`
    is called after each change.
    """

    def __init__(
        self,
        api: NodeApi,
        drivers: Drivers,
        claims: ClaimCache,
        *,
        active_pods: Callable[[], Iterable[str] | None],
        changed: Callable[[], None],
    ) -> None:
        """Start with what `claims` remembers."""
        self._api = api
        self._drivers = drivers
        self.claims = claims
        self._active_pods = active_pods
        self._changed = changed

    async def run(self, clock: Clock) -> None:
        """Unprepare, once a minute, for pods that vanished without a word."""
        while True:
            await self._reconcile()
            await clock.sleep(RECONCILE_SECONDS)

    async def prepare(self, pod: Pod) -> None:
        """Prepare what is not prepared of the claims of a pod: one call to each driver; raises DraError.

        As prepareResources does: first every claim is read and checked, then all are remembered, then drivers are
        called. What one driver prepared is not undone where another one fails.
        """
        read = [await self._read(pod, name) for name in pod.claims.values()]
        batches: dict[DriverConnection, list[ClaimInfo]] = {}
        for info, drivers in read:
            known = self._remembered(pod, info)
            for driver in drivers if not known.prepared else ():
                batches.setdefault(driver, []).append(known)
        for driver, infos in batches.items():
            await self._prepare(driver, infos)
        for infos in batches.values():
            for info in infos:
                info.prepared = True
        self.claims.save()
        self._changed()

    async def unprepare(self, pod_uid: str, namespace: str, names: Iterable[str]) -> None:
        """Give the claims of a pod back, where no other pod uses them here; raises DraError.

        As unprepareResources does: which pod is the last one of a claim is not looked at. So the end of a pod whose
        claims were never prepared unprepares a claim that one other pod uses.
        """
        batches: dict[str, list[ClaimInfo]] = {}
        ended = []
        for info in filter(None, (self.claims.get(namespace, name) for name in names)):
            if len(info.pods) > 1:
                info.pods.discard(pod_uid)
                continue
            ended.append(info)
            for driver in info.devices:
                batches.setdefault(driver, []).append(info)
        for driver, infos in batches.items():
            await self._unprepare(driver, infos)
        for info in ended:
            self.claims.delete(info.namespace, info.name)
        self.claims.save()
        self._changed()

    def cdi_ids(self, pod: Pod, container: Container) -> tuple[str, ...]:
        """Return the CDI devices of a container, as GetResources does: of its claims and, where named, its requests."""
        found: list[str] = []
        for name, claim in pod.claims.items():
            for use in (each for each in container.claims if each.name == name):
                info = self.claims.get(pod.namespace, claim)
                if info is None:
                    raise DraError(
                        f"internal error: unable to get claim info for ResourceClaim {claim} in namespace "
                        f"{pod.namespace}"
                    )
                found += info.cdi_ids(use.request)
        return tuple(found)

    def of(self, pod: Pod, container: Container) -> list[ClaimInfo]:
        """Return the claims of a container, whole, whatever requests the container names."""
        used = {each.name for each in container.claims}
        infos = (self.claims.get(pod.namespace, claim) for name, claim in pod.claims.items() if name in used)
        return [info for info in infos if info is not None]

    async def _read(self, pod: Pod, name: str) -> tuple[ClaimInfo, list[DriverConnection]]:
        claim = await self._api.claim(pod.namespace, name)
        users = (claim.get("status") or {}).get("reservedFor") or ()
        if not any(user["uid"] == pod.uid for user in users):
            raise DraError(
                f"pod {pod.name} ({pod.uid}) is not allowed to use ResourceClaim {name} ({claim['metadata']['uid']})"
            )
        info = ClaimInfo.of(claim)
        return info, [self._drivers.get(driver) for driver in info.devices]

    def _remembered(self, pod: Pod, info: ClaimInfo) -> ClaimInfo:
        """Note, also in the file, that a pod is about to use a claim; raises DraError."""
        known = self.claims.get(info.namespace, info.name)
        if known is None:
            known = info
            self.claims.add(info)
        elif known.uid != info.uid:
            raise DraError(
                f"old ResourceClaim with same name {info.name} and different UID {known.uid} still exists "
                "(previous pod force-deleted?!)"
            )
        known.pods.add(pod.uid)
        self.claims.save()
        return known

    async def _prepare(self, driver: DriverConnection, infos: Sequence[ClaimInfo]) -> None:
        try:
            answer = await driver.prepare([_claim(info) for info in infos])
        except PluginCallError as error:
            raise DraError(f"NodePrepareResources: {error}") from error
        by_uid = {info.uid: info for info in infos}
        for uid, result in answer.claims.items():
            _check("NodePrepareResources", by_uid, uid, result)
            by_uid[uid].devices.setdefault(driver.driver, []).extend(_devices(result))
        _check_all("NodePrepareResources", by_uid, answer.claims)

    async def _unprepare(self, driver: str, infos: Sequence[ClaimInfo]) -> None:
        try:
            answer = await self._drivers.get(driver).unprepare([_claim(info) for info in infos])
        except PluginCallError as error:
            raise DraError(f"NodeUnprepareResources: {error}") from error
        by_uid = {info.uid: info for info in infos}
        for uid, result in answer.claims.items():
            _check("NodeUnprepareResources", by_uid, uid, result)
        _check_all("NodeUnprepareResources", by_uid, answer.claims)

    async def _reconcile(self) -> None:
        active = self._active_pods()
        if active is None:
            return
        there = set(active)
        gone: dict[tuple[str, str], list[str]] = {}
        for info in self.claims:
            for uid in info.pods - there:
                gone.setdefault((uid, info.namespace), []).append(info.name)
        for (uid, namespace), names in gone.items():
            try:
                await self.unprepare(uid, namespace, names)
            except DraError as error:
                log.info("unpreparing for the vanished pod %s failed, will retry: %s", uid, error)


def _claim(info: ClaimInfo) -> Claim:
    return Claim(namespace=info.namespace, uid=info.uid, name=info.name)


def _devices(result: NodePrepareResourceResponse) -> list[PreparedDevice]:
    return [
        PreparedDevice(
            each.pool_name,
            each.device_name,
            tuple(each.request_names),
            tuple(each.cdi_device_ids),
            each.share_id if each.HasField("share_id") else None,
        )
        for each in result.devices
    ]


def _check(method: str, asked: Mapping[str, ClaimInfo], uid: str, result: ClaimAnswer) -> None:
    if uid not in asked:
        raise DraError(f"{method} returned result for unknown claim UID {uid}")
    if result.error:
        raise DraError(f"{method} failed for ResourceClaim {asked[uid].name}: {result.error}")


def _check_all(method: str, asked: Mapping[str, ClaimInfo], answer: Mapping[str, Any]) -> None:
    if skipped := len(asked) - len(answer):
        raise DraError(f"{method} skipped {skipped} ResourceClaims")
