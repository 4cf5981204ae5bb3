"""The policies: in which order GPUs, and nodes, are taken.

These are the one table of the node, the ledger, the config, the labels, the chart and the documents. A new policy is a
name in a `Literal` and a line of its table. Whatever else has to name the policy is generated from the table, or
compared with the table by `tests/project/test_enumerations.py`.
"""

from collections.abc import Callable, Mapping
from typing import Literal, Protocol, TypeGuard

from gpushare_plugin.foundation.structs import Struct

PolicyName = Literal["binpack", "spread"]
ReplicaPolicyName = Literal["distributed", "packed", "spread"]


class Occupancy(Struct, frozen=True):
    """How full one GPU is, in units: `free` of `total`; `index` breaks ties."""

    index: int
    free: int
    total: int

    @property
    def used(self) -> int:
        """Units of this GPU that are held."""
        return self.total - self.free


Order = Callable[[Occupancy], tuple[int, int]]
"""Says where a GPU of a node stands: the GPU with the least value is taken."""

ReplicaOrder = Callable[[Occupancy, int], tuple[int, int, int]]
"""The same for one more replica, by the occupancy of a GPU and the replicas that the same request has chosen of it."""

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
    """A policy for memory, compute and slices: the order of the GPUs of one node, and the price of a GPU in a cluster.

    `prefers` says which of GPUs of a node is cheapest where they differ in their free units only: always the one with
    fewest, always the one with most, or (None) now this one and now that one. Where that is known, the others need no
    price. `separates_replicas` is whether a GPU without pods of the same owner is cheaper than one that has some.
    """

    order: Order
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
    "binpack": Policy(lambda gpu: (gpu.free, gpu.index), binpack, "fullest"),
    "spread": Policy(lambda gpu: (-gpu.free, gpu.index), spread, "emptiest", separates_replicas=True),
}

DEFAULT_POLICY: PolicyName = "binpack"

REPLICA_POLICIES: Mapping[str, ReplicaOrder] = {
    "distributed": lambda gpu, chosen: (gpu.used, chosen, gpu.index),
    "packed": lambda gpu, chosen: (-gpu.used, chosen, gpu.index),
    "spread": lambda gpu, chosen: (chosen, gpu.used, gpu.index),
}
"""The policies for replicas, which only the node has: the values of NVIDIA's `sharedDevicesAllocationPolicy`."""

DEFAULT_REPLICA_POLICY: ReplicaPolicyName = "distributed"


def is_policy(name: str | None) -> TypeGuard[PolicyName]:
    """Return whether a text names a policy."""
    return name in POLICIES


def is_replica_policy(name: str | None) -> TypeGuard[ReplicaPolicyName]:
    """Return whether a text names a policy for replicas."""
    return name in REPLICA_POLICIES
