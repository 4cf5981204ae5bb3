"""Isolation by NVIDIA's driver, which limits the memory that the processes of a cgroup have on a GPU (from 615 on).

The hook `apply-cuda-memory-limits` of NVIDIA's container toolkit reads the two variables, in whole MiB, and limits the
cgroup of the container on each of its GPUs before the first process starts; an agent sets the same limits by NVML.
Sources: NVIDIA/nvidia-container-toolkit, cmd/nvidia-cdi-hook/apply-cuda-memory-limits (merged with #2075; a stored
version does nothing unless both variables are there, and every version fails, and with it the start of the container,
where the driver cannot limit memory); NVIDIA, "Multi-Process Service", r615, "MPS v3 Memory Partitioning" (no limits in
MIG mode); NVIDIA/open-gpu-kernel-modules 615.71.09, src/nvidia/src/kernel/mem_mgr/memacct.c (GPUs without memory of
their own, such as GB10, are skipped: an inference from the source, not seen on a card).
"""

from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import ClassVar

from gpushare_plugin.base.errors import PlacementError
from gpushare_plugin.base.memory import MIB
from gpushare_plugin.base.structs import Struct
from gpushare_plugin.base.text import some_of
from gpushare_plugin.config.findings import GPUS_TO_NAME, Findings
from gpushare_plugin.config.schema.sections import Burst, Config
from gpushare_plugin.config.schema.values import MemoryUnit, plain_burst
from gpushare_plugin.config.unreported_memory import NO_SIZE
from gpushare_plugin.core.driver_limits import DriverLimits, LimitRule
from gpushare_plugin.core.gpu import Gpu
from gpushare_plugin.core.grant import Allocation, Grant
from gpushare_plugin.sharing.isolation.layer import EqualParts, Isolation, Layers, Limits, Mode, SharedGpus

_NOT_LOOKED_AT = DriverLimits(missing="nobody looked at whether the driver of this node can limit memory")


class UnderDriver(EqualParts, frozen=True, eq=False):
    """The mode of a GPU whose memory the driver limits; the rule makes limits of the equal shares, too.

    Two such modes are equal if their parts are, whatever their rules: another rule changes the limits of containers
    that start later, and no container's share.
    """

    rule: LimitRule
    """The rule that makes limits of shares."""

    @property
    def isolation(self) -> str:
        """The name of the isolation."""
        return DriverIsolation.name

    def __eq__(self, other: object) -> bool:
        """Return whether `other` is the mode with the same parts."""
        return isinstance(other, UnderDriver) and self.equal_parts == other.equal_parts

    def __ne__(self, other: object) -> bool:
        """Return whether `other` is no mode with the same parts; a Struct has an operator of its own for this, too."""
        return not self == other

    def __hash__(self) -> int:
        """Return the same number for equal modes."""
        return hash(self.equal_parts)


class LimitVariables(Struct, frozen=True):
    """The layer with the variables that the hook of NVIDIA's container toolkit reads."""

    rule: LimitRule
    """The rule that makes limits of shares."""
    agent: bool
    """Whether an agent sets limits, too."""

    def add(self, grant: Grant, share: Allocation) -> None:
        """Add both limits in MiB, unless they differ between GPUs: the hook gives all GPUs of a container the same.

        Raises PlacementError for different limits without an agent.
        """
        limits = {self.rule.limit(part.mib, part.gpu.memory_mib) for part in share.gpus}
        if len(limits) == 1:
            grant.environment |= limits.pop().variables
        elif not self.agent:
            found = ", ".join(
                f"{(each.hard or 0) // MIB} MiB" for each in sorted(limits, key=lambda each: each.hard or 0)
            )
            raise PlacementError(
                f"{share.resource}: the limits on the {len(share.gpus)} GPUs of this container differ ({found}), and "
                "the hook of NVIDIA's container toolkit gives all GPUs of a container the same limit; start the agent "
                "gpushare driver-limits (chart: driverLimits.enabled and cluster.followPods), or request equal shares"
            )


