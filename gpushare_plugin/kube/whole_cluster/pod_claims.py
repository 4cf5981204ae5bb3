"""Reads what a pod with claims waits for: its claims, the GPUs in ResourceSlices, and what all claims have of them.

What cannot be read, for want of a right for example, is said in the place of what would be known.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import aclosing
from http import HTTPStatus
from typing import TypeVar
from urllib.parse import quote

import msgspec

from gpushare_plugin.base.text import in_words
from gpushare_plugin.claims.device import Capacity
from gpushare_plugin.claims.outlook import AskedDevice, GpuForClaims, HeldByClaim, PodClaim
from gpushare_plugin.kube.client import UNREADABLE, Client, ClusterError, decoded
from gpushare_plugin.kube.collection import pages
from gpushare_plugin.kube.dra.objects import (
    CLAIMS,
    RESOURCE_SLICES,
    ApiCapacity,
    ApiClaim,
    ApiDevice,
    ApiResourceSlice,
    claim_path,
)
from gpushare_plugin.kube.objects import Kept, Metadata
from gpushare_plugin.ledger.quantity import QuantityError, rounded_up

T = TypeVar("T")

_OURS = frozenset({"way", "isolation"})
"""The attributes that devices of gpushare have, whatever the name of the DRA driver is."""


class _ClaimName(Kept, frozen=True):
    """A claim by its name in the pod, and by its own name: None for a claim that is not made yet, or not needed."""

    name: str = ""
    resource_claim_name: str | None = None


class _SpecWithClaims(Kept, frozen=True):
    resource_claims: tuple[_ClaimName, ...] = ()


class _StatusWithClaims(Kept, frozen=True):
    resource_claim_statuses: tuple[_ClaimName, ...] = ()


class _PodWithClaims(Kept, frozen=True):
    spec: _SpecWithClaims = _SpecWithClaims()
    status: _StatusWithClaims = _StatusWithClaims()


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


class _ClaimWithSpec(ApiClaim, frozen=True):
    spec: _ClaimSpec = _ClaimSpec()


class ClaimOverview(Kept, frozen=True):
    """What is known of the claims of a pod."""

    claims: tuple[PodClaim, ...] = ()
    """The claims of the pod."""
    gpus: tuple[GpuForClaims, ...] = ()
    """The GPUs that gpushare offers to claims."""
    taken: tuple[HeldByClaim, ...] = ()
    """What claims have of these GPUs."""
    unread: tuple[str, ...] = ()
    """What cannot be read, with the consequence, for people."""


async def read_claims(client: Client, namespace: str, pod: str) -> ClaimOverview | None:
    """Return what is known of the claims of a pod; None for a pod without claims. Raises ClusterError for the pod."""
    path = f"/api/v1/namespaces/{quote(namespace, safe='')}/pods"
    query = {"fieldSelector": f"metadata.name={pod}"}
    found = decoded(await client.request("GET", path, query), _ListWithClaims, path).items or []
    names = [name for each in found for name in _names(each)]
    if not names:
        return None
    unread: list[str] = []
    claims = tuple([await _claim(client, namespace, inner, name) for inner, name in names])
    if all(claim.allocated is not None for claim in claims):
        return ClaimOverview(claims=claims)
    slices = await _all(client, RESOURCE_SLICES, ApiResourceSlice, unread, "the GPUs that claims can get are not known")
    held = await _all(client, CLAIMS, ApiClaim, unread, "what others have of the GPUs is not known")
    try:
        gpus = tuple(_offered(slices))
        return ClaimOverview(claims=claims, gpus=gpus, taken=tuple(_taken(held, gpus)), unread=tuple(unread))
    except QuantityError as error:
        return ClaimOverview(claims=claims, unread=(*unread, f"An amount cannot be read: {error}"))


class _ListWithClaims(Kept, frozen=True):
    items: list[_PodWithClaims] | None = None


def _names(pod: _PodWithClaims) -> Iterator[tuple[str, str | None]]:
    """Yield the name of each claim in the pod, and of the claim itself, None where the claim is not made yet."""
    made = {each.name: each.resource_claim_name for each in pod.status.resource_claim_statuses}
    for each in pod.spec.resource_claims:
        yield each.name, each.resource_claim_name or made.get(each.name)


async def _claim(client: Client, namespace: str, inner: str, name: str | None) -> PodClaim:
    if name is None:
        return PodClaim(inner, unknown="is to be made from its template, and is not there yet")
    label, path = f"{namespace}/{name}", claim_path(namespace, name)
    try:
        claim = decoded(await client.request("GET", path), _ClaimWithSpec, path)
        return PodClaim(label, tuple(_asked(claim.spec.devices.requests)), _allocated(claim))
    except QuantityError as error:
        return PodClaim(label, unknown=f"cannot be read: {error}")
    except ClusterError as error:
        return PodClaim(label, unknown=_unread("get resourceclaims", error))


def _allocated(claim: ApiClaim) -> tuple[tuple[str, str], ...] | None:
    if claim.status.allocation is None:
        return None
    return tuple((each.pool, each.device) for each in claim.status.allocation.devices.results)


def _unread(right: str, error: ClusterError) -> str:
    if error.status == HTTPStatus.NOT_FOUND:
        return "does not exist"
    if error.status == HTTPStatus.FORBIDDEN:
        return f"you may not {right} of resource.k8s.io; see the ClusterRole in docs/inspect.md"
    return f"cannot be read: {error}"


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


async def _all(client: Client, path: str, kind: type[T], unread: list[str], consequence: str) -> list[T]:
    """Return all objects of a kind; what cannot be read is said in `unread`, with its consequence."""
    found: list[T] = []
    name = path.rpartition("/")[2]
    try:
        async with aclosing(pages(client, path, {})) as listing:
            async for page in listing:
                found += [msgspec.json.decode(item, type=kind) for item in page.items or ()]
    except ClusterError as error:
        unread.append(f"{name}: {_unread(f'list {name}', error)}: {consequence}")
    except UNREADABLE as error:
        unread.append(f"{name} cannot be read: {in_words(error)}: {consequence}")
    return found


def _offered(slices: Iterable[ApiResourceSlice]) -> Iterator[GpuForClaims]:
    for each in sorted(slices, key=lambda one: (one.spec.pool.name, one.metadata.name)):
        for device in each.spec.devices:
            if device.attributes.keys() >= _OURS:
                yield _gpu(each.spec.pool.name, device)


def _gpu(pool: str, device: ApiDevice) -> GpuForClaims:
    return GpuForClaims(
        (pool, device.name),
        bool(device.allow_multiple_allocations),
        {name: _capacity(each) for name, each in device.capacity.items()},
        tuple(each.key for each in device.taints if each.effect != "None"),
    )


def _capacity(capacity: ApiCapacity) -> Capacity:
    policy = capacity.request_policy
    span = policy.valid_range if policy is not None else None
    return Capacity(
        _number(capacity.value) or 0,
        default=_number(policy.default) if policy is not None else None,
        least=_number(span.min) if span is not None else None,
        step=_number(span.step) if span is not None else None,
        values=tuple(_number(each) or 0 for each in policy.valid_values) if policy is not None else (),
    )


def _number(text: str | None) -> int | None:
    return None if text is None else rounded_up(text)


def _taken(claims: Iterable[ApiClaim], gpus: Iterable[GpuForClaims]) -> Iterator[HeldByClaim]:
    places = {gpu.place for gpu in gpus}
    for claim in claims:
        label = _label(claim.metadata)
        for each in claim.status.allocation.devices.results if claim.status.allocation is not None else ():
            if (each.pool, each.device) in places and not each.admin_access:
                yield HeldByClaim((each.pool, each.device), label, _numbers(each.consumed_capacity))


def _numbers(amounts: Mapping[str, str]) -> Mapping[str, int]:
    return {name: rounded_up(text) for name, text in amounts.items()}


def _label(metadata: Metadata) -> str:
    return f"{metadata.namespace}/{metadata.name}"
