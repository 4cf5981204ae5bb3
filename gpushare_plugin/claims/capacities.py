"""What claims can take of a GPU, by the way in which claims share the GPU."""

from collections.abc import Mapping

from gpushare_plugin.base.memory import MIB, MIB_PER_GIB
from gpushare_plugin.claims.device import Capacity, CapacityUnit
from gpushare_plugin.core.claimed_gpu import ClaimedGpu
from gpushare_plugin.core.gpu import Gpu
from gpushare_plugin.core.resource import Resource
from gpushare_plugin.slices.memory import MemoryRoom

MEMORY, COMPUTE, SHARES = "memory", "compute", "shares"
"""The capacities of shared GPUs: bytes, percent of the compute, and shares."""

WHOLE_COMPUTE = 100
"""The compute of a GPU, in percent."""

MOST_VALUES = 10
"""The most values that a capacity without steps can have.

Source: `CapacityRequestPolicyDiscreteMaxOptions` in kubernetes 1.36, staging/src/k8s.io/api/resource/v1/types.go.
"""


def capacities(gpu: ClaimedGpu) -> Mapping[str, Capacity]:
    """Return the capacities of a GPU by name: what claims take of a shared GPU, or select a whole GPU by."""
    match gpu.way:
        case "memory":
            return {MEMORY: _units(gpu), **_requested_compute(gpu), **_clients(gpu)}
        case "slices":
            return {MEMORY: _sizes(gpu), **_clients(gpu)}
        case "replicas" | "mps-replicas":
            return {MEMORY: _memory_of_replicas(gpu), **_compute_of_replicas(gpu), SHARES: _replicas(gpu)}
        case "whole":
            return {MEMORY: Capacity(gpu.gpu.memory_mib * MIB, "bytes"), **_of_instance(gpu.gpu)}


def unit_mib(gpu: ClaimedGpu) -> int:
    """Return the memory of a unit of a GPU shared by memory, in MiB."""
    return gpu.resource.units.of(gpu.gpu.uuid)[0].mib


def part_mib(gpu: ClaimedGpu) -> int:
    """Return the memory to which each replica of a GPU is limited, in MiB; 0 where replicas are not limited."""
    return gpu.gpu.memory_mib // (gpu.shares or 1) if gpu.limited else 0


def slices(gpu: ClaimedGpu) -> Mapping[int, Resource]:
    """Return the resources of a GPU with slices by the nominal size of the slices in bytes, the smallest first.

    Of two slices of 20 GiB, each is half of a card with 39.5 GiB of usable memory. Sizes beyond MOST_VALUES are left
    out.
    """
    sizes = ((each.units.of(gpu.gpu.uuid)[0].form.slice, each) for each in gpu.resources)
    by_size = {size.gib * MIB_PER_GIB * MIB: resource for size, resource in sizes if size is not None}
    return dict(list(by_size.items())[:MOST_VALUES])


def _units(gpu: ClaimedGpu) -> Capacity:
    unit = unit_mib(gpu)
    count = len(gpu.resource.units)
    default = count if gpu.default_mib is None else min(count, -(-gpu.default_mib // unit))
    return _in_steps(count * unit * MIB, "bytes", default * unit * MIB, unit * MIB, unit * MIB)


def _sizes(gpu: ClaimedGpu) -> Capacity:
    sizes = tuple(slices(gpu))
    whole = MemoryRoom.of(gpu.gpu.memory_mib).parts * MIB_PER_GIB * MIB
    return Capacity(whole, "bytes", sizes[0], values=sizes)


def _memory_of_replicas(gpu: ClaimedGpu) -> Capacity:
    whole = gpu.gpu.memory_mib * MIB
    if part := part_mib(gpu) * MIB:
        return Capacity(whole, "bytes", part, values=(part,))
    return _in_steps(whole, "bytes", 0, 0, MIB)


def _requested_compute(gpu: ClaimedGpu) -> dict[str, Capacity]:
    """Return the compute that claims can request: 0, the default, is what the config gives, and does not count."""
    if gpu.compute_variable is None:
        return {}
    return {COMPUTE: _in_steps(WHOLE_COMPUTE, "number", 0, 0, 1)}


def _compute_of_replicas(gpu: ClaimedGpu) -> dict[str, Capacity]:
    if gpu.way != "mps-replicas" or gpu.compute_variable is None:
        return {}
    part = WHOLE_COMPUTE // (gpu.shares or 1)
    return {COMPUTE: Capacity(WHOLE_COMPUTE, "number", part, values=(part,))}


def _clients(gpu: ClaimedGpu) -> dict[str, Capacity]:
    """Return the clients that MPS serves; nothing for a GPU that is not under MPS."""
    return {SHARES: _in_steps(gpu.shares, "number", 1, 1, 1)} if gpu.shares else {}


def _replicas(gpu: ClaimedGpu) -> Capacity:
    count = gpu.shares or 1
    return Capacity(count, "number", 1, values=(1,)) if gpu.single_share else _in_steps(count, "number", 1, 1, 1)


def _in_steps(amount: int, unit: CapacityUnit, default: int, least: int, step: int) -> Capacity:
    """Return a capacity of which claims take `least` or more, in steps; the API server refuses steps without room."""
    if least + step <= amount:
        return Capacity(amount, unit, default, least, step)
    return Capacity(amount, unit, default, values=(default,))


def _of_instance(gpu: Gpu) -> dict[str, Capacity]:
    """Return the part of a card that a MIG instance has, in the names of NVIDIA's DRA driver; nothing for a card."""
    if gpu.mig is None or (part := gpu.mig.attributes) is None:
        return {}
    numbers = {
        "multiprocessors": part.multiprocessors,
        "copyEngines": part.copy_engines,
        "decoders": part.decoders,
        "encoders": part.encoders,
        "jpegEngines": part.jpeg_decoders,
        "ofaEngines": part.optical_flow_accelerators,
    }
    return {name: Capacity(number) for name, number in numbers.items()}
