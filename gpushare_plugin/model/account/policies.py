"""Placement policies of the cluster: one function each, over one loop in `fitting`."""

from collections.abc import Callable, Mapping
from typing import NamedTuple


class Candidate(NamedTuple):
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

Policy = Callable[[Candidate], Price]


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


POLICIES: Mapping[str, Policy] = {"binpack": binpack, "spread": spread}

DEFAULT_POLICY = "binpack"


def separates_replicas(policy: Policy) -> bool:
    """Return whether a policy prefers a GPU without pods of the same owner to one that has some."""
    there = Candidate(left=1, largest=2, node_left=2, node_units=4, replicas=1, node_replicas=1)
    return policy(there._replace(replicas=0)) < policy(there)
