"""Reads what a pod with claims waits for: its claims, the GPUs in ResourceSlices, and what all claims have of them.

What cannot be read, for want of a right for example, is said in the place of what would be known.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import aclosing
from http import HTTPStatus
from types import MappingProxyType
from typing import TypeVar
from urllib.parse import quote

import msgspec

from gpushare_plugin.base.structs import replace
from gpushare_plugin.base.text import in_words
from gpushare_plugin.claims.cluster import HeldGpu, Place, held_gpus
from gpushare_plugin.claims.outlook import AskedDevice, PodClaim
from gpushare_plugin.kube.client import UNREADABLE, Client, ClusterError, decoded
from gpushare_plugin.kube.collection import pages
from gpushare_plugin.kube.dra.objects import (
    CLAIMS,
    DEVICE_CLASSES,
    GROUP,
    RESOURCE_SLICES,
    ApiClaim,
    ApiResourceSlice,
    claim_path,
)
from gpushare_plugin.kube.objects import ApiPod, Kept, Metadata
from gpushare_plugin.kube.pods import claim_names
from gpushare_plugin.kube.whole_cluster.claims import held_by, offered_devices
from gpushare_plugin.ledger.quantity import QuantityError, rounded_up

T = TypeVar("T")

_NOT_PREPARED = "FailedPrepareDynamicResources"
"""The reason of the kubelet's Event about claims that are not prepared (kubernetes, pkg/kubelet/events/event.go)."""
_LONGEST_MESSAGE = 1024
"""Characters of the message of an Event that are shown, which is also what the API server takes."""


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


class _NamedClass(Kept, frozen=True):
    metadata: Metadata = Metadata()


class _KubeletEvent(Kept, frozen=True):
    message: str = ""
    last_timestamp: str | None = None


class ClaimOverview(Kept, frozen=True):
    """What is known of the claims of a pod."""

    claims: tuple[PodClaim, ...] = ()
    """The claims of the pod."""
    gpus: tuple[HeldGpu, ...] = ()
    """The GPUs that are given by claim, and what claims have of them."""
    refused: tuple[str, ...] = ()
    """Why the node does not prepare the claims, as the kubelet says in Events, for people."""
    unread: tuple[str, ...] = ()
    """What cannot be read, with the consequence, for people."""


async def read_claims(client: Client, namespace: str, pod: str) -> ClaimOverview | None:
    """Return what is known of the claims of a pod; None for a pod without claims. Raises ClusterError for the pod."""
    path = f"/api/v1/namespaces/{quote(namespace, safe='')}/pods"
    query = {"fieldSelector": f"metadata.name={pod}"}
    found = decoded(await client.request("GET", path, query), _Pods, path).items or []
    names = [name for each in found for name in claim_names(each).items()]
    if not names:
        return None
    unread: list[str] = []
    claims = [await _claim(client, namespace, inner, name) for inner, name in names]
    slices = await _all(client, RESOURCE_SLICES, ApiResourceSlice, unread, "the GPUs that claims can get are not known")
    if not unread:
        claims = [_with_gone(claim, slices) for claim in claims]
    if all(claim.allocated is not None for claim in claims):
        refused = [each for pod_found in found for each in await _refused(client, namespace, pod_found, unread)]
        return ClaimOverview(claims=tuple(claims), refused=tuple(refused), unread=tuple(unread))
    claims = await _with_classes(client, claims, unread)
    held = await _all(client, CLAIMS, ApiClaim, unread, "what others have of the GPUs is not known")
    try:
        ordered = sorted(slices, key=lambda each: (each.spec.pool.name, each.metadata.name))
        gpus = held_gpus(map(offered_devices, ordered), (one for each in held for one in held_by(each)))
        return ClaimOverview(claims=tuple(claims), gpus=tuple(gpus), unread=tuple(unread))
    except QuantityError as error:
        return ClaimOverview(claims=tuple(claims), unread=(*unread, f"An amount cannot be read: {error}"))


def _with_gone(claim: PodClaim, slices: Iterable[ApiResourceSlice]) -> PodClaim:
    """Return a claim with the allocated devices that no ResourceSlice has."""
    there = {(each.spec.driver, each.spec.pool.name, device.name) for each in slices for device in each.spec.devices}
    return replace(claim, gone=tuple(place for place in claim.allocated or () if place not in there))


async def _with_classes(client: Client, claims: Iterable[PodClaim], unread: list[str]) -> list[PodClaim]:
    """Return claims of which each request says whether its DeviceClass is missing."""
    missed = len(unread)
    found = await _all(client, DEVICE_CLASSES, _NamedClass, unread, "whether the DeviceClasses exist is not known")
    if len(unread) > missed:
        return list(claims)
    names = {each.metadata.name for each in found}
    return [
        replace(claim, asked=tuple(replace(each, no_class=each.device_class not in names) for each in claim.asked))
        for claim in claims
    ]


async def _refused(client: Client, namespace: str, pod: ApiPod, unread: list[str]) -> list[str]:
    """Return what the kubelet says last of claims that are not prepared; nothing for a pod that runs, or has no node.

    Source of the selectable fields: kubernetes, pkg/registry/core/event/strategy.go (1.36).
    """
    if pod.status.phase != "Pending" or not pod.spec.node_name:
        return []
    path = f"/api/v1/namespaces/{quote(namespace, safe='')}/events"
    selector = {"fieldSelector": f"involvedObject.uid={pod.metadata.uid},reason={_NOT_PREPARED}"}
    lost = "whether the node refuses the claims is not known"
    events = await _all(client, path, _KubeletEvent, unread, lost, selector, group="")
    newest = max(events, key=lambda each: each.last_timestamp or "", default=None)
    if newest is None:
        return []
    words = newest.message[:_LONGEST_MESSAGE]
    return [f"The kubelet of {pod.spec.node_name} says: {words} (docs/claims.md, When a claim is refused)"]


class _Pods(Kept, frozen=True):
    items: list[ApiPod] | None = None


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


def _allocated(claim: ApiClaim) -> tuple[Place, ...] | None:
    if claim.status.allocation is None:
        return None
    return tuple((each.driver, each.pool, each.device) for each in claim.status.allocation.devices.results)


def _unread(right: str, error: ClusterError, group: str = GROUP) -> str:
    if error.status == HTTPStatus.NOT_FOUND:
        return "does not exist"
    if error.status == HTTPStatus.FORBIDDEN:
        of = f" of {group}" if group else ""
        return f"you may not {right}{of}; see the ClusterRole in docs/inspect.md"
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


async def _all(  # noqa: PLR0913, PLR0917 - the objects, and what to say without them
    client: Client,
    path: str,
    kind: type[T],
    unread: list[str],
    consequence: str,
    query: Mapping[str, str] = MappingProxyType({}),
    group: str = GROUP,
) -> list[T]:
    """Return all objects of a kind; what cannot be read is said in `unread`, with its consequence."""
    found: list[T] = []
    name = path.rpartition("/")[2]
    try:
        async with aclosing(pages(client, path, query)) as listing:
            async for page in listing:
                found += [msgspec.json.decode(item, type=kind) for item in page.items or ()]
    except ClusterError as error:
        unread.append(f"{name}: {_unread(f'list {name}', error, group)}: {consequence}")
    except UNREADABLE as error:
        unread.append(f"{name} cannot be read: {in_words(error)}: {consequence}")
    return found


def _numbers(amounts: Mapping[str, str]) -> Mapping[str, int]:
    return {name: rounded_up(text) for name, text in amounts.items()}
