"""The withdrawn idle slices of a partitioned node, and the slices shown by the Node; see `sharing.withdrawal`."""

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet

from gpushare_plugin.base.published import Published
from gpushare_plugin.base.structs import replace
from gpushare_plugin.core.resource import Resource
from gpushare_plugin.sharing.withdrawal import WITHDRAWN_SECONDS, Withdrawals, withdrawn
from gpushare_plugin.slices.slice import SchedulableSlices, SliceKind, slice_of

LOOK_AGAIN = 0.25
"""Seconds until the next check of a withdrawn slice whose time is over and that still cannot be retired."""


class NodeWithdrawals:
    """Withdraws unwanted slices: the Node hides a withdrawn slice first, and after a while the slice may be retired."""

    def __init__(self, clock: Callable[[], float], asked_for: Callable[[], AbstractSet[str]]) -> None:
        """Start without withdrawn slices; the Node counts as writable until a failure.

        `asked_for` returns the resources that containers of this node request and have no units of yet.
        """
        self._clock = clock
        self._asked_for = asked_for
        self._withdrawn: Withdrawals = {}
        self._resources: Mapping[str, str] = {}
        self._is_written = True
        self.schedulable: Published[SchedulableSlices | None] = Published(None)
        """The slices for the Node to show, and the withdrawn slices; None where the node is not partitioned."""

    @property
    def ids(self) -> frozenset[str]:
        """The IDs of the withdrawn slices."""
        return frozenset(self._withdrawn)

    @property
    def hidden(self) -> frozenset[str]:
        """The IDs of the withdrawn slices hidden by the Node."""
        return frozenset(id_ for id_, each in self._withdrawn.items() if each.hidden_since is not None)

    def keep(self, unwanted: Mapping[str, str], asked_at: float | None) -> frozenset[str]:
        """Return the IDs of the unwanted slices to keep as withdrawn; see `withdrawn` for the arguments.

        While the Node cannot be written, no further slice is withdrawn.
        """
        before = self._withdrawn
        known = {id_: resource for id_, resource in unwanted.items() if self._is_written or id_ in before}
        asked_for = self._asked_for() if known else frozenset[str]()
        self._withdrawn = withdrawn(before, known, asked_for, asked_at, self._clock())
        self._resources = known
        return self.ids

    def pause(self, most: float) -> float:
        """Return the seconds until a withdrawn slice may be retired, at most `most`."""
        now = self._clock()
        ends = ((each.hidden_since or each.since) + WITHDRAWN_SECONDS for each in self._withdrawn.values())
        return min([most, *(end - now if end > now else LOOK_AGAIN for end in ends)])

    def publish(self, kind: SliceKind | None, resources: Mapping[str, Resource]) -> None:
        """Publish the slices for the Node: all allocatable slices without the withdrawn slices."""
        if kind is None:
            self._withdrawn = {}
        schedulable = None if kind is None else SchedulableSlices(kind, _ids(kind, resources, self.ids), self.ids)
        if schedulable != self.schedulable.value:
            self.schedulable.publish(schedulable)

    # ------------------------------------------------------------------ what the Node shows

    def shown(self, slices: SchedulableSlices) -> None:
        """Note that the Node shows only these slices, and hides the slices withdrawn in `slices`."""
        self._is_written = True
        now = self._clock()
        self._withdrawn = {
            id_: replace(each, hidden_since=now) if id_ in slices.withdrawn and each.hidden_since is None else each
            for id_, each in self._withdrawn.items()
        }

    def exceeded(self, excess: Mapping[str, int]) -> None:
        """Note that the Node shows too many slices; `excess` is the number by resource.

        Slices not hidden yet are part of the excess. Any further excess means that hidden slices are visible again.
        """
        for resource, count in excess.items():
            of_resource = {id_: each for id_, each in self._withdrawn.items() if self._resources[id_] == resource}
            if count > sum(each.hidden_since is None for each in of_resource.values()):
                visible = {id_: replace(each, hidden_since=None) for id_, each in of_resource.items()}
                self._withdrawn = {**self._withdrawn, **visible}

    def failed(self) -> None:
        """Note that the Node cannot be written, or that the kubelet does not confirm the slices to write."""
        self._is_written = False


def _ids(kind: SliceKind, resources: Mapping[str, Resource], hidden: AbstractSet[str]) -> dict[str, frozenset[str]]:
    return {
        name: frozenset(
            id_ for id_, unit in resource.units.items() if unit.gpu not in resource.unhealthy and id_ not in hidden
        )
        for name, resource in resources.items()
        if (meant := slice_of(name)) is not None and meant.kind == kind
    }
