"""Reads the ResourceClaims that are allocated on the own node, and writes what became of them into their status."""

import re
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing
from http import HTTPStatus

import msgspec
import structlog

from gpushare_plugin.base.text import in_words
from gpushare_plugin.claims.claim import AllocatedClaim, AllocatedDevice, ClaimRefusedError
from gpushare_plugin.claims.status import DeviceStatus
from gpushare_plugin.core.prepared_claim import ClaimId, ClaimUser
from gpushare_plugin.kube.client import UNREADABLE, Client, ClusterError, decoded
from gpushare_plugin.kube.collection import pages
from gpushare_plugin.kube.dra.device_status import entry, key
from gpushare_plugin.kube.dra.objects import CLAIMS, ApiAllocation, ApiClaim, ApiResult, claim_path
from gpushare_plugin.kube.names import FIELD_MANAGER
from gpushare_plugin.ledger.quantity import QuantityError, rounded_up

_log = structlog.get_logger()

LARGEST_CLAIM = 2 * 1024 * 1024
"""Bytes of a claim; etcd takes objects of up to 1.5 MiB."""
MOST_DEVICES = 32
"""Devices of a claim (`AllocationResultsMaxSize` in staging/src/k8s.io/api/resource/v1/types.go, kubernetes 1.36)."""
ATTEMPTS = 3
"""How often a status is written that others write at the same time."""


_LABEL = "[0-9a-z]([0-9a-z-]{0,61}[0-9a-z])?"
_REQUEST = re.compile(f"{_LABEL}(/{_LABEL})?")
"""The name of a request, or of an alternative: a request's name becomes a part of the name of a CDI device.

Source: `validateRequestNameRef` in kubernetes, pkg/apis/resource/validation/validation.go.
"""
_LONGEST_NAME = 64
"""Characters of a wrong name that are repeated in an error."""


