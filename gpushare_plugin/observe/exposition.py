"""The pages of metrics that Prometheus scrapes, one per program."""

from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Generic

from prometheus_client import PROCESS_COLLECTOR, CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.exposition import choose_encoder

from gpushare_plugin.core.resource import Durations
from gpushare_plugin.observe.metrics.aliyun import ALIYUN_METRICS
from gpushare_plugin.observe.metrics.counted import Counts
from gpushare_plugin.observe.metrics.extender import EXTENDER_METRICS, ExtenderCounts, ExtenderView
from gpushare_plugin.observe.metrics.hami import HAMI_METRICS
from gpushare_plugin.observe.metrics.metric import Metric, Sample, V
from gpushare_plugin.observe.metrics.node import METRICS, View
from gpushare_plugin.observe.metrics.partitioner import PARTITIONER_METRICS, PartitionerCounts, PartitionerView
from gpushare_plugin.observe.metrics.web import WEB_METRICS, WebCounts, WebView


def exposition(view: View, accept: str) -> tuple[str, bytes]:
    """Return content type and body of the page of a node, in the format requested by the `Accept` header `accept`."""
    more = (*(HAMI_METRICS if view.hami_metrics else ()), *(ALIYUN_METRICS if view.aliyun_metrics else ()))
    return _page((*METRICS, *more), view, Counts(), accept)


def extender_exposition(view: ExtenderView, counts: ExtenderCounts, accept: str) -> tuple[str, bytes]:
    """Return content type and body of the page of the scheduler extender."""
    return _page(EXTENDER_METRICS, view, counts, accept)


def partitioner_exposition(view: PartitionerView, counts: PartitionerCounts, accept: str) -> tuple[str, bytes]:
    """Return content type and body of the page of the partitioner."""
    return _page(PARTITIONER_METRICS, view, counts, accept)


def web_exposition(view: WebView, counts: WebCounts, accept: str) -> tuple[str, bytes]:
    """Return content type and body of the page of metrics of the pages for people."""
    return _page(WEB_METRICS, view, counts, accept)


def _page(metrics: tuple[Metric[V], ...], view: V, counts: Counts, accept: str) -> tuple[str, bytes]:
    try:
        encode, content_type = choose_encoder(accept)
    except TypeError:  # the library's answer to a version that is not a number, which any client can send
        encode, content_type = choose_encoder("")
    registry = CollectorRegistry()
    registry.register(_Collector(metrics, view, counts))
    registry.register(PROCESS_COLLECTOR)
    return content_type, encode(registry)


class _Collector(Generic[V]):
    def __init__(self, metrics: tuple[Metric[V], ...], view: V, counts: Counts) -> None:
        self._metrics = metrics
        self._view = view
        self._counts = counts

    def collect(self) -> Iterator[Family]:
        for metric in self._metrics:
            if (counted := self._counts.objects.get(metric.name)) is not None:
                yield from counted.collect()
            else:
                yield _family(metric, metric.samples(self._view))


def _family(metric: Metric[V], samples: Iterable[Sample]) -> Family:
    """Return `metric` with `samples` as a metric family of Prometheus' library."""
    if metric.type == "info":
        info = InfoMetricFamily(metric.name.removesuffix("_info"), metric.help)
        for values, _ in samples:
            info.add_metric((), dict(zip(metric.labels, values, strict=True)))
        return info
    kind = CounterMetricFamily if metric.type == "counter" else GaugeMetricFamily
    family = kind(metric.name, metric.help, labels=metric.labels)
    histogram = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
    for values, value in samples:
        if isinstance(value, Durations):
            bounds = (*map(str, value.bounds), "+Inf")
            histogram.add_metric(values, list(zip(bounds, accumulate(value.counts), strict=True)), value.seconds)
        else:
            family.add_metric(values, value)
    return histogram if metric.type == "histogram" else family
