"""Every metric, its help text, and the page that Prometheus reads; the only importer of prometheus_client."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from prometheus_client import PROCESS_COLLECTOR, CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.exposition import choose_encoder

from gpushare_plugin import __version__
from gpushare_plugin.model.gpu import Gpu
from gpushare_plugin.model.snapshot import Snapshot
from gpushare_plugin.model.unit import MIB
from gpushare_plugin.model.usage.usage import ContainerUsage, GpuUsage, Usage

V = TypeVar("V")

Sample = tuple[tuple[str, ...], float]
"""The values of a metric's labels, and its own."""


MOST_CONTAINERS = 1000
"""Containers, counted once for each GPU that they hold, that have series; where there are more, those that use most."""


@dataclass(frozen=True, slots=True)
class View:
    """What a scrape shows: the node, how many lines the log has lost, and the containers if `container_metrics`."""

    snapshot: Snapshot
    log_lines_dropped: int = 0
    container_metrics: bool = False

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """Cards and MIG instances."""
        return self.snapshot.inventory.gpus

    @property
    def offers(self) -> Iterator[tuple[tuple[str, ...], int, int]]:
        """For each GPU and resource: the labels of both, how many units are offered, and the MiB of one."""
        for gpu in self.gpus:
            for resource, units in self.snapshot.offers(gpu).items():
                yield (*_names(gpu), resource), len(units), units[0].mib

    @property
    def used(self) -> Iterator[tuple[tuple[str, str], GpuUsage]]:
        """For each GPU that was looked at: its labels, and how it is used."""
        usage = self.snapshot.usage or Usage()
        by_uuid = {gpu.uuid: gpu for gpu in usage.gpus}
        return ((_names(gpu), by_uuid[gpu.uuid]) for gpu in self.gpus if gpu.uuid in by_uuid)

    @property
    def containers(self) -> Iterator[tuple[tuple[str, ...], ContainerUsage]]:
        """For each container that has series, and each GPU: its labels, and what it uses there."""
        labels = {gpu.uuid: gpu.label for gpu in self.gpus}
        for each in self._holders[:MOST_CONTAINERS] if self.container_metrics else ():
            holder = each.namespace, each.pod, each.container
            yield (*holder, labels.get(each.gpu, ""), each.gpu, each.resource), each

    @property
    def containers_left_out(self) -> int:
        """How many containers have no series because there are too many."""
        return max(0, len(self._holders) - MOST_CONTAINERS) if self.container_metrics else 0

    @property
    def _holders(self) -> Sequence[ContainerUsage]:
        usage = self.snapshot.usage or Usage()
        return sorted(usage.containers, key=lambda each: (-(each.used or 0), each.gpu, each.label, each.container))


@dataclass(frozen=True, slots=True)
class ExtenderView:
    """What a scrape of the scheduler extender shows.

    `requests` are counted by verb and by what was answered; `seconds` are those that all answers of a verb took.
    `nodes` are those it knows, `promises` those to pods that are not seen as bound yet.
    """

    leads: bool
    ready: bool
    nodes: int
    promises: int
    requests: Mapping[tuple[str, str], int]
    seconds: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Metric(Generic[V]):
    """A metric: its name, from which its type follows by Prometheus' conventions, its labels and its samples."""

    name: str
    help: str
    labels: tuple[str, ...]
    samples: Callable[[V], Iterable[Sample]]

    @property
    def type(self) -> str:
        """Its type, in Prometheus' words."""
        return {"total": "counter", "info": "info"}.get(self.name.rpartition("_")[-1], "gauge")

    def family(self, view: V) -> Family:
        """Return it with its current samples."""
        if self.type == "info":
            info = InfoMetricFamily(self.name.removesuffix("_info"), self.help)
            for values, _ in self.samples(view):
                info.add_metric((), dict(zip(self.labels, values, strict=True)))
            return info
        kind = CounterMetricFamily if self.type == "counter" else GaugeMetricFamily
        family = kind(self.name, self.help, labels=self.labels)
        for values, value in self.samples(view):
            family.add_metric(values, value)
        return family


_GPU = ("index", "uuid")
_OFFER = (*_GPU, "resource")
_CONTAINER = ("namespace", "pod", "container", *_GPU, "resource")

