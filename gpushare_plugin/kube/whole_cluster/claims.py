"""Reads or follows the ResourceSlices and ResourceClaims of a cluster, for people."""

import asyncio
from collections.abc import Callable, Collection, Iterator
from functools import partial
from http import HTTPStatus
from typing import Any, TypeVar

import structlog

from gpushare_plugin.base.text import in_words
from gpushare_plugin.claims.cluster import ClusterClaims, HeldByClaim, OfferedDevices
from gpushare_plugin.core.prepared_claim import ClaimId
from gpushare_plugin.kube.client import Client, ClusterError
from gpushare_plugin.kube.collection import Gone
from gpushare_plugin.kube.dra.claims import allocated_device, users
from gpushare_plugin.kube.dra.device_status import key, status_of
from gpushare_plugin.kube.dra.devices import device_of
from gpushare_plugin.kube.dra.objects import CLAIMS, RESOURCE_SLICES, ApiClaim, ApiResourceSlice
from gpushare_plugin.kube.whole_cluster.asked_claims import ClaimWithSpec, pod_claim
from gpushare_plugin.kube.whole_cluster.following import Following, Objects
from gpushare_plugin.kube.whole_cluster.reading import PAGE, Reading, answered, query_of
from gpushare_plugin.ledger.quantity import QuantityError

_log = structlog.get_logger()

T = TypeVar("T")

_CONSEQUENCE = "what is shown of claims is as old as the last answer"
_FOLLOW = "list and watch"

_OURS = frozenset({"way", "isolation"})
"""The attributes that devices of gpushare have, whatever the name of the DRA driver is."""


def offered_devices(found: ApiResourceSlice) -> OfferedDevices:
    """Return the GPUs in a ResourceSlice that gpushare gives by claim; raises QuantityError."""
    spec = found.spec
    devices = tuple(device_of(each) for each in spec.devices if each.attributes.keys() >= _OURS)
    return OfferedDevices(spec.driver, spec.pool.name, spec.pool.generation, devices)


def held_by(claim: ApiClaim) -> Iterator[HeldByClaim]:
    """Yield what a claim was allocated of each device, of all DRA drivers; raises QuantityError."""
    if claim.status.allocation is None:
        return
    metadata, statuses = claim.metadata, {key(each): each for each in claim.status.devices}
    for each in claim.status.allocation.devices.results:
        status = statuses.get((each.driver, each.pool, each.device, each.share_id))
        yield HeldByClaim(
            each.driver,
            ClaimId(metadata.namespace, metadata.name, metadata.uid),
            allocated_device(each),
            users(claim),
            None if status is None else status_of(status),
        )


async def read_held(client: Client, names: Collection[str]) -> ClusterClaims:
    """Return the GPUs that all nodes, or the named ones, give by claim, and what claims have.

    Where this may not be read, the result says so as `unknown`. Raises ClusterError in words for people.
    """
    try:
        return await _read(client, names, PAGE)
    except ClusterError as error:
        if error.status == HTTPStatus.GONE:
            return await _read(client, names, 0)  # as `overview.read` does
        if not (unknown := _unknown(error, "list")):
            raise
        return ClusterClaims(unknown)


async def _read(client: Client, names: Collection[str], page: int) -> ClusterClaims:
    claims = ClusterClaims()
    try:
        async with asyncio.TaskGroup() as group:
            for selector in _of_nodes(names):
                slices = Reading(client, RESOURCE_SLICES, ApiResourceSlice, selector, page)
                group.create_task(slices.into(partial(_put_slice, claims)))
            group.create_task(Reading(client, CLAIMS, ClaimWithSpec, "", page).into(partial(_put_claim, claims)))
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return claims


def _of_nodes(names: Collection[str]) -> list[str]:
    """Return the field selectors of the ResourceSlices of nodes, or one for all."""
    return [f"spec.nodeName={name}" for name in names] or [""]


