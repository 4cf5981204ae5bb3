"""When an idle slice that is no longer wanted may be retired: once kube-scheduler has seen that it goes.

kube-scheduler goes by the status of the Node. A slice that became unhealthy while the Node shows it would be given to
a pod that the kubelet then rejects. So the slice is *withdrawn* first: the Node does not show it any more, but it stays
healthy, for a pod that was bound to it a moment ago. Pure.
"""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from gpushare_plugin.foundation.structs import Struct

WITHDRAWN_SECONDS = 1.0
"""How long the Node must not have shown a slice before that is retired.

kube-scheduler hears of the Node within milliseconds. Bindings that it has begun by then take some more, and as much
until this daemon and the kubelet hear of the pod; a busy API server takes some ten times as long.
"""
LONGEST_WITHDRAWN_SECONDS = 10.0
"""How long a slice is withdrawn at most: a pod that is never admitted, or a Node that cannot be written, is not waited
for any longer. The partitioner gives the slices that come instead to other nodes after 60 s."""


class Withdrawal(Struct, frozen=True):
    """A slice that is withdrawn `since` a time; `hidden_since` is when the Node stopped to show it, None if it has not.

    Times are in seconds of one clock.
    """

    since: float
    hidden_since: float | None = None


Withdrawals = Mapping[str, Withdrawal]
"""What is withdrawn, by ID."""


def withdrawn(
    before: Withdrawals, unwanted: Mapping[str, str], asked_for: AbstractSet[str], asked_at: float | None, now: float
) -> Withdrawals:
    """Return what is withdrawn now; whatever else is `unwanted` may be retired.

    `unwanted` are the slices that are offered, idle and no longer wanted: their resource by their ID. `asked_for` are
    the resources of which a pod of this node still has to be given something. At `asked_at` the kubelet said that the
    slices are idle, None where it does not say.
    """
    return {
        id_: withdrawal
        for id_, resource in unwanted.items()
        if not _is_over(withdrawal := before.get(id_, Withdrawal(now)), resource in asked_for, asked_at)
    }


def _is_over(withdrawal: Withdrawal, is_asked_for: bool, asked_at: float | None) -> bool:  # noqa: FBT001 - a fact
    if asked_at is None:
        return False
    if asked_at >= withdrawal.since + LONGEST_WITHDRAWN_SECONDS:
        return True
    hidden = withdrawal.hidden_since
    return hidden is not None and asked_at >= hidden + WITHDRAWN_SECONDS and not is_asked_for
