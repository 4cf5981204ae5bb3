"""The slices of a partitioned node: slices under MPS, or MIG instances."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from gpushare_plugin.core.gpu import Inventory
from gpushare_plugin.core.resource import Resource
from gpushare_plugin.node.gpus.mig_needs import NodeMig
from gpushare_plugin.node.gpus.requested_slices import RequestedSlices
from gpushare_plugin.node.gpus.withdrawals import NodeWithdrawals
from gpushare_plugin.node.news.news import News
from gpushare_plugin.sharing.cut import Cut, PresentUnits, cut, keeping, unwanted
from gpushare_plugin.sharing.ways.way import Numbers
from gpushare_plugin.slices.slice import Kind, slice_of
from gpushare_plugin.slices.wanted import SliceRequest


class MpsSlices:
    """Keeps the GPUs cut into the wanted slices, as far as held slices leave room."""

    def __init__(self, news: News) -> None:
        """Start without wanted slices."""
        self.requested = RequestedSlices("mps", news)
        self._cut = Cut()

    def cut(self, inventory: Inventory, units: PresentUnits) -> Mapping[str, Numbers]:
        """Return the slices of GPUs, by UUID, for the wanted slices and the present units."""
        self._cut = cut(self.requested.wanted, inventory.cards, units)
        self.requested.warn(self.notices)
        return self._cut.numbers

    @property
    def surplus(self) -> frozenset[str]:
        """The IDs of slices kept only because pods hold slices of the same size."""
        return self._cut.surplus

    @property
    def notices(self) -> tuple[str, ...]:
        """Warnings about unusable requests, and about wanted slices without room."""
        return (*self.requested.request.notices, *self._cut.notices)


class NodeSlices:
    """Divides GPUs into slices under MPS or into MIG instances; a node has slices of at most one kind."""

    def __init__(self, mps: MpsSlices, mig: NodeMig, withdrawals: NodeWithdrawals) -> None:
        """Pass requests on to `mps` or `mig`; `withdrawals` keeps unwanted slices for a while."""
        self._mps = mps
        self._mig = mig
        self._withdrawals = withdrawals
        self._has_cut = False

    def is_new(self, request: SliceRequest) -> bool:
        """Return whether a request differs from the previous request of the same kind."""
        return request != self._requested(request.kind).request

    def follow(self, request: SliceRequest) -> None:
        """Follow a request from now on."""
        self._requested(request.kind).follow(request)

    def _requested(self, kind: Kind) -> RequestedSlices:
        return (self._mig if kind == "mig" else self._mps).requested

    def cut(
        self,
        kind: Kind,
        inventory: Inventory,
        units: PresentUnits,
        resources: Mapping[str, Resource],
        *,
        manage: bool,
    ) -> Mapping[str, Numbers]:
        """Return the slices of GPUs, by UUID, on a node that offers `resources`; see `divided` for `manage`."""
        there = {id_: name for name, each in resources.items() if slice_of(name) for id_ in each.units}
        is_first, self._has_cut = not self._has_cut, True
        if kind == "mps":
            numbers = self._mps.cut(inventory, units)
            withdrawn = self._withdraw(unwanted(numbers, units), units, there)
            return keeping(numbers, inventory.cards, units, withdrawn)
        if is_first:
            # An earlier daemon offered the present instances a moment ago, and the Node may still show the instances.
            there = {**self._mig.left_by_another(inventory), **there}
        offered = self._mig.cut(inventory, units, manage=manage)
        going = frozenset(id_ for id_ in there if units.gpu_of(id_) not in offered)
        return offered | {units.gpu_of(id_): {} for id_ in self._withdraw(going, units, there)}

    def _withdraw(self, unwanted: AbstractSet[str], units: PresentUnits, there: Mapping[str, str]) -> AbstractSet[str]:
        """Return the unwanted slices to keep for now; `there` are the present slices: resources by ID."""
        return self._withdrawals.keep({id_: there[id_] for id_ in unwanted & there.keys()}, units.asked_at)

    def surplus(self, partitioning: Kind | None) -> AbstractSet[str]:
        """Return the IDs of slices present only because of held slices."""
        return self._mps.surplus if partitioning == "mps" else self._mig.surplus

    def notices(self, partitioning: Kind | None) -> tuple[str, ...]:
        """Return warnings about unusable requests, and about wanted slices without room or without `gpushare mig`."""
        return {None: (), "mps": self._mps.notices, "mig": self._mig.notices}[partitioning]
