"""A small cluster for tests of what people are shown of it."""

from datetime import UTC, datetime

from gpushare_plugin.base.structs import replace
from gpushare_plugin.ledger.annotations import promise_annotations
from gpushare_plugin.ledger.node import GPU_MEMORY, Node, plain_node, recorded_node
from gpushare_plugin.ledger.node_record import GpuRecord, NodeRecord, ResourceRecord
from gpushare_plugin.ledger.pod import Pod, Share
from gpushare_plugin.ledger.request import PodRequest
from gpushare_plugin.ledger.verdicts import PodPlace
from gpushare_plugin.observe.cluster.report import ClusterReport, cluster_report
from tests.unit.ledger.objects import account, gpu_record, memory, pod, uuid

MEMORY = ResourceRecord(name=GPU_MEMORY, kind="memory", policy="binpack")


def recorded(
    *gpus: GpuRecord, kinds: tuple[ResourceRecord, ...] = (MEMORY,), notices: tuple[str, ...] = ()
) -> NodeRecord:
    """Return a record of GPUs that share memory."""
    return NodeRecord(gpus=gpus, resources=kinds, notices=notices)


def gpu(node: str, index: int, units: int = 15, **fields: object) -> GpuRecord:
    """Return the record of a GPU of a node."""
    return gpu_record(index, units, **{"uuid": uuid(index, node), **fields})


def promised(asked: PodRequest, node: Node, gpu: str) -> dict[str, str]:
    """Return the annotations with which a pod is bound whose memory is to be on one GPU."""
    shares = tuple(Share(each.name, GPU_MEMORY, gpu, each.amount(GPU_MEMORY)) for each in asked.containers)
    return promise_annotations(PodPlace(node.name, shares), asked, node, datetime(2026, 1, 1, tzinfo=UTC))


class Cluster:
    """Nodes with what is shown of them, and pods."""

    def __init__(self) -> None:
        """Have none."""
        self.account = account()

    def node(self, name: str, record: NodeRecord, policy: str | None = None, **known: object) -> Node:
        """Add a node with a record."""
        return self.add(recorded_node(name, record, policy), record=record, **known)

    def plain(self, name: str, units: int, count: int, **known: object) -> Node:
        """Add a node of Aliyun's plugin."""
        return self.add(plain_node(name, units, count), **known)

    def add(self, node: Node, **known: object) -> Node:
        """Add a node, of which more is known."""
        made: Node = replace(node, **{"address": f"10.0.0.{len(self.account.nodes) + 1}", **known})
        self.account.put_node(made)
        return made

    def pod(
        self,
        name: str,
        units: int,
        node: str,
        *,
        on: int | None = None,
        promise: int | None = None,
        **fields: object,
    ) -> Pod:
        """Bind a pod to a node, `on` the GPU that its daemon says, and `promise` the one it was promised."""
        asked, texts = memory(units), dict[str, str]()
        if promise is not None:
            texts |= promised(asked, self.account.account_of(node).node, uuid(promise, node))
        made = pod(asked, node, name, on=None if on is None else uuid(on, node), annotations=texts, **fields)
        self.account.put_pod(made)
        return made

    @property
    def report(self) -> ClusterReport:
        """What is shown of it."""
        return self.reported()

    def reported(self, *waiting: Pod) -> ClusterReport:
        """Return what is shown of it while pods wait for slices."""
        return cluster_report(map(self.account.account_of, self.account.nodes), waiting)
