"""Placement policies of the cluster: one function each, over one loop in `fitting`."""

from collections.abc import Callable, Mapping
from typing import Literal

from gpushare_plugin.foundation.structs import Struct


class Candidate(Struct, frozen=True, gc=False):
    """A GPU as it would be with the request on it.

    `left` are the units that it would have free, `largest` the units of the node's largest GPU; `node_left` of
    `node_units` would be free on the node. `replicas` are other pods of the same owner on this GPU, `node_replicas`
    those on the node.
    """

    left: int
    largest: int
    node_left: int
    node_units: int
    replicas: int = 0
    node_replicas: int = 0


Price = tuple[float, ...]
"""What a GPU costs a request; prices compare like tuples, the least is best. The first number, 0 to 1, ranks nodes."""


class Policy(Struct, frozen=True):
    """A policy: the price of a GPU.

    `prefers` says which of GPUs of a node is cheapest where they differ in their free units only: always the one with
    fewest, always the one with most, or (None) now this one and now that one. Where that is known, the others need no
    price. `separates_replicas` is whether a GPU without pods of the same owner is cheaper than one that has some.
    """

    price: Callable[[Candidate], Price]
    prefers: Literal["fullest", "emptiest"] | None = None
    separates_replicas: bool = False


def binpack(gpu: Candidate) -> Price:
    """Prefer the GPU with least room, on the node with least room, so that GPUs and nodes stay free for large pods."""
    return ((gpu.left / gpu.largest + gpu.node_left / gpu.node_units) / 2,)


def spread(gpu: Candidate) -> Price:
    """Prefer the GPU with most room, on the node with most room, and none where the owner has a pod already.

    Nodes without a pod of the owner come first, then those with fewest; on a node, GPUs likewise.
    """
    full = 1 - binpack(gpu)[0]
    if not gpu.node_replicas:
        return (full / 2,)
    return 0.5 + min(5, gpu.node_replicas) / 10, gpu.replicas, full


POLICIES: Mapping[str, Policy] = {
    "binpack": Policy(binpack, "fullest"),
    "spread": Policy(spread, "emptiest", separates_replicas=True),
}

DEFAULT_POLICY = "binpack"
