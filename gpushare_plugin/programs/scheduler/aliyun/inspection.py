"""What Aliyun's extender shows of the cluster at `/inspect`, in its own JSON."""

from typing import TypedDict

from gpushare_plugin.model.account.cluster import ClusterAccount
from gpushare_plugin.model.account.node import GPU_MEMORY
from gpushare_plugin.model.account.occupancy import NodeAccount


class PodShown(TypedDict):
    """A pod on a GPU, and its units of memory there."""

    name: str
    namespace: str
    usedGPU: int


class GpuShown(TypedDict):
    """A GPU by its index, its units of memory, and those that pods have."""

    id: int
    totalGPU: int
    usedGPU: int
    pods: list[PodShown]


class NodeShown(TypedDict):
    """A node that shares memory, with the units of all its GPUs."""

    name: str
    totalGPU: int
    usedGPU: int
    devs: list[GpuShown]


class Shown(TypedDict):
    """Every node that shares memory."""

    nodes: list[NodeShown]


def inspect(account: ClusterAccount, name: str | None) -> Shown:
    """Return every node, or the one of this name."""
    names = [name] if name is not None else sorted(account.nodes)
    shown = (_node(account.node(each)) for each in names)
    return {"nodes": [node for node in shown if node is not None]}


def _node(account: NodeAccount) -> NodeShown | None:
    memory = account.resources.get(GPU_MEMORY)
    if memory is None:
        return None
    gpus: list[GpuShown] = []
    for gpu in memory.offer.gpus:
        here = [each for each in memory.holdings if each.gpu == gpu.name]
        pods: list[PodShown] = [
            {"name": each.pod.name, "namespace": each.pod.namespace, "usedGPU": each.units} for each in here
        ]
        gpus.append({"id": gpu.index, "totalGPU": gpu.units, "usedGPU": sum(each.units for each in here), "pods": pods})
    used = sum(gpu["usedGPU"] for gpu in gpus)
    return {"name": account.node.name, "totalGPU": memory.units, "usedGPU": used, "devs": gpus}
