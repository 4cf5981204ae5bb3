"""What pods of a live cluster ask of its cards, in percent of a card.

A share is a part of a card: of its memory, its replicas, its MIG instances or its compute. A slice, under MPS or by a
MIG profile, is the part that the memory of the slice is of the memory of the card. All shares of a pod count as one.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from gpushare_plugin.base.memory import MIB_PER_GIB
from gpushare_plugin.ledger.node import Node, OfferedResource
from gpushare_plugin.packing.pod_kind import WHOLE, percent_of_units
from gpushare_plugin.slices.slice import slice_of


def cards(node: Node) -> dict[int, str]:
    """Return the model of each card of which pods can get units, by index."""
    gpus = (gpu for offer in node.offers.values() for gpu in offer.gpus if gpu.reason is None)
    return {gpu.index: gpu.product.partition(" MIG ")[0] or "unknown" for gpu in gpus}


class Shares:
    """What pods ask of the cards of a cluster."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        """Know the nodes that have cards."""
        self._nodes = {node.name: node for node in nodes}
        offers = defaultdict[str, Counter[tuple[str, int]]](Counter)
        for node in nodes:
            for resource, offer in node.offers.items():
                offers[resource][offer.kind, _units_of_card(offer)] += 1
        self._offers = {resource: found.most_common(1)[0][0] for resource, found in offers.items()}
        sizes = Counter(filter(None, map(_card_gib, nodes))).most_common(1)
        self._card_gib = sizes[0][0] if sizes else 0.0

    def of(self, amounts: Mapping[str, int], on: str | None) -> tuple[int, int]:
        """Return the number of GPUs that a pod asks for, and the part of each in percent; (0, 100) without GPUs.

        `amounts` are the units by resource, and `on` is the node of the pod. For a pod without a node, the commonest
        cards of the cluster count.
        """
        node = self._nodes.get(on or "")
        percent = compute = 0
        for resource, units in amounts.items():
            kind, most = self._offer(resource, node)
            if slice_of(resource) is not None:
                percent += units * self._slice_percent(resource, node)
            elif kind == "cores":
                compute += units
            elif most:
                percent += percent_of_units(units, most) if units < most else -(-WHOLE * units // most)
        percent = percent or compute
        return (1, percent) if 0 < percent < WHOLE else (-(-percent // WHOLE), WHOLE)

    def _offer(self, resource: str, node: Node | None) -> tuple[str, int]:
        """Return the kind of a resource, and the units of a card; an empty kind if no node offers the resource."""
        offer = None if node is None else node.offers.get(resource)
        if offer is not None:
            return offer.kind, _units_of_card(offer)
        return self._offers.get(resource, ("", 0))

    def _slice_percent(self, resource: str, node: Node | None) -> int:
        meant, gib = slice_of(resource), (node is not None and _card_gib(node)) or self._card_gib
        return WHOLE if meant is None or not gib else max(1, min(WHOLE, round(WHOLE * meant.gib / gib)))


def _units_of_card(offer: OfferedResource) -> int:
    """Return the most units of a card: of a card with MIG instances, the units of all of its instances."""
    units = Counter[int]()
    for gpu in offer.gpus:
        units[gpu.index] += gpu.units
    return max(units.values(), default=0)


def _card_gib(node: Node) -> float:
    """Return the memory of the largest card of a node in GiB; 0 if unknown.

    MIG instances hide the memory of their card: then the memory of its instances counts.
    """
    if node.record is None:
        return 0.0
    whole, parts = Counter[int](), Counter[int]()
    instances = dict[str, int]()
    for gpu in node.record.gpus:
        if gpu.profile is None:
            whole[gpu.index] = max(whole[gpu.index], gpu.memory_mib)
        elif gpu.uuid not in instances:
            instances[gpu.uuid] = gpu.memory_mib
            parts[gpu.index] += gpu.memory_mib
    return max((whole | parts).values(), default=0) / MIB_PER_GIB
