"""Counters and histograms incremented by a program: objects of Prometheus' library."""

from typing import Any

from prometheus_client import Counter, Histogram, disable_created_metrics

from gpushare_plugin.observe.metrics.metric import Metric

disable_created_metrics()  # type: ignore[no-untyped-call] # the library has no types for the function


class Counts:
    """The figures counted by a program since its start; a page shows the figures beside values read at a scrape."""

    def __init__(self) -> None:
        """Begin without counters and histograms."""
        self.objects: dict[str, Counter | Histogram] = {}
        """The counters and histograms, by the name of the metric."""

    def counter(self, metric: Metric[Any]) -> Counter:
        """Return a new counter for `metric`."""
        made = self.objects[metric.name] = Counter(metric.name, metric.help, metric.labels, registry=None)
        return made

    def histogram(self, metric: Metric[Any]) -> Histogram:
        """Return a new histogram for `metric`, with the buckets of the metric."""
        made = Histogram(metric.name, metric.help, metric.labels, registry=None, buckets=metric.buckets)
        self.objects[metric.name] = made
        return made