class DriverIsolation(Struct, Isolation, frozen=True):
    """The isolation of an entry with `isolation: driver`."""

    name: ClassVar[str] = "driver"

    node: DriverLimits
    """The means of the node to set limits."""
    rule: LimitRule
    """The rule that makes limits of shares."""
    limits: Limits
    """The limits of the entry."""

    @property
    def keys_in_force(self) -> frozenset[str]:
        """The key of the burst."""
        return frozenset({"burst"} if self.rule.bursts else ())

    @property
    def limit_is_seen(self) -> bool:
        """Whether programs see the limit as the memory of the GPU: the driver tells the limit."""
        return True

    @property
    def layers(self) -> Layers:
        """The layer with the variables of the limits."""
        return (LimitVariables(self.rule, self.node.agent),)

    def mode(self, gpu: Gpu) -> Mode:  # noqa: ARG002 - all GPUs have the same mode
        """Return the mode, with the parts of the GPU if all are equal."""
        return self.under_driver

    @property
    def under_driver(self) -> UnderDriver:
        """The mode of every GPU."""
        return UnderDriver(self.limits.equal_parts, self.rule)

    def why_not_on(self, gpu: Gpu) -> str:
        """Return why the driver does not limit memory of `gpu`; empty if it does."""
        if gpu.mig:
            return "is a MIG instance, and the driver limits the memory of whole GPUs only"
        if gpu.mig_enabled:
            return "is in MIG mode, in which the driver limits no memory"
        if not gpu.total_mib:
            return f"{'' if gpu.memory_mib else f'{NO_SIZE}, and '}has no memory of its own that the driver could limit"
        return ""

    def why_not(self, gpus: Iterable[Gpu]) -> str:
        """Return why the driver of this node cannot limit containers on `gpus`; empty if it can."""
        return self.node.why_not(self.rule) or super().why_not(gpus)

    def check(self, shared: SharedGpus, findings: Findings) -> None:
        """Find what the node lacks, and the GPUs on which the driver limits nothing."""
        self.check_node(shared, findings, "driver", "[driver, none]")
        super().check(shared, findings)
        self.warn(shared, findings)

    def check_node(self, shared: SharedGpus, findings: Findings, found: str, instead: str) -> None:
        """Find what the node lacks for the isolation `found`; `instead` is a list that other nodes accept."""
        if shared.containers and (reason := self.node.why_not(self.rule)):
            findings.problem(
                (*shared.path, "isolation"),
                f"found {found}, but {reason}; {self.node.remedy}, or let other isolations follow for such nodes, "
                f"as in {instead}",
            )

    def warn(self, shared: SharedGpus, findings: Findings) -> None:
        """Warn of GPUs on which each container has the memory of the GPU as limit, so that nothing is limited."""
        without_burst = LimitRule(self.rule.added_mib)
        by_addition = [gpu for gpu in shared.containers if self._lifts(without_burst, gpu)]
        by_burst = [gpu for gpu in shared.containers if self._lifts(self.rule, gpu) and gpu not in by_addition]
        if by_addition:
            findings.notice(
                f"driverLimits.additionalMemory: {MemoryUnit(self.rule.added_mib)} makes the limit of each container "
                f"of {shared.title} as large as {_sizes(by_addition)}, so nothing is limited there; set less, such as "
                "512MiB"
            )
        idle = [gpu for gpu in shared.containers if not self._bursts(gpu)] if self.rule.bursts else []
        if idle and self.limits.burst is not None:
            findings.notice(
                f"{shared.title}: burst is {plain_burst(self.limits.burst)}, which gives no share of {_sizes(idle)} a "
                "MiB more, and needs the agent of driver limits all the same; set a larger burst, or leave burst out"
            )
        if by_burst and self.limits.burst is not None:
            findings.notice(
                f"{shared.title}: burst is {plain_burst(self.limits.burst)}, which lets each container use all of "
                f"{_sizes(by_burst)}, so nothing is limited there; set a smaller burst, unless that is meant"
            )

    def _lifts(self, rule: LimitRule, gpu: Gpu) -> bool:
        """Return whether by `rule` even the smallest share of `gpu` has the memory of the GPU as limit."""
        return not self.why_not_on(gpu) and rule.lifts(self._smallest(gpu), gpu.memory_mib)

    def _bursts(self, gpu: Gpu) -> bool:
        """Return whether any share of `gpu` gets more memory by the burst: with a factor the largest, if any does."""
        largest = self._smallest(gpu) if self.limits.equal_parts else gpu.memory_mib
        return self.rule.extends(self._smallest(gpu)) or self.rule.extends(largest)

    def _smallest(self, gpu: Gpu) -> int:
        """Return the smallest share of `gpu` in MiB."""
        parts = self.limits.equal_parts
        return gpu.memory_mib // parts if parts else self.limits.unit_mib


def _sizes(gpus: Sequence[Gpu]) -> str:
    """Return the first of `gpus` in words, each with its memory."""
    return some_of([f"GPU {gpu.label} ({gpu.memory_mib} MiB)" for gpu in gpus], GPUS_TO_NAME)


def driver_isolation(config: Config, limits: Limits, node: DriverLimits | None) -> DriverIsolation:
    """Return the isolation of an entry with these limits; without a look at the node, the driver limits nothing."""
    settings = config.driver_limits
    added = settings.additional_memory if settings else None
    return DriverIsolation(node or _NOT_LOOKED_AT, limit_rule(added.mib if added else 0, limits.burst), limits)


def limit_rule(added_mib: int, burst: Burst | None) -> LimitRule:
    """Return the rule for a `burst` of the config."""
    if isinstance(burst, MemoryUnit):
        return LimitRule(added_mib, burst_mib=burst.mib)
    return LimitRule(added_mib, None if burst is None else Fraction(str(burst)))
