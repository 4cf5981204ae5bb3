"""The gauges read by dashboards and autoscalers for Alibaba Cloud's ACK, under the names of ACK's exporter.

Names, units and meanings follow "Introduction to metrics" (GPU Monitoring 2.0) in ACK's documentation; labels follow
ACK's exporter. Metrics and labels without an equal in gpushare are left out.
"""

from collections.abc import Callable, Iterator, Mapping

from gpushare_plugin.base.memory import MIB
from gpushare_plugin.core.gpu import Gpu
from gpushare_plugin.core.usage import ContainerUsage
from gpushare_plugin.observe.metrics.metric import Metric, Sample
from gpushare_plugin.observe.metrics.node import View

_NODE = ("NodeName",)
_GPU = ("DriverVersion", "NodeName", "UUID", "device", "gpu", "modelName")
_HOLDER = ("AllocateMode", "ContainerName", "NamespaceName", "NodeName", "PodName")
_CONTAINER = (*_HOLDER, "UUID", "device", "gpu", "modelName")

_NONE, _EXCLUSIVE, _SHARE = range(3)
"""How the GPUs of a node are allocated, in numbers."""


def _mode(view: View) -> Iterator[Sample]:
    """Yield how the GPUs of the node are allocated: as shares if containers hold both whole GPUs and shares."""
    holders = [(gpu, view.holders(gpu)) for gpu in view.gpus]
    if all(found is not None for _, found in holders) and holders:
        modes = {_SHARE if _is_shared(view, gpu) else _EXCLUSIVE for gpu, found in holders if found}
        yield (view.node,), max(modes, default=_NONE)


def _is_shared(view: View, gpu: Gpu) -> bool:
    return view.snapshot.mode(gpu) != "exclusive"


def _gpus(value: Callable[[View, Gpu], float | None]) -> Callable[[View], Iterator[Sample]]:
    def samples(view: View) -> Iterator[Sample]:
        for gpu in view.gpus:
            if not gpu.mig_enabled and (found := value(view, gpu)) is not None:
                yield (view.snapshot.inventory.driver_version, view.node, *_labels(gpu)), found

    return samples


def _labels(gpu: Gpu) -> tuple[str, str, str, str]:
    return gpu.uuid, f"nvidia{gpu.index}", gpu.label, gpu.name


def _total(_: View, gpu: Gpu) -> float | None:
    return gpu.memory_mib or None


def _part(view: View, gpu: Gpu) -> float | None:
    allocated = view.allocated(gpu)
    return None if allocated is None or not gpu.memory_mib else allocated / MIB / gpu.memory_mib


def _containers(value: Callable[[ContainerUsage], float | None]) -> Callable[[View], Iterator[Sample]]:
    def samples(view: View) -> Iterator[Sample]:
        gpus: Mapping[str, Gpu] = {gpu.uuid: gpu for gpu in view.gpus}
        for _, each in view.containers:
            gpu = gpus.get(each.gpu)
            if gpu is not None and (found := value(each)) is not None:
                mode = "share" if _is_shared(view, gpu) else "exclusive"
                holder = mode, each.container, each.namespace, view.node, each.pod
                yield (*holder, *_labels(gpu)), found

    return samples


def _mib(memory: int | None) -> float | None:
    return None if memory is None else memory / MIB


ALIYUN_METRICS: tuple[Metric[View], ...] = (
    Metric(
        "DCGM_CUSTOM_ALLOCATE_MODE",
        "As Aliyun: 0 if no container holds a GPU of the node, 1 if containers hold whole ones, 2 if they hold shares.",
        _NODE,
        _mode,
    ),
    Metric("DCGM_CUSTOM_DEV_FB_TOTAL", "As Aliyun: memory of a GPU that pods can get, in MiB.", _GPU, _gpus(_total)),
    Metric(
        "DCGM_CUSTOM_DEV_FB_ALLOCATED",
        "As Aliyun: part of the memory of a GPU that containers may use, from 0 to 1.",
        _GPU,
        _gpus(_part),
    ),
    Metric(
        "DCGM_CUSTOM_CONTAINER_MEM_ALLOCATED",
        "As Aliyun: memory of a GPU that a container may use, in MiB.",
        _CONTAINER,
        _containers(lambda each: _mib(each.limit)),
    ),
    Metric(
        "DCGM_CUSTOM_PROCESS_MEM_USED",
        "As Aliyun: memory of a GPU that the processes of a container use together, in MiB.",
        _CONTAINER,
        _containers(lambda each: _mib(each.used)),
    ),
    Metric(
        "DCGM_CUSTOM_PROCESS_SM_UTIL",
        "As Aliyun: part of the time in which the processes of a container computed on a GPU, in per cent.",
        _CONTAINER,
        _containers(lambda each: None if each.utilization is None else each.utilization * 100),
    ),
)
"""All metrics under the names of ACK's exporter."""
