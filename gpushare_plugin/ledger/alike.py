"""Nodes that are alike for a request, with the free units of their GPUs in arrays: one row for each node.

A search decides on all nodes of a group at the same time. A cluster of thousands of nodes has a few kinds of nodes.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from gpushare_plugin.ledger.node import Node, OfferedResource
from gpushare_plugin.ledger.occupancy import NodeAccount

Accounts = Callable[[str], NodeAccount]
"""Returns the account of a node, given the name of the node."""

UnitArray = NDArray[np.int64]
"""Units by node (row) and GPU (column)."""


class AlikeNodes(NamedTuple):
    """Nodes that are alike for a request, one row of free units for each; a single node is alike with itself.

    Nodes that are alike have the same policy, and GPUs with the same indexes, units and models in every requested
    resource, or the same reason why the resource is missing. The names of their GPUs, the free units, and the pods on
    the nodes differ.
    """

    names: Sequence[str]
    """The names of the nodes, at least one, in the order of the rows."""
    account: Accounts
    """Returns the account of a node."""
    free: Mapping[str, UnitArray]
    """The free units of every requested and offered resource, in the orders of `names` and of the offer."""

    @classmethod
    def alone(cls, account: NodeAccount, resources: Iterable[str]) -> Self:
        """Return a single node for a request of some resources."""
        offers = [offer for name in resources if (offer := account.node.offer(name)) is not None]
        free = {offer.resource: np.array((account.resources[offer.resource].free,), np.int64) for offer in offers}
        return cls((account.node.name,), lambda _: account, free)

    def some(self, rows: Sequence[int]) -> Self:
        """Return some of the nodes, given their rows."""
        free = {resource: units[rows] for resource, units in self.free.items()}
        return self._replace(names=[self.names[row] for row in rows], free=free)


class NodeGroups:
    """The nodes of a cluster in groups that are alike, for requests of the same resources.

    A node enters its group when it is searched first.
    """

    def __init__(self, resources: Sequence[str]) -> None:
        """Start without groups; `resources` are the requested resources that the account decides."""
        self._resources = resources
        self._groups: dict[Hashable, _Group] = {}
        self._places: dict[str, tuple[_Group, int]] = {}
        self._changed: set[str] = set()

    def of(self, names: Sequence[str], account: Accounts) -> list[AlikeNodes]:
        """Return nodes of the cluster, each group as alike nodes."""
        places = self._places
        for name in self._changed.intersection(names):
            self._put(account(name))
        for name in names:
            if name not in places:
                self._put(account(name))
        found: dict[_Group, tuple[list[str], list[int]]] = {}
        for name in names:
            group, row = places[name]
            if group not in found:
                found[group] = [], []
            members, rows = found[group]
            members.append(name)
            rows.append(row)
        return [
            AlikeNodes(members, account, {resource: units[rows] for resource, units in group.free.items()})
            for group, (members, rows) in found.items()
        ]

    def change(self, name: str) -> None:
        """Note that a node has changed."""
        if name in self._places:
            self._changed.add(name)

    def remove(self, name: str) -> None:
        """Forget a node."""
        self._changed.discard(name)
        if name in self._places:
            group, row = self._places.pop(name)
            if (moved := group.remove(row)) is not None:
                self._places[moved] = group, row
            if not group.names:
                del self._groups[group.likeness]

    def _put(self, account: NodeAccount) -> None:
        """Add a node, or note the free units of the node as they are now."""
        name, likeness = account.node.name, _likeness(account.node, self._resources)
        group, row = self._places.get(name, (None, 0))
        if group is None or group.likeness != likeness:
            self.remove(name)
            group = self._groups.setdefault(likeness, _Group(likeness))
            row = group.add(account, self._resources)
            self._places[name] = group, row
        self._changed.discard(name)
        for resource, units in group.free.items():
            units[row] = account.resources[resource].free


class _Group:
    """All nodes of one likeness: their names, and the free units of their GPUs. Nodes come and go."""

    def __init__(self, likeness: Hashable) -> None:
        self.likeness = likeness
        self.names: list[str] = []
        """The names of the nodes, in the order of the rows."""
        self.free: dict[str, UnitArray] = {}
        """The free units of each offered resource; the arrays have spare rows."""

    def add(self, account: NodeAccount, resources: Iterable[str]) -> int:
        """Add a node, and return the row of the node, whose free units are not known yet."""
        row = len(self.names)
        self.names.append(account.node.name)
        if not row:
            self.free = dict(AlikeNodes.alone(account, resources).free)
        elif any(row == len(units) for units in self.free.values()):
            self.free = {name: np.concatenate((units, np.zeros_like(units))) for name, units in self.free.items()}
        return row

    def remove(self, row: int) -> str | None:
        """Forget a node; return the name of the node that takes the row, None for no such node."""
        last = self.names.pop()
        if row == len(self.names):
            return None
        self.names[row] = last
        for units in self.free.values():
            units[row] = units[len(self.names)]
        return last


def _likeness(node: Node, resources: Iterable[str]) -> Hashable:
    """Return a value that is equal for nodes that are alike for requests of some resources."""
    numbers: dict[str, int] = {}
    return node.policy, tuple([_offer_likeness(node, name, node.offer(name), numbers) for name in resources])


def _offer_likeness(node: Node, resource: str, offer: OfferedResource | None, numbers: dict[str, int]) -> Hashable:
    """Return a value that is equal for offers of a resource that differ at most in free units and names of GPUs.

    Without an offer, the value stands for the cause: the reason why the record of the node is unreadable, True for a
    node that has none of the resource, or False for a node whose units another device plugin may serve. `numbers` has
    a number for each GPU of the node: resources of the same GPUs have the same numbers.
    """
    if offer is None:
        return node.unreadable if node.obscures(resource) else node.has_none_of(resource)
    return offer.shape, tuple([numbers.setdefault(gpu.name, len(numbers)) for gpu in offer.gpus])