METRICS: tuple[Metric[View], ...] = (
    Metric(
        "gpushare_build_info",
        "Version of gpushare.",
        ("version",),
        lambda _: [((__version__,), 1)],
    ),
    Metric(
        "gpushare_driver_info",
        "Version of the NVIDIA driver and the newest CUDA version it supports.",
        ("driver_version", "cuda_version"),
        lambda view: [(_driver(view), 1)] if view.snapshot.inventory.driver_version else [],
    ),
    Metric(
        "gpushare_gpu_info",
        "Each GPU and MIG instance, with its mode: memory, time-slicing, mps, exclusive, or none if it is not offered.",
        (*_GPU, "product", "mode"),
        lambda view: [((*_names(gpu), gpu.product, view.snapshot.mode(gpu) or "none"), 1) for gpu in view.gpus],
    ),
    Metric(
        "gpushare_gpu_memory_bytes",
        "Memory of a GPU that containers can use: the total without what the driver reserves.",
        _GPU,
        lambda view: [(_names(gpu), gpu.memory_mib * MIB) for gpu in view.gpus],
    ),
    Metric(
        "gpushare_gpu_healthy",
        "1 if the GPU can be allocated; 0 if faulty, cordoned or not served by MPS (reason: annotation gpushare/gpus).",
        _GPU,
        lambda view: [(_names(gpu), gpu.uuid not in view.snapshot.excluded) for gpu in view.gpus],
    ),
    Metric(
        "gpushare_gpu_waiting",
        "1 while pods hold units of the previous mode, so that the GPU is not shared as configured yet; 0 otherwise.",
        _GPU,
        lambda view: [(_names(gpu), gpu.uuid in view.snapshot.waiting) for gpu in view.gpus],
    ),
    Metric(
        "gpushare_gpus_unresponsive",
        "Number of GPUs that do not respond, never responded, or are no longer present.",
        (),
        lambda view: [((), sum(each.number is None for each in view.snapshot.inventory.failed))],
    ),
    Metric(
        "gpushare_gpu_units",
        "Units of a GPU that are offered, healthy or not.",
        _OFFER,
        lambda view: [(labels, units) for labels, units, _ in view.offers],
    ),
    Metric(
        "gpushare_gpu_unit_memory_bytes",
        "Memory of one unit; only for memory units and slices.",
        _OFFER,
        lambda view: [(labels, mib * MIB) for labels, _, mib in view.offers if mib],
    ),
    Metric(
        "gpushare_gpu_units_drifted",
        "Units that pods hold of a GPU beyond what the scheduler extender promised there; only with --follow-pods.",
        _OFFER,
        lambda view: [
            (labels, excess.get(labels[-1], {}).get(labels[1], 0))
            for labels, _, _ in view.offers
            if (excess := view.snapshot.excess) is not None
        ],
    ),
    Metric(
        "gpushare_gpu_memory_used_bytes",
        "Memory of a GPU that is in use, without what the driver keeps for itself.",
        _GPU,
        lambda view: [(gpu, used.memory_used) for gpu, used in view.used if used.memory_used is not None],
    ),
    Metric(
        "gpushare_gpu_utilization_ratio",
        "Part of the time in which a GPU computed lately, from 0 to 1; not for MIG.",
        _GPU,
        lambda view: [(gpu, used.utilization) for gpu, used in view.used if used.utilization is not None],
    ),
    Metric(
        "gpushare_gpu_usage_known",
        "1 if it is known which containers use the GPU; 0 otherwise (reason: log, gpushare list).",
        _GPU,
        lambda view: [(gpu, used.unknown is None) for gpu, used in view.used],
    ),
    Metric(
        "gpushare_gpu_processes",
        "Processes that use a GPU; with MIG, those of a card are counted for its instances.",
        _GPU,
        lambda view: [(gpu, used.processes) for gpu, used in view.used if used.processes is not None],
    ),
    Metric(
        "gpushare_gpu_foreign_processes",
        "Processes on an offered GPU that are in no pod, or whose pod holds no units of this GPU.",
        _GPU,
        lambda view: [(gpu, len(used.stowaways)) for gpu, used in view.used if used.unknown is None],
    ),
    Metric(
        "gpushare_gpu_containers_over_limit",
        "Containers that use more memory of a GPU than their limit and 512 MiB.",
        _GPU,
        lambda view: [
            (gpu, sum(each.over for each in (view.snapshot.usage or Usage()).containers if each.gpu == used.uuid))
            for gpu, used in view.used
            if used.unknown is None
        ],
    ),
    Metric(
        "gpushare_container_units",
        "Units of a GPU that a container holds; only with --container-metrics, as all metrics of containers.",
        _CONTAINER,
        lambda view: [(container, used.units) for container, used in view.containers],
    ),
    Metric(
        "gpushare_container_memory_limit_bytes",
        "Memory of a GPU that a container may use; none for time slicing, which has no limit.",
        _CONTAINER,
        lambda view: [(container, used.limit) for container, used in view.containers if used.limit is not None],
    ),
    Metric(
        "gpushare_container_memory_used_bytes",
        "Memory of a GPU that the processes of a container use.",
        _CONTAINER,
        lambda view: [(container, used.used) for container, used in view.containers if used.used is not None],
    ),
    Metric(
        "gpushare_container_utilization_ratio",
        "Part of the time in which the processes of a container computed on a GPU lately, from 0 to 1; not for MIG.",
        _CONTAINER,
        lambda view: [
            (container, used.utilization) for container, used in view.containers if used.utilization is not None
        ],
    ),
    Metric(
        "gpushare_container_over_limit",
        "1 if a container uses more memory of a GPU than its limit and 512 MiB, 0 if not.",
        _CONTAINER,
        lambda view: [
            (container, used.over)
            for container, used in view.containers
            if used.used is not None and used.limit is not None
        ],
    ),
    Metric(
        "gpushare_containers_left_out",
        "Containers without metrics, because more than 1000 hold GPUs; those that use the most memory have some.",
        (),
        lambda view: [((), view.containers_left_out)] if view.container_metrics else [],
    ),
    Metric(
        "gpushare_usage_age_seconds",
        "Seconds since the look that shows what GPUs and containers use.",
        (),
        lambda view: [((), usage.age)] if (usage := view.snapshot.usage) is not None else [],
    ),
    Metric(
        "gpushare_resource_registered",
        "1 if the resource is registered with the kubelet and the kubelet watches its device list, 0 otherwise.",
        ("resource",),
        lambda view: [((name,), standing.registered) for name, standing in view.snapshot.standings.items()],
    ),
    Metric(
        "gpushare_allocations_total",
        "Allocate calls of the kubelet that succeeded; one for each container.",
        ("resource",),
        lambda view: [((name,), standing.allocations) for name, standing in view.snapshot.standings.items()],
    ),
    Metric(
        "gpushare_refusals_total",
        "Calls of the kubelet (GetPreferredAllocation, Allocate, PreStartContainer) that failed; the pod fails.",
        ("resource", "call"),
        lambda view: [
            ((name, call), count)
            for name, standing in view.snapshot.standings.items()
            for call, count in standing.refusals.items()
        ],
    ),
    Metric(
        "gpushare_notices",
        "Warnings for people, such as a rejected config; the log and the annotation gpushare/gpus have the texts.",
        (),
        lambda view: [((), len(view.snapshot.notices))],
    ),
    Metric(
        "gpushare_log_lines_dropped_total",
        "Lines of the log that were lost because they could not be written or the queue was full.",
        (),
        lambda view: [((), view.log_lines_dropped)],
    ),
)
"""All metrics of the daemon of a node, in the order of the page."""

