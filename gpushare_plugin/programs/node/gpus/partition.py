"""The slices of a partitioned node: what is wanted of its GPUs, and how they are cut for it."""

from collections.abc import Mapping

from gpushare_plugin.model.gpu import Inventory
from gpushare_plugin.model.partition.request import SliceRequest
from gpushare_plugin.model.partition.wanted import Counts
from gpushare_plugin.programs.node.news.news import News
from gpushare_plugin.sharing.partition import Cut, Units, cut
from gpushare_plugin.sharing.ways.way import Numbers


class Partition:
    """Keeps the GPUs cut as is wanted, as far as what pods hold leaves room for it."""

    def __init__(self, news: News) -> None:
        """Start with nothing wanted."""
        self._news = news
        self._request = SliceRequest()
        self._wanted: Mapping[str, Counts] = {}
        self._cut = Cut()
        self._warned: tuple[str, ...] = ()

    def follows(self, request: SliceRequest) -> bool:
        """Return whether exactly this is what was requested last."""
        return request == self._request

    def follow(self, request: SliceRequest) -> None:
        """Have what is requested from now on; where that cannot be read, what was requested before stays."""
        self._request = request
        if request.gpus is not None:
            self._wanted = request.gpus

    def cut(self, inventory: Inventory, units: Units) -> Mapping[str, Numbers]:
        """Return how GPUs are cut now, by UUID, where these units are there."""
        self._cut = cut(self._wanted, inventory.cards, units)
        before, self._warned = self._warned, self.notices
        self._news.warn(notice for notice in self.notices if notice not in before)
        return self._cut.numbers

    @property
    def surplus(self) -> frozenset[str]:
        """Slices that are there only because pods hold them."""
        return self._cut.surplus

    @property
    def notices(self) -> tuple[str, ...]:
        """What cannot be followed, and what does not fit."""
        return (*self._request.notices, *self._cut.notices)
