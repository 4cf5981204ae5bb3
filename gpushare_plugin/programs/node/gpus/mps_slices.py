"""The slices under MPS of a partitioned node: how its GPUs are cut for what is wanted."""

from collections.abc import Mapping

from gpushare_plugin.model.gpu import Inventory
from gpushare_plugin.programs.node.gpus.requested_slices import RequestedSlices
from gpushare_plugin.programs.node.news.news import News
from gpushare_plugin.sharing.cut import Cut, PresentUnits, cut
from gpushare_plugin.sharing.ways.way import Numbers


class MpsSlices:
    """Keeps the GPUs cut as is wanted, as far as what pods hold leaves room for it."""

    def __init__(self, news: News) -> None:
        """Start with nothing wanted."""
        self.requested = RequestedSlices("mps", news)
        self._cut = Cut()

    def cut(self, inventory: Inventory, units: PresentUnits) -> Mapping[str, Numbers]:
        """Return how GPUs are cut now, by UUID, where these units are there."""
        self._cut = cut(self.requested.wanted, inventory.cards, units)
        self.requested.warn(self.notices)
        return self._cut.numbers

    @property
    def surplus(self) -> frozenset[str]:
        """Slices that are there only because pods hold them."""
        return self._cut.surplus

    @property
    def notices(self) -> tuple[str, ...]:
        """What cannot be followed, and what does not fit."""
        return (*self.requested.request.notices, *self._cut.notices)
