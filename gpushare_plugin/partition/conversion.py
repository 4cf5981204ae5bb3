"""Converts the account of a node into the node of a decision.

A node with a record that cannot be true is left out, with the reason, and the decision serves all remaining nodes.
"""

from collections import Counter
from collections.abc import Mapping

from gpushare_plugin.base.errors import GpushareError
from gpushare_plugin.base.structs import Struct
from gpushare_plugin.core.gpu import gpu_label
from gpushare_plugin.ledger.node_record import GPUS_ANNOTATION, GpuRecord, NodeRecord
from gpushare_plugin.ledger.occupancy import NodeAccount
from gpushare_plugin.ledger.request import MOST_SLICES_OF_A_POD
from gpushare_plugin.partition.nodes import PartitionGpu, PartitionNode, left_out
from gpushare_plugin.slices.memory import MOST_MPS_CLIENTS, MemoryRoom
from gpushare_plugin.slices.mig import MigRoom
from gpushare_plugin.slices.slice import MigPlace, SliceKind, slice_of
from gpushare_plugin.slices.wanted import MOST_SLICES, Wanted

MOST_GPUS = 64
"""The most GPUs in the record of a node; a record with more GPUs cannot be true, since no machine has more."""


class _UntrueError(GpushareError):
    """The record of a node cannot be true."""


class MigLayout(Struct, frozen=True):
    """The rooms of the MIG cards of a node, and the places of the MIG instances.

    An instance at no place of the room of the card is left alone, and takes memory and compute slices from the room.
    """

    rooms: Mapping[str, MigRoom]
    """The rooms of the cards, by the UUID of the card; a card without a room is not partitioned."""
    places: Mapping[str, tuple[str, MigPlace]]
    """The card and the place of an instance, by the UUID of the instance."""


def mig_layout(record: NodeRecord) -> MigLayout:
    """Return the rooms and places of the MIG cards in the record of a node."""
    rooms = {each.uuid: MigRoom.of(each.profiles) for each in record.gpus if each.profiles}
    cards = {each.index: each.uuid for each in record.gpus if each.profile is None}
    places: dict[str, tuple[str, MigPlace]] = {}
    others: dict[str, list[tuple[str, int | None]]] = {}
    for each in record.gpus:
        if each.profile is None or (card := cards.get(each.index)) not in rooms:
            continue
        place = None if each.start is None else MigPlace(each.profile, each.start)
        if place is not None and rooms[card].has(str(place)):
            places[each.uuid] = card, place
        else:
            others.setdefault(card, []).append((each.profile, each.start))
    return MigLayout({card: room.blocked_by(others.get(card, ())) for card, room in rooms.items()}, places)


def partition_node_of(account: NodeAccount) -> PartitionNode | None:
    """Convert the account of a node into the node of a decision.

    None if the daemon of the node does not follow the annotation of wanted slices. A node with a record that cannot be
    true becomes a node that is left out.
    """
    record = account.node.record
    if record is None or record.partitioning is None:
        return None
    try:
        return _of_record(account, record, record.partitioning)
    except _UntrueError as error:
        return left_out(account.node.name, f"annotation {GPUS_ANNOTATION}: {error}")


def _of_record(account: NodeAccount, record: NodeRecord, partitioning: SliceKind) -> PartitionNode:
    mig = mig_layout(record)
    held, unplaced = _holders(account, mig)
    cards: dict[str, list[GpuRecord]] = {}
    for each in record.gpus:
        if each.profile is None:
            cards.setdefault(each.uuid, []).append(each)
    if len(cards) > MOST_GPUS:
        raise _UntrueError(f"{len(cards)} GPUs found, and {MOST_GPUS} at most can be partitioned")
    convert = _mps_gpu if partitioning == "mps" else _mig_gpu
    gpus = [convert(records, record, mig, held.get(uuid, {})) for uuid, records in cards.items()]
    return PartitionNode(
        account.node.name,
        tuple(gpu for gpu in gpus if gpu is not None),
        account.node.wanted or Wanted(),
        unplaced,
        account.node.policy,
        _replicas(account, mig),
    )


