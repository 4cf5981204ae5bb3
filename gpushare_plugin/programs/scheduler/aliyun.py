"""What Aliyun's extender shows of the cluster at `/inspect`, in its own JSON."""

import msgspec

from gpushare_plugin.foundation.errors import GpushareError
from gpushare_plugin.model.account.cluster import ClusterAccount
from gpushare_plugin.model.account.node import GPU_MEMORY
from gpushare_plugin.model.account.occupancy import NodeAccount


class _Shown(msgspec.Struct, frozen=True, rename={"total": "totalGPU", "used": "usedGPU"}, kw_only=True):
    """A part of the answer; `total` and `used` are units of memory."""


class Pod(_Shown, frozen=True):
    """A pod on a GPU."""

    name: str
    namespace: str
    used: int


class Device(_Shown, frozen=True):
    """A GPU by its index."""

    id: int
    total: int
    used: int
    pods: list[Pod]


class Node(_Shown, frozen=True):
    """A node that shares memory."""

    name: str
    total: int
    used: int
    devs: list[Device]


class Nodes(_Shown, frozen=True):
    """Every node that shares memory."""

    nodes: list[Node]


def inspect(account: ClusterAccount, name: str | None) -> Nodes:
    """Return every node, or one; raises GpushareError where there is none of that name."""
    names = [name] if name is not None else sorted(account.nodes())
    if name is not None and name not in account.nodes():
        raise GpushareError(f"node {name} not found")
    shown = (_node(account.node(each)) for each in names)
    return Nodes(nodes=[node for node in shown if node is not None])


def _node(account: NodeAccount) -> Node | None:
    memory = account.resources.get(GPU_MEMORY)
    if memory is None:
        return None
    devices = []
    for gpu in memory.offer.gpus:
        here = [each for each in memory.holdings if each.gpu == gpu.name]
        pods = [Pod(name=each.pod.name, namespace=each.pod.namespace, used=each.units) for each in here]
        used = sum(each.units for each in here)
        devices.append(Device(id=gpu.index, total=gpu.units, used=used, pods=pods))
    total, used = memory.units, sum(device.used for device in devices)
    return Node(name=account.node.name, total=total, used=used, devs=devices)
