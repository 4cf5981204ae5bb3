"""The slices of a partitioned node: slices under MPS, or MIG instances."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from gpushare_plugin.core.gpu import Inventory
from gpushare_plugin.core.resource import Resource
from gpushare_plugin.node.gpus.mig_needs import NodeMig
from gpushare_plugin.node.gpus.withdrawals import NodeWithdrawals
from gpushare_plugin.node.news.news import News
from gpushare_plugin.sharing.cut import Cut, PresentUnits, cut, keeping, unwanted
from gpushare_plugin.sharing.ways.way import SliceNumbers
from gpushare_plugin.slices.slice import SliceKind, slice_of
from gpushare_plugin.slices.wanted import SliceCounts, SliceRequest


class NodeSlices:
    """Divides GPUs into slices under MPS or into MIG instances; a node has slices of at most one kind."""

    def __init__(self, mig: NodeMig, withdrawals: NodeWithdrawals, news: News) -> None:
        """Start without wanted slices; `withdrawals` keeps unwanted slices for a while."""
        self._mig = mig
        self._withdrawals = withdrawals
        self._news = news
        self._request = SliceRequest()
        self._wanted: dict[SliceKind, Mapping[str, SliceCounts]] = {}
        self._cut = Cut()
        self._warned: tuple[str, ...] = ()
        self._has_cut = False

    def is_new(self, request: SliceRequest) -> bool:
        """Return whether a request differs from the previous request."""
        return request != self._request

    def follow(self, request: SliceRequest) -> None:
        """Follow a request from now on; an unreadable request, or one of the other kind, leaves the wanted slices."""
        self._request = request
        if request.gpus is not None:
            self._wanted[request.kind] = request.gpus

    def cut(
        self,
        kind: SliceKind,
        inventory: Inventory,
        units: PresentUnits,
        resources: Mapping[str, Resource],
        *,
        manage: bool,
    ) -> Mapping[str, SliceNumbers]:
        """Return the slices of GPUs, by UUID, on a node that offers `resources`; see `divided` for `manage`."""
        there = {id_: name for name, each in resources.items() if slice_of(name) for id_ in each.units}
        is_first, self._has_cut = not self._has_cut, True
        # After a change of the kind, GPUs keep their slices until a request of the new kind comes. A node whose label
        # was away wants the slices that were wanted before.
        wanted = self._wanted.get(kind, {})
        if kind == "mps":
            self._cut = cut(wanted, inventory.cards, units)
            self._warn(kind)
            withdrawn = self._withdraw(unwanted(self._cut.numbers, units), units, there)
            return keeping(self._cut.numbers, inventory.cards, units, withdrawn)
        if is_first:
            # An earlier daemon offered the present instances a moment ago, and the Node may still show the instances.
            there = {**self._mig.left_by_another(inventory), **there}
        offered = self._mig.cut(wanted, inventory, units, manage=manage)
        self._warn(kind)
        going = frozenset(id_ for id_ in there if units.gpu_of(id_) not in offered)
        return offered | {units.gpu_of(id_): {} for id_ in self._withdraw(going, units, there)}

    def _warn(self, kind: SliceKind) -> None:
        """Publish the new notices as warnings, without the notices of the previous call."""
        before, self._warned = self._warned, self.notices(kind)
        self._news.warn(notice for notice in self._warned if notice not in before)

    def _withdraw(self, unwanted: AbstractSet[str], units: PresentUnits, there: Mapping[str, str]) -> AbstractSet[str]:
        """Return the unwanted slices to keep for now; `there` are the present slices: resources by ID."""
        return self._withdrawals.keep({id_: there[id_] for id_ in unwanted & there.keys()}, units.asked_at)

    def surplus(self, partitioning: SliceKind | None) -> AbstractSet[str]:
        """Return the IDs of slices present only because of held slices."""
        return self._cut.surplus if partitioning == "mps" else self._mig.surplus

    def notices(self, partitioning: SliceKind | None) -> tuple[str, ...]:
        """Return warnings about unusable requests, and about wanted slices without room or without `gpushare mig`."""
        if partitioning is None:
            return ()
        of_request = self._request.notices if self._request.kind == partitioning else ()
        return (*of_request, *(self._cut if partitioning == "mps" else self._mig).notices)
