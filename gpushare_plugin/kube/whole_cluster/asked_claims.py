"""ResourceClaims as they are read for people: what each asks for, and what the scheduler has allocated.

Source of the fields: kubernetes, staging/src/k8s.io/api/resource/v1/types.go (1.36).
"""

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from gpushare_plugin.claims.asked import AskedDevice, Place, PodClaim
from gpushare_plugin.kube.dra.objects import ApiClaim
from gpushare_plugin.kube.objects import Kept
from gpushare_plugin.ledger.quantity import QuantityError, rounded_up


class _ClaimAmounts(Kept, frozen=True):
    requests: dict[str, str] = msgspec.field(default_factory=dict)


class _AskedInClaim(Kept, frozen=True):
    name: str = ""
    device_class_name: str = ""
    capacity: _ClaimAmounts | None = None
    count: int | None = None
    admin_access: bool | None = None


class _ClaimRequest(Kept, frozen=True):
    name: str = ""
    exactly: _AskedInClaim | None = None
    first_available: tuple[_AskedInClaim, ...] = ()


class _ClaimRequests(Kept, frozen=True):
    requests: tuple[_ClaimRequest, ...] = ()


class _ClaimSpec(Kept, frozen=True):
    devices: _ClaimRequests = _ClaimRequests()


class ClaimWithSpec(ApiClaim, frozen=True):
    """A ResourceClaim with what the claim asks for."""

    spec: _ClaimSpec = _ClaimSpec()
    """What the claim asks for."""


def pod_claim(claim: ClaimWithSpec) -> PodClaim:
    """Return a claim for people; a claim with an amount that cannot be read says so."""
    label = f"{claim.metadata.namespace}/{claim.metadata.name}"
    try:
        return PodClaim(label, tuple(_asked(claim.spec.devices.requests)), _allocated(claim))
    except QuantityError as error:
        return PodClaim(label, unknown=f"cannot be read: {error}")


def _allocated(claim: ClaimWithSpec) -> tuple[Place, ...] | None:
    if claim.status.allocation is None:
        return None
    return tuple((each.driver, each.pool, each.device) for each in claim.status.allocation.devices.results)


def _asked(requests: Iterable[_ClaimRequest]) -> Iterator[AskedDevice]:
    for request in requests:
        if request.exactly is not None:
            yield _device(request.name, request.exactly)
        for each in request.first_available:
            yield _device(f"{request.name}/{each.name}", each)


def _device(name: str, asked: _AskedInClaim) -> AskedDevice:
    amounts = asked.capacity.requests if asked.capacity is not None else {}
    return AskedDevice(
        name,
        asked.device_class_name,
        _numbers(amounts),
        asked.count or 1,
        bool(asked.admin_access),
    )


def _numbers(amounts: Mapping[str, str]) -> Mapping[str, int]:
    return {name: rounded_up(text) for name, text in amounts.items()}
