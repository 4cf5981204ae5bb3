"""The steps: each is an asynchronous generator of findings about this machine."""

import ctypes
import shutil
import stat
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Literal, NamedTuple

from gpushare_plugin.core.driver_limits import FIRST_DRIVER, has_driver_limits
from gpushare_plugin.observe.node.report import GpuReport
from real_gpus.containers import why_no_mounts
from real_gpus.findings import Finding
from real_gpus.node import Config, Machine, Node, node

Isolation = Literal["none", "mps"] | tuple[str, ...]
"""The value of `isolation` in a config: a name, or a list in the order of preference."""

MEMORY = "aliyun.com/gpu-mem"
"""The resource of memory in GiB."""
MIB_PER_UNIT = 1024
"""The MiB of one unit of memory."""
WHOLE = "nvidia.com/gpu"
"""The resource of whole GPUs."""
SHARED = "nvidia.com/gpu.shared"
"""The resource of replicas."""
_LIMITS_FROM = 7.0
"""The least compute capability with which MPS has limits."""
_LEAST_GIB = 4
"""So many units of memory are enough for all containers of a step."""
USER = 1000
"""A user ID other than root's."""


def shares_memory(gpu: GpuReport) -> bool:
    """Return whether a GPU can be shared by memory: not in MIG mode, and of known memory."""
    return not gpu.mig_enabled and gpu.memory_mib is not None


class Subject(NamedTuple):
    """What a step looks at."""

    machine: Machine
    """The machine."""
    gpus: Sequence[GpuReport]
    """The cards of the machine as `gpushare list` shows them."""

    @property
    def gpu(self) -> GpuReport:
        """The GPU that is shared: the first one that can be shared by memory."""
        return next(filter(shares_memory, self.gpus))

    @property
    def memory_mib(self) -> int:
        """The memory in MiB of the GPU that is shared."""
        return self.gpu.memory_mib or 0

    @property
    def gib(self) -> int:
        """The whole GiB of the GPU that is shared: its units by memory."""
        return self.memory_mib // MIB_PER_UNIT

    @property
    def share(self) -> int:
        """The units of a container that needs no certain share: an eighth of the GPU, at least one unit."""
        return max(1, self.gib // 8)

    def units(self, shared: Mapping[str, int]) -> Mapping[str, int]:
        """Return the units of a node that shares one GPU as `shared` (resource: units), and offers the others whole.

        Without a strategy for MIG, a card in MIG mode is offered whole, too.
        """
        others = len(self.gpus) - 1
        return {**shared, WHOLE: others} if others else shared

    def sharing_by_memory(self, isolation: Isolation) -> Config:
        """Return the section `sharing` of a config that shares the GPU by memory in GiB."""
        entry = {"name": MEMORY, "devices": [self.gpu.index], "isolation": isolation}
        return {"memory": {"resources": [entry]}}

    def by_memory(self, isolation: Isolation, protocol: Literal[2, 3] = 2) -> AbstractAsyncContextManager[Node]:
        """Run a node that shares the GPU by memory in GiB, with a protocol of MPS.

        Raises NodeError where the node does not come up.
        """
        sharing, units = self.sharing_by_memory(isolation), self.units({MEMORY: self.gib})
        return node(self.machine, sharing, units, mps="mps" in isolation, protocol=protocol)


Lacks = Callable[[Subject], str | None]
"""Returns what a machine lacks for a step, in words; None if the machine lacks nothing."""


class Step(NamedTuple):
    """One step."""

    title: str
    """What the step looks at."""
    look: Callable[[Subject], AsyncIterator[Finding]]
    """Yields the findings; after an error, the findings until then are reported with the error."""
    lacks: Lacks = lambda _: None
    """What the machine lacks for the step."""


def no_cuda(subject: Subject) -> str | None:
    """Return why no program can use CUDA here, or why the GPU cannot be shared by enough containers."""
    if subject.gib < _LEAST_GIB:
        return f"the GPU has {subject.gib} GiB, and the steps need {_LEAST_GIB}"
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return f"no program can use CUDA: {error}"
    return None


def no_usage(subject: Subject) -> str | None:
    """Return why it cannot be known here which container uses a GPU."""
    return no_cuda(subject) or subject.machine.cgroups.why_none


def no_mps(subject: Subject) -> str | None:
    """Return why no program can use MPS here."""
    if shutil.which("nvidia-cuda-mps-control") is None:
        return "there is no nvidia-cuda-mps-control in PATH"
    if (reason := why_no_mounts()) is not None:
        return reason
    if float(subject.gpu.compute_capability) < _LIMITS_FROM:
        found = subject.gpu.compute_capability
        return f"MPS has limits from compute capability {_LIMITS_FROM} on, and the GPU has {found}"
    return no_cuda(subject)


def no_mps_usage(subject: Subject) -> str | None:
    """Return why it cannot be known here which container uses a GPU under MPS."""
    return no_mps(subject) or subject.machine.cgroups.why_none


def no_namespaces(subject: Subject) -> str | None:
    """Return why no program can use MPS by protocol 3 here."""
    driver = subject.machine.driver
    if not has_driver_limits(driver):
        return f"MPS of driver {driver} has no protocol 3, which drivers have from {FIRST_DRIVER} on: expected absent"
    return no_mps(subject)


def no_namespaces_for_users(subject: Subject) -> str | None:
    """Return why no program of another user can use MPS by protocol 3 here."""
    return no_namespaces(subject) or no_mps_users(subject)


def no_mps_users(subject: Subject) -> str | None:
    """Return why no program of another user can use MPS here."""
    if (reason := no_mps(subject)) is not None:
        return reason
    program = Path(sys.executable)
    for path in (program, *program.parents, program.resolve(), *program.resolve().parents):
        if not path.stat().st_mode & stat.S_IXOTH:
            return f"user {USER} cannot run {program}, because of the mode of {path}"
    return None
