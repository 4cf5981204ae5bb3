"""A question to nodes: whether and where a pod fits, by the rules of the cluster."""

from dataclasses import dataclass, field
from typing import NamedTuple

from gpushare_plugin.core.policies import DEFAULT_POLICY
from gpushare_plugin.ledger.node import ALWAYS_OURS
from gpushare_plugin.ledger.request import PodRequest
from gpushare_plugin.packing.costs import ShareCosts


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules for the whole cluster."""

    policy: str = DEFAULT_POLICY
    """The policy if neither the pod nor the node names a policy."""
    ours: frozenset[str] = ALWAYS_OURS
    """The resources that the account decides: Aliyun's resources, and all resources in the record of any node.

    A record describes its own node only. `Node.has_none_of` tells whether another node has none of a resource.
    """
    costs: ShareCosts | None = field(default=None, compare=False)
    """What shares cost on each GPU of a node by the policy `packing`; None if nothing was learned: see `POLICIES`."""


class Ask(NamedTuple):
    """A question to a node, or to many nodes: whether and where a pod fits."""

    request: PodRequest
    """The request of the pod."""
    owner: str | None
    """The UID of the controller of the pod; None if other pods of the controller do not matter."""
    rules: Rules
    """The rules of the cluster."""
