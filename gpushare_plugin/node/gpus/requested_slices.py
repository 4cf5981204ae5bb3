"""The slices requested of a partitioned node."""

from collections.abc import Mapping

from gpushare_plugin.node.news.news import News
from gpushare_plugin.slices.slice import Kind
from gpushare_plugin.slices.wanted import Counts, SliceRequest


class RequestedSlices:
    """The slices of one kind requested of a node, by the newest readable request."""

    def __init__(self, kind: Kind, news: News) -> None:
        """Start without wanted slices."""
        self._news = news
        self.request = SliceRequest(kind=kind)
        """The newest request, readable or not."""
        self._warned: tuple[str, ...] = ()
        self.wanted: Mapping[str, Counts] = {}
        """The wanted number of slices by name, for GPUs by UUID."""

    def follow(self, request: SliceRequest) -> None:
        """Follow a new request; with an unreadable request, the slices wanted before stay wanted."""
        self.request = request
        if request.gpus is not None:
            self.wanted = request.gpus

    def warn(self, notices: tuple[str, ...]) -> None:
        """Publish the new notices as warnings, without the notices of the previous call."""
        before, self._warned = self._warned, notices
        self._news.warn(notice for notice in notices if notice not in before)
