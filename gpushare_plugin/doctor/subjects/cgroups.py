"""The control groups of the node: their version, and the controllers by which the driver can limit memory of GPUs.

Facts: the kernel's Documentation/admin-guide/cgroup-v2.rst (`cgroup.controllers`; `dmem.capacity` has a line for each
region of device memory); for the driver's memory limits, from r615 on by `dmem` or `misc`, NVIDIA's
open-gpu-kernel-modules, kernel-open/nvidia/os-interface.c, and its MPS documentation, "MPS v3 Memory Partitioning".
"""

from collections.abc import Iterator

from gpushare_plugin.base.structs import Struct
from gpushare_plugin.doctor.node.diagnosis import Diagnosis, not_looked_at, right
from gpushare_plugin.doctor.node.host import HostRoot

SUBJECT = "control groups"
FIRST_WITH_LIMITS = 615
"""The first driver with memory limits for control groups."""
_ROOT = "/sys/fs/cgroup"


class CgroupFacts(Struct, frozen=True):
    """What the node shows of its control groups."""

    version: int | None
    """1 or 2; None where the file system of control groups is not there."""
    controllers: tuple[str, ...] = ()
    """The controllers of version 2."""
    counted_by_dmem: bool = False
    """Whether the kernel counts memory of NVIDIA's GPUs in the controller dmem."""


def read_cgroups(host: HostRoot) -> CgroupFacts:
    """Return what the node shows of its control groups."""
    if host.exists(f"{_ROOT}/cgroup.controllers"):
        capacity = host.line(f"{_ROOT}/dmem.capacity")
        by_dmem = any(line.startswith("nvidia/") for line in capacity.splitlines())
        return CgroupFacts(2, tuple(host.line(f"{_ROOT}/cgroup.controllers").split()), by_dmem)
    return CgroupFacts(1 if host.names(_ROOT) else None)


def judge_cgroups(facts: CgroupFacts, driver: str) -> Iterator[Diagnosis]:
    """Yield the line about control groups; `driver` is the version of the kernel module, empty without one."""
    if facts.version is None:
        yield not_looked_at(SUBJECT, f"{_ROOT} is empty or missing")
    elif facts.version == 1:
        yield right(SUBJECT, "version 1; memory limits of NVIDIA's driver need version 2")
    else:
        yield right(SUBJECT, f"version 2, controllers {' '.join(facts.controllers)}; {_limits(facts, driver)}")


def _limits(facts: CgroupFacts, driver: str) -> str:
    by = (
        "dmem"
        if facts.counted_by_dmem
        else next((name for name in ("dmem", "misc") if name in facts.controllers), None)
    )
    if by is None:
        return "memory limits of NVIDIA's driver need the controller dmem or misc"
    major = driver.partition(".")[0]
    if not major.isdecimal() or int(major) < FIRST_WITH_LIMITS:
        return f"memory limits by {by} need driver {FIRST_WITH_LIMITS} or newer"
    return f"memory limits of NVIDIA's driver by {by}"
