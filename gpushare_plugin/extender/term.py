"""A term of leadership: an account filled from the cluster, and the binder that makes promises in the account.

The account is filled before the term begins; the binder makes sure of the last promises of an earlier leader.
"""

from dataclasses import dataclass

from gpushare_plugin.base.errors import GpushareError
from gpushare_plugin.extender.binder import Binder
from gpushare_plugin.extender.learning import Learning
from gpushare_plugin.ledger.cluster import ClusterAccount
from gpushare_plugin.ledger.disruption import Disruptions
from gpushare_plugin.ledger.packed import PackedCluster


class NotLeadingError(GpushareError):
    """This process must not decide: another extender leads, or the cluster has not been listed yet."""


@dataclass(frozen=True, slots=True)
class LeaderTerm:
    """A term of leadership with a complete account."""

    number: int
    """The number of the term in the election."""
    account: ClusterAccount
    """The account of the cluster."""
    disruptions: Disruptions
    """The disruption budgets, and the costs of evictions."""
    binder: Binder
    """The binder of pods, with promises in the account."""
    learning: Learning | None = None
    """What the policy `packing` learns; None where the default is another policy."""

    @property
    def packed(self) -> PackedCluster | None:
        """The policy `packing` in the cluster; None where the default is another policy."""
        return None if self.learning is None else self.learning.packed
