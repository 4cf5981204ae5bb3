"""A cluster for pages and their pictures: of many nodes, with everything that a tile can be."""

import json
from typing import Any

from gpushare_plugin.base.structs import replace
from gpushare_plugin.base.version import __version__
from gpushare_plugin.kube.client import NODES
from gpushare_plugin.kube.lease import leases
from gpushare_plugin.kube.names import EXTENDER_LEASE
from gpushare_plugin.ledger.annotations import PLACEMENT, write_allocation
from gpushare_plugin.ledger.node import GPU_MEMORY
from gpushare_plugin.ledger.node_record import GPUS_ANNOTATION, GpuRecord, encode
from gpushare_plugin.ledger.pod import Share
from gpushare_plugin.testing.cluster import ApiServer
from tests.unit.kube.pods import pod
from tests.unit.observe.cluster.clusters import gpu, recorded

GPUS = 8
UNITS = 80
MODELS = ("NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3", "NVIDIA H100 NVL")
NAMESPACES = ("search", "vision", "speech", "ads")
PROMISED = 3
"""One of so many pods is promised its GPU, and has none yet."""


def a_cluster(server: ApiServer, nodes: int) -> None:
    """Create nodes of eight GPUs of three models, with pods, faulty and cordoned GPUs, promises, and pods that wait."""
    for number in range(nodes):
        name = f"gpu-{number:04d}"
        gpus = (_gpu(name, number, index) for index in range(GPUS))
        record = replace(recorded(*gpus), config="training", gpushare=__version__)
        metadata = {
            "name": name,
            "annotations": {GPUS_ANNOTATION: encode(record)},
            "labels": {"karpenter.sh/nodepool": f"pool-{number % 3}"},
        }
        server.store.create(NODES, {"metadata": metadata, "status": {"allocatable": {"cpu": "8"}}})
        for index in range(GPUS):
            if units := (number * 7 + index * 13) % 5 * UNITS // 4:
                _pod(server, name, number * GPUS + index, units, index)
    _waiting(server)
    lease = {"metadata": {"name": EXTENDER_LEASE, "annotations": {PLACEMENT: "binpack"}}}
    server.store.create(leases("kube-system"), {**lease, "spec": {"holderIdentity": "extender"}})


def _waiting(server: ApiServer) -> None:
    """Create pods that wait: for a larger GPU, for a model, for somebody who removes a gate, and by a mistake."""
    for name, resource, fields in (
        ("train-large", GPU_MEMORY, {}),
        ("tuned", GPU_MEMORY, {"annotations": {"nvidia.com/use-gputype": "H200"}}),
        ("held-back", GPU_MEMORY, {"gates": [{"name": "example.com/budget"}]}),
        ("mistaken", "aliyun.com/gpu-memory", {}),
    ):
        made = pod(name, units="100" if name == "train-large" else "20")
        container = made["spec"]["containers"][0]
        container["resources"] = {"limits": {resource: container["resources"]["limits"][GPU_MEMORY]}}
        made["metadata"] |= {"namespace": "search", "annotations": fields.get("annotations", {})}
        made["spec"]["schedulingGates"] = fields.get("gates", [])
        server.store.create("/api/v1/namespaces/search/pods", made)


def _gpu(name: str, number: int, index: int) -> GpuRecord:
    reason = {(3, 2): "XID 79", (5, 6): "cordoned"}.get((number % 10, index))
    model = MODELS[number % len(MODELS)]
    return gpu(name, index, UNITS, product=model, healthy=reason is None, reason=reason)


def _pod(server: ApiServer, node: str, number: int, units: int, index: int) -> None:
    namespace = NAMESPACES[number % 7 % len(NAMESPACES)]
    uuid = f"GPU-{node}-{index}"
    made: dict[str, Any] = pod(f"worker-{number}", node, str(units))
    made["metadata"]["namespace"] = namespace
    texts = {"gpushare/allocation": write_allocation((Share("main", GPU_MEMORY, uuid, units),))}
    if number % 20 == PROMISED:
        containers = {"main": {GPU_MEMORY: {uuid: units}}}
        texts = {"gpushare/promise": json.dumps({"version": 1, "node": node, "containers": containers})}
    made["metadata"]["annotations"] = texts
    server.store.create(f"/api/v1/namespaces/{namespace}/pods", made)
