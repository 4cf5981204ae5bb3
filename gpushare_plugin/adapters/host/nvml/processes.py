"""Which processes use the GPUs, and how much, as NVML reports it.

Facts: nvml.h of the CUDA toolkit; "Type" of processes in the manual page of nvidia-smi. Clients of MPS stand in a list
of their own, their server in that of processes that compute. A process ID is one of the host's PID namespace. Of a MIG
instance NVML reports memory and processes, but not how busy it is.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pynvml
import structlog

from gpushare_plugin.adapters.host import containers
from gpushare_plugin.adapters.host.nvml.memory import Memory, read_memory
from gpushare_plugin.model.gpu import Gpu
from gpushare_plugin.model.usage.sample import GpuSample, Process

_log = structlog.get_logger()

Handle = Any
"""An opaque pointer of NVML."""

_COMPUTING = pynvml.nvmlDeviceGetComputeRunningProcesses_v3
_DRAWING = pynvml.nvmlDeviceGetGraphicsRunningProcesses_v3
_MPS_CLIENTS = pynvml.nvmlDeviceGetMPSComputeRunningProcesses_v3
"""Without their version they raise what is no NVMLError where the driver lacks them; drivers since 510 have them."""
_ABSENT = (pynvml.NVMLError_NotSupported, pynvml.NVMLError_FunctionNotFound)
_NO_SAMPLES = frozenset({pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_SUCCESS})
"""What pynvml raises where no process has computed lately: it takes success without a sample for an error."""
_ALL = 100
"""Percent."""


class Users(NamedTuple):
    """The bytes that each process uses, by its ID, and which are clients of MPS; None where that is not known."""

    memory: dict[int, int | None]
    mps_clients: frozenset[int] | None


class ProcessReader:
    """Reads how GPUs are used; knows until when the work of each process was read before."""

    def __init__(self, procfs: Path) -> None:
        """Look for the containers of processes in `procfs`."""
        self._procfs = procfs
        self._read_until: dict[str, int] = {}

    def read(self, gpus: Iterable[Gpu]) -> tuple[GpuSample, ...]:
        """Return how these GPUs are used; one that does not answer is left out."""
        unknown = containers.why_unknown(self._procfs)
        samples = []
        for gpu in gpus:
            try:
                samples.append(self._sample(gpu, pynvml.nvmlDeviceGetHandleByUUID(gpu.uuid), unknown))
            except pynvml.NVMLError as error:
                _log.debug("gpu_usage_unknown", uuid=gpu.uuid, reason=str(error))
        return tuple(samples)

    def _sample(self, gpu: Gpu, handle: Handle, unknown: str | None) -> GpuSample:
        memory = read_memory(handle)
        busy = _utilization(handle)
        processes: tuple[Process, ...] = ()
        clients: int | None = None
        # With the privilege for it, a card in MIG mode reports the processes of its instances once more.
        if unknown is None and (gpu.mig is not None or not gpu.mig_enabled):
            try:
                processes, clients = self._processes(gpu, handle)
            except _ABSENT as error:
                unknown = f"the driver does not report the processes of {gpu.identity}: {error}{_remedy(error)}"
        return GpuSample(gpu.uuid, _usable(memory), memory.used, busy, processes, unknown, clients)

    def _processes(self, gpu: Gpu, handle: Handle) -> tuple[tuple[Process, ...], int | None]:
        """Return the processes, and how many of them are clients of MPS."""
        seen_at = containers.now()
        memory, clients = users_of(handle)
        found = containers.look_up(memory, seen_at, self._procfs)
        busy = self._utilization_by_pid(gpu.uuid, handle) if found else {}
        processes = tuple(
            Process(pid, process.program, memory[pid], None if busy is None else busy.get(pid, 0.0), process.owner)
            for pid, process in found.items()
        )
        return processes, None if clients is None else len(clients & found.keys())

    def _utilization_by_pid(self, uuid: str, handle: Handle) -> Mapping[int, float] | None:
        """Return how busy each process that computed kept the GPU since the last time; None where that is not known."""
        try:
            samples = pynvml.nvmlDeviceGetProcessUtilization(handle, self._read_until.get(uuid, 0))
        except pynvml.NVMLError as error:
            return {} if error.value in _NO_SAMPLES else None
        self._read_until[uuid] = max((int(each.timeStamp) for each in samples), default=0)
        by_pid: defaultdict[int, list[int]] = defaultdict(list)
        for each in samples:
            if each.smUtil <= _ALL:
                by_pid[int(each.pid)].append(each.smUtil)
        return {pid: sum(parts) / len(parts) / _ALL for pid, parts in by_pid.items()}


def _usable(memory: Memory) -> int:
    return memory.total - memory.reserved


def _utilization(handle: Handle) -> float | None:
    try:
        busy = pynvml.nvmlDeviceGetUtilizationRates(handle).gpu
    except pynvml.NVMLError:
        return None
    return busy / _ALL if busy <= _ALL else None


def _remedy(error: pynvml.NVMLError) -> str:
    return "; drivers since 510 do" if isinstance(error, pynvml.NVMLError_FunctionNotFound) else ""


def users_of(handle: Handle) -> Users:
    """Return who uses a GPU; raises NVMLError where the driver does not list the processes that compute."""
    clients = _listed_if_any(_MPS_CLIENTS, handle)
    found: dict[int, int | None] = {}
    for listed in (_listed(_COMPUTING, handle), _listed_if_any(_DRAWING, handle), clients):
        for pid, memory in listed or ():
            # A process can be in several lists, with all its memory in each.
            found[pid] = max((each for each in (found.get(pid), memory) if each is not None), default=None)
    return Users(found, None if clients is None else frozenset(pid for pid, _ in clients))


def _listed(ask: Any, handle: Handle) -> Sequence[tuple[int, int | None]]:
    return [(int(each.pid), each.usedGpuMemory) for each in ask(handle)]


def _listed_if_any(ask: Any, handle: Handle) -> Sequence[tuple[int, int | None]] | None:
    try:
        return _listed(ask, handle)
    except _ABSENT:
        return None
