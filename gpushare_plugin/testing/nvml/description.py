"""The text that `library.c` reads: a node written down as one `key value` a line."""

import re
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache

from gpushare_plugin.base.memory import MIB, MIB_PER_GIB
from gpushare_plugin.testing.nvml.building import SOURCE
from gpushare_plugin.testing.nvml.mig_profiles import describe_profiles, place
from gpushare_plugin.testing.nvml.node import (
    ALL_FUNCTIONS,
    FakeConnection,
    FakeGpu,
    FakeMigInstance,
    FakeProcess,
    LimitBackend,
)

Failures = Mapping[tuple[int | None, str], int]
"""Error codes by card index, None being the library as a whole, and name of function."""

_MAX_CARDS = 16
_MAX_MIG_INSTANCES = 7
_LINK_TO_GPU, _LINK_TO_SWITCH = 0, 2
_SWITCH = "1af110de 00000000:C4:00.0"
_PROCESS_KINDS = ("compute", "graphics", "mps")
_LIMIT_BACKENDS: tuple[LimitBackend, ...] = ("off", "misc", "dmem")
_NOT_AVAILABLE = (1 << 64) - 1
"""nvml.h: NVML_VALUE_NOT_AVAILABLE, as the memory of a process."""
_NAMESPACE = uuid.UUID("b3a4d9d0-8a8b-4c8c-9d29-0f3b5d1f6c11")
_PROFILE = re.compile(r"(?:(?P<compute>\d)c\.)?(?P<gpu>\d)g\.(?P<gigabytes>\d+)gb(?P<attribute>[-+][a-z.]+)?")
_PROFILE_NUMBERS = {
    (1, None): 0, (2, None): 1, (3, None): 2, (4, None): 3, (7, None): 4, (8, None): 5, (6, None): 6,
    (1, "+me"): 7, (2, "+me"): 8, (1, "+gfx"): 10, (2, "+gfx"): 11, (4, "+gfx"): 12, (3, "+gfx"): 17,
    (1, "-me"): 13, (2, "-me"): 14, (1, "+me.all"): 15, (2, "+me.all"): 16,
}  # fmt: skip
"""nvml.h: NVML_GPU_INSTANCE_PROFILE_…, by slices and attribute."""
_FUNCTION = re.compile(r"\bX\((nvml\w+)\)")


@cache
def functions() -> frozenset[str]:
    """Return the names of the NVML functions the library has."""
    return frozenset(_FUNCTION.findall(SOURCE.read_text()))


def check_function(name: str) -> None:
    """Raise `ValueError` unless the library has a function `name`, or it stands for all."""
    if name != ALL_FUNCTIONS and name not in functions():
        raise ValueError(f"the stand-in has no function {name!r}; it has {', '.join(sorted(functions()))}")


def complete(gpus: Sequence[FakeGpu]) -> tuple[FakeGpu, ...]:
    """Return `gpus` with everything filled in that follows from their place, name or profile.

    Raises `ValueError` where a node cannot be like that.
    """
    if len(gpus) > _MAX_CARDS:
        raise ValueError(f"{len(gpus)} GPUs: the stand-in has room for {_MAX_CARDS}")
    return tuple(_complete_gpu(index, gpu) for index, gpu in enumerate(gpus))


def _complete_gpu(index: int, gpu: FakeGpu) -> FakeGpu:
    if gpu.mig_instances and not gpu.mig_enabled:
        raise ValueError(f"GPU {index} has MIG instances but mig_enabled={gpu.mig_enabled}: set mig_enabled=True")
    if len(gpu.mig_instances) > _MAX_MIG_INSTANCES:
        raise ValueError(f"GPU {index} has {len(gpu.mig_instances)} MIG instances, more than {_MAX_MIG_INSTANCES}")
    gpu = replace(
        gpu,
        uuid=gpu.uuid or f"GPU-{uuid.uuid5(_NAMESPACE, f'gpu {index}')}",
        minor=index if gpu.minor is None else gpu.minor,
        pci_bus_id=gpu.pci_bus_id or f"00000000:{index * 0x10 + 7:02X}:00.0",
    )
    placed = place(gpu) if gpu.mig_profiles else gpu.mig_instances
    instances = tuple(_complete_mig(gpu, position, instance) for position, instance in enumerate(placed))
    return replace(gpu, mig_instances=instances)


def _complete_mig(gpu: FakeGpu, position: int, instance: FakeMigInstance) -> FakeMigInstance:
    for function in instance.failures:
        check_function(function)
    if not (profile := _PROFILE.fullmatch(instance.profile)):
        raise ValueError(f"MIG profile {instance.profile!r}: expected one such as 1g.5gb, 1c.3g.20gb or 1g.5gb+me")
    gpu_slices = instance.gpu_slices or int(profile["gpu"])
    if (number := _PROFILE_NUMBERS.get((int(profile["gpu"]), profile["attribute"]))) is None:
        raise ValueError(f"MIG profile {instance.profile!r}: NVML knows no such slices with such an attribute")
    compute_slices = instance.compute_slices or int(profile["compute"] or gpu_slices)
    return replace(
        instance,
        uuid=instance.uuid or f"MIG-{uuid.uuid5(_NAMESPACE, f'{gpu.uuid} {position}')}",
        name=instance.name or f"{gpu.name} MIG {instance.profile}",
        gpu_instance=position + 1 if instance.gpu_instance is None else instance.gpu_instance,
        profile_number=number if instance.profile_number is None else instance.profile_number,
        gpu_slices=gpu_slices,
        compute_slices=compute_slices,
        # An A100 has 14 multiprocessors a slice; its 1g.5gb instance shows 4864 MiB.
        multiprocessors=instance.multiprocessors or 14 * compute_slices,
        memory_mib=int(profile["gigabytes"]) * MIB_PER_GIB - 256
        if instance.memory_mib is None
        else instance.memory_mib,
    )


