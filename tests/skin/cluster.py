"""A cluster as earlier daemons and extenders left it in the API server, written down by hand and never recorded again.

So readers of what is on Nodes and pods are held to understand what is there already.
"""

import json
from typing import Any

from gpushare_plugin.testing.cluster import ApiServer

NODES, PODS = "/api/v1/nodes", "/api/v1/namespaces/team/pods"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
MEMORY, GPU, SLICE = "aliyun.com/gpu-mem", "nvidia.com/gpu", "nvidia.com/gpu-10gb"
CREATED = "2026-01-01T00:00:00Z"

Json = dict[str, Any]


def uuid(node: int, index: int) -> str:
    """Return the UUID of a GPU of a node, both by their numbers."""
    return f"GPU-{node:04d}{index:04d}-0000-4000-8000-000000000000"


def uid(number: int) -> str:
    """Return the UID of a pod."""
    return f"{number:08x}-0000-4000-8000-{number:012x}"


def _gpu(node: int, index: int, mode: str, resource: str, units: int, **more: Any) -> Json:
    about = {"index": index, "uuid": uuid(node, index), "product": "NVIDIA A100-SXM4-40GB", "numaNode": index % 2}
    offered = {"mode": mode, "resource": resource, "units": units, "unitMiB": 0, "healthy": True}
    return {**about, "memoryMiB": 40960, **offered, **more}


_BAD = {"healthy": False, "reason": "cordoned by annotation gpushare/unhealthy-gpus"}
RECORDS: dict[str, Json] = {
    "memory-1": {
        "gpus": [_gpu(1, index, "memory", MEMORY, 16, unitMiB=1024) for index in (0, 1)],
        "resources": [{"name": MEMORY, "kind": "memory", "placement": "binpack"}],
    },
    "memory-2": {
        "gpus": [
            _gpu(2, 0, "memory", MEMORY, 16, unitMiB=1024),
            _gpu(2, 1, "memory", MEMORY, 16, unitMiB=1024),
            _gpu(2, 2, "memory", MEMORY, 16, unitMiB=1024, **_BAD),
        ],
        "resources": [{"name": MEMORY, "kind": "memory", "placement": "spread"}],
        "placement": "spread",
        "notices": ["node labels disagree: one wants this, the other one that"],
    },
    "replicas": {
        "gpus": [_gpu(3, index, "time-slicing", GPU, 4) for index in (0, 1)],
        "resources": [{"name": GPU, "kind": "replicas", "placement": "distributed"}],
    },
    "whole": {
        "gpus": [_gpu(4, index, "exclusive", GPU, 1) for index in range(4)],
        "resources": [{"name": GPU, "kind": "gpus"}],
        "closeness": [[230], [10, 10], [10, 10, 230]],
    },
    "slices": {
        "gpus": [
            _gpu(5, 0, "mps", SLICE, 2, unitMiB=10240),
            _gpu(5, 0, "mps", "nvidia.com/gpu-20gb", 1, unitMiB=20480),
            _gpu(5, 1, "mps", SLICE, 1, unitMiB=10240),
        ],
        "resources": [{"name": SLICE, "kind": "slices"}, {"name": "nvidia.com/gpu-20gb", "kind": "slices"}],
        "partitioning": "mps",
    },
}
"""What daemons wrote about their GPUs, by node."""
_WANTED = {
    "version": 1,
    "gpus": {uuid(5, 0): {"10gb": 2, "20gb": 1}, uuid(5, 1): {"10gb": 1}},
    "pods": {uid(9): {"gpu": uuid(5, 1), "slice": "10gb", "since": CREATED, "pod": "team/slice"}},
}


def create(server: ApiServer) -> None:
    """Create the nodes and the pods."""
    for number, (name, record) in enumerate(RECORDS.items(), start=1):
        annotations = {"gpushare/gpus": json.dumps({"version": 1, **record})}
        if name == "slices":
            annotations["gpushare/wanted-slices"] = json.dumps(_WANTED)
        allocatable: dict[str, int] = {}
        for gpu in record["gpus"]:
            if gpu["healthy"]:
                allocatable[gpu["resource"]] = allocatable.get(gpu["resource"], 0) + gpu["units"]
        _node(server, name, number, annotations, allocatable)
    _node(server, "aliyun", 6, {}, {MEMORY: 30, "aliyun.com/gpu-count": 2})
    _node(server, "cpu", 7, {}, {})
    for pod in pods():
        server.store.create(PODS, pod)


