"""Nodes and pods of realistic size: a Node of 21 KiB, a pod that runs of 10 KiB, one that waits of 6 KiB."""

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from gpushare_plugin.core.snapshot import SharingMode
from gpushare_plugin.ledger.node_record import GPUS_ANNOTATION, GpuRecord, NodeRecord, ResourceRecord, encode

Object = dict[str, Any]

MEMORY, REPLICAS, WHOLE = "aliyun.com/gpu-mem", "nvidia.com/gpu.shared", "nvidia.com/gpu"
NAMESPACE = "team"

_GPUS = 8
_UNITS = 80
_MIB = 81920
_A_TIME = "2026-03-14T15:09:26Z"


class Kind(NamedTuple):
    """How the GPUs of a node are shared: units of one GPU, and what the record says of their resource."""

    mode: SharingMode
    resource: str
    units: int
    kind: str
    placement: str | None


_KINDS = {
    MEMORY: Kind("memory", MEMORY, _UNITS, "memory", "binpack"),
    REPLICAS: Kind("time-slicing", REPLICAS, 8, "replicas", "distributed"),
    WHOLE: Kind("exclusive", WHOLE, 1, "gpus", None),
}


class Filling(NamedTuple):
    """What the pods of a node ask for, one after another, and the GPUs that each has, by their number."""

    resource: str
    pods: Sequence[tuple[int, tuple[int, ...]]]


def node_name(number: int) -> str:
    """Return the name of a node."""
    return f"gpu-node-{number:05d}.europe-west4.example"


def filling(node: int) -> Filling:
    """Return the eight pods of a node: of ten nodes eight share memory, one replicas, and one gives whole GPUs."""
    if node % 10 == 8:  # noqa: PLR2004 - one of ten
        return Filling(REPLICAS, [(1 + (node + pod) % 3, (pod,)) for pod in range(_GPUS)])
    if node % 10 == 9:  # noqa: PLR2004 - one of ten
        return Filling(WHOLE, [(1, (gpu,)) for gpu in range(node % _GPUS)])
    return Filling(MEMORY, list(_memory(random.Random(node))))  # noqa: S311 - no secret


def _memory(rng: random.Random) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield eight pods that share the memory of the GPUs: some are full then, some free, most in between."""
    free = [_UNITS] * _GPUS
    for _ in range(_GPUS):
        size = min(rng.choice((4, 6, 8, 10, 16, 20, 24, 40, 80)), max(free))
        gpu = rng.choice([number for number, units in enumerate(free) if units >= size])
        free[gpu] -= size
        yield size, (gpu,)


def a_node(number: int) -> Object:
    """Return a node of eight GPUs, with the images, conditions, labels and managed fields that kubelets write."""
    resource = filling(number).resource
    kind = _KINDS[resource]
    name = node_name(number)
    quantities = {"cpu": "127", "memory": "1056269392Ki", "pods": "110", resource: str(kind.units * _GPUS)}
    record = NodeRecord(
        gpus=tuple(_gpu(number, gpu, kind) for gpu in range(_GPUS)),
        resources=(ResourceRecord(name=resource, kind=kind.kind, policy=kind.placement),),
    )
    return {
        "metadata": {
            "name": name,
            "uid": f"00000000-0000-4000-9000-{number:012x}",
            "creationTimestamp": _A_TIME,
            "labels": {**_NODE_LABELS, "kubernetes.io/hostname": name},
            "annotations": {
                GPUS_ANNOTATION: encode(record),
                "volumes.kubernetes.io/controller-managed-attach-detach": "true",
            },
            "managedFields": [_managed("kubelet", 60), _managed("gpushare", 20), _managed("node-feature", 40)],
        },
        "spec": {"providerID": f"example:///{name}", "podCIDR": "10.0.0.0/24"},
        "status": {
            "capacity": quantities,
            "allocatable": quantities,
            "conditions": _conditions("MemoryPressure", "DiskPressure", "PIDPressure", "Ready"),
            "addresses": [{"type": "InternalIP", "address": "10.1.2.3"}, {"type": "Hostname", "address": name}],
            "images": _IMAGES,
            "nodeInfo": _NODE_INFO,
        },
    }


def pods_of(node: int) -> list[Object]:
    """Return the pods that run on a node, annotated by the extender and by the node's daemon."""
    resource, pods = filling(node)
    return [
        bound(
            a_pod(f"worker-{node:05d}-{number}", {resource: size}, owner=f"set-{(8 * node + number) % 997}"),
            node_name(node),
            {"main": {resource: {gpu_uuid(node, gpu): size for gpu in gpus}}},
        )
        for number, (size, gpus) in enumerate(pods)
    ]


def gpu_uuid(node: int, gpu: int) -> str:
    """Return the UUID of a GPU."""
    return f"GPU-{node:08x}-0000-4000-8000-{gpu:012x}"


def a_pod(
    name: str,
    limits: Mapping[str, int],
    *more: Mapping[str, int],
    owner: str = "set-0",
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
) -> Object:
    """Return a pod that waits for a node; `limits`, and `more`, are of one container each."""
    containers = [_container("main", limits), *(_container(f"beside-{n}", each) for n, each in enumerate(more))]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "generateName": f"{owner}-",
            "labels": {"app": owner, "pod-template-hash": "6d4b75cb6d", "team": "vision", **(labels or {})},
            "annotations": {"prometheus.io/scrape": "true", "prometheus.io/port": "8080", **(annotations or {})},
            "ownerReferences": [
                {
                    "apiVersion": "apps/v1",
                    "kind": "ReplicaSet",
                    "name": owner,
                    "uid": f"uid-of-{owner}",
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
            "managedFields": [_managed("kube-controller-manager", 50)],
        },
        "spec": {**_POD_SPEC, "containers": containers},
        "status": {"phase": "Pending", "qosClass": "Burstable"},
    }


