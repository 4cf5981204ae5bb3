"""How many processes run the tests: as many as the machine, or the container, has cores and memory for."""

import math
import os
from pathlib import Path

import psutil

PER_CORE = 3
"""Workers for each core: tests wait more than they compute. More than three wait for the cores."""

MEMORY = 1 << 30
"""Bytes that a worker takes at most, with the programs that its tests start."""

CGROUPS = Path("/sys/fs/cgroup")
"""Where a container sees its own limits: of cgroup v2, or of v1 in a directory for each controller."""


def workers(cgroups: Path = CGROUPS, cores: int | None = None, memory: int | None = None) -> int:
    """Return how many workers fit, of which there is always one.

    `cores` and `memory` (bytes) are those of the machine, or of the part of it that this process may use.
    """
    cores = cores or len(os.sched_getaffinity(0))
    memory = memory or psutil.virtual_memory().total
    return max(1, min(PER_CORE * math.ceil(min(cores, _quota(cgroups))), min(memory, _limit(cgroups)) // MEMORY))


def _quota(cgroups: Path) -> float:
    """Return how many cores' time the container gets; infinite without a limit."""
    quota, period = [*_words(cgroups / "cpu.max"), "max", ""][:2]
    if quota == "max":
        (quota,) = _words(cgroups / "cpu/cpu.cfs_quota_us") or ["-1"]
        (period,) = _words(cgroups / "cpu/cpu.cfs_period_us") or [""]
    return int(quota) / int(period) if period and int(quota) > 0 else math.inf


def _limit(cgroups: Path) -> int:
    """Return how many bytes the container gets; more than any machine has without a limit."""
    found = [_words(cgroups / file) for file in ("memory.max", "memory/memory.limit_in_bytes")]
    return min((int(words[0]) for words in found if words and words[0] != "max"), default=1 << 63)


def _words(file: Path) -> list[str]:
    return file.read_text().split() if file.exists() else []
