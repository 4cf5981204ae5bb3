"""The withdrawal of idle, unwanted slices: kube-scheduler must see the withdrawal before a slice is retired.

kube-scheduler reads the status of the Node. If a slice became unhealthy while the Node shows the slice, kube-scheduler
would bind a pod to the Node, and the kubelet would reject the pod. So the slice is *withdrawn* first: the Node no
longer shows the slice, but the slice stays healthy for a pod bound a moment ago. This module does no input or output.
"""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from gpushare_plugin.base.structs import Struct

WITHDRAWN_SECONDS = 1.0
"""The least time in seconds between hiding a slice on the Node and retiring the slice.

kube-scheduler hears of the Node within milliseconds. Bindings already begun take some milliseconds more, and the same
time passes until this daemon and the kubelet hear of the pod. A busy API server takes some ten times longer.
"""
LONGEST_WITHDRAWN_SECONDS = 10.0
"""The longest time in seconds for a slice to be withdrawn.

A pod that is never admitted, or a Node that cannot be written, does not keep the slice withdrawn any longer. The
partitioner waits only 60 s for the slices that come instead, and then tries other nodes.
"""


class Withdrawal(Struct, frozen=True):
    """The withdrawal of one slice; times are in seconds of one clock."""

    since: float
    """The time when the slice was withdrawn."""
    hidden_since: float | None = None
    """The time when the Node stopped showing the slice, None while the Node shows the slice."""


Withdrawals = Mapping[str, Withdrawal]
"""The withdrawn slices, by ID."""


def withdrawn(
    before: Withdrawals, unwanted: Mapping[str, str], asked_for: AbstractSet[str], asked_at: float | None, now: float
) -> Withdrawals:
    """Return the slices that are withdrawn now; all other `unwanted` slices may be retired.

    `before` holds the slices withdrawn so far. `unwanted` holds the resource of each offered, idle and unwanted slice,
    by the ID of the slice. `asked_for` holds the resources with units still to be allocated to a pod of this node.
    `asked_at` is the time when the kubelet confirmed the slices as idle, None without confirmation. `now` is the
    current time. All times are in seconds of one clock.
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
