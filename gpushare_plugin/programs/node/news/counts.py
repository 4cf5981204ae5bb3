"""Counts what metrics show of the news."""

from collections import Counter

from gpushare_plugin.programs.node.news.news import GpuEventReported, NewsItem

MOST_XIDS = 256
"""GPUs and XIDs that are counted apart; a driver has fewer, and others are counted as `other`."""


class XidCounts:
    """The errors that the driver reported, by the UUID of the GPU, empty where it did not say, and their XID."""

    def __init__(self) -> None:
        """Start without any."""
        self.counts: Counter[tuple[str, str]] = Counter()

    def count(self, item: NewsItem) -> None:
        """Count an item that is about an XID."""
        if not isinstance(item, GpuEventReported) or item.event.xid is None:
            return
        key = item.event.uuid or "", str(item.event.xid)
        self.counts[key if key in self.counts or len(self.counts) < MOST_XIDS else ("", "other")] += 1
