"""Nodes and pods for tests of the account."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal

from gpushare_plugin.core.effect import IN_EFFECT
from gpushare_plugin.ledger.annotations import (
    LIMITS,
    annotated_shares,
    holding_annotations,
    pod_request,
    promise_annotations,
    write_allocation,
    write_limits,
)
from gpushare_plugin.ledger.cluster import ClusterAccount
from gpushare_plugin.ledger.node import GPU_CORES, GPU_MEMORY, Node, recorded_node
from gpushare_plugin.ledger.node_record import GpuRecord, NodeRecord, ResourceRecord
from gpushare_plugin.ledger.pod import Pod, Share
from gpushare_plugin.ledger.request import ContainerKind, ContainerRequest, PodRequest


def uuid(index: int, node: str = "node") -> str:
    """Return the UUID of a GPU of a node."""
    return f"GPU-{node}-{index}"


def gpu_record(index: int, units: int, **fields: Any) -> GpuRecord:
    """Return the record of a GPU that shares memory, with `fields` that differ."""
    record: dict[str, Any] = {
        "index": index,
        "uuid": uuid(index),
        "product": "NVIDIA A100-SXM4-40GB",
        "memory_mib": units * 1024,
        "mode": "memory",
        "resource": GPU_MEMORY,
        "units": units,
        "unit_mib": 1024,
    }
    return GpuRecord(**(record | fields))


def memory_node(
    *units: int,
    name: str = "node",
    sick: Mapping[int, str] | None = None,
    policy: str | None = None,
    single_gpu: bool = False,
) -> Node:
    """Return a node that shares the memory of one GPU for each number of units; `sick` are reasons by index.

    With `single_gpu` it gives no pod memory of several GPUs.
    """
    sick = sick or {}
    gpus = tuple(
        gpu_record(index, size, uuid=uuid(index, name), healthy=index not in sick, reason=sick.get(index))
        for index, size in enumerate(units)
    )
    only_one: Literal[True] | None = True if single_gpu else None
    kinds = (ResourceRecord(name=GPU_MEMORY, kind="memory", policy="binpack", single_gpu=only_one),)
    return recorded_node(name, NodeRecord(gpus=gpus, resources=kinds), policy)


def kind_node(resource: str, kind: str, *units: int, **record: Any) -> Node:
    """Return a node whose GPUs are all in one resource of a kind; `record` has more fields of that resource."""
    gpus = tuple(gpu_record(index, size, resource=resource, unit_mib=0) for index, size in enumerate(units))
    kinds = (ResourceRecord(name=resource, kind=kind, **record),)
    return recorded_node("node", NodeRecord(gpus=gpus, resources=kinds))


def cores_node(*units: int) -> Node:
    """Return a node that shares memory and compute of its GPUs."""
    memory = [gpu_record(index, size) for index, size in enumerate(units)]
    cores = [gpu_record(index, 100, resource=GPU_CORES, unit_mib=0) for index, _ in enumerate(units)]
    kinds = (ResourceRecord(name=GPU_MEMORY, kind="memory"), ResourceRecord(name=GPU_CORES, kind="cores"))
    return recorded_node("node", NodeRecord(gpus=(*memory, *cores), resources=kinds))


def container(name: str, kind: ContainerKind = "app", **amounts: int) -> ContainerRequest:
    """Return a container that asks for `memory`, `cores`, `gpu` or a `slice`."""
    names = {"memory": GPU_MEMORY, "cores": GPU_CORES, "gpu": "nvidia.com/gpu", "slice": "nvidia.com/gpu-10gb"}
    return ContainerRequest(name, kind, tuple(sorted((names[key], amount) for key, amount in amounts.items())))


def request(
    *containers: ContainerRequest, gpus: str | None = None, annotations: Mapping[str, str] | None = None
) -> PodRequest:
    """Return the request of a pod; `gpus` is its label for several GPUs."""
    return pod_request(containers, annotations or {}, {} if gpus is None else {"aliyun.com/gpu-count": gpus})


def memory(units: int, *, gpus: str | None = None, annotations: Mapping[str, str] | None = None) -> PodRequest:
    """Return a request of one container for memory."""
    return request(container("main", memory=units), gpus=gpus, annotations=annotations)


def pod(
    asked: PodRequest,
    node: str | None = None,
    uid: str = "pod",
    *,
    on: str | None = None,
    annotations: Mapping[str, str] | None = None,
    **fields: object,
) -> Pod:
    """Return a pod; `on` is the GPU on which its node's daemon says that all its memory is."""
    texts = dict(annotations or {})
    if on is not None:
        shares = tuple(
            Share(each.name, resource, on, units) for each in asked.containers for resource, units in each.amounts
        )
        texts["gpushare/allocation"] = write_allocation(shares)
    said = annotated_shares(texts, asked, node)
    known = {"uid": uid, "namespace": "default", "name": uid, "request": asked, "node": node}
    return Pod(**{**known, **said._asdict(), **fields})


def account(*nodes: Node, pods: tuple[Pod, ...] = (), policy: str = "binpack") -> ClusterAccount:
    """Return the account of a cluster."""
    made = ClusterAccount(policy)
    for node in nodes:
        made.put_node(node)
    for each in pods:
        made.put_pod(each)
    return made


def free(made: ClusterAccount, node: str = "node", resource: str = GPU_MEMORY) -> list[int]:
    """Return the free units of each GPU of a node."""
    return list(made.account_of(node).resources[resource].free)


def by_the_extender() -> dict[str, str]:
    """Return each annotation that the extender writes with the Binding of a pod."""
    node, asked = memory_node(8), memory(2)
    return promise_annotations(account(node).place(asked, "node"), asked, node, datetime(2026, 1, 1, tzinfo=UTC))


def by_the_daemon() -> dict[str, str]:
    """Return each annotation that the daemon of a node writes on a pod."""
    held = holding_annotations((Share("main", GPU_MEMORY, uuid(0), 2),), memory(2), {uuid(0): 0})
    return held | {LIMITS: write_limits({"main": {uuid(0): IN_EFFECT}})}
