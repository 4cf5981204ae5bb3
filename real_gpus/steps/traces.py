"""What the steps left behind: nothing, or the machine is not as it was."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pynvml

from gpushare_plugin.gpus.compute_modes import ComputeMode
from real_gpus.containers import Cgroups
from real_gpus.findings import Finding, equal

_PROCESSES = "processes"
"""The field with the number of processes that compute on a GPU."""
_OFF_ON = ("off", "on")

Trace = Mapping[str, Any]
"""The state of a GPU, field by field."""


def state(uuids: Sequence[str]) -> Sequence[Trace]:
    """Return the state of each GPU that a run must not change."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return [{"NVML": str(error)} for _ in uuids]
    try:
        return [_state(uuid) for uuid in uuids]
    finally:
        pynvml.nvmlShutdown()


def _state(uuid: str) -> Trace:
    try:
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
    except pynvml.NVMLError as error:
        return {"NVML": str(error)}
    asked: Mapping[str, Callable[[Any], object]] = {
        "compute mode": lambda each: ComputeMode(pynvml.nvmlDeviceGetComputeMode(each)).name,
        "persistence mode": lambda each: _OFF_ON[pynvml.nvmlDeviceGetPersistenceMode(each)],
        "MIG mode": lambda each: _OFF_ON[pynvml.nvmlDeviceGetMigMode(each)[0]],
        _PROCESSES: lambda each: len(pynvml.nvmlDeviceGetComputeRunningProcesses(each)),
    }
    found: dict[str, Any] = {}
    for name, ask in asked.items():
        try:
            found[name] = ask(handle)
        except pynvml.NVMLError as error:
            found[name] = str(error)
    return found


def is_used(trace: Trace) -> bool:
    """Return whether programs compute on a GPU; a driver that does not say counts as no."""
    found = trace.get(_PROCESSES)
    return isinstance(found, int) and found > 0


def compared(before: Sequence[Trace], after: Sequence[Trace]) -> list[Finding]:
    """Return one finding for each GPU and field."""
    return [
        equal(f"GPU {number}: {field}", value, now.get(field, now.get("NVML")))
        for number, (trace, now) in enumerate(zip(before, after, strict=True))
        for field, value in trace.items()
    ]


def cgroups_left(cgroups: Cgroups) -> Finding:
    """Return whether all cgroups of this run are gone."""
    return equal("cgroups of this run", "removed", "still there" if cgroups.root.exists() else "removed")
