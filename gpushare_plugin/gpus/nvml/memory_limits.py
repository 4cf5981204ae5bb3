"""The memory limits of cgroups through NVML.

Facts: nvml.h of CUDA 13.4, `nvmlDeviceSetMemoryLimits_v1` and `nvmlDeviceGetMemoryLimits_v1` with their structs, which
have no version, and `NVML_DEVICE_MEMORY_LIMIT_MAX`. pynvml has neither function yet.
"""

import ctypes
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import pynvml

from gpushare_plugin.base.errors import NoGpuLibraryError
from gpushare_plugin.core.driver_limits import FIRST_DRIVER, NO_LIMIT, MemoryLimit
from gpushare_plugin.gpus.cgroups import counted_above
from gpushare_plugin.gpus.memory_limits import (
    LimitError,
    LimitNotEnforcedError,
    LimitPermissionError,
    LimitReading,
    LimitRefusedError,
    NoCgroupError,
    NoLimitAnswerError,
    NoLimitFunctionError,
)
from gpushare_plugin.gpus.nvml.initialisation import LIBRARY, PROCFS, SYSFS
from gpushare_plugin.gpus.nvml.library import NvmlLibrary
from gpushare_plugin.gpus.source import Asked

_WITHOUT_LIMIT = (1 << 64) - 1
"""nvml.h: NVML_DEVICE_MEMORY_LIMIT_MAX, the hard limit of a cgroup without one."""
_NO_ANSWER = frozenset({pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_NOT_FOUND})
_REFUSALS = frozenset(
    {
        pynvml.NVML_ERROR_INVALID_ARGUMENT,
        pynvml.NVML_ERROR_IN_USE,
        pynvml.NVML_ERROR_OPERATING_SYSTEM,
        pynvml.NVML_ERROR_UNKNOWN,
    }
)
"""Answers to limits that cannot be set on a cgroup that is there: nvml.h names the first one, for limits above the
memory of the GPU, and no other one for limits below the memory in use."""


class _SetLimits(ctypes.Structure):
    """`nvmlSetMemoryLimits_v1_t`."""

    _fields_ = (
        ("nameSpace", ctypes.c_char_p),
        ("softLimit", ctypes.c_ulonglong),
        ("hardLimit", ctypes.c_ulonglong),
    )


class _GetLimits(ctypes.Structure):
    """`nvmlGetMemoryLimits_v1_t`."""

    _fields_ = (*_SetLimits._fields_, ("currentUsed", ctypes.c_ulonglong))


class NvmlMemoryLimits:
    """The memory limits of cgroups on the GPUs of the node, through NVML."""

    def __init__(self, driver_root: Path, sysfs: Path = SYSFS, procfs: Path = PROCFS) -> None:
        """Look for the library below `driver_root` first; read the kernel's list of cards from `sysfs` and `procfs`."""
        self._library = NvmlLibrary(driver_root, sysfs, procfs)
        self._opening = threading.Lock()

    def read(self, uuid: str, cgroup: Path) -> LimitReading:
        """Return the limits of a cgroup on a GPU; raises LimitError."""
        self._open(uuid, cgroup)
        return read_limits(uuid, cgroup)

    def set(self, uuid: str, cgroup: Path, limit: MemoryLimit) -> None:
        """Set the limits of a cgroup on a GPU, which requires root, and read the limits back; raises LimitError."""
        self._open(uuid, cgroup)
        set_limits(uuid, cgroup, limit)
        if (found := read_limits(uuid, cgroup).limit) != limit:
            raise LimitRefusedError(
                f"{_what(uuid, cgroup)}: the driver took {limit.words}, and reports {found.words}. Stop the "
                "programs of the container that use more, and look for other programs that write dmem.max"
            )

    def _open(self, uuid: str, cgroup: Path) -> None:
        try:
            with self._opening:  # each GPU may have a thread
                self._library.open()
        except NoGpuLibraryError as error:
            raise LimitError(f"{_what(uuid, cgroup)}: {error}") from error


