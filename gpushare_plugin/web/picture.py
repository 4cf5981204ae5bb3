"""The nodes of a cluster as pages show them, made anew only where something of a node has changed."""

from collections.abc import Iterator, Mapping

from gpushare_plugin.base.published import Published
from gpushare_plugin.base.structs import Struct
from gpushare_plugin.ledger.cluster import ClusterAccount
from gpushare_plugin.ledger.occupancy import NodeAccount
from gpushare_plugin.observe.cluster.report import NodeUse, node_use


class PicturedNode(Struct, frozen=True):
    """A node, and when the picture of the node last changed."""

    use: NodeUse
    """The node, as `gpushare inspect` shows the node."""
    revision: int
    """The revision of the picture in which the node became what it is."""


class Picture:
    """The nodes with GPUs of a cluster, with a number that rises with every change."""

    def __init__(self) -> None:
        """Show no node yet."""
        self._made_of: dict[str, NodeAccount] = {}
        self._nodes: dict[str, PicturedNode] = {}
        self.revision: Published[int] = Published(0)
        """The number of the newest change."""
        self.nodes_changed = 0
        """The revision in which nodes last came or went."""

    @property
    def nodes(self) -> Mapping[str, PicturedNode]:
        """The nodes with GPUs, by name, in the order of their names."""
        return self._nodes

    def refresh(self, account: ClusterAccount) -> None:
        """Take in what has changed in the account of the cluster."""
        revision, names = self.revision.value + 1, self._nodes.keys()
        # The account of a node is another object after every change of the node or of its pods.
        accounts = {name: account.account_of(name) for name in account.nodes}
        changed = [name for name, found in accounts.items() if found is not self._made_of.get(name)]
        gone = self._made_of.keys() - accounts.keys()
        nodes = {name: each for name, each in self._nodes.items() if name not in gone}
        for name in changed:
            nodes.pop(name, None)
            use = node_use(accounts[name], [])
            if use.recorded or use.resources or use.notices:
                before = self._nodes.get(name)
                nodes[name] = before if before and before.use == use else PicturedNode(use, revision)
        self._made_of = accounts
        if all(nodes[name] is self._nodes.get(name) for name in changed if name in nodes) and nodes.keys() == names:
            return
        if nodes.keys() != names:
            self.nodes_changed = revision
        self._nodes = dict(sorted(nodes.items()))
        self.revision.publish(revision)

    def changed_since(self, revision: int) -> Iterator[PicturedNode]:
        """Yield the nodes that became what they are after a revision."""
        return (each for each in self._nodes.values() if each.revision > revision)
