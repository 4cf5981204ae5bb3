"""Which idle slices of a partitioned node are withdrawn, and which its Node may show; see `sharing.withdrawal`."""

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet

from gpushare_plugin.foundation.published import Published
from gpushare_plugin.foundation.structs import replace
from gpushare_plugin.model.resource import Resource
from gpushare_plugin.model.slices.slice import Kind, SchedulableSlices, slice_of
from gpushare_plugin.sharing.withdrawal import WITHDRAWN_SECONDS, Withdrawals, withdrawn

LOOK_AGAIN = 0.25
"""Seconds until it is looked again at a withdrawn slice that something holds back."""


class NodeWithdrawals:
    """Keeps `schedulable` as the Node is to show it, and slices withdrawn until the Node has shown that for a while."""

    def __init__(self, clock: Callable[[], float], asked_for: Callable[[], AbstractSet[str]]) -> None:
        """Withdraw nothing yet; the Node can be written until something shows that it cannot.

        `asked_for` returns the resources of which a pod of this node still has to be given something.
        """
        self._clock = clock
        self._asked_for = asked_for
        self._withdrawn: Withdrawals = {}
        self._resources: Mapping[str, str] = {}
        self._is_written = True
        self.schedulable: Published[SchedulableSlices | None] = Published(None)
        """The slices that the Node may show, None where it is not partitioned."""

    @property
    def ids(self) -> frozenset[str]:
        """The IDs of what is withdrawn."""
        return frozenset(self._withdrawn)

    @property
    def hidden(self) -> frozenset[str]:
        """The IDs of what is withdrawn, as far as the Node does not show it any more."""
        return frozenset(id_ for id_, each in self._withdrawn.items() if each.hidden_since is not None)

    def keep(self, unwanted: Mapping[str, str], asked_at: float | None) -> frozenset[str]:
        """Return the IDs of those that stay; arguments are as for `withdrawn`.

        Where the Node cannot be written, nothing more is withdrawn.
        """
        before = self._withdrawn
        known = {id_: resource for id_, resource in unwanted.items() if self._is_written or id_ in before}
        asked_for = self._asked_for() if known else frozenset[str]()
        self._withdrawn = withdrawn(before, known, asked_for, asked_at, self._clock())
        self._resources = known
        return self.ids

    def pause(self, most: float) -> float:
        """Return how long to wait, `most` seconds, until something that is withdrawn may be retired."""
        now = self._clock()
        ends = ((each.hidden_since or each.since) + WITHDRAWN_SECONDS for each in self._withdrawn.values())
        return min([most, *(end - now if end > now else LOOK_AGAIN for end in ends)])

    def publish(self, kind: Kind | None, resources: Mapping[str, Resource]) -> None:
        """Have the Node show the slices that can be allocated, those that are withdrawn aside."""
        if kind is None:
            self._withdrawn = {}
        schedulable = None if kind is None else SchedulableSlices(kind, _ids(kind, resources, self.ids), self.ids)
        if schedulable != self.schedulable.value:
            self.schedulable.publish(schedulable)

    # ------------------------------------------------------------------ what the Node shows

    def shown(self, slices: SchedulableSlices) -> None:
        """Take note that the Node shows no more than these slices."""
        self._is_written = True
        now = self._clock()
        self._withdrawn = {
            id_: replace(each, hidden_since=now) if id_ in slices.withdrawn and each.hidden_since is None else each
            for id_, each in self._withdrawn.items()
        }

    def exceeded(self, excess: Mapping[str, int]) -> None:
        """Take note of how many more slices of each resource the Node shows than it is to show.

        Those that it is yet to hide are among them.
        """
        for resource, count in excess.items():
            of_resource = {id_: each for id_, each in self._withdrawn.items() if self._resources[id_] == resource}
            if count > sum(each.hidden_since is None for each in of_resource.values()):
                visible = {id_: replace(each, hidden_since=None) for id_, each in of_resource.items()}
                self._withdrawn = {**self._withdrawn, **visible}

    def failed(self) -> None:
        """Take note that the Node cannot be written, or that the kubelet does not confirm what to write."""
        self._is_written = False


def _ids(kind: Kind, resources: Mapping[str, Resource], hidden: AbstractSet[str]) -> dict[str, frozenset[str]]:
    return {
        name: frozenset(
            id_ for id_, unit in resource.units.items() if unit.gpu not in resource.unhealthy and id_ not in hidden
        )
        for name, resource in resources.items()
        if (meant := slice_of(name)) is not None and meant.kind == kind
    }