def _mps_gpu(
    records: list[GpuRecord], record: NodeRecord, _mig: MigLayout, held: Mapping[str, int]
) -> PartitionGpu | None:
    """Return a card with memory divided under MPS, None for a card that has MIG instances."""
    card = records[0]
    if any(each.profile is not None and each.index == card.index for each in record.gpus):
        return None
    meant = ((slice_of(each.resource or ""), each.units) for each in records)
    listed = {of.name: units for of, units in meant if of is not None and of.kind == "mps"}
    if (count := sum(listed.values())) > MOST_SLICES:
        raise _UntrueError(f"GPU {gpu_label(card.index)} has {count} slices, and {MOST_SLICES} at most are possible")
    most = MOST_MPS_CLIENTS if card.most_slices is None else card.most_slices
    other = next((each.resource for each in records if each.resource and slice_of(each.resource) is None), None)
    return PartitionGpu(
        card.uuid,
        card.index,
        MemoryRoom.of(card.memory_mib, min(MOST_MPS_CLIENTS, most)),
        card.product or "",
        listed,
        held,
        _reason(card, other),
    )


def _mig_gpu(
    records: list[GpuRecord], record: NodeRecord, mig: MigLayout, held: Mapping[str, int]
) -> PartitionGpu | None:
    """Return a card divided into MIG instances, None for a card without a MIG room."""
    card = records[0]
    if (room := mig.rooms.get(card.uuid)) is None:
        return None
    offered = {each.uuid for each in record.gpus if each.profile is not None and each.resource}
    listed = {str(place): 1 for uuid, (parent, place) in mig.places.items() if parent == card.uuid and uuid in offered}
    return PartitionGpu(card.uuid, card.index, room, card.product or "", listed, held, _reason(card, None))


def _reason(card: GpuRecord, other: str | None) -> str | None:
    if not card.healthy:
        return f"unhealthy: {card.reason}" if card.reason else "unhealthy"
    if card.unsuitable:
        return card.reason or "it cannot be divided into slices"
    return f"offered as {other} by the config of the node" if other else None


def _replicas(account: NodeAccount, mig: MigLayout) -> dict[str, dict[str, tuple[str, ...]]]:
    """Return the cards of pods, by the UIDs of owner and pod; a pod on an unknown GPU has no cards."""
    replicas: dict[str, dict[str, tuple[str, ...]]] = {}
    for pod in account.pods:
        if pod.owner is not None:
            replicas.setdefault(pod.owner, {})[pod.uid] = ()
    for each in account.resources.values():
        for pod, gpu, *_ in each.holdings:
            if pod.owner is not None:
                card = mig.places[gpu][0] if gpu in mig.places else gpu
                replicas[pod.owner][pod.uid] = (*replicas[pod.owner][pod.uid], card)
    return replicas


def _holders(account: NodeAccount, mig: MigLayout) -> tuple[dict[str, Counter[str]], Counter[str]]:
    """Return the slices held by pods on known GPUs, by the UUID of the card, and the slices held on unknown GPUs."""
    held: dict[str, Counter[str]] = {}
    unplaced: Counter[str] = Counter()
    for resource, each in account.resources.items():
        if (meant := slice_of(resource)) is None:
            continue
        for holding in each.holdings:
            if meant.kind == "mps":
                counts = held.setdefault(holding.gpu, Counter())
                counts[meant.name] = min(MOST_SLICES, counts[meant.name] + holding.units)
            elif (there := mig.places.get(holding.gpu)) is not None and there[1].profile == meant.name:
                card, place = there
                held.setdefault(card, Counter())[str(place)] = 1
            else:
                unplaced[meant.name] += holding.units
        for somewhere in each.unplaced:
            unplaced[meant.name] += somewhere.units
    for pod in account.pods:
        # A resource that the node no longer offers, and that is placed on no GPU, has no entry in the account.
        for resource, amount in pod.request.amounts.items():
            if (meant := slice_of(resource)) is not None and meant.resource not in account.resources:
                unplaced[meant.name] += min(amount, MOST_SLICES_OF_A_POD + 1)
    return held, unplaced
