"""What of each of thousands of nodes decides on most pods: a few values, which lie close together in memory.

To follow the account of a node from object to object would take most of the time of a search.
"""

from collections.abc import Callable, Container, Sequence
from functools import lru_cache

from gpushare_plugin.foundation.structs import Struct
from gpushare_plugin.model.account.node import Shape
from gpushare_plugin.model.account.occupancy import NodeAccount, ResourceAccount

Accounts = Callable[[str], NodeAccount]
"""Returns the account of a node by its name."""


_NOTHING = Shape("", 0, 0, (), None)
"""The shape of what a node does not offer."""


class Kin(Struct, frozen=True, eq=False):
    """What nodes have in common that offer a resource alike: the same object for all of them.

    `policy` and `unreadable` are those of the node, `shape` is that of the offer; its kind is empty where there is
    none, and `lacking` is whether the node then has none of the resource.
    """

    policy: str | None
    unreadable: str | None
    lacking: bool
    shape: Shape


_kin = lru_cache(maxsize=4096)(Kin)


class Room(Struct, frozen=True, eq=False, gc=False):
    """What of a node decides on pods that ask for one resource of it.

    `node` is its name, `gpus` are those of all its GPUs. `offered` are the names of the GPUs that have the resource,
    `free` their free units, `ascending` these from the fullest GPU to the emptiest, and `node_free` those of all GPUs.
    Where the node does not have the resource, there are none of these, and no `account` of it.
    """

    node: str
    kin: Kin
    gpus: frozenset[str]
    account: ResourceAccount | None = None
    offered: tuple[str, ...] = ()
    free: tuple[int, ...] = ()
    ascending: tuple[int, ...] = ()
    node_free: int = 0


def _room(name: str, account: NodeAccount, resource: str) -> Room:
    node, found = account.node, account.resources.get(resource)
    lacking = (found is None or not found.offer.kind) and node.lacks(resource)
    if found is None:
        return Room(name, _kin(node.policy, node.unreadable, lacking, _NOTHING), node.gpus)
    kin = _kin(node.policy, node.unreadable, lacking, found.offer.shape)
    offered = tuple([gpu.name for gpu in found.offer.gpus])
    return Room(name, kin, node.gpus, found, offered, found.free, tuple(sorted(found.free)), found.node_free)


class Rooms:
    """The rooms of nodes that have not changed since, by resource."""

    def __init__(self) -> None:
        """Know no node yet."""
        self._kept: dict[str, dict[str, Room]] = {}

    def of(self, resource: str, nodes: Sequence[str], known: Container[str], account: Accounts) -> list[Room]:
        """Return those of the nodes that are `known`, made of their `account` where they are asked for first."""
        kept = self._kept.setdefault(resource, {})
        rooms = list(map(kept.get, nodes))
        if not all(rooms):
            missing = [name for name in nodes if name not in kept and name in known]
            kept.update((name, _room(name, account(name), resource)) for name in missing)
            rooms = list(map(kept.get, nodes))
        return [room for room in rooms if room is not None]

    def forget(self, node: str) -> None:
        """Forget those of a node, which has changed."""
        for kept in self._kept.values():
            kept.pop(node, None)
