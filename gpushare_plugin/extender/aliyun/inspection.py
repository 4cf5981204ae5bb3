"""The cluster in the JSON that Aliyun's extender shows at `/inspect`, with GPU memory in units of the resource.

The form is that of `Result` in `pkg/scheduler` of AliyunContainerService/gpushare-scheduler-extender:

    {"nodes": [{"name": "n0", "totalGPU": 32, "usedGPU": 5, "devs": [
        {"id": 0, "totalGPU": 16, "usedGPU": 5, "pods": [{"name": "first", "namespace": "team", "usedGPU": 5}]},
        {"id": 1, "totalGPU": 16, "usedGPU": 0, "pods": []}]}]}

`id` is the index of the GPU, and `usedGPU` counts the units that pods hold or are promised.
"""

from typing import Any

from gpushare_plugin.ledger.cluster import ClusterAccount
from gpushare_plugin.ledger.node import GPU_MEMORY
from gpushare_plugin.ledger.occupancy import NodeAccount


def inspect(account: ClusterAccount, name: str | None) -> dict[str, Any]:
    """Return every node with GPUs shared by memory, or only the node `name`."""
    names = [name] if name is not None else sorted(account.nodes)
    shown = (_node(account.account_of(each)) for each in names)
    return {"nodes": [node for node in shown if node is not None]}


def _node(account: NodeAccount) -> dict[str, Any] | None:
    """Return a node; None for a node without GPUs shared by memory."""
    memory = account.resources.get(GPU_MEMORY)
    if memory is None:
        return None
    gpus: list[dict[str, Any]] = []
    by_gpu = memory.by_gpu
    for gpu in memory.offer.gpus:
        here = by_gpu[gpu.name]
        pods = [{"name": each.pod.name, "namespace": each.pod.namespace, "usedGPU": each.units} for each in here]
        gpus.append({"id": gpu.index, "totalGPU": gpu.units, "usedGPU": sum(each.units for each in here), "pods": pods})
    used = sum(gpu["usedGPU"] for gpu in gpus)
    return {"name": account.node.name, "totalGPU": memory.offer.shape.units, "usedGPU": used, "devs": gpus}
