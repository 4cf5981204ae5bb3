"""Counts of news for the metrics."""

from collections import Counter

from gpushare_plugin.node.news.news import GpuEventReported, NewsItem

MOST_XIDS = 256
"""The most pairs of GPU and XID with a count; drivers report fewer. Further pairs are counted as `other`."""


class XidCounts:
    """Counts the XID errors reported by the driver."""

    def __init__(self) -> None:
        """Start without counts."""
        self.counts: Counter[tuple[str, str]] = Counter()
        """The number of errors by the UUID of the GPU and the XID; the UUID is empty where the driver names no GPU."""

    def count(self, item: NewsItem) -> None:
        """Count an item about an XID; ignore any other item."""
        if not isinstance(item, GpuEventReported) or item.event.xid is None:
            return
        key = item.event.uuid or "", str(item.event.xid)
        self.counts[key if key in self.counts or len(self.counts) < MOST_XIDS else ("", "other")] += 1