def describe(  # noqa: PLR0913 - the parts of a node
    gpus: Sequence[FakeGpu],
    connections: Iterable[FakeConnection],
    failures: Failures,
    *,
    gone: Collection[int],
    generations: Mapping[int, int],
    uses: Iterable[tuple[str, FakeProcess]],
    hangs: Mapping[str, int],
    driver_version: str,
    cuda_version: tuple[int, int],
    init_delay_ms: int,
    limit_backend: LimitBackend,
    kernel_refuses: bool,
) -> str:
    """Return the description of a node whose `gpus` are `complete`; those whose index is in `gone` were taken out.

    `generations` counts how often a card was described in another way, by its index. `uses` are processes by the UUID
    of their device, `hangs` the number of the first call that does not return, by the function's name.
    """
    major, minor = cuda_version
    lines = [
        f"driver {driver_version}",
        f"cuda {major * 1000 + minor * 10}",
        f"init_delay_ms {init_delay_ms}",
        f"limit_backend {_LIMIT_BACKENDS.index(limit_backend)} {kernel_refuses:d}",
        *_failures(failures, None),
        *(f"hang {function} {call}" for function, call in hangs.items()),
    ]
    connections = tuple(connections)
    for index, gpu in enumerate(gpus):
        lines += [
            *_gpu(gpu),
            *_numbers(gone=index in gone, generation=generations.get(index, 0)),
            *_ways(index, gpus, connections),
            *_failures(failures, index),
        ]
        for instance in gpu.mig_instances:
            lines += _mig(instance)
    lines += [f"use {uuid} {_process(process)}" for uuid, process in uses]
    return "\n".join(lines) + "\n"


def _gpu(gpu: FakeGpu) -> Iterator[str]:
    yield f"card {gpu.uuid}"
    yield f"name {gpu.name}"
    yield f"address {gpu.pci_bus_id}"
    major, minor = gpu.compute_capability
    yield f"pci.device_id {gpu.pci_device_id}"
    yield f"pci.subsystem_id {gpu.pci_subsystem_id}"
    yield from _numbers(
        minor=gpu.minor or 0,
        brand=gpu.brand,
        memory=gpu.memory_mib * MIB,
        reserved=gpu.reserved_mib * MIB,
        used=gpu.used_mib * MIB,
        compute_major=major,
        compute_minor=minor,
        compute_mode=gpu.compute_mode,
        events=gpu.supported_events,
        mig_capable=gpu.mig_enabled is not None,
        mig_enabled=gpu.mig_enabled or False,
        mig_needs_reset=gpu.mig_needs_reset,
        recovery_known=gpu.recovery_action is not None,
        recovery_action=gpu.recovery_action or 0,
        utilization_known=gpu.utilization is not None,
        utilization=gpu.utilization or 0,
    )
    yield from describe_profiles(gpu.mig_profiles)
    yield from _processes(gpu.processes)


def _mig(instance: FakeMigInstance) -> Iterator[str]:
    yield f"mig {instance.uuid}"
    yield f"name {instance.name}"
    yield from _numbers(
        memory=(instance.memory_mib or 0) * MIB,
        reserved=instance.reserved_mib * MIB,
        used=instance.used_mib * MIB,
        compute_mode=instance.compute_mode,
        gpu_instance=instance.gpu_instance or 0,
        compute_instance=instance.compute_instance,
        profile=instance.profile_number or 0,
        start=instance.start or 0,
        size=instance.size,
    )
    attributes = _numbers(
        multiprocessors=instance.multiprocessors or 0,
        gpu_slices=instance.gpu_slices or 0,
        compute_slices=instance.compute_slices or 0,
        memory_mib=instance.memory_mib or 0,
        copy_engines=instance.copy_engines,
        decoders=instance.decoders,
        encoders=instance.encoders,
        jpegs=instance.jpegs,
        ofas=instance.ofas,
    )
    yield from (f"attributes.{line}" for line in attributes)
    yield from _processes(instance.processes)
    for function, code in instance.failures.items():
        yield f"fail {function} {code:d}"


def _processes(processes: Iterable[FakeProcess]) -> Iterator[str]:
    for process in processes:
        yield f"process {_process(process)}"


def _process(process: FakeProcess) -> str:
    memory = _NOT_AVAILABLE if process.memory_mib is None else process.memory_mib * MIB
    utilization = -1 if process.utilization is None else process.utilization
    return f"{_PROCESS_KINDS.index(process.kind)} {process.pid} {memory} {utilization}"


def _ways(index: int, gpus: Sequence[FakeGpu], connections: Sequence[FakeConnection]) -> Iterator[str]:
    """Yield how far each other card is, and the NvLinks in the order of their numbers: direct ones come first."""
    links: list[str] = []
    for connection in connections:
        ends = {connection.first: connection.second, connection.second: connection.first}
        if (peer := ends.get(index)) is None:
            continue
        yield f"peer {peer} {connection.topology:d} {connection.p2p_status}"
        links += [f"link {_LINK_TO_GPU} {gpus[peer].pci_device_id:x} {gpus[peer].pci_bus_id}"] * connection.nvlinks
    links += [f"link {_LINK_TO_SWITCH} {_SWITCH}"] * gpus[index].switch_links
    yield from links
    yield f"nvlink_slots {len(links) + gpus[index].idle_links}"


def _failures(failures: Failures, gpu: int | None) -> Iterator[str]:
    for (index, function), code in failures.items():
        if index == gpu:
            yield f"fail {function} {code:d}"


def _numbers(**numbers: int) -> Iterator[str]:
    for key, number in numbers.items():
        yield f"{key} {number:d}"
