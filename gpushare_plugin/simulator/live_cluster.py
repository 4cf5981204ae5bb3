"""The nodes and pods of a live cluster, read once: what its daemons wrote of GPUs, and what its pods ask for.

A card counts as one GPU, however the card is shared.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache

from gpushare_plugin.base.errors import GpushareError
from gpushare_plugin.base.memory import MIB
from gpushare_plugin.kube.client import Client
from gpushare_plugin.kube.objects import ApiPod
from gpushare_plugin.kube.pods import controller_kind, judged_pod
from gpushare_plugin.kube.whole_cluster.overview import Overview, read
from gpushare_plugin.ledger.constraints import Constraints
from gpushare_plugin.ledger.demand import CPU, MEMORY
from gpushare_plugin.ledger.kube_scheduler import admits
from gpushare_plugin.ledger.moving import STAYING
from gpushare_plugin.ledger.node import Node
from gpushare_plugin.ledger.pod import Pod
from gpushare_plugin.ledger.request import Wishes
from gpushare_plugin.packing.pod_kind import PodKind
from gpushare_plugin.packing.rows import NodeKind
from gpushare_plugin.simulator.shares import Shares, cards
from gpushare_plugin.simulator.what_ifs import FoundNode

_NO_MODEL = frozenset({""})
"""The models of a pod that accepts no GPU of the cluster: each GPU has a model."""

Accepted = Callable[[Wishes, Constraints], frozenset[str]]
"""Returns the models that a pod accepts; empty for all."""


class LiveCluster(Overview):
    """A cluster with all its pods, those without GPUs included."""

    def __init__(self) -> None:
        """Start empty."""
        super().__init__()
        self._moving: dict[str, Pod] = {}
        """The pods that a scheduler places, by UID."""
        self._staying: dict[str, Pod] = {}
        """The pods that stay on their nodes, by UID."""

    def put_pod(self, found: ApiPod) -> None:
        """Take in a Pod, unless the Pod has ended."""
        pod = judged_pod(found)
        if not pod.phase_final:
            (self._staying if controller_kind(found) in STAYING else self._moving)[pod.uid] = pod

    @property
    def _offering(self) -> Sequence[Node]:
        """The nodes with GPUs that pods can get, in the order of their names."""
        nodes = sorted(self.account.nodes.values(), key=lambda node: node.name)
        return [node for node in nodes if cards(node) and not node.unschedulable]

    def found_nodes(self) -> list[FoundNode]:
        """Return the nodes with GPUs, without the CPU and memory of pods that stay; raises GpushareError without any.

        GPUs that are unhealthy, cordoned or given by claim do not count, and neither do cordoned Nodes.
        """
        taken = defaultdict[str | None, Counter[str]](Counter)
        for pod in self._staying.values():
            taken[pod.node].update(pod.needs.demand.resources)
        if not (offering := self._offering):
            raise GpushareError(
                "found no node whose GPUs pods can get; expected one at least, whose daemon has cluster.enabled; "
                "`gpushare inspect` shows the GPUs of the cluster"
            )
        return [FoundNode(node.name, _kind(node, taken[node.name])) for node in offering]

    def found_pods(self, models: Collection[str]) -> tuple[PodKind, ...]:
        """Return the pods on nodes with GPUs, and those that wait for GPUs; raises GpushareError if none has GPUs.

        `models` are the models of the simulated nodes.
        """
        offering = self._offering
        shares, accepted, there = Shares(offering), _acceptance(models, offering), {node.name for node in offering}
        found = [(pod, *shares.of(pod.request.amounts, pod.node)) for pod in self._moving.values()]
        if not any(gpus for _, gpus, _ in found):
            raise GpushareError("found no pod that asks for GPUs; name others with --pods or --generate-pods")
        return tuple(
            PodKind(
                pod.needs.demand.resources.get(CPU, 0),
                -(-pod.needs.demand.resources.get(MEMORY, 0) // MIB),
                gpus,
                percent,
                accepted(pod.request.wishes, pod.needs.constraints) if gpus else frozenset(),
            )
            for pod, gpus, percent in found
            if pod.node in there or (pod.node is None and gpus)
        )


async def read_live(client: Client) -> LiveCluster:
    """Read a cluster; raises ClusterError in words for people."""
    async with client:
        return await read(client, empty=LiveCluster)


def _kind(node: Node, taken: Mapping[str, int]) -> NodeKind:
    """Return a node without pods; of several models, the commonest stands for all."""
    ((model, _),) = Counter(cards(node).values()).most_common(1)
    return NodeKind(
        cpu=max(0, node.allocatable.get(CPU, 0) - taken.get(CPU, 0)),
        memory=max(0, node.allocatable.get(MEMORY, 0) - taken.get(MEMORY, 0)) // MIB,
        gpus=len(cards(node)),
        model=model,
    )


def _acceptance(models: Collection[str], nodes: Sequence[Node]) -> Accepted:
    """Return which of the models a pod accepts: by its annotations, and where a node of the model admits the pod.

    Nodes of a model that the cluster does not have yet admit pods without a node selector and node affinity.
    """
    there = defaultdict[str, list[Node]](list)
    for node in nodes:
        there[_kind(node, {}).model].append(node)

    @cache
    def accepted(wishes: Wishes, constraints: Constraints) -> frozenset[str]:
        found = frozenset(
            model
            for model in models
            if wishes.model_refusal(model) is None
            and any(admits(constraints, node) for node in there.get(model, [Node(name="")]))
        )
        return frozenset() if found == frozenset(models) else found or _NO_MODEL

    return accepted
