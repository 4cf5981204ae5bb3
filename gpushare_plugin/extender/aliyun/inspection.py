"""The cluster in the JSON that Aliyun's extender shows at `/inspect`."""

from typing import TypedDict

from gpushare_plugin.ledger.cluster import ClusterAccount
from gpushare_plugin.ledger.node import GPU_MEMORY
from gpushare_plugin.ledger.occupancy import NodeAccount


class PodShown(TypedDict):
    """A pod on a GPU."""

    name: str
    """The name of the pod."""
    namespace: str
    """The namespace of the pod."""
    usedGPU: int
    """The units of memory of the pod on the GPU."""


class GpuShown(TypedDict):
    """A GPU of a node."""

    id: int
    """The index of the GPU."""
    totalGPU: int
    """The units of memory of the GPU."""
    usedGPU: int
    """The units of memory held by pods or promised to pods."""
    pods: list[PodShown]
    """The pods on the GPU."""


class NodeShown(TypedDict):
    """A node with GPUs shared by memory."""

    name: str
    """The name of the node."""
    totalGPU: int
    """The units of memory of all GPUs of the node."""
    usedGPU: int
    """The units of memory on these GPUs that pods hold or are promised."""
    devs: list[GpuShown]
    """The GPUs of the node."""


class Shown(TypedDict):
    """The answer at `/inspect`."""

    nodes: list[NodeShown]
    """The nodes with GPUs shared by memory."""


def inspect(account: ClusterAccount, name: str | None) -> Shown:
    """Return every node with GPUs shared by memory, or only the node `name`."""
    names = [name] if name is not None else sorted(account.nodes)
    shown = (_node(account.account_of(each)) for each in names)
    return {"nodes": [node for node in shown if node is not None]}


def _node(account: NodeAccount) -> NodeShown | None:
    memory = account.resources.get(GPU_MEMORY)
    if memory is None:
        return None
    gpus: list[GpuShown] = []
    by_gpu = memory.by_gpu
    for gpu in memory.offer.gpus:
        here = by_gpu[gpu.name]
        pods: list[PodShown] = [
            {"name": each.pod.name, "namespace": each.pod.namespace, "usedGPU": each.units} for each in here
        ]
        gpus.append({"id": gpu.index, "totalGPU": gpu.units, "usedGPU": sum(each.units for each in here), "pods": pods})
    used = sum(gpu["usedGPU"] for gpu in gpus)
    return {"name": account.node.name, "totalGPU": memory.offer.shape.units, "usedGPU": used, "devs": gpus}
