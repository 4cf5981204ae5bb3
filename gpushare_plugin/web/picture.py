"""The nodes of a cluster as pages show them, made anew only where something of a node has changed."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta

from gpushare_plugin.base.published import Published
from gpushare_plugin.base.structs import Struct, replace
from gpushare_plugin.claims.cluster import ClusterClaims, HeldGpu
from gpushare_plugin.kube.whole_cluster.waiting import WaitingPod
from gpushare_plugin.ledger.cluster import ClusterAccount
from gpushare_plugin.ledger.node import Node
from gpushare_plugin.ledger.occupancy import NodeAccount
from gpushare_plugin.observe.cluster.by_claim import node_with_claims
from gpushare_plugin.observe.cluster.report import NodeUse, node_use
from gpushare_plugin.web.held import HeldAmounts, held_by_namespace, ranked, sizes
from gpushare_plugin.web.interest import Interest
from gpushare_plugin.web.standing import ClusterStanding
from gpushare_plugin.web.tiles import gpus_of
from gpushare_plugin.web.use import NOT_READ, UseReading

_POOL_LABELS = (
    "cloud.google.com/gke-nodepool",
    "eks.amazonaws.com/nodegroup",
    "kubernetes.azure.com/agentpool",
    "karpenter.sh/nodepool",
    "node.kubernetes.io/instance-type",
)
"""The node labels that name the pool of a node: of GKE, EKS, AKS and Karpenter, else the type of the machine.

