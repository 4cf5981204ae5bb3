"""The slices of a partitioned node: what is wanted of its GPUs, and how they are cut for it."""

from collections.abc import Mapping

from gpushare_plugin.model.gpu import Inventory
from gpushare_plugin.model.partition.request import SliceRequest
from gpushare_plugin.model.partition.wanted import Counts
from gpushare_plugin.model.slices.slice import Kind
from gpushare_plugin.programs.node.news.news import News
from gpushare_plugin.sharing.cut import Cut, Present, cut
from gpushare_plugin.sharing.ways.way import Numbers


class Requested:
    """The slices of one kind that are requested of a node: those that were last, as far as that could be read."""

    def __init__(self, kind: Kind, news: News) -> None:
        """Start with nothing wanted."""
        self._news = news
        self._request = SliceRequest(kind=kind)
        self._warned: tuple[str, ...] = ()
        self.wanted: Mapping[str, Counts] = {}
        """How many slices of each name are wanted of each GPU, by its UUID."""

    @property
    def notices(self) -> tuple[str, ...]:
        """What cannot be followed."""
        return self._request.notices

    def follows(self, request: SliceRequest) -> bool:
        """Return whether exactly this is what was requested last."""
        return request == self._request

    def follow(self, request: SliceRequest) -> None:
        """Have what is requested from now on; where that cannot be read, what was requested before stays."""
        self._request = request
        if request.gpus is not None:
            self.wanted = request.gpus

    def warn(self, notices: tuple[str, ...]) -> None:
        """Warn of those that were not among the notices before."""
        before, self._warned = self._warned, notices
        self._news.warn(notice for notice in notices if notice not in before)


class Partition:
    """Keeps the GPUs cut as is wanted, as far as what pods hold leaves room for it."""

    def __init__(self, news: News) -> None:
        """Start with nothing wanted."""
        self.requested = Requested("mps", news)
        self._cut = Cut()

    def cut(self, inventory: Inventory, units: Present) -> Mapping[str, Numbers]:
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
        return (*self.requested.notices, *self._cut.notices)
