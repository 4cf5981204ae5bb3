"""The page that Prometheus reads; the only importer of prometheus_client."""

from collections.abc import Iterator
from itertools import accumulate
from typing import Generic

from prometheus_client import PROCESS_COLLECTOR, CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.exposition import choose_encoder

from gpushare_plugin.model.resource import Durations
from gpushare_plugin.telemetry.compatible.aliyun import ALIYUN_METRICS
from gpushare_plugin.telemetry.compatible.hami import HAMI_METRICS
from gpushare_plugin.telemetry.metrics import EXTENDER_METRICS, METRICS
from gpushare_plugin.telemetry.partitioner import PARTITIONER_METRICS
from gpushare_plugin.telemetry.views import ExtenderView, Metric, PartitionerView, V, View


def exposition(view: View, accept: str) -> tuple[str, bytes]:
    """Return content type and body of the page of a node, in the format that an `Accept` header requests."""
    more = (*(HAMI_METRICS if view.hami_metrics else ()), *(ALIYUN_METRICS if view.aliyun_metrics else ()))
    return _exposition(_Collector((*METRICS, *more), view), accept)


def extender_exposition(view: ExtenderView, accept: str) -> tuple[str, bytes]:
    """Return content type and body of the page of the scheduler extender."""
    return _exposition(_Collector(EXTENDER_METRICS, view), accept)


def partitioner_exposition(view: PartitionerView, accept: str) -> tuple[str, bytes]:
    """Return content type and body of the page of the partitioner."""
    return _exposition(_Collector(PARTITIONER_METRICS, view), accept)


def _exposition(collector: "_Collector[V]", accept: str) -> tuple[str, bytes]:
    try:
        encode, content_type = choose_encoder(accept)
    except TypeError:  # what the library raises for a version that is no number, which any client can send
        encode, content_type = choose_encoder("")
    registry = CollectorRegistry()
    registry.register(collector)
    registry.register(PROCESS_COLLECTOR)
    return content_type, encode(registry)


class _Collector(Generic[V]):
    def __init__(self, metrics: tuple[Metric[V], ...], view: V) -> None:
        self._metrics = metrics
        self._view = view

    def collect(self) -> Iterator[Family]:
        for metric in self._metrics:
            yield _family(metric, self._view)


def _family(metric: Metric[V], view: V) -> Family:
    """Return a metric with its current samples."""
    if metric.type == "info":
        info = InfoMetricFamily(metric.name.removesuffix("_info"), metric.help)
        for values, _ in metric.samples(view):
            info.add_metric((), dict(zip(metric.labels, values, strict=True)))
        return info
    kind = CounterMetricFamily if metric.type == "counter" else GaugeMetricFamily
    family = kind(metric.name, metric.help, labels=metric.labels)
    histogram = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
    for values, value in metric.samples(view):
        if isinstance(value, Durations):
            bounds = (*map(str, value.bounds), "+Inf")
            histogram.add_metric(values, list(zip(bounds, accumulate(value.counts), strict=True)), value.seconds)
        else:
            family.add_metric(values, value)
    return histogram if metric.type == "histogram" else family