Sources: the documentation of each about labels of nodes, and Kubernetes' of well-known labels.
"""
_NOBODY: Mapping[str, WaitingPod] = {}


class PicturedNode(Struct, frozen=True):
    """A node, and when the picture of the node last changed."""

    use: NodeUse
    """The node, as `gpushare inspect` shows the node."""
    pool: str
    """The pool of nodes that the node is in; empty if not known."""
    held: Mapping[str, HeldAmounts]
    """What each namespace has of the node."""
    revision: int
    """The revision of the picture in which the node became what it is, but for the use of its GPUs."""
    gpus: int
    """The number of GPUs; the MIG instances of a card are one."""
    reading: UseReading = NOT_READ
    """The use of the GPUs of the node."""
    use_revision: int = 0
    """The revision of the picture in which the node became what it is, the use of its GPUs included."""


class Picture:
    """The nodes with GPUs of a cluster, with a number that rises with every change."""

    def __init__(self, first: int = 0, silence: Callable[[], float | None] = lambda: None) -> None:
        """Show no node yet, in the revision `first`; see `silence`."""
        self.silence = silence
        """Returns the seconds since the last answer of the API server where it does not answer; None while it does."""
        self._made_of: dict[str, tuple[NodeAccount, Sequence[HeldGpu]]] = {}
        self._nodes: dict[str, PicturedNode] = {}
        self.account = ClusterAccount()
        """The account of the cluster, as it is now."""
        self.standing = ClusterStanding()
        """What the programs that decide about pods say of themselves."""
        self.waiting: Mapping[str, WaitingPod] = {}
        """The pods without a node, by UID."""
        self._namespaces: frozenset[str] | None = None
        self._ranked: tuple[str, ...] | None = None
        self.revision: Published[int] = Published(first)
        """The number of the newest change."""
        self.whole_changed = first
        """The revision in which nodes last came or went, or what is said of the whole cluster changed."""
        self.held_changed = first
        """The revision in which something else than the use of GPUs last changed."""
        self.unread = NOT_READ
        """The reading of a node that was not read yet."""
        self.claims_unknown = ""
        """Why it is not known what claims have, for people; empty where that is known."""

    @property
    def nodes(self) -> Mapping[str, PicturedNode]:
        """The nodes with GPUs, by name, in the order of their names."""
        return self._nodes

    @property
    def namespaces(self) -> frozenset[str]:
        """The namespaces of all pods that ask for GPUs, and of all claims that have some."""
        if self._namespaces is None:
            of_pods = {pod.namespace for pod in self.account.pods.values()}
            of_pods.update(each.pod.namespace for each in self.waiting.values())
            given = [gpu for node in self._nodes.values() for use in node.use.given_by_claim for gpu in use.gpus]
            self._namespaces = frozenset(of_pods.union(claim.namespace for gpu in given for claim in gpu.claims))
        return self._namespaces

    def unknown_use(self, interest: Interest) -> str:
        """Return why the use of nodes that a page shows is unknown, for people; empty where each of them was asked."""
        if self.unread is NOT_READ:
            return NOT_READ.problem
        shown = (node for name, node in self._nodes.items() if interest.takes(name))
        return "the metrics of daemons are being read" if any(each.reading == self.unread for each in shown) else ""

    @property
    def as_of(self) -> datetime:
        """The time that is shown: now, or the last answer of an API server that does not answer."""
        return datetime.now(UTC) - timedelta(seconds=self.silence() or 0.0)

    @property
    def ranked(self) -> tuple[str, ...]:
        """The namespaces that have something, those that have most first."""
        if self._ranked is None:
            self._ranked = ranked(node.held for node in self._nodes.values())
        return self._ranked

    def refresh(
        self, account: ClusterAccount, claims: ClusterClaims, waiting: Mapping[str, WaitingPod] = _NOBODY
    ) -> None:
        """Take in what has changed in the account and the claims of the cluster, and the pods without a node."""
        self.account, self._namespaces, self._ranked = account, None, None
        account.use_policy(self.standing.extender.policy)
        revision = self.revision.value + 1
        # What is known of a node is another object after every change of the node, of its pods or of its claims.
        known = {name: (account.account_of(name), claims.on_node(name)) for name in account.nodes}
        changed = [name for name, each in known.items() if not _is_same(each, self._made_of.get(name))]
        nodes = {name: each for name, each in self._nodes.items() if name in known}
        for name in changed:
            nodes.pop(name, None)
            use = node_use(known[name][0], [])
            if use.recorded or use.resources or use.notices:
                before = self._nodes.get(name)
                reading = self.unread if before is None else before.reading
                found = _pictured(node_with_claims(use, known[name][1]), known[name][0].node, reading, revision)
                nodes[name] = before if before and _looks_same(before, found) else found
        self._made_of = known
        if nodes.keys() != self._nodes.keys() or claims.unknown != self.claims_unknown:
            self.whole_changed = revision
        elif waiting == self.waiting and all(nodes[name] is self._nodes[name] for name in changed if name in nodes):
            return
        self.waiting, self.held_changed = dict(waiting), revision
        self._nodes, self.claims_unknown = dict(sorted(nodes.items())), claims.unknown
        self.revision.publish(revision)

    def stand(self, standing: ClusterStanding) -> None:
        """Take in what the programs that decide about pods say now."""
        if standing != self.standing:
            self.standing = standing
            self.account.use_policy(standing.extender.policy)
            self.held_changed = self.revision.value + 1
            self.revision.publish(self.held_changed)

    def take_readings(self, readings: Mapping[str, UseReading]) -> None:
        """Take in the use of nodes that was read, by the name of the node."""
        revision, changed = self.revision.value + 1, dict[str, PicturedNode]()
        for name, reading in readings.items():
            before = self._nodes.get(name)
            if before is not None and before.reading != reading:
                held = held_by_namespace(before.use, sizes(self._made_of[name][0].node.record), reading.usage)
                changed[name] = replace(before, held=held, reading=reading, use_revision=revision)
        if changed:
            self._nodes = {name: changed.get(name, node) for name, node in self._nodes.items()}
            self.revision.publish(revision)

    def changed_since(self, revision: int, *, with_use: bool = False) -> Iterator[PicturedNode]:
        """Yield the nodes that became what they are after a revision, `with_use` also by the use of their GPUs."""
        nodes = self._nodes.values()
        return (each for each in nodes if (each.use_revision if with_use else each.revision) > revision)


def _pictured(use: NodeUse, node: Node, reading: UseReading, revision: int) -> PicturedNode:
    held = held_by_namespace(use, sizes(node.record), reading.usage)
    return PicturedNode(use, _pool(node), held, revision, len(gpus_of(use)), reading, revision)


def _pool(node: Node) -> str:
    return next((node.labels[label] for label in _POOL_LABELS if node.labels.get(label)), "")


def _looks_same(before: PicturedNode, after: PicturedNode) -> bool:
    return before.use == after.use and before.pool == after.pool and before.held == after.held


def _is_same(
    known: tuple[NodeAccount, Sequence[HeldGpu]], before: tuple[NodeAccount, Sequence[HeldGpu]] | None
) -> bool:
    return before is not None and known[0] is before[0] and known[1] is before[1]
