"""One term of leadership: an account filled from the cluster, and the binder that promises from it.

The account is filled before the term begins; what an earlier leader promised last, the binder makes sure of.
"""

from dataclasses import dataclass

from gpushare_plugin.foundation.errors import GpushareError
from gpushare_plugin.model.account.cluster import ClusterAccount
from gpushare_plugin.model.account.search.disruption import Disruptions
from gpushare_plugin.programs.scheduler.binder import Binder


class NotLeadingError(GpushareError):
    """This process must not decide: another one leads, or the cluster has not been listed yet."""


@dataclass(frozen=True, slots=True)
class LeaderTerm:
    """A complete account, what evictions disrupt, what binds pods by it, and the number that the election gave it."""

    number: int
    account: ClusterAccount
    disruptions: Disruptions
    binder: Binder