EXTENDER_METRICS: tuple[Metric[ExtenderView], ...] = (
    Metric(
        "gpushare_extender_leads",
        "Scheduler extender: 1 if it holds the Lease, 0 otherwise.",
        (),
        lambda view: [((), view.leads)],
    ),
    Metric(
        "gpushare_extender_ready",
        "Scheduler extender: 1 if it leads and has listed all Nodes and Pods, so that it answers; 0 otherwise.",
        (),
        lambda view: [((), view.ready)],
    ),
    Metric(
        "gpushare_extender_nodes",
        "Scheduler extender: Nodes that it places pods on.",
        (),
        lambda view: [((), view.nodes)],
    ),
    Metric(
        "gpushare_extender_promises",
        "Scheduler extender: pods that have GPUs promised and were not seen as bound yet.",
        (),
        lambda view: [((), view.promises)],
    ),
    Metric(
        "gpushare_extender_requests_total",
        "Scheduler extender: requests by verb; the result is done, refused (with a reason) or failed (a defect).",
        ("verb", "result"),
        lambda view: view.requests.items(),
    ),
    Metric(
        "gpushare_extender_request_seconds_total",
        "Scheduler extender: seconds from a request to its answer, summed; a bind includes the API server's.",
        ("verb",),
        lambda view: [((verb,), seconds) for verb, seconds in view.seconds.items()],
    ),
)
"""All metrics of the scheduler extender."""


def exposition(view: View, accept: str) -> tuple[str, bytes]:
    """Return content type and body of the page of a node, in the format that an `Accept` header requests."""
    return _exposition(_Collector(METRICS, view), accept)


def extender_exposition(view: ExtenderView, accept: str) -> tuple[str, bytes]:
    """Return content type and body of the page of the scheduler extender."""
    return _exposition(_Collector(EXTENDER_METRICS, view), accept)


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
            yield metric.family(self._view)


def _names(gpu: Gpu) -> tuple[str, str]:
    return gpu.label, gpu.uuid


def _driver(view: View) -> tuple[str, str]:
    inventory = view.snapshot.inventory
    return inventory.driver_version, ".".join(map(str, inventory.cuda_version))