def bound(pod: Object, node: str, containers: Mapping[str, Any]) -> Object:
    """Return a pod that runs on a node, with the GPUs that its annotations say."""
    allocation = {"version": 1, "containers": containers}
    promise = {**allocation, "node": node, "time": _A_TIME}
    annotations = {
        **pod["metadata"]["annotations"],
        "gpushare/promise": json.dumps(promise, separators=(",", ":")),
        "gpushare/allocation": json.dumps(allocation, separators=(",", ":")),
    }
    metadata = {
        **pod["metadata"],
        "annotations": annotations,
        "managedFields": [*pod["metadata"]["managedFields"], _managed("kubelet", 40), _managed("gpushare", 2)],
    }
    running = {"running": {"startedAt": _A_TIME}}
    status = {
        **pod["status"],
        "phase": "Running",
        "podIP": "10.0.0.7",
        "hostIP": "10.1.2.3",
        "startTime": _A_TIME,
        "conditions": _conditions("PodReadyToStartContainers", "Initialized", "Ready", "PodScheduled"),
        "containerStatuses": [
            {
                "name": each["name"],
                "state": running,
                "ready": True,
                "restartCount": 0,
                "image": each["image"],
                "imageID": f"{each['image']}@sha256:{'a' * 64}",
                "containerID": f"containerd://{'b' * 64}",
            }
            for each in pod["spec"]["containers"]
        ],
    }
    return {**pod, "metadata": metadata, "spec": {**pod["spec"], "nodeName": node}, "status": status}


def _gpu(node: int, gpu: int, kind: Kind) -> GpuRecord:
    return GpuRecord(
        index=gpu,
        uuid=gpu_uuid(node, gpu),
        product="NVIDIA A100-SXM4-80GB",
        numa_node=gpu // 4,
        memory_mib=_MIB,
        mode=kind.mode,
        resource=kind.resource,
        units=kind.units,
        unit_mib=1024 if kind.kind == "memory" else 0,
    )


def _container(name: str, limits: Mapping[str, int]) -> Object:
    quantities = {"cpu": "4", "memory": "16Gi", **{resource: str(units) for resource, units in limits.items()}}
    return {
        "name": name,
        "image": f"registry.example/vision/{name}:v2.17.3",
        "command": ["python", "-m", "serving.worker", "--config", "/etc/worker/config.yaml"],
        "env": [{"name": f"SETTING_{number}", "value": f"value of setting {number}"} for number in range(12)],
        "resources": {"limits": quantities, "requests": quantities},
        "volumeMounts": [
            {"name": "kube-api-access", "readOnly": True, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"},
            {"name": "config", "mountPath": "/etc/worker"},
        ],
        "readinessProbe": {"httpGet": {"path": "/healthz", "port": 8080}, "periodSeconds": 10, "failureThreshold": 3},
        "terminationMessagePath": "/dev/termination-log",
        "imagePullPolicy": "IfNotPresent",
    }


def _managed(manager: str, fields: int) -> Object:
    tree: Object = {f"f:field-{number:02d}-of-this-manager": {".": {}, "f:value": {}} for number in range(fields)}
    return {"manager": manager, "operation": "Update", "apiVersion": "v1", "time": _A_TIME, "fieldsV1": tree}


def _conditions(*kinds: str) -> list[Object]:
    return [
        {
            "type": kind,
            "status": "True",
            "lastHeartbeatTime": _A_TIME,
            "lastTransitionTime": _A_TIME,
            "reason": f"{kind}IsAsItIs",
            "message": f"kubelet reports {kind}",
        }
        for kind in kinds
    ]


_NODE_LABELS = {
    **{f"feature.node.kubernetes.io/cpu-cpuid.FEATURE{number}": "true" for number in range(40)},
    "kubernetes.io/os": "linux",
    "kubernetes.io/arch": "amd64",
    "node.kubernetes.io/instance-type": "a2-ultragpu-8g",
    "topology.kubernetes.io/zone": "europe-west4-a",
}
_IMAGES = [
    {
        "names": [f"registry.example/vision/image-{n}@sha256:{n:064x}", f"registry.example/vision/image-{n}:v1.{n}"],
        "sizeBytes": 10**8 + n,
    }
    for n in range(40)
]
_NODE_INFO = {
    "machineID": "0" * 32,
    "systemUUID": "0" * 36,
    "bootID": "0" * 36,
    "kernelVersion": "6.18.0",
    "osImage": "Some Linux 24.04 LTS",
    "containerRuntimeVersion": "containerd://2.1.4",
    "kubeletVersion": "v1.36.0",
}
_POD_SPEC: Object = {
    "schedulerName": "default-scheduler",
    "priority": 0,
    "restartPolicy": "Always",
    "serviceAccountName": "default",
    "dnsPolicy": "ClusterFirst",
    "enableServiceLinks": True,
    "preemptionPolicy": "PreemptLowerPriority",
    "terminationGracePeriodSeconds": 30,
    "tolerations": [
        {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
        for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
    ],
    "volumes": [
        {"name": "config", "configMap": {"name": "worker", "defaultMode": 420}},
        {
            "name": "kube-api-access",
            "projected": {
                "defaultMode": 420,
                "sources": [
                    {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
                    {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
                ],
            },
        },
    ],
}
