"""The kubelet's pod-resources API: the devices and claims of each container, and all devices that can be allocated.

The API v1 of Kubernetes 1.25 and later: later versions only add fields, which the decoder skips. Two things differ by
version (pkg/kubelet/apis/podresources/server_v1.go): sidecars are listed from 1.30 on, and pods that have ended are no
longer listed from 1.34 on; before, ended pods are listed without devices. Claims are listed from 1.36 on, before only
where the gate KubeletPodResourcesDynamicResources is on. A container that names a claim is listed with all devices of
the claim, whatever request the container names (pkg/kubelet/cm/container_manager_linux.go, `GetDynamicResources`).
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TypeVar

import grpc
from google.protobuf.message import DecodeError

from gpushare_plugin.base.errors import GpushareError
from gpushare_plugin.base.structs import Struct
from gpushare_plugin.core.holding import CLAIM, Holding, Holdings, claimed_device_id
from gpushare_plugin.kubelet.api import podresources_pb2 as api

_SERVICE = api.DESCRIPTOR.services_by_name["PodResourcesLister"].full_name
_TIMEOUT = 10.0
"""Seconds; the kubelet answers from memory."""
_OPTIONS = (
    # The answer has every pod of the node with every held unit. The kubelet sends up to 16 MiB.
    ("grpc.max_receive_message_length", 16 * 1024 * 1024),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
)


Answer = TypeVar("Answer")

IdsByResource = Mapping[str, frozenset[str]]
"""Device IDs by resource."""


class Listing(Struct, frozen=True):
    """The active pods of this node."""

    pods: frozenset[tuple[str, str]]
    """Every active pod, by namespace and name."""
    holdings: Holdings
    """The units held by the pods' containers, without init containers and without pod UIDs."""
    claims: Holdings = ()
    """The devices of claims, of all DRA drivers, held by the same containers."""


class PodResourcesError(GpushareError):
    """The pod-resources socket does not answer, or the answer does not come from a kubelet."""


async def list_pods(socket: Path) -> Listing:
    """Return the units held by every active pod; raises PodResourcesError if the kubelet does not answer properly."""
    request = api.ListPodResourcesRequest().SerializeToString()
    return await _asked(socket, "List", request, _listing, "report which pods hold which units", "a list of pods")


async def healthy_devices(socket: Path) -> IdsByResource:
    """Return all healthy devices, held or not; raises PodResourcesError in the same cases as `list_pods`.

    A list of pods makes the kubelet work out anew which devices are allocated. This call does not, and may be made at
    any time (`GetAllocatableDevices` in pkg/kubelet/cm/devicemanager).
    """
    request = api.AllocatableResourcesRequest().SerializeToString()
    answer = "a list of devices"
    return await _asked(
        socket, "GetAllocatableResources", request, _devices, "report which devices are healthy", answer
    )


async def cdi_devices_of_claims(socket: Path, driver: str) -> frozenset[str]:
    """Return the names of the CDI devices that containers have by claims with devices of a DRA driver.

    Raises PodResourcesError in the same cases as `list_pods`.
    """
    request = api.ListPodResourcesRequest().SerializeToString()
    read = partial(_of_claims, driver)
    return await _asked(socket, "List", request, read, "report which pods have which claims", "a list of pods")


async def _asked(  # noqa: PLR0913, PLR0917 - a question, and the words for its failures
    socket: Path, method: str, request: bytes, read: Callable[[bytes], Answer], purpose: str, expected: str
) -> Answer:
    try:
        async with grpc.aio.insecure_channel(f"unix:{socket}", options=_OPTIONS) as channel:
            # As bytes: for an answer that gRPC cannot decode itself, it prints a traceback and goes on with None.
            ask: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(f"/{_SERVICE}/{method}")
            answer = await ask(request, timeout=_TIMEOUT)
    except grpc.aio.AioRpcError as error:
        raise PodResourcesError(_explain(socket, error, purpose)) from error
    try:
        # In a thread: tens of thousands of units take half a second, and the kubelet's calls cannot wait.
        return await asyncio.to_thread(read, answer)
    except DecodeError as error:
        raise PodResourcesError(
            f"{socket} returned an answer that is not {expected} ({error}); does the kubelet listen there?"
        ) from error


def _listing(answer: bytes) -> Listing:
    """Decode an answer to `List`; raises DecodeError."""
    # The kubelet sends an entry for each unit, one more for each NUMA node of the unit, and may send an entry twice.
    held: dict[tuple[str, str, str, str], set[str]] = defaultdict(set)
    pods = api.ListPodResourcesResponse.FromString(answer).pod_resources
    for pod in pods:
        for container in pod.containers:
            for devices in container.devices:
                holder = (pod.namespace, pod.name, container.name, devices.resource_name)
                held[holder].update(devices.device_ids)
    return Listing(
        frozenset((pod.namespace, pod.name) for pod in pods),
        tuple(Holding(*holder, frozenset(ids)) for holder, ids in held.items()),
        _claims(pods),
    )


def _of_claims(driver: str, answer: bytes) -> frozenset[str]:
    """Decode an answer to `List`; raises DecodeError."""
    pods = api.ListPodResourcesResponse.FromString(answer).pod_resources
    claims = (each for pod in pods for container in pod.containers for each in container.dynamic_resources)
    devices = (each for claim in claims for each in claim.claim_resources if each.driver_name == driver)
    return frozenset(each.name for device in devices for each in device.cdi_devices)


def _claims(pods: Iterable[api.PodResources]) -> Holdings:
    held: dict[tuple[str, str, str, str], set[str]] = defaultdict(set)
    for pod in pods:
        for container in pod.containers:
            for claim in container.dynamic_resources:
                holder = (pod.namespace, pod.name, container.name, CLAIM + claim.claim_name)
                held[holder].update(
                    claimed_device_id(each.driver_name, each.pool_name, each.device_name, each.share_id or None)
                    for each in claim.claim_resources
                )
    return tuple(Holding(*holder, frozenset(ids)) for holder, ids in held.items())


def _devices(answer: bytes) -> IdsByResource:
    """Decode an answer to `GetAllocatableResources`; raises DecodeError."""
    found: dict[str, set[str]] = defaultdict(set)
    for devices in api.AllocatableResourcesResponse.FromString(answer).devices:
        found[devices.resource_name].update(devices.device_ids)
    return {resource: frozenset(ids) for resource, ids in found.items()}


def _explain(socket: Path, error: grpc.aio.AioRpcError, purpose: str) -> str:
    if not socket.exists():
        return f"{socket} does not exist: no kubelet on this machine, or its directory is not mounted"
    return f"{socket} cannot {purpose}: {error.code().name}: {error.details()}"