def _unknown(error: ClusterError, verbs: str) -> str:
    """Return what people read of an error that hides the claims alone; empty for other errors."""
    if error.status == HTTPStatus.NOT_FOUND:
        return "the API server has no resource.k8s.io/v1, which Kubernetes has from 1.34 on"
    if error.status == HTTPStatus.FORBIDDEN:
        return (
            f"this needs the right to {verbs} resourceclaims and resourceslices of resource.k8s.io in the whole "
            "cluster: see the ClusterRole in docs/inspect.md"
        )
    return ""


def _put_slice(claims: ClusterClaims, found: ApiResourceSlice) -> None:
    name = found.metadata.name
    try:
        claims.put_slice(name, offered_devices(found))
    except QuantityError as error:
        claims.remove_slice(name)
        _ignored(f"ResourceSlice {name}", error, "its GPUs are not shown")


def _put_claim(claims: ClusterClaims, found: ClaimWithSpec) -> None:
    try:
        claims.put_claim(found.metadata.uid, tuple(held_by(found)), pod_claim(found))
    except QuantityError as error:
        claims.remove_claim(found.metadata.uid)
        _ignored(f"{found.metadata.namespace}/{found.metadata.name}", error, "what the claim has counts as free")


def _ignored(what: str, error: QuantityError, consequence: str) -> None:
    _log.error("claim_ignored", path=what, reason=in_words(error), consequence=consequence)


class ClaimsFollower:
    """Keeps the claims of a cluster as they are; where that is forbidden, says so once and ends."""

    def __init__(
        self, client: Client, names: Collection[str], claims: ClusterClaims, changed: Callable[[], None]
    ) -> None:
        """Follow into empty `claims` for all nodes, or the named ones; `changed` is called after each change."""
        self._client = client
        self._claims = claims
        self._changed = changed
        self._ended = asyncio.Event()
        slices = [
            self._following(
                RESOURCE_SLICES,
                Objects(ApiResourceSlice, partial(_put_slice, claims), self._remove_slice, _CONSEQUENCE, selector),
            )
            for selector in _of_nodes(names)
        ]
        of_claims = Objects(ClaimWithSpec, partial(_put_claim, claims), self._remove_claim, _CONSEQUENCE)
        self._followed: list[Following[Any]] = [*slices, self._following(CLAIMS, of_claims)]
        self.begun = False
        """Whether `follow` was called."""

    @property
    def silence(self) -> float | None:
        """Seconds since the last data while requests for claims fail; None while the API server answers."""
        return max((each.silence for each in self._followed if each.silence is not None), default=None)

    def _following(self, path: str, objects: Objects[T]) -> Following[T]:
        return Following(self._client, path, objects, PAGE, self._changed, self._refused)

    def _remove_slice(self, gone: Gone) -> None:
        self._claims.remove_slice(gone.name)

    def _remove_claim(self, gone: Gone) -> None:
        self._claims.remove_claim(gone.uid)

    async def listed(self) -> None:
        """Wait for the first lists, or for the reason why there are none."""
        for each in self._followed:
            await each.listed.wait()

    async def follow(self) -> None:
        """Follow; runs until cancelled, or until the API server forbids that."""
        self.begun = True
        try:
            for path in (RESOURCE_SLICES, CLAIMS):
                await answered(self._client, path, query_of("", 1))
        except ClusterError as error:
            self._end(_unknown(error, _FOLLOW))
        tasks = [asyncio.create_task(each.follow()) for each in self._followed]
        try:
            await self._ended.wait()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _refused(self) -> None:
        self._end(_unknown(ClusterError("", HTTPStatus.FORBIDDEN), _FOLLOW))

    def _end(self, unknown: str) -> None:
        """End where the claims are not known; another failure passes."""
        if unknown:
            self._claims.unknown = unknown
            for each in self._followed:
                each.listed.set()
            self._ended.set()
            self._changed()