class Claims:
    """The claims of all namespaces, as far as one DRA driver and one pool are concerned."""

    def __init__(self, client: Client, driver: str, pool: str, clock: Callable[[], float] = time.time) -> None:
        """Read claims with devices of `driver` in `pool`; `clock` returns the time of day, in seconds since 1970."""
        self._client = client
        self._driver = driver
        self._pool = pool
        self._clock = clock

    async def allocated(self, claim_id: ClaimId) -> AllocatedClaim:
        """Return a claim with its allocation, as the API server has it now.

        Raises ClaimRefusedError where there is no such claim, where another claim has its name, where the claim has no
        device of this pool or cannot be served, and where the API server does not answer.
        """
        claim = await self._read(claim_id)
        if (allocation := claim.status.allocation) is None:
            raise ClaimRefusedError(
                "not-allocated",
                f"claim {claim_id.label} has no allocation any more; delete the pod if it does not start by itself",
            )
        self._refuse_what_is_not_served(claim_id, allocation)
        try:
            return self._converted(claim, allocation)
        except QuantityError as error:
            raise _malformed(claim_id, str(error)) from error

    async def all_allocated(self) -> tuple[AllocatedClaim, ...]:
        """Return all claims of the cluster that are allocated devices of this pool; raises ClusterError.

        A claim that cannot be read is logged and left out.
        """
        found = []
        async with aclosing(pages(self._client, CLAIMS, {})) as listing:
            async for page in listing:
                found += [claim for item in page.items or () if (claim := self._listed(item)) is not None]
        return tuple(found)

    async def write_status(self, claim_id: ClaimId, devices: Sequence[DeviceStatus]) -> bool:
        """Write what became of the devices of a claim; return whether that was new.

        Entries of other DRA drivers stay, and devices that are not allocated any more are left out. Raises
        ClaimRefusedError where there is no such claim any more (`not-found`, `other-claim`) or the claim cannot be read
        (`api`), and ClusterError where the claim cannot be written.
        """
        for attempt in range(ATTEMPTS):
            claim = await self._read(claim_id)
            try:
                return await self._write(claim_id, claim, devices)
            except ClusterError as error:
                if error.status != HTTPStatus.CONFLICT or attempt + 1 == ATTEMPTS:
                    raise
        return False

    async def _read(self, claim_id: ClaimId) -> ApiClaim:
        path = claim_path(claim_id.namespace, claim_id.name)
        try:
            claim = decoded(_bounded(await self._client.request("GET", path)), ApiClaim, path)
        except ClusterError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                raise ClaimRefusedError(
                    "not-found", f"claim {claim_id.label} does not exist any more; delete the pod that uses the claim"
                ) from error
            again = "the kubelet tries again about once a minute"
            raise ClaimRefusedError("api", f"claim {claim_id.label} cannot be read: {error}; {again}") from error
        if claim.metadata.uid != claim_id.uid:
            raise ClaimRefusedError(
                "other-claim",
                f"claim {claim_id.label} was made anew: the pod uses the claim with the UID {claim_id.uid}, found "
                f"{claim.metadata.uid}; delete the pod",
            )
        return claim

    async def _write(self, claim_id: ClaimId, claim: ApiClaim, devices: Sequence[DeviceStatus]) -> bool:
        allocation = claim.status.allocation or ApiAllocation()
        allocated = {(each.driver, each.pool, each.device, each.share_id) for each in allocation.devices.results}
        present = {key(each): each for each in claim.status.devices}
        written = {}
        for status in devices:
            identity = (self._driver, status.pool, status.device, status.share_id)
            if identity in allocated:
                written[identity] = entry(self._driver, status, present.get(identity), self._clock())
        if all(present.get(identity) == each for identity, each in written.items()):
            return False
        # A merge patch replaces the whole list; with the version, nothing is lost that others wrote meanwhile.
        metadata = {"uid": claim.metadata.uid, "resourceVersion": claim.metadata.resource_version}
        body = {"metadata": metadata, "status": {"devices": list((present | written).values())}}
        query, kind = {"fieldManager": FIELD_MANAGER}, "application/merge-patch+json"
        await self._client.request(
            "PATCH", f"{claim_path(claim_id.namespace, claim_id.name)}/status", query, body, kind
        )
        return True

    def _refuse_what_is_not_served(self, claim_id: ClaimId, allocation: ApiAllocation) -> None:
        """Raise ClaimRefusedError for parameters, and for devices of another pool."""
        _refuse_malformed(claim_id, allocation.devices.results)
        if any(each.opaque is not None and each.opaque.driver == self._driver for each in allocation.devices.config):
            raise ClaimRefusedError(
                "parameters",
                f"claim {claim_id.label}, or its DeviceClass, has opaque parameters for {self._driver}, which takes "
                "none: how GPUs are shared is configured for each node; remove them from `config`",
            )
        pools = {each.pool for each in allocation.devices.results if each.driver == self._driver}
        if pools != {self._pool}:
            found = ", ".join(sorted(pools)) or "none"
            raise ClaimRefusedError(
                "unknown-device",
                f"claim {claim_id.label} has devices of {self._driver} in these pools: {found}; this node has only the "
                f"pool {self._pool}; delete the pod, so that the claim is allocated again",
            )

    def _listed(self, item: msgspec.Raw) -> AllocatedClaim | None:
        """Return a claim of a list, None for a claim without a device of this pool, and for one that is unreadable."""
        try:
            claim = msgspec.json.decode(item, type=ApiClaim)
            allocation = claim.status.allocation
            if allocation is None or not any(map(self._is_ours, allocation.devices.results)):
                return None
            return self._converted(claim, allocation)
        except (*UNREADABLE, QuantityError) as error:
            _log.error("claim_ignored", path=CLAIMS, reason=in_words(error), consequence="its devices count as free")
            return None

    def _converted(self, claim: ApiClaim, allocation: ApiAllocation) -> AllocatedClaim:
        """Return a claim with its devices of this pool; raises QuantityError."""
        metadata = claim.metadata
        return AllocatedClaim(
            ClaimId(metadata.namespace, metadata.name, metadata.uid),
            tuple(allocated_device(each) for each in allocation.devices.results if self._is_ours(each)),
            users(claim),
        )

    def _is_ours(self, result: ApiResult) -> bool:
        return (result.driver, result.pool) == (self._driver, self._pool)


def _bounded(answer: bytes) -> bytes:
    """Return an answer that is not too large to decode; raises ClusterError."""
    if len(answer) > LARGEST_CLAIM:
        raise ClusterError(f"the claim has {len(answer)} bytes, at most {LARGEST_CLAIM} expected")
    return answer


def _refuse_malformed(claim_id: ClaimId, results: Sequence[ApiResult]) -> None:
    """Raise ClaimRefusedError for more devices than a claim can have, and for names that are none of requests."""
    if len(results) > MOST_DEVICES:
        raise _malformed(claim_id, f"{len(results)} devices found, at most {MOST_DEVICES} expected")
    if wrong := [each.request for each in results if not _REQUEST.fullmatch(each.request)]:
        raise _malformed(
            claim_id, f"request {wrong[0][:_LONGEST_NAME]!r} found, a DNS label expected, or two with a slash between"
        )


def _malformed(claim_id: ClaimId, reason: str) -> ClaimRefusedError:
    return ClaimRefusedError(
        "malformed",
        f"the allocation of claim {claim_id.label} is none that kube-scheduler writes: {reason}; delete the pod and "
        "the claim",
    )


def users(claim: ApiClaim) -> tuple[ClaimUser, ...]:
    """Return the pods that a claim is reserved for."""
    return tuple(ClaimUser(each.name, each.uid) for each in claim.status.reserved_for if each.resource == "pods")


def allocated_device(result: ApiResult) -> AllocatedDevice:
    """Return what a claim was allocated of a device; raises QuantityError."""
    return AllocatedDevice(
        request=result.request,
        pool=result.pool,
        device=result.device,
        share_id=result.share_id,
        consumed={name: rounded_up(text) for name, text in result.consumed_capacity.items()},
        admin_access=bool(result.admin_access),
    )
