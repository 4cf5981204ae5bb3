"""Reads what a pod with claims waits for: its claims, the GPUs in ResourceSlices, and what all claims have of them.

What cannot be read, for want of a right for example, is said in the place of what would be known.
"""

from collections.abc import Iterable, Mapping
from contextlib import aclosing
from http import HTTPStatus
from types import MappingProxyType
from typing import TypeVar
from urllib.parse import quote

import msgspec

from gpushare_plugin.base.structs import replace
from gpushare_plugin.base.text import in_words
from gpushare_plugin.claims.asked import PodClaim
from gpushare_plugin.claims.cluster import held_gpus
from gpushare_plugin.claims.overview import NOT_MADE, ClaimOverview
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
from gpushare_plugin.kube.whole_cluster.asked_claims import ClaimWithSpec, pod_claim
from gpushare_plugin.kube.whole_cluster.claims import held_by, offered_devices
from gpushare_plugin.ledger.quantity import QuantityError

T = TypeVar("T")

_NOT_PREPARED = "FailedPrepareDynamicResources"
"""The reason of the kubelet's Event about claims that are not prepared (kubernetes, pkg/kubelet/events/event.go)."""
_LONGEST_MESSAGE = 1024
"""Characters of the message of an Event that are shown, which is also what the API server takes."""


class _NamedClass(Kept, frozen=True):
    metadata: Metadata = Metadata()


class _KubeletEvent(Kept, frozen=True):
    message: str = ""
    last_timestamp: str | None = None


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
    classes = await device_classes(client, unread)
    claims = claims if classes is None else [claim.among(classes) for claim in claims]
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


async def device_classes(client: Client, unread: list[str]) -> frozenset[str] | None:
    """Return the names of all DeviceClasses; None where they cannot be read, which is then said in `unread`."""
    missed = len(unread)
    found = await _all(client, DEVICE_CLASSES, _NamedClass, unread, "whether the DeviceClasses exist is not known")
    return None if len(unread) > missed else frozenset(each.metadata.name for each in found)


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
        return PodClaim(inner, unknown=NOT_MADE)
    label, path = f"{namespace}/{name}", claim_path(namespace, name)
    try:
        return replace(pod_claim(decoded(await client.request("GET", path), ClaimWithSpec, path)), label=label)
    except ClusterError as error:
        return PodClaim(label, unknown=_unread("get resourceclaims", error))


def _unread(right: str, error: ClusterError, group: str = GROUP) -> str:
    if error.status == HTTPStatus.NOT_FOUND:
        return "does not exist"
    if error.status == HTTPStatus.FORBIDDEN:
        of = f" of {group}" if group else ""
        return f"you may not {right}{of}; see the ClusterRole in docs/inspect.md"
    return f"cannot be read: {error}"


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
