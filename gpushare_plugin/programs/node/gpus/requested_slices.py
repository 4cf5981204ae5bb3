"""The slices that are requested of a partitioned node."""

from collections.abc import Mapping

from gpushare_plugin.model.partition.request import SliceRequest
from gpushare_plugin.model.slices.slice import Kind
from gpushare_plugin.model.slices.wanted import Counts
from gpushare_plugin.programs.node.news.news import News


class RequestedSlices:
    """The slices of one kind that are requested of a node: those that were last, as far as that could be read."""

    def __init__(self, kind: Kind, news: News) -> None:
        """Start with nothing wanted."""
        self._news = news
        self.request = SliceRequest(kind=kind)
        """What was requested last."""
        self._warned: tuple[str, ...] = ()
        self.wanted: Mapping[str, Counts] = {}
        """How many slices of each name are wanted of each GPU, by its UUID."""

    def follow(self, request: SliceRequest) -> None:
        """Have what is requested from now on; where that cannot be read, what was requested before stays."""
        self.request = request
        if request.gpus is not None:
            self.wanted = request.gpus

    def warn(self, notices: tuple[str, ...]) -> None:
        """Warn of those that were not among the notices before."""
        before, self._warned = self._warned, notices
        self._news.warn(notice for notice in notices if notice not in before)
