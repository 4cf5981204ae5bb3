"""Every metric, its help text, and the page that Prometheus reads; the only importer of prometheus_client."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client import PROCESS_COLLECTOR, CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.exposition import choose_encoder

from gpushare_plugin import __version__
from gpushare_plugin.adapters.cluster.records import mode_of
from gpushare_plugin.adapters.kubelet.device_plugin.session import Standing
from gpushare_plugin.model.gpu import Gpu
from gpushare_plugin.model.unit import MIB
from gpushare_plugin.sharing.snapshot import Snapshot

Sample = tuple[tuple[str, ...], float]
"""The values of a metric's labels, and its own."""


@dataclass(frozen=True, slots=True)
class View:
    """What a scrape sees: the node as published last, how each resource stands with the kubelet, and our log."""

    snapshot: Snapshot
    standings: Mapping[str, Standing]
    log_lines_dropped: int = 0

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """Cards and MIG instances."""
        return self.snapshot.inventory.devices

    @property
    def offers(self) -> Iterator[tuple[tuple[str, ...], int, int]]:
        """For each GPU and resource: the labels of both, how many units it is offered in, and the MiB of one."""
        for gpu in self.gpus:
            for resource, units in self.snapshot.offers(gpu).items():
                yield (*_names(gpu), resource), len(units), units[0].mib


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric: its name, which by Prometheus' conventions also tells its type, its labels, and where it comes from."""

    name: str
    help: str
    labels: tuple[str, ...]
    samples: Callable[[View], Iterable[Sample]]

    @property
    def type(self) -> str:
        """What Prometheus calls its type."""
        return {"total": "counter", "info": "info"}.get(self.name.rpartition("_")[-1], "gauge")

    def family(self, view: View) -> Family:
        """Return it with its samples of now."""
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

METRICS = (
    Metric(
        "gpushare_build_info",
        "Version of gpushare.",
        ("version",),
        lambda _: [((__version__,), 1)],
    ),
    Metric(
        "gpushare_driver_info",
        "Version of the NVIDIA driver, and the newest CUDA it supports.",
        ("driver_version", "cuda_version"),
        lambda view: [(_driver(view), 1)] if view.snapshot.inventory.driver_version else [],
    ),
    Metric(
        "gpushare_gpu_info",
        "Each GPU and MIG instance, and how it is shared: memory, time-slicing, mps, exclusive or none.",
        (*_GPU, "product", "mode"),
        lambda view: [((*_names(gpu), gpu.product, mode_of(view.snapshot, gpu) or "none"), 1) for gpu in view.gpus],
    ),
    Metric(
        "gpushare_gpu_memory_bytes",
        "Memory of a GPU that containers can use: its total less what the driver keeps.",
        _GPU,
        lambda view: [(_names(gpu), gpu.memory_mib * MIB) for gpu in view.gpus],
    ),
    Metric(
        "gpushare_gpu_healthy",
        "1, or 0 while a fault, MPS or somebody's hand keeps the GPU out; the annotation gpushare/gpus tells why.",
        _GPU,
        lambda view: [(_names(gpu), gpu.uuid not in view.snapshot.unhealthy) for gpu in view.gpus],
    ),
    Metric(
        "gpushare_gpu_waiting",
        "1 while the GPU is not shared as the settings say, because pods hold it in another way; 0 otherwise.",
        _GPU,
        lambda view: [(_names(gpu), gpu.uuid in view.snapshot.waiting) for gpu in view.gpus],
    ),
    Metric(
        "gpushare_silent_cards",
        "Cards that do not answer: known ones that fell silent or vanished, and those that never answered.",
        (),
        lambda view: [((), sum(each.number is None for each in view.snapshot.inventory.failed))],
    ),
    Metric(
        "gpushare_gpu_units",
        "Units that a GPU is offered in, healthy or not.",
        _OFFER,
        lambda view: [(labels, units) for labels, units, _ in view.offers],
    ),
    Metric(
        "gpushare_gpu_unit_memory_bytes",
        "GPU memory that one unit stands for, where units are memory.",
        _OFFER,
        lambda view: [(labels, mib * MIB) for labels, _, mib in view.offers if mib],
    ),
    Metric(
        "gpushare_resource_registered",
        "1 while the kubelet has the resource registered and listens to its device list, 0 otherwise.",
        ("resource",),
        lambda view: [((name,), standing.registered) for name, standing in view.standings.items()],
    ),
    Metric(
        "gpushare_allocations_total",
        "Allocate calls of the kubelet, one a container, that were granted.",
        ("resource",),
        lambda view: [((name,), standing.allocations) for name, standing in view.standings.items()],
    ),
    Metric(
        "gpushare_refusals_total",
        "Calls of the kubelet, GetPreferredAllocation or Allocate, that were refused; the pod's admission fails.",
        ("resource", "call"),
        lambda view: [
            ((name, call), count)
            for name, standing in view.standings.items()
            for call, count in standing.refusals.items()
        ],
    ),
    Metric(
        "gpushare_notices",
        "What people should know of the settings, refused ones included; the log and gpushare/gpus tell what.",
        (),
        lambda view: [((), len(view.snapshot.notices))],
    ),
    Metric(
        "gpushare_log_lines_dropped_total",
        "Lines of the daemon's log that could not be written, or for which the queue had no room.",
        (),
        lambda view: [((), view.log_lines_dropped)],
    ),
)
"""All that are our own, in the order of the page."""


def exposition(view: View, accept: str) -> tuple[str, bytes]:
    """Return content type and body of the page, in the format that an `Accept` header asks for."""
    try:
        encode, content_type = choose_encoder(accept)
    except TypeError:  # how the library takes a version that is no number; what strangers send must not be our defect
        encode, content_type = choose_encoder("")
    registry = CollectorRegistry()
    registry.register(_Collector(view))
    registry.register(PROCESS_COLLECTOR)
    return content_type, encode(registry)


class _Collector:
    def __init__(self, view: View) -> None:
        self._view = view

    def collect(self) -> Iterator[Family]:
        for metric in METRICS:
            yield metric.family(self._view)


def _names(gpu: Gpu) -> tuple[str, str]:
    return gpu.label, gpu.uuid


def _driver(view: View) -> tuple[str, str]:
    inventory = view.snapshot.inventory
    return inventory.driver_version, ".".join(map(str, inventory.cuda_version))
