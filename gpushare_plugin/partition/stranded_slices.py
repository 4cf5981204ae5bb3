"""Which few pods, if moved, would leave room on a partitioned card for the slice of a waiting pod; advice only.

The work is linear in the GPUs and pods of the cluster, and then bounded: the MOST_CARDS cards of which pods have least
are examined, each with its pods that have most.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

from gpushare_plugin.base.structs import Struct
from gpushare_plugin.ledger.cluster import ClusterAccount
from gpushare_plugin.ledger.kube_scheduler import admits
from gpushare_plugin.ledger.moving import Moving
from gpushare_plugin.ledger.occupancy import NodeAccount
from gpushare_plugin.ledger.pod import Pod
from gpushare_plugin.ledger.stranded import MOST_CARDS, MOST_MOVED, Found, Relief, gpus_of
from gpushare_plugin.partition.conversion import MigLayout, mig_layout, partition_node_of
from gpushare_plugin.partition.nodes import PartitionGpu
from gpushare_plugin.slices.room import Layout
from gpushare_plugin.slices.slice import Slice, slice_of

_MOST_TRIED_TOGETHER = 8
"""The most pods of a card that are tried in sets."""


class CutCard(Struct, frozen=True):
    """A partitioned card with the slices of each pod."""

    node: str
    """The name of the node."""
    gpu: PartitionGpu
    """The card."""
    held: Mapping[str, tuple[str, ...]]
    """The slices on the card by the UID of the pod."""

    @property
    def parts(self) -> int:
        """The parts of the card that pods have."""
        return sum(map(self.gpu.room.parts_taken, (name for names in self.held.values() for name in names)))

    def has_room(self, wanted: Slice, without: Sequence[Pod] = ()) -> bool:
        """Return whether the card has room for a slice without some pods; idle slices may be removed."""
        gone = {pod.uid for pod in without}
        fixed = sorted(name for uid, names in self.held.items() if uid not in gone for name in names)
        return bool(self.gpu.room.options(Layout(fixed=tuple(fixed)), wanted))


def slice_for(moving: Moving, pod: Pod) -> Found:
    """Return the cards with room for the largest slice of a pod if some other pods are moved; each alone is enough."""
    wanted = pod.request.slices[0]
    found = [card for card in _cut_cards(moving.account, pod) if not card.has_room(wanted)]
    found.sort(key=lambda card: (card.parts, card.node, card.gpu.index))
    reliefs = []
    for card in found[:MOST_CARDS]:
        account = moving.account.account_of(card.node)
        pods = _fewest(card, wanted, [each for each in account.pods if moving.is_movable(each)])
        if pods and (moves := moving.move(pods, gpus_of(account, card.gpu.index), to_idle=True)) is not None:
            moving.put_back(pods)
            reliefs.append(Relief(card.node, tuple(moves), card.gpu.index))
    return Found(tuple(sorted(reliefs, key=lambda relief: len(relief.moves))), len(found))


def card_with_room(account: ClusterAccount, pod: Pod) -> CutCard | None:
    """Return a partitioned card with room for the largest slice of a waiting pod; None without one."""
    wanted = pod.request.slices[0]
    return next((card for card in _cut_cards(account, pod) if card.has_room(wanted)), None)


def _cut_cards(account: ClusterAccount, waiting: Pod) -> Iterator[CutCard]:
    """Yield the usable partitioned cards of the nodes where a pod can run."""
    for name, node in account.nodes.items():
        if admits(waiting.needs.constraints, node):
            yield from _of_node(account.account_of(name), waiting)


def _of_node(account: NodeAccount, waiting: Pod) -> Iterator[CutCard]:
    """Yield the usable partitioned cards of a node; none while slices are held on unknown cards.

    Slices that are kept for other pods than `waiting` count as held.
    """
    node, record = partition_node_of(account), account.node.record
    if node is None or record is None or node.unplaced:
        return
    layout = mig_layout(record)
    for gpu in node.gpus:
        if gpu.reason is None:
            kept = {
                uid: tuple(each.slice for each in slices if each.gpu == gpu.uuid)
                for uid, slices in node.wanted.pods.items()
                if uid != waiting.uid
            }
            yield CutCard(node.name, gpu, {**kept, **dict(_held(account, layout, gpu.uuid))})


def _held(account: NodeAccount, layout: MigLayout, card: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the UID of each pod with slices of a card, and the names of the slices."""
    held: dict[str, list[str]] = {}
    for resource, there in account.resources.items():
        meant = slice_of(resource)
        for each in there.holdings if meant is not None else ():
            if each.gpu == card and meant is not None:
                held.setdefault(each.pod.uid, []).extend([meant.name] * each.units)
            elif each.gpu in layout.places and layout.places[each.gpu][0] == card:
                held.setdefault(each.pod.uid, []).append(str(layout.places[each.gpu][1]))
    yield from ((uid, tuple(names)) for uid, names in held.items())


def _fewest(card: CutCard, wanted: Slice, movable: Sequence[Pod]) -> Sequence[Pod]:
    """Return the fewest pods without which a card has room for a slice; empty if too many are in the way."""

    def parts(pods: Sequence[Pod]) -> int:
        return sum(card.gpu.room.parts_taken(name) for pod in pods for name in card.held[pod.uid])

    there = [pod for pod in movable if pod.uid in card.held]
    there = sorted(there, key=lambda pod: -parts([pod]))[:_MOST_TRIED_TOGETHER]
    for count in range(1, MOST_MOVED + 1):
        enough = [pods for pods in combinations(there, count) if card.has_room(wanted, pods)]
        if enough:
            return min(enough, key=parts)
    return ()
