"""Driver limits: the limits of GPU memory that NVIDIA's driver enforces for a cgroup on a GPU.

Source: nvml.h of CUDA 13.4, `nvmlSetMemoryLimits_v1_t`; NVIDIA, "Multi-Process Service", r615, "MPS v3 Memory
Partitioning". A hard limit fails the allocations beyond the limit. A soft limit is a guaranteed part; memory beyond the
soft limit is borrowed.
"""

import re
from collections.abc import Mapping
from fractions import Fraction

from gpushare_plugin.base.memory import MIB
from gpushare_plugin.base.structs import Struct

FIRST_DRIVER = 615
"""The first major version of NVIDIA's driver with driver limits, and with protocol 3 of MPS."""
_MAJOR = re.compile(r"(\d{1,5})\.", re.ASCII)

LIMITS_HOOK = "apply-cuda-memory-limits"
"""The hook of NVIDIA's container toolkit that sets limits (NVIDIA/nvidia-container-toolkit, cmd/nvidia-cdi-hook)."""

REQUEST_VARIABLE, LIMIT_VARIABLE = "NVIDIA_GPU_MEMORY_REQUEST", "NVIDIA_GPU_MEMORY_LIMIT"
"""The variables of a container with the soft and the hard limit that the hook sets, both in whole MiB."""


def has_driver_limits(driver_version: str) -> bool:
    """Return whether a driver of this version, such as `615.71.09`, has driver limits; an unknown version has none."""
    major = _MAJOR.match(driver_version)
    return major is not None and int(major[1]) >= FIRST_DRIVER


class MemoryLimit(Struct, frozen=True):
    """The limits of a cgroup on a GPU, in bytes."""

    hard: int | None = None
    """The most bytes that all processes of the cgroup together can allocate; None without a limit."""
    soft: int = 0
    """The bytes that the cgroup is guaranteed while other cgroups borrow memory."""

    @property
    def words(self) -> str:
        """The limits for people, for example `a hard limit of 4096 MiB`."""
        hard = "no hard limit" if self.hard is None else f"a hard limit of {_amount(self.hard)}"
        if self.soft:
            return f"{hard} and a soft limit of {_amount(self.soft)}"
        return "no limit" if self.hard is None else hard

    @property
    def variables(self) -> dict[str, str]:
        """The variables from which the hook sets these limits: both, since a version of the hook needs both."""
        return {REQUEST_VARIABLE: str(self.soft // MIB), LIMIT_VARIABLE: str((self.hard or 0) // MIB)}


def _amount(size: int) -> str:
    return f"{size} bytes" if size % MIB else f"{size // MIB} MiB"


NO_LIMIT = MemoryLimit()
"""The limits of a cgroup that nobody limits; the driver also takes these values to remove a limit."""


def given_limit(variables: Mapping[str, str]) -> MemoryLimit | None:
    """Return the limits that a container was given as `variables`; None where it was given none."""
    soft, hard = variables.get(REQUEST_VARIABLE, ""), variables.get(LIMIT_VARIABLE, "")
    return MemoryLimit(int(hard) * MIB, int(soft) * MIB) if soft.isdecimal() and hard.isdecimal() else None


class LimitRule(Struct, frozen=True):
    """The rule that makes the driver limits of a container from the share of the container on a GPU."""

    added_mib: int = 0
    """The MiB to add to each share, for the CUDA contexts of the container, which count for the limit."""
    burst: Fraction | None = None
    """The hard limit as a multiple of the share, at least 1; None without a burst by a factor."""
    burst_mib: int | None = None
    """The hard limit in MiB, if larger than the share; None without a burst to a size."""

    @property
    def bursts(self) -> bool:
        """Whether a container can use more memory than its share."""
        return self.burst is not None or self.burst_mib is not None

    def limit(self, share_mib: int, gpu_mib: int) -> MemoryLimit:
        """Return the limits of a container with `share_mib` MiB of a GPU of `gpu_mib` MiB, both usable memory.

        The driver refuses limits above the memory of the GPU. With a burst, the share alone is guaranteed: the shares
        of a GPU together are never more than its memory, while the hard limits can be.
        """
        return MemoryLimit(self.most_mib(share_mib, gpu_mib) * MIB, share_mib * MIB if self.bursts else 0)

    def most_mib(self, share_mib: int, gpu_mib: int) -> int:
        """Return the hard limit in MiB; the arguments are those of `limit`."""
        return min(self._wanted_mib(share_mib), gpu_mib)

    def lifts(self, share_mib: int, gpu_mib: int) -> bool:
        """Return whether the rule makes the memory of the GPU the hard limit of a smaller share.

        Nothing is limited then. The arguments are those of `limit`.
        """
        return share_mib < gpu_mib <= self._wanted_mib(share_mib)

    def extends(self, share_mib: int) -> bool:
        """Return whether the burst gives a share at least one MiB more."""
        return self._wanted_mib(share_mib) > share_mib + self.added_mib

    def _wanted_mib(self, share_mib: int) -> int:
        """Return the hard limit in MiB for a share, whatever memory the GPU has."""
        share = share_mib + self.added_mib
        return max(share, int(share * (self.burst or 1)), self.burst_mib or 0)


class DriverLimits(Struct, frozen=True):
    """The means of a node to set driver limits, as known before a limit is set."""

    missing: str = ""
    """Why the driver of the node cannot limit memory, for people; empty where the driver can."""
    hook: str = ""
    """Why no hook of a CDI specification sets limits, for people; empty where a hook does."""
    agent: bool = False
    """Whether an agent, `gpushare driver-limits`, sets limits on the node."""

    @property
    def remedy(self) -> str:
        """What to do about the answer of `why_not`, in words that follow the answer, which may name the remedy."""
        return "mend that" if self.missing else "do so"

    def why_not(self, rule: LimitRule) -> str:
        """Return why limits by `rule` cannot be set on the node, for people; empty where they can be set.

        Only an agent removes soft limits, which ancestors of the cgroup keep otherwise when a container ends.
        """
        if self.missing or self.agent:
            return self.missing
        if rule.bursts:
            return f"burst needs the agent of driver limits, and {_NO_AGENT}"
        return f"{self.hook}, and {_NO_AGENT}" if self.hook else ""


_NO_AGENT = (
    "no agent sets limits here (start gpushare driver-limits, and give gpushare run --driver-limits-agent=true; chart: "
    "driverLimits.enabled and cluster.followPods)"
)
