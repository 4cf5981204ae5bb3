"""Counters and histograms that a program increments: Prometheus' own objects."""

from typing import Any

from prometheus_client import Counter, Histogram, disable_created_metrics

from gpushare_plugin.telemetry.metrics.metric import Metric

disable_created_metrics()  # type: ignore[no-untyped-call] # it has none


class Counts:
    """What one program has counted since its start; a page shows the figures beside those that are read at a scrape."""

    def __init__(self) -> None:
        """Count nothing yet."""
        self.objects: dict[str, Counter | Histogram] = {}
        """The counters and histograms, by the name of their metric."""

    def counter(self, metric: Metric[Any]) -> Counter:
        """Return a new counter for a metric."""
        made = self.objects[metric.name] = Counter(metric.name, metric.help, metric.labels, registry=None)
        return made

    def histogram(self, metric: Metric[Any]) -> Histogram:
        """Return a new histogram for a metric, with its buckets."""
        made = Histogram(metric.name, metric.help, metric.labels, registry=None, buckets=metric.buckets)
        self.objects[metric.name] = made
        return made
