"""The room of a node in one resource: a few values that are enough to decide on most pods.

The values lie close together in memory. A search goes over thousands of nodes, and following the account of every node
from object to object would take most of the time.
"""

from collections.abc import Callable, Container, Sequence
from functools import lru_cache

from gpushare_plugin.foundation.structs import Struct
from gpushare_plugin.model.account.node import Shape
from gpushare_plugin.model.account.occupancy import NodeAccount, ResourceAccount

Accounts = Callable[[str], NodeAccount]
"""Returns the account of a node, given the name of the node."""


_NOTHING = Shape("", 0, 0, (), None)
"""The shape of a resource that the node does not offer."""


class Kin(Struct, frozen=True, eq=False):
    """The common values of nodes with like offers of a resource; all nodes of one kin share one object."""

    policy: str | None
    """The placement policy of the nodes, None if neither label nor config names a policy."""
    unreadable: str | None
    """Why the records of the nodes cannot be read; None for nodes with a readable record and nodes without a record."""
    lacking: bool
    """Whether the nodes do not offer the resource and, by `Node.lacks`, do not get it from another device plugin."""
    shape: Shape
    """The shape of the offers; of an empty kind if the nodes do not offer the resource."""


_kin = lru_cache(maxsize=4096)(Kin)


class ResourceRoom(Struct, frozen=True, eq=False, gc=False):
    """The room of one node in one resource."""

    node: str
    """The name of the node."""
    kin: Kin
    """The values that the node has in common with like nodes."""
    gpus: frozenset[str]
    """The names of all GPUs of the node, offered or not."""
    account: ResourceAccount | None = None
    """The account of the resource, None if the node has no account of it; all later fields are then empty or 0."""
    offered: tuple[str, ...] = ()
    """The names of the GPUs with the resource."""
    free: tuple[int, ...] = ()
    """The free units of every offered GPU, in the order of `offered`."""
    ascending: tuple[int, ...] = ()
    """The values of `free` in ascending order: from the fullest GPU to the emptiest."""
    node_free: int = 0
    """The sum of `free`."""


def _room(name: str, account: NodeAccount, resource: str) -> ResourceRoom:
    node, found = account.node, account.resources.get(resource)
    lacking = (found is None or not found.offer.kind) and node.lacks(resource)
    if found is None:
        return ResourceRoom(name, _kin(node.policy, node.unreadable, lacking, _NOTHING), node.gpus)
    kin = _kin(node.policy, node.unreadable, lacking, found.offer.shape)
    offered = tuple([gpu.name for gpu in found.offer.gpus])
    return ResourceRoom(name, kin, node.gpus, found, offered, found.free, tuple(sorted(found.free)), found.node_free)


class Rooms:
    """The rooms of nodes by resource, kept until the node changes."""

    def __init__(self) -> None:
        """Start without rooms."""
        self._kept: dict[str, dict[str, ResourceRoom]] = {}

    def of(self, resource: str, nodes: Sequence[str], known: Container[str], account: Accounts) -> list[ResourceRoom]:
        """Return the rooms of all `known` nodes among `nodes`; a missing room is made from the `account` of a node."""
        kept = self._kept.setdefault(resource, {})
        rooms = list(map(kept.get, nodes))
        if not all(rooms):
            missing = [name for name in nodes if name not in kept and name in known]
            kept.update((name, _room(name, account(name), resource)) for name in missing)
            rooms = list(map(kept.get, nodes))
        return [room for room in rooms if room is not None]

    def forget(self, node: str) -> None:
        """Forget the rooms of a node, because the node has changed."""
        for kept in self._kept.values():
            kept.pop(node, None)
