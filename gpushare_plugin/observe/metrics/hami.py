"""The gauges read by HAMi's dashboards, under HAMi's present names and HAMi's earlier names (`--legacy-metrics`).

Names, labels and units follow HAMi's scheduler and vGPUmonitor. Metrics without an equal in gpushare are left out.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping

from gpushare_plugin.base.memory import MIB
from gpushare_plugin.base.structs import Struct
from gpushare_plugin.core.gpu import Gpu
from gpushare_plugin.core.usage import ContainerUsage, Usage
from gpushare_plugin.observe.metrics.metric import Metric, Sample
from gpushare_plugin.observe.metrics.node import View

Values = tuple[Mapping[str, str], float]
"""The values of all possible labels, by HAMi's present names, and the value of the metric."""

_LEGACY = {
    "node": "nodeid",
    "namespace": "podnamespace",
    "pod": "podname",
    "container": "ctrname",
    "vdevice_index": "vdeviceid",
}
_CORES = "100"
"""The compute of a GPU in HAMi's unit, per cent."""


class _Gauge(Struct, frozen=True):
    name: str
    legacy: str
    help: str
    labels: tuple[str, ...]
    values: Callable[[View], Iterable[Values]]

    def metrics(self) -> Iterator[Metric[View]]:
        """Yield the gauge under its present and its earlier name; the names of the labels differ, too."""
        legacy = tuple(_LEGACY.get(label, label.replace("_", "").replace("index", "idx")) for label in self.labels)
        for name, labels in ((self.name, self.labels), (self.legacy, legacy)):
            yield Metric(name, f"As HAMi: {self.help}", labels, self._samples)

    def _samples(self, view: View) -> Iterator[Sample]:
        for labels, value in self.values(view):
            yield tuple(labels[name] for name in self.labels), value


def _gpus(value: Callable[[View, Gpu], float | None]) -> Callable[[View], Iterator[Values]]:
    def values(view: View) -> Iterator[Values]:
        for gpu in view.gpus:
            if not gpu.mig_enabled and (found := value(view, gpu)) is not None:
                yield _labels(view, gpu), found

    return values


def _labels(view: View, gpu: Gpu) -> Mapping[str, str]:
    return {
        "node": view.node,
        "device_index": str(gpu.index),
        "device_uuid": gpu.uuid,
        "device_type": f"NVIDIA-{gpu.name}",
        "device_cores": _CORES,
        "device_memory_limit": str(gpu.memory_mib or ""),
    }


def _limit(_: View, gpu: Gpu) -> float | None:
    return gpu.memory_mib * MIB or None


def _ratio(view: View, gpu: Gpu) -> float | None:
    allocated, limit = view.allocated(gpu), _limit(view, gpu)
    return None if allocated is None or limit is None else allocated / limit


def _shared(view: View, gpu: Gpu) -> float | None:
    holders = view.holders(gpu)
    return None if holders is None else len(holders)


def _used(view: View, gpu: Gpu) -> float | None:
    found = (view.snapshot.usage or Usage()).of_gpu(gpu.uuid)
    return found.memory_used if found else None


def _utilization(view: View, gpu: Gpu) -> float | None:
    found = (view.snapshot.usage or Usage()).of_gpu(gpu.uuid)
    return None if found is None or found.utilization is None else found.utilization * 100


def _containers(value: Callable[[ContainerUsage], float | None]) -> Callable[[View], Iterator[Values]]:
    def values(view: View) -> Iterator[Values]:
        numbers: dict[tuple[str, str, str], int] = {}
        for _, each in view.containers:
            holder = each.namespace, each.pod, each.container
            numbers[holder] = number = numbers.get(holder, -1) + 1
            if (found := value(each)) is not None:
                names = zip(("namespace", "pod", "container"), holder, strict=True)
                yield {**dict(names), "vdevice_index": str(number), "device_uuid": each.gpu}, found

    return values


def _percent(container: ContainerUsage) -> float | None:
    return None if container.utilization is None else container.utilization * 100


_GPU = ("node", "device_uuid", "device_index", "device_type")
_HOST = ("node", "device_index", "device_uuid", "device_type")
_ALLOCATED = ("node", "device_uuid", "device_index", "device_cores", "device_type")
_OVERVIEW = ("node", "device_uuid", "device_index", "device_cores", "device_memory_limit", "device_type")
_CONTAINER = ("namespace", "pod", "container", "vdevice_index", "device_uuid")

_GAUGES = (
    _Gauge(
        "hami_gpu_memory_limit_bytes", "GPUDeviceMemoryLimit", "memory of a GPU that pods can get.", _GPU, _gpus(_limit)
    ),
    _Gauge(
        "hami_gpu_memory_allocated_bytes",
        "GPUDeviceMemoryAllocated",
        "memory of a GPU that containers may use; none where one of them has no limit.",
        _ALLOCATED,
        _gpus(View.allocated),
    ),
    _Gauge("hami_gpu_shared_count", "GPUDeviceSharedNum", "containers that hold units of a GPU.", _GPU, _gpus(_shared)),
    _Gauge(
        "hami_node_gpu_overview",
        "nodeGPUOverview",
        "memory of a GPU that containers may use, with the memory in MiB as a label.",
        _OVERVIEW,
        _gpus(View.allocated),
    ),
    _Gauge(
        "hami_node_gpu_memory_allocated_ratio",
        "nodeGPUMemoryPercentage",
        "part of the memory of a GPU that containers may use, from 0 to 1.",
        _GPU,
        _gpus(_ratio),
    ),
    _Gauge("hami_host_gpu_memory_used_bytes", "HostGPUMemoryUsage", "memory of a GPU in use.", _HOST, _gpus(_used)),
    _Gauge(
        "hami_host_gpu_utilization_ratio",
        "HostCoreUtilization",
        "part of the time in which a GPU computed, in per cent.",
        _HOST,
        _gpus(_utilization),
    ),
    _Gauge(
        "hami_vgpu_memory_used_bytes",
        "vGPU_device_memory_usage_in_bytes",
        "memory of a GPU that a container uses.",
        _CONTAINER,
        _containers(lambda each: each.used),
    ),
    _Gauge(
        "hami_vgpu_memory_limit_bytes",
        "vGPU_device_memory_limit_in_bytes",
        "memory of a GPU that a container may use.",
        _CONTAINER,
        _containers(lambda each: each.limit),
    ),
    _Gauge(
        "hami_container_device_memory_bytes",
        "Device_memory_desc_of_container",
        "memory of a GPU that a container uses, which is not broken down by kind.",
        _CONTAINER,
        _containers(lambda each: each.used),
    ),
    _Gauge(
        "hami_container_device_utilization_ratio",
        "Device_utilization_desc_of_container",
        "part of the time in which a container computed, in per cent.",
        _CONTAINER,
        _containers(_percent),
    ),
)

HAMI_METRICS: tuple[Metric[View], ...] = tuple(metric for gauge in _GAUGES for metric in gauge.metrics())
"""All gauges under HAMi's names, in the order of HAMi's source."""
