"""What the kubelet allocated to which container, by its pod-resources API."""

import asyncio
from collections import defaultdict
from pathlib import Path

import grpc
from google.protobuf.message import DecodeError

from gpushare_plugin.adapters.kubelet.api import podresources_pb2 as api
from gpushare_plugin.foundation.errors import GpushareError
from gpushare_plugin.foundation.structs import Struct
from gpushare_plugin.model.usage.holding import Holding

_LIST = f"/{api.DESCRIPTOR.services_by_name['PodResourcesLister'].full_name}/List"
_REQUEST = api.ListPodResourcesRequest().SerializeToString()
_TIMEOUT = 10.0
"""Seconds; the kubelet answers from memory."""
_OPTIONS = (
    # Every pod of the node with every unit it holds; the kubelet itself sends up to 16 MiB here.
    ("grpc.max_receive_message_length", 16 * 1024 * 1024),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
)


class Listing(Struct, frozen=True):
    """Every active pod of this node by namespace and name, and what their containers hold."""

    pods: frozenset[tuple[str, str]]
    holdings: tuple[Holding, ...]


class PodResourcesError(GpushareError):
    """The pod-resources socket does not answer, or its answer is not a kubelet's."""


async def list_pods(socket: Path) -> Listing:
    """Return what every active pod of this node holds; raises PodResourcesError when the kubelet does not answer."""
    try:
        async with grpc.aio.insecure_channel(f"unix:{socket}", options=_OPTIONS) as channel:
            # As bytes: gRPC prints a traceback and goes on with None where it cannot decode an answer itself.
            ask: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(_LIST)
            answer = await ask(_REQUEST, timeout=_TIMEOUT)
    except grpc.aio.AioRpcError as error:
        raise PodResourcesError(_explain(socket, error)) from error
    try:
        # In a thread: tens of thousands of units take half a second, and pods must be admitted meanwhile.
        return await asyncio.to_thread(_listing, answer)
    except DecodeError as error:
        raise PodResourcesError(
            f"{socket} returned an answer that is not a list of pods ({error}); does the kubelet listen there?"
        ) from error


def _listing(answer: bytes) -> Listing:
    """Return what an answer says; raises DecodeError."""
    # The kubelet sends an entry for each unit, one more for each NUMA node it has, and may send one twice.
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
    )


def _explain(socket: Path, error: grpc.aio.AioRpcError) -> str:
    if not socket.exists():
        return f"{socket} does not exist: no kubelet on this machine, or its directory is not mounted"
    return f"{socket} cannot report which pods hold which units: {error.code().name}: {error.details()}"
