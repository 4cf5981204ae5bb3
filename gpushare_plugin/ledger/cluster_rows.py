"""The rows of the policy `packing`, kept in step with the account of a cluster.

A row has the free pieces of the cards of a node, and the free CPU and memory of the node. A card is a whole GPU, or a
GPU that is shared by memory. A GPU that is cut into slices or MIG instances, or shared by replicas, has no free piece:
a slice or a replica can be used in one way only, and no room is lost there. GPUs that give no units (faulty or
cordoned), and those of cordoned nodes, have none either.

CPU and memory are those of all pods of the node, counted as kube-scheduler does (kubernetes 1.36,
pkg/scheduler/framework/types.go, `NodeInfo.update`): pods that are bound count until their phase is final, also while
they are being deleted. Pods with a Binding in progress count as bound.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import repeat
from typing import NamedTuple

import numpy as np

from gpushare_plugin.ledger.cluster import ClusterAccount
from gpushare_plugin.ledger.demand import CPU, MEMORY, Demand
from gpushare_plugin.ledger.node import Node
from gpushare_plugin.ledger.occupancy import NodeAccount
from gpushare_plugin.ledger.pod import Pod
from gpushare_plugin.packing.pod_kind import WHOLE
from gpushare_plugin.packing.policy import Packing
from gpushare_plugin.packing.rows import Flags, Integers, NodeKind, NodeRows

MIB = 2**20

_KINDS = ("memory", "gpus")
"""The kinds of units of cards with free pieces: memory, and whole GPUs."""


class PackedCard(NamedTuple):
    """What a card of a node is, whatever is free of the card."""

    resource: str
    """The resource of the units of the card."""
    kind: str
    """The kind of the units."""
    units: int
    """The number of units."""


class _FreePiece(NamedTuple):
    """A free piece of a card."""

    card: PackedCard
    """The card."""
    model: str
    """The model of the card."""
    free: int
    """The number of free units."""


class Beside:
    """The CPU and memory that the pods of each node take."""

    def __init__(self) -> None:
        """Start without pods."""
        self._taken: dict[str, tuple[int, int]] = {}

    def replace(self, before: Pod | None, after: Pod | None) -> Collection[str]:
        """Replace a pod by its newest state, None before the first and after the last; return the nodes concerned."""
        concerned = []
        for pod, sign in ((before, -1), (after, 1)):
            if pod is not None and pod.node is not None and not pod.phase_final:
                cpu, memory = self._taken.get(pod.node, (0, 0))
                demand = _amounts(pod.needs.demand)
                self._taken[pod.node] = taken = cpu + sign * demand[0], memory + sign * demand[1]
                if taken == (0, 0):
                    del self._taken[pod.node]
                concerned.append(pod.node)
        return concerned

    def on(self, node: str) -> tuple[int, int]:
        """Return what the pods of a node take: CPU in thousandths, and memory in bytes."""
        return self._taken.get(node, (0, 0))


class ClusterRows:
    """The rows of a cluster, and the policy `packing` on the rows; rows that changed are computed when asked for."""

    def __init__(self, account: ClusterAccount) -> None:
        """Follow an account, with everything that the account has already."""
        self._account = account
        self._beside = Beside()
        self._row_of: dict[str, int] = {}
        self._spare: list[int] = []
        """The rows of nodes that are gone; new nodes take the last of them first, and then new rows."""
        self._changed = dict.fromkeys(account.nodes)
        self._layouts: dict[tuple[PackedCard, ...], int] = {}
        self._layout_of: dict[str, tuple[PackedCard, ...]] = {}
        self._cards: Mapping[PackedCard, int] | None = None
        self.rows = NodeRows(())
        """The rows."""
        self.policy = Packing(self.rows)
        """The policy."""
        self.layout: Integers = np.zeros(0, np.int64)
        """The layout of each row: its place in `layouts`."""
        self.free: Integers = np.zeros((0, 1), np.int64)
        """The number of free units of each card, by row and column."""
        self.other_policy: Flags = np.zeros(0, np.bool_)
        """Which nodes name another policy than `packing`."""
        for pod in account.pods.values():
            self._beside.replace(None, pod)
        account.follow(self)

    @property
    def layouts(self) -> Sequence[tuple[PackedCard, ...]]:
        """The cards of a node in the order of the columns, for each kind of node that there was."""
        return tuple(self._layouts)

    @property
    def cards(self) -> Mapping[PackedCard, int]:
        """The number of cards of each kind in the cluster; the same object until a node has other cards."""
        if self._cards is None:
            numbers = Counter(self._layout_of.values())
            self._cards = Counter()
            for layout, number in numbers.items():
                for card in layout:
                    self._cards[card] += number
        return self._cards

    def rows_of(self, nodes: Sequence[str]) -> Integers:
        """Return the row of each node, -1 for an unknown node."""
        return np.fromiter(map(self._row_of.get, nodes, repeat(-1)), np.int64, len(nodes))

    def node_changed(self, name: str) -> None:
        """Note that a node, or what pods hold of its GPUs, has changed."""
        if name in self._account.nodes or name in self._row_of:
            self._changed[name] = None
        else:  # gone before it got a row
            self._changed.pop(name, None)

    def pod_changed(self, before: Pod | None, after: Pod | None) -> None:
        """Note a new, changed or deleted pod."""
        for node in self._beside.replace(before, after):
            self.node_changed(node)

    def refresh(self) -> None:
        """Compute the rows of changed nodes anew."""
        if not self._changed:
            return
        changed, self._changed = self._changed, {}
        there, rebuild = [], False
        for name in changed:
            node = self._account.nodes.get(name)
            if node is not None:
                rebuild |= self._put(node)
                there.append(self._row_of[name])
            elif name in self._row_of:
                self._remove(name)
                rebuild = True
        if rebuild:
            self.policy.rebuild()
        elif there:
            self.policy.recompute(np.array(there))

    def _put(self, node: Node) -> bool:
        """Put a node into its row; return whether the row stood for another kind of node."""
        account = self._account.account_of(node.name)
        pieces = [] if node.unschedulable else _pieces(account)
        row = self._row_for(node.name, len(pieces))
        cpu, memory = node.allocatable.get(CPU, 0), node.allocatable.get(MEMORY, 0)
        taken_cpu, taken_memory = self._taken_on(account)
        kind = NodeKind(cpu, memory // MIB, len(pieces), pieces[0].model if pieces else "")
        cards = tuple([piece.card for piece in pieces])
        self.layout[row] = self._layouts.setdefault(cards, len(self._layouts))
        if self._layout_of.get(node.name) != cards:
            self._layout_of[node.name], self._cards = cards, None
        self.free[row] = 0
        self.free[row, : len(pieces)] = [piece.free for piece in pieces]
        self.other_policy[row] = node.policy not in {None, "packing"}
        percents = [WHOLE * piece.free // piece.card.units for piece in pieces]
        return self.rows.put(row, kind, percents, cpu - taken_cpu, (memory - taken_memory) // MIB)

    def _remove(self, name: str) -> None:
        row = self._row_of.pop(name)
        self._layout_of.pop(name)
        self._cards = None
        self._spare.append(row)
        self.rows.put(row, NodeKind(0, 0, 0), [], 0, 0)

    def _row_for(self, name: str, columns: int) -> int:
        """Return the row of a node, with room for so many cards; make a row for a new node."""
        if (row := self._row_of.get(name)) is None:
            row = self._row_of[name] = self._spare.pop() if self._spare else len(self._row_of)
        self._make_room(row, columns)
        return row

    def _make_room(self, row: int, columns: int) -> None:
        rows, wide = self.free.shape
        if row < rows and columns <= wide:
            return
        more = max(64, rows) if row >= rows else 0
        wider = max(0, columns - wide)
        self.layout = np.pad(self.layout, (0, more))
        self.other_policy = np.pad(self.other_policy, (0, more))
        self.free = np.pad(self.free, ((0, more), (0, wider)))
        self.rows.make_room(rows + more, wide + wider)

    def _taken_on(self, account: NodeAccount) -> tuple[int, int]:
        """Return the CPU and memory that pods take of a node, with pods that are being bound."""
        cpu, memory = self._beside.on(account.node.name)
        for each in account.reservations:
            known = self._account.pods.get(each.pod.uid, each.pod)
            if known.node is None:
                more_cpu, more_memory = _amounts(known.needs.demand)
                cpu, memory = cpu + more_cpu, memory + more_memory
        return cpu, memory


def _pieces(account: NodeAccount) -> list[_FreePiece]:
    """Return the free pieces of the cards of a node, in the order of the offers; a card counts once."""
    found = dict[str, _FreePiece]()
    for name, each in account.resources.items():
        if each.offer.kind in _KINDS:
            for gpu, free in zip(each.offer.gpus, each.free, strict=True):
                if gpu.reason is None and gpu.units and not gpu.is_instance:
                    found.setdefault(
                        gpu.name, _FreePiece(PackedCard(name, each.offer.kind, gpu.units), gpu.product, free)
                    )
    return list(found.values())


def _amounts(demand: Demand) -> tuple[int, int]:
    return demand.resources.get(CPU, 0), demand.resources.get(MEMORY, 0)