def read_limits(uuid: str, cgroup: Path) -> LimitReading:
    """Return the limits of a cgroup on a GPU, while NVML is initialised; raises LimitError."""
    answer = _GetLimits(nameSpace=bytes(cgroup))
    what = f"{_what(uuid, cgroup)} cannot be read"
    code = _call("nvmlDeviceGetMemoryLimits_v1", uuid, answer, what)
    if code != pynvml.NVML_SUCCESS:
        raise _error(code, what, cgroup)
    hard = None if answer.hardLimit == _WITHOUT_LIMIT else answer.hardLimit
    limit = MemoryLimit(hard, answer.softLimit)
    if limit != NO_LIMIT and (above := counted_above(cgroup)):
        raise LimitNotEnforcedError(
            f"{_what(uuid, cgroup)} are {limit.words}, and not enforced: neither dmem nor misc is enabled for this "
            f"cgroup, so the driver counts its processes in {above}. Write +dmem or +misc to cgroup.subtree_control of "
            "all cgroups above, as runc does for the cgroups of containers"
        )
    return LimitReading(limit, answer.currentUsed)


def readings(asked: Sequence[Asked]) -> Mapping[Asked, LimitReading | LimitError]:
    """Return the limits of cgroups on GPUs, or the errors for which they cannot be read, while NVML is initialised."""
    return {each: _reading(*each) for each in asked}


def _reading(uuid: str, cgroup: Path) -> LimitReading | LimitError:
    try:
        return read_limits(uuid, cgroup)
    except LimitError as error:
        return error


def set_limits(uuid: str, cgroup: Path, limit: MemoryLimit) -> None:
    """Set the limits of a cgroup on a GPU, while NVML is initialised; raises LimitError."""
    hard = _WITHOUT_LIMIT if limit.hard is None else limit.hard
    what = f"{_what(uuid, cgroup)} cannot be set to {limit.words}"
    code = _call("nvmlDeviceSetMemoryLimits_v1", uuid, _SetLimits(bytes(cgroup), limit.soft, hard), what)
    if code in _REFUSALS and cgroup.is_dir():
        raise LimitRefusedError(
            f"{what}: {pynvml.NVMLError(code)}. A limit must not be above the memory of the GPU, nor below the memory "
            "in use; MIG instances have no limits"
        )
    if code != pynvml.NVML_SUCCESS:
        raise _error(code, what, cgroup)


def _what(uuid: str, cgroup: Path) -> str:
    return f"the memory limits of {cgroup} on {uuid}"


def _call(name: str, uuid: str, argument: ctypes.Structure, what: str) -> int:
    """Call a function of NVML about a GPU and return NVML's code; raises LimitError for what fails before the call."""
    try:
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
    except pynvml.NVMLError as error:
        raise LimitError(f"{what}: the GPU is not accessible: {error}; see nvidia-smi") from error
    try:
        # The loader answers with the library that pynvml has loaded.
        function = getattr(ctypes.CDLL(LIBRARY), name)
    except (OSError, AttributeError):
        return int(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
    return int(function(handle, ctypes.byref(argument)))


def _error(code: int, what: str, cgroup: Path) -> LimitError:
    said = f"{what}: {pynvml.NVMLError(code)}."
    if code == pynvml.NVML_ERROR_FUNCTION_NOT_FOUND:
        return NoLimitFunctionError(f"{said} Drivers from {FIRST_DRIVER} on have memory limits: upgrade the driver")
    if code in _NO_ANSWER:
        return NoLimitAnswerError(
            f"{said} Either no limit was set for this cgroup, or the driver limits no memory here: that takes a "
            "kernel with the cgroup controller dmem or misc, and a GPU that is not in MIG mode"
        )
    if code == pynvml.NVML_ERROR_NO_PERMISSION:
        return LimitPermissionError(f"{said} Only root can set limits")
    if not cgroup.is_dir():
        return NoCgroupError(
            f"{said} There is no such directory: the container has ended, or it is another host's path"
        )
    return LimitError(f"{said} See the messages of the driver in the kernel's log (dmesg)")
