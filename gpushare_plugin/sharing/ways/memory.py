"""Memory sharing: a GPU is cut into units of memory, and a request gets all of its units on one GPU.

Variables: `ALIYUN_COM_GPU_MEM_*` as Aliyun's gpushare gives them to containers, in units.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from gpushare_plugin.model.chooser import refuse_several_gpus
from gpushare_plugin.model.gpu import Gpu
from gpushare_plugin.model.grant import Allocation, Grant
from gpushare_plugin.model.unit import KUBELET_MESSAGE_LIMIT, Unit, memory_prefix, wire_size
from gpushare_plugin.sharing.injection import Injection
from gpushare_plugin.sharing.isolation.layer import ContainerShare, Layers, Part, isolate


@dataclass(frozen=True, slots=True)
class MemoryGranter:
    """Gives a container memory of one GPU; `layers` hold it to that."""

    injection: Injection
    layers: Layers

    def grant(self, allocation: Allocation) -> Grant:
        """Return the GPU and its limits, in units and in MiB."""
        refuse_several_gpus(allocation.resource, {each.gpu.uuid: each.units for each in allocation.gpus})
        (allocated,) = allocation.gpus
        grant = self.injection.grant([allocated.gpu])
        count = str(allocated.units)
        grant.environment |= {
            "ALIYUN_COM_GPU_MEM_IDX": str(allocated.gpu.index),
            # The kubelet does not say which pod asks: for a pod of one container this is the pod's request.
            "ALIYUN_COM_GPU_MEM_POD": count,
            "ALIYUN_COM_GPU_MEM_CONTAINER": count,
            "ALIYUN_COM_GPU_MEM_DEV": str(allocated.of),
        }
        part = Part(allocated.gpu, allocated.mib, Fraction(allocated.units, allocated.of))
        return isolate(grant, ContainerShare((part,), allocation.ids), self.layers)


def memory_units(gpu: Gpu, short_uuid: str, unit_mib: int) -> list[Unit]:
    """Cut the usable memory of `gpu` into whole units of `unit_mib` MiB; what is left over is not handed out."""
    prefix = memory_prefix(short_uuid, unit_mib)
    return [
        Unit(f"{prefix}{number}", gpu.uuid, number, gpu.numa_node, unit_mib)
        for number in range(gpu.memory_mib // unit_mib)
    ]


def list_size(gpus: Iterable[Gpu], short_uuids: Mapping[str, str], unit_mib: int) -> int:
    """Return the bytes of the device list when `gpus` are cut into units of `unit_mib` MiB, without cutting them."""
    return sum(
        wire_size(memory_prefix(short_uuids[gpu.uuid], unit_mib), gpu.memory_mib // unit_mib, gpu.numa_node)
        for gpu in gpus
    )


def smallest_unit(gpus: Sequence[Gpu], short_uuids: Mapping[str, str]) -> int:
    """Return the smallest unit, in MiB, whose device list for `gpus` the kubelet accepts."""
    unit_mib = 1
    while list_size(gpus, short_uuids, unit_mib) > KUBELET_MESSAGE_LIMIT:
        unit_mib += 1
    return unit_mib
