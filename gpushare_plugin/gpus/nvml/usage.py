"""The use of GPUs and the processes on them, reported by NVML.

Facts: nvml.h of the CUDA toolkit; "Type" of processes in the manual page of nvidia-smi. NVML lists the clients of MPS
separately, and the MPS server with the compute processes. Process IDs are IDs of the host's PID namespace. For a MIG
instance, NVML reports memory and processes, but not the utilization. For a GPU that uses the memory of the host, NVML
reports the memory of processes, but not of the GPU.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pynvml
import structlog

from gpushare_plugin.core.gpu import Gpu
from gpushare_plugin.core.usage import GpuUsage, Process
from gpushare_plugin.gpus import containers
from gpushare_plugin.gpus.nvml.memory import read_memory
from gpushare_plugin.gpus.nvml.unanswered import UNANSWERED

_log = structlog.get_logger()

Handle = Any
"""An opaque pointer of NVML."""

_COMPUTING = pynvml.nvmlDeviceGetComputeRunningProcesses_v3
_DRAWING = pynvml.nvmlDeviceGetGraphicsRunningProcesses_v3
_MPS_CLIENTS = pynvml.nvmlDeviceGetMPSComputeRunningProcesses_v3
"""Calls with explicit versions: if the driver lacks a call, the name without a version raises an error other than
NVMLError. Drivers since 510 have the calls."""
_NO_SAMPLES = frozenset({pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_SUCCESS})
"""Errors of pynvml if no process has computed lately: pynvml takes success without a sample for an error."""
_ALL = 100
"""Percent."""


class Users(NamedTuple):
    """The processes on a GPU."""

    memory: dict[int, int | None]
    """The bytes used by each process, by process ID; None where the driver does not say."""
    mps_clients: frozenset[int] | None
    """The IDs of the processes that are clients of MPS; None where the driver does not say."""


class ProcessReader:
    """Reads the use of GPUs; remembers the time of the last utilization sample of each GPU."""

    def __init__(self, procfs: Path) -> None:
        """Look for the containers of processes in `procfs`."""
        self._procfs = procfs
        self._read_until: dict[str, int] = {}

    def read(self, gpus: Iterable[Gpu]) -> tuple[GpuUsage, ...]:
        """Return the use of these GPUs; a GPU that does not answer is left out."""
        unknown = containers.why_unknown(self._procfs)
        samples = []
        for gpu in gpus:
            try:
                samples.append(self._sample(gpu, pynvml.nvmlDeviceGetHandleByUUID(gpu.uuid), unknown))
            except pynvml.NVMLError as error:
                _log.debug("gpu_usage_unknown", uuid=gpu.uuid, reason=str(error))
        return tuple(samples)

    def _sample(self, gpu: Gpu, handle: Handle, unknown: str | None) -> GpuUsage:
        memory = read_memory(handle)
        busy = _utilization(handle)
        processes: tuple[Process, ...] | None = None
        clients: int | None = None
        if unknown is None:
            try:
                processes, clients = self._processes(gpu, handle)
            except UNANSWERED as error:
                unknown = f"the driver does not report the processes of {gpu.identity}: {error}{_remedy(error)}"
        total, used = (memory.total - memory.reserved, memory.used) if memory else (None, None)
        return GpuUsage(gpu.uuid, total, used, busy, processes, unknown, clients)

    def _processes(self, gpu: Gpu, handle: Handle) -> tuple[tuple[Process, ...], int | None]:
        """Return the processes, and the number of MPS clients among the processes."""
        if gpu.mig_enabled and gpu.mig is None:
            # To a privileged process, NVML reports the processes of MIG instances again for the card.
            return (), None
        seen_at = containers.now()
        memory, clients = users_of(handle)
        found = containers.look_up(memory, seen_at, self._procfs)
        busy = self._utilization_by_pid(gpu.uuid, handle) if found else {}
        processes = tuple(
            Process(
                pid,
                process.program,
                memory[pid],
                None if busy is None else busy.get(pid, 0.0),
                process.owner,
                None if clients is None else pid in clients,
            )
            for pid, process in found.items()
        )
        return processes, None if clients is None else len(clients & found.keys())

    def _utilization_by_pid(self, uuid: str, handle: Handle) -> Mapping[int, float] | None:
        """Return the utilization (0 to 1) of the GPU by each process since the last read; None if unknown."""
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


def _utilization(handle: Handle) -> float | None:
    try:
        busy = pynvml.nvmlDeviceGetUtilizationRates(handle).gpu
    except pynvml.NVMLError:
        return None
    return busy / _ALL if busy <= _ALL else None


def _remedy(error: pynvml.NVMLError) -> str:
    return "; drivers since 510 do" if isinstance(error, pynvml.NVMLError_FunctionNotFound) else ""


def users_of(handle: Handle) -> Users:
    """Return the processes on a GPU; raises NVMLError where the driver does not list compute processes."""
    clients = _listed_if_any(_MPS_CLIENTS, handle)
    found: dict[int, int | None] = {}
    for listed in (_listed(_COMPUTING, handle), _listed_if_any(_DRAWING, handle), clients):
        for pid, memory in listed or ():
            # A process can be in several lists, and each list gives all memory of the process.
            found[pid] = max((each for each in (found.get(pid), memory) if each is not None), default=None)
    return Users(found, None if clients is None else frozenset(pid for pid, _ in clients))


def _listed(ask: Any, handle: Handle) -> Sequence[tuple[int, int | None]]:
    return [(int(each.pid), each.usedGpuMemory) for each in ask(handle)]


def _listed_if_any(ask: Any, handle: Handle) -> Sequence[tuple[int, int | None]] | None:
    try:
        return _listed(ask, handle)
    except UNANSWERED:
        return None
