"""Placement policies of the cluster: one function each, over one loop in `fitting`."""

from collections.abc import Mapping
from typing import Literal, Protocol

from gpushare_plugin.foundation.structs import Struct

Price = tuple[float, ...]
"""What a GPU costs a request; prices compare like tuples, the least is best. The first number, 0 to 1, ranks nodes."""


class PriceOf(Protocol):
    """Says what a GPU costs a request; called for each of thousands of nodes, so it takes plain numbers."""

    def __call__(self, gpu: float, node: float, replicas: int = 0, node_replicas: int = 0, /) -> Price:
        """Return the price of a GPU as it would be with the request on it.

        `gpu` are its free units as a part of those of the node's largest GPU, `node` those of the node as a part of all
        that it has. `replicas` are other pods of the same owner on this GPU, `node_replicas` those on the node.
        """


class Policy(Struct, frozen=True):
    """A policy: the price of a GPU.

    `prefers` says which of GPUs of a node is cheapest where they differ in their free units only: always the one with
    fewest, always the one with most, or (None) now this one and now that one. Where that is known, the others need no
    price. `separates_replicas` is whether a GPU without pods of the same owner is cheaper than one that has some.
    """

    price: PriceOf
    prefers: Literal["fullest", "emptiest"] | None = None
    separates_replicas: bool = False


def binpack(gpu: float, node: float, _replicas: int = 0, _node_replicas: int = 0, /) -> Price:
    """Prefer the GPU with least room, on the node with least room, so that GPUs and nodes stay free for large pods."""
    return ((gpu + node) / 2,)


def spread(gpu: float, node: float, replicas: int = 0, node_replicas: int = 0, /) -> Price:
    """Prefer the GPU with most room, on the node with most room, and none where the owner has a pod already.

    Nodes without a pod of the owner come first, then those with fewest; on a node, GPUs likewise.
    """
    full = 1 - (gpu + node) / 2
    if not node_replicas:
        return (full / 2,)
    return 0.5 + min(5, node_replicas) / 10, replicas, full


POLICIES: Mapping[str, Policy] = {
    "binpack": Policy(binpack, "fullest"),
    "spread": Policy(spread, "emptiest", separates_replicas=True),
}

DEFAULT_POLICY = "binpack"