def _node(server: ApiServer, name: str, number: int, annotations: Json, allocatable: dict[str, int]) -> None:
    amounts = {"cpu": "64", "memory": "512Gi", "pods": "110"} | {key: str(units) for key, units in allocatable.items()}
    addresses = [{"type": "InternalIP", "address": f"10.0.0.{number}"}]
    body = {
        "metadata": {"name": name, "uid": uid(1000 + number), "annotations": annotations, "creationTimestamp": CREATED},
        "spec": {},
        "status": {"addresses": addresses, "allocatable": amounts, "capacity": amounts},
    }
    server.store.create(NODES, body)


def _pod(number: int, name: str, limits: dict[str, int], node: str = "", **more: Any) -> Json:
    container = {"name": "main", "resources": {"limits": {key: str(units) for key, units in limits.items()}}}
    metadata = {"name": name, "namespace": "team", "uid": uid(number), "creationTimestamp": CREATED}
    metadata |= {key: more[key] for key in ("annotations", "labels") if key in more}
    spec: Json = {"containers": [container], "priority": more.get("priority", 0)}
    if node:
        spec["nodeName"] = node
    said = {"type": "PodScheduled", "status": "False", "message": "0/7 nodes are available: 7 no GPU."}
    status = {"phase": "Running"} if node else {"phase": "Pending", "conditions": [said]}
    return {"metadata": metadata, "spec": spec, "status": status}


def _allocation(resource: str, gpu: str, units: int) -> Json:
    containers = {"main": {resource: {gpu: units}}}
    return {"gpushare/allocation": json.dumps({"version": 1, "containers": containers})}


def _promise(node: str, resource: str, gpu: str, units: int) -> Json:
    containers = {"main": {resource: {gpu: units}}}
    return {"gpushare/promise": json.dumps({"version": 1, "node": node, "time": CREATED, "containers": containers})}


def pods() -> list[Json]:
    """Return the pods: bound ones by each kind of annotation, and pending ones of each kind of request."""
    aliyun = {
        "ALIYUN_COM_GPU_MEM_IDX": "1",
        "ALIYUN_COM_GPU_MEM_POD": "7",
        "ALIYUN_COM_GPU_MEM_DEV": "15",
        "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "1767225600000000000",
        "ALIYUN_COM_GPU_MEM_ASSIGNED": "true",
    }
    ack = {"scheduler.framework.gpushare.allocation": json.dumps({"0": {"0": 4}})}
    return [
        _pod(1, "held", {MEMORY: 8}, "memory-1", annotations=_allocation(MEMORY, uuid(1, 0), 8)),
        _pod(2, "promised", {MEMORY: 3}, "memory-1", annotations=_promise("memory-1", MEMORY, uuid(1, 1), 3)),
        _pod(3, "unknown", {MEMORY: 2}, "memory-2"),
        _pod(4, "of-aliyun", {MEMORY: 7}, "aliyun", annotations=aliyun),
        _pod(5, "of-ack", {MEMORY: 4}, "aliyun", annotations=ack),
        _pod(6, "replica", {GPU: 1}, "replicas", annotations=_allocation(GPU, uuid(3, 0), 1)),
        _pod(7, "whole", {GPU: 1}, "whole", annotations=_allocation(GPU, uuid(4, 0), 1)),
        _pod(8, "small", {MEMORY: 4}),
        _pod(9, "slice", {SLICE: 1}),
        _pod(10, "large", {MEMORY: 20}),
        _pod(11, "important", {MEMORY: 16}, priority=1000),
        _pod(12, "several", {MEMORY: 12}, labels={"aliyun.com/gpu-count": "2"}),
        _pod(13, "two-gpus", {GPU: 2}),
        _pod(14, "spread", {MEMORY: 2}, annotations={"gpushare/placement": "spread"}),
        _pod(15, "by-hami", {MEMORY: 2}, annotations={"nvidia.com/nouse-gputype": "A100"}),
        _pod(16, "without", {}),
    ]
