"""Which few pods, if moved, would free a whole card, or room for a waiting pod; pure, and advice only.

The work is linear in the GPUs and pods of the cluster, and then bounded: the MOST_CARDS cards, or the MOST_NODES nodes,
with the fewest pods in the way are examined.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from gpushare_plugin.base.structs import Struct
from gpushare_plugin.ledger.kube_scheduler import admits
from gpushare_plugin.ledger.moving import First, Move, Moving
from gpushare_plugin.ledger.node import Node, OfferedGpu
from gpushare_plugin.ledger.occupancy import NodeAccount, ResourceAccount
from gpushare_plugin.ledger.pod import Pod
from gpushare_plugin.ledger.verdicts import NodeMisfit
from gpushare_plugin.ledger.victims import EvictionCosts, Importance, VictimCandidates
from gpushare_plugin.slices.slice import slice_of

MOST_MOVED = 3
"""The most pods that are moved for one card, or for the room of one pod."""
MOST_CARDS = 200
"""The most cards that are examined."""
MOST_NODES = 40
"""The most nodes that are examined for a waiting pod."""


class StrandedCard(Struct, frozen=True):
    """A card, with the pods that have units of the card."""

    node: str
    """The name of the node."""
    index: int
    """The index of the card."""
    gpus: frozenset[str]
    """The names of the card and of its MIG instances."""
    pods: tuple[Pod, ...]
    """The pods with units of the card."""
    idle: tuple[str, ...] = ()
    """The resources of the idle slices and MIG instances of the card, one for each."""
    taken: float = 0.0
    """The part of the units of the card that pods have."""


class Relief(Struct, frozen=True):
    """What is freed if some pods are moved."""

    node: str
    """The name of the node."""
    moves: tuple[Move, ...]
    """The pods, and where they go."""
    index: int | None = None
    """The index of the card that is freed, or that has room then; None for room on any GPUs of the node."""
    idle: tuple[str, ...] = ()
    """The resources of the idle slices and MIG instances that keep the card from being whole, one for each."""


class Found(Struct, frozen=True):
    """The result of a search."""

    reliefs: tuple[Relief, ...]
    """What can be freed, the smallest disruption first."""
    candidates: int
    """The number of cards and nodes of which those with the fewest pods in the way were examined."""


def gpus_of(account: NodeAccount, index: int) -> frozenset[str]:
    """Return the names of a card of a node, and of the MIG instances of the card."""
    offered = (gpu for each in account.resources.values() for gpu in each.offer.gpus)
    return frozenset(gpu.name for gpu in offered if gpu.index == index)


def cards(account: NodeAccount, moving: Moving) -> Iterator[StrandedCard]:
    """Yield the usable cards of a node that can be freed, because all pods with units of the card can be moved.

    A card with slices that are kept for a waiting pod is not freed.
    """
    by_index: dict[int, list[tuple[ResourceAccount, OfferedGpu, int]]] = {}
    blocked = set(_kept(account.node))
    for each in account.resources.values():
        for gpu, free in zip(each.offer.gpus, each.free, strict=True):
            by_index.setdefault(gpu.index, []).append((each, gpu, free))
            if gpu.reason is not None or each.unplaced or _is_whole(each, gpu):
                blocked.add(gpu.index)
    for index in sorted(by_index.keys() - blocked):
        card = _card(account.node.name, index, by_index[index])
        if all(moving.is_movable(pod) for pod in card.pods):
            yield card


def _kept(node: Node) -> Iterator[int]:
    """Yield the indexes of the cards with slices that are kept for waiting pods."""
    if node.record is not None and node.wanted is not None:
        kept = {each.gpu for slices in node.wanted.pods.values() for each in slices}
        yield from (gpu.index for gpu in node.record.gpus if gpu.uuid in kept)


def _is_whole(account: ResourceAccount, gpu: OfferedGpu) -> bool:
    """Return whether one pod has all of a card: the pod would take another whole card elsewhere."""
    whole = (each.gpu == gpu.name and each.units >= gpu.units for each in account.holdings)
    return not _is_slice(account, gpu) and any(whole)


def _is_slice(account: ResourceAccount, gpu: OfferedGpu) -> bool:
    """Return whether the units of a GPU are slices, or the GPU is a MIG instance."""
    return gpu.is_instance or slice_of(account.offer.resource) is not None


def _card(node: str, index: int, parts: Sequence[tuple[ResourceAccount, OfferedGpu, int]]) -> StrandedCard:
    pods, idle, taken = dict[str, Pod](), list[str](), 0.0
    for account, gpu, free in parts:
        held = [each for each in account.holdings if each.gpu == gpu.name]
        pods |= {each.pod.uid: each.pod for each in held}
        taken += sum(each.units for each in held) / max(1, gpu.units)
        if _is_slice(account, gpu) and not (gpu.is_instance and held):
            idle += [account.offer.resource] * free
    return StrandedCard(
        node, index, frozenset(gpu.name for _, gpu, _ in parts), tuple(pods.values()), tuple(idle), taken
    )


def free_cards(moving: Moving) -> Found:
    """Return the cards that are free if some pods are moved to used cards; each counts on the moves before.

    A card without pods that is cut into slices or MIG instances is free without any move.
    """
    accounts = map(moving.account.account_of, list(moving.account.nodes))
    found = [card for account in accounts for card in cards(account, moving) if _can_be_freed(card)]
    found.sort(key=lambda card: _disruption(moving, card))
    reliefs: list[Relief] = []
    receiving: set[tuple[str, str]] = set()
    for card in found[:MOST_CARDS]:
        received = any((card.node, gpu) in receiving for gpu in card.gpus)
        if received or not all(map(moving.is_movable, card.pods)):
            continue
        moves = moving.move(card.pods, card.gpus, to_idle=False)
        if moves is not None:
            receiving.update((move.place.node, share.gpu) for move in moves for share in move.place.shares)
            reliefs.append(Relief(card.node, tuple(moves), card.index, card.idle))
    return Found(tuple(reliefs), len(found))


def _can_be_freed(card: StrandedCard) -> bool:
    return len(card.pods) <= MOST_MOVED if card.pods else bool(card.idle)


def _disruption(moving: Moving, card: StrandedCard) -> tuple[object, ...]:
    """Return the rank of a card: few pods first, then pods that are made again, then little that is taken."""
    lost = sum(not moving.controller(pod) for pod in card.pods)
    return len(card.pods), lost, card.taken, card.node, card.index


def room_for(moving: Moving, pod: Pod) -> Found:
    """Return the nodes where a waiting pod has room if some pods are moved; each alone is enough."""
    nodes = sorted(_in_the_way(moving, pod))
    reliefs = []
    for _, node in nodes[:MOST_NODES]:
        others = [each for each in moving.account.account_of(node).pods if moving.is_movable(each)]
        candidates = VictimCandidates(certain=(), others=others, costs=EvictionCosts(partial(_importance, moving)))
        found = moving.account.victims(pod, node, candidates)
        if found and len(found) <= MOST_MOVED:
            moves = moving.move(found, to_idle=True, first=First(pod, node))
            if moves is not None:
                moving.put_back(found)
                reliefs.append(Relief(node, tuple(moves)))
    return Found(tuple(sorted(reliefs, key=lambda relief: len(relief.moves))), len(nodes))


def _importance(moving: Moving, pod: Pod) -> Importance:
    """Return the importance of a pod: one that nobody makes again counts most, and then one with a high priority."""
    return not moving.controller(pod), pod.priority, sum(pod.request.amounts.values())


def _in_the_way(moving: Moving, pod: Pod) -> Iterator[tuple[int, str]]:
    """Yield the nodes where a pod has too few units, each with the least number of pods that have to go."""
    admitting = [name for name, node in moving.account.nodes.items() if admits(pod.needs.constraints, node)]
    for name in admitting:
        misfit = moving.account.fit_pod(pod, name)
        if isinstance(misfit, NodeMisfit) and misfit.curable:
            there = misfit.account
            held = sorted((each.units for each in there.holdings if moving.is_movable(each.pod)), reverse=True)
            if (count := _fewest(held, misfit.missing)) is not None and count <= MOST_MOVED:
                yield count, name


def _fewest(held: Iterable[int], missing: int) -> int | None:
    """Return how many of the largest numbers of units are at least the missing units; None if all are not enough."""
    for count, units in enumerate(held, start=1):
        missing -= units
        if missing <= 0:
            return count
    return None
