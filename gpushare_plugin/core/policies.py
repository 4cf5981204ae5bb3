"""The policies: the order in which GPUs and nodes are taken.

The node, the ledger, the config, the labels, the chart and the documents all follow the tables of this module. A new
policy is a name in `PolicyName`, and a line in `POLICIES` and in `NODE_POLICIES` (for replicas: in `ReplicaPolicyName`
and `REPLICA_POLICIES`). Documents and the chart are compared with the tables by `tests/project/test_enumerations.py`.
No test asks for the new policy in `claims/devices.py`, `sharing/by_claim.py`, the comparison of
`simulator/policies/table.py`, the description of `placement` in `config/schema/sections.py`, and `tests/verdicts`:
decide on each by hand.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal, Protocol, TypeGuard, TypeVar

from gpushare_plugin.base.structs import Struct
from gpushare_plugin.packing.pod_kind import WHOLE, percent_of_units
from gpushare_plugin.packing.values import Values, share_cost

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

PolicyName = Literal["binpack", "spread", "packing"]
"""The policies of a cluster for memory, compute and slices, and of a node for memory and compute."""
ReplicaPolicyName = Literal["distributed", "packed", "spread"]
"""The policies for replicas."""


class UnitCounts(Struct, frozen=True):
    """The number of units of one GPU, free and in all."""

    index: int
    """The index of the GPU, which breaks ties."""
    free: int
    """The number of free units."""
    total: int
    """The number of all units."""

    @property
    def used(self) -> int:
        """The number of units that are not free."""
        return self.total - self.free

    def cost(self, size: int, values: Values) -> float:
        """Return what `size` of the free units cost by what free pieces are worth: see docs/adr/0029."""
        free = WHOLE * self.free // self.total
        return share_cost(values, free, min(free, percent_of_units(size, self.total)))


Order = Callable[[UnitCounts, int, Values], tuple[float, int]]
"""Returns the rank of a GPU on its node for a request of so many units: the GPU with the lowest rank is taken.

The last argument is what each free piece of a GPU is worth to the node.
"""

ReplicaOrder = Callable[[UnitCounts, int], tuple[int, int, int]]
"""Returns the rank of a GPU for one more replica, from the units of the GPU and the replicas already chosen there.

The replicas already chosen are replicas of the GPU for the same request. The GPU with the lowest rank is taken.
"""

Numbers = TypeVar("Numbers", float, "NDArray[np.float64]")
"""A number, or an array of numbers: of one GPU, or of many GPUs at the same time."""

Price = tuple[float, ...]
"""The price of a GPU for a request.

Prices compare like tuples, and the lowest price is best. The first number, from 0 to 1, ranks nodes.
"""


class PriceOf(Protocol):
    """Returns the price of a GPU for a request, or the prices of many GPUs."""

    def __call__(
        self, gpu: Numbers, node: Numbers, replicas: Numbers | int = 0, node_replicas: int = 0, /
    ) -> tuple[Numbers | float, ...]:
        """Return the price of a GPU as if the request were already on the GPU.

        `gpu` is the number of free units of the GPU, divided by the units of the largest GPU of the node. `node` is the
        number of free units of the node, divided by all units of the node. `replicas` is the number of other pods of
        the same owner on the GPU, `node_replicas` the number of such pods on the node.
        """


class Policy(Struct, frozen=True):
    """A policy of a cluster for memory, compute and slices."""

    price: PriceOf
    """The price of a GPU in a cluster."""
    separates_replicas: bool = False
    """Whether a GPU without pods of the same owner is cheaper than a GPU with pods of the owner."""
    learns: bool = False
    """Whether costs that were learned from pods choose the GPU of a node, where something was learned."""


def binpack(
    gpu: Numbers, node: Numbers, _replicas: Numbers | int = 0, _node_replicas: int = 0, /
) -> tuple[Numbers | float, ...]:
    """Prefer the GPU with least room, on the node with least room, to keep GPUs and nodes free for large pods."""
    return ((gpu + node) / 2,)


def spread(
    gpu: Numbers, node: Numbers, replicas: Numbers | int = 0, node_replicas: int = 0, /
) -> tuple[Numbers | float, ...]:
    """Prefer the GPU with most room, on the node with most room, and avoid GPUs and nodes with a pod of the owner.

    Nodes without a pod of the owner come first, then nodes with the fewest pods of the owner, where more than five pods
    count as five. On a node, GPUs with the fewest pods of the owner come first.
    """
    full = 1 - (gpu + node) / 2
    if not node_replicas:
        return (full / 2,)
    return 0.5 + min(5, node_replicas) / 10, replicas, full


POLICIES: Mapping[str, Policy] = {
    "binpack": Policy(binpack),
    "spread": Policy(spread, separates_replicas=True),
    "packing": Policy(binpack, learns=True),
}
"""The policies of a cluster for memory, compute and slices, by name."""

NODE_POLICIES: Mapping[str, Order] = {
    "binpack": lambda gpu, _size, _values: (gpu.free, gpu.index),
    "spread": lambda gpu, _size, _values: (-gpu.free, gpu.index),
    "packing": lambda gpu, size, values: (gpu.cost(size, values), gpu.index),
}
"""The policies of a node for memory and compute, by name."""

DEFAULT_POLICY: PolicyName = "binpack"
"""The default policy for memory, compute and slices, of a cluster and of a node."""

REPLICA_POLICIES: Mapping[str, ReplicaOrder] = {
    "distributed": lambda gpu, chosen: (gpu.used, chosen, gpu.index),
    "packed": lambda gpu, chosen: (-gpu.used, chosen, gpu.index),
    "spread": lambda gpu, chosen: (chosen, gpu.used, gpu.index),
}
"""The policies for replicas, used by the node only: the values of NVIDIA's `sharedDevicesAllocationPolicy`."""

DEFAULT_REPLICA_POLICY: ReplicaPolicyName = "distributed"
"""The default policy for replicas."""


def policy_for(pod: str | None, node: str | None, default: str) -> Policy:
    """Return the policy for a pod on a node: the policy that the pod names, or else the node, or else the default."""
    return POLICIES[pod or node or default]


def is_policy(name: str | None) -> TypeGuard[PolicyName]:
    """Return whether a text names a policy."""
    return name in POLICIES


def is_replica_policy(name: str | None) -> TypeGuard[ReplicaPolicyName]:
    """Return whether a text names a policy for replicas."""
    return name in REPLICA_POLICIES
