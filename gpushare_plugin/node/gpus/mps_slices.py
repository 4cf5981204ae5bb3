"""The slices under MPS of a partitioned node: the cut of the GPUs into wanted slices."""

from collections.abc import Mapping

from gpushare_plugin.core.gpu import Inventory
from gpushare_plugin.node.gpus.requested_slices import RequestedSlices
from gpushare_plugin.node.news.news import News
from gpushare_plugin.sharing.cut import Cut, PresentUnits, cut
from gpushare_plugin.sharing.ways.way import Numbers


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
