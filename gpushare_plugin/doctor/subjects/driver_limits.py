"""Driver limits: whether NVIDIA's driver can limit GPU memory on the node, and who would set the limits of containers.

Facts: NVIDIA's MPS documentation, r615, "MPS v3 Memory Partitioning" (needs; what programs see of a GPU's memory). The
hook is the matter of `limits_hook`.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from gpushare_plugin.base.memory import MIB
from gpushare_plugin.base.structs import Struct
from gpushare_plugin.base.text import some_of
from gpushare_plugin.config.schema.isolations import includes_driver, is_always_driver
from gpushare_plugin.core.driver_limits import FIRST_DRIVER, LIMITS_HOOK, has_driver_limits
from gpushare_plugin.doctor.node.choice import EntryChoice, chosen, names_of, takes_next
from gpushare_plugin.doctor.node.diagnosis import Defect, Diagnosis, not_looked_at, one_of, right, wrong
from gpushare_plugin.doctor.node.host import HostRoot, locked
from gpushare_plugin.doctor.node.needs import ConfigNeeds, EntryNeeds
from gpushare_plugin.doctor.subjects.accounting import Accounting
from gpushare_plugin.doctor.subjects.cdi import SpecificationLook
from gpushare_plugin.doctor.subjects.cgroups import CgroupFacts
from gpushare_plugin.doctor.subjects.limits_hook import in_runtime, no_hook, will_have_hook
from gpushare_plugin.doctor.subjects.nvml import NvmlFacts
from gpushare_plugin.driver_limits.exchange import DriverLimitsRoot, DriverLimitsStatus, LimitOrder
from gpushare_plugin.gpus.accounting import OFF, PARAMETER, SETTING, counting_controller, why_not_counted
from gpushare_plugin.gpus.exchange import ExchangeError, read_message

SUBJECT = "driver limits"
_VERSION_2 = 2
_ENTRIES_TO_SHOW = 3
_ANOTHER = "let the config take another isolation on such nodes (isolation: [driver, none])"
_AGENT = "the agent gpushare driver-limits"
_START = "start the agent on this node: driverLimits.enabled=true and cluster.followPods=true in the chart"
_WAITS = (
    f"{_AGENT} runs, and the daemon of gpushare has ordered no limits from it, so nothing is known of whether it can "
    "set any; start the daemon with this config and --driver-limits-agent=true, and run doctor again"
)
_READ_LOG = "see the log of the pod of `gpushare driver-limits` on this node"
_LEAST_PART = 15 / 16
"""NVML shows at least this part of the memory that the kernel counts; the driver itself takes some percent."""


class AgentFacts(Struct, frozen=True):
    """What the node shows of `gpushare driver-limits`, the agent that sets limits."""

    runs: bool | None = False
    """Whether the agent runs; None where that cannot be seen."""
    ordered: bool = False
    """Whether the daemon of gpushare wants limits on a GPU."""
    troubles: tuple[str, ...] = ()
    """Why the agent sets no limits, on a GPU or at all."""


def read_agent(host: HostRoot, needs: ConfigNeeds) -> AgentFacts:
    """Return what the node shows of the agent, in the root of driver limits."""
    root = DriverLimitsRoot(host.resolved(needs.limits_root))
    runs = locked(root.lock)
    try:
        status = read_message(root.status, DriverLimitsStatus) or DriverLimitsStatus()
        order = read_message(root.wanted, LimitOrder) or LimitOrder()
    except ExchangeError as error:
        return AgentFacts(runs, ordered=True, troubles=(str(error),))
    if status.trouble:
        return AgentFacts(runs, ordered=True, troubles=(status.trouble,))
    reasons = [f"{uuid}: {reason}" for uuid in order.gpus if (reason := status.why_not(uuid))]
    return AgentFacts(runs, bool(order.gpus), tuple(reasons))


class LimitLook(NamedTuple):
    """What the judgement of driver limits depends on."""

    specifications: SpecificationLook
    """The specifications, with driver, toolkit and config."""
    cgroups: CgroupFacts
    """The control groups."""
    accounting: Accounting
    """The setting of the driver's accounting."""
    nvml: NvmlFacts | None
    """The answer of NVML."""
    agent: AgentFacts
    """The agent that sets limits."""

    @property
    def needs(self) -> ConfigNeeds:
        """What the config needs."""
        return self.specifications.needs

    @property
    def driver(self) -> str:
        """The version of the driver that runs; empty without one."""
        return self.specifications.driver.kernel

    @property
    def shown(self) -> bool:
        """Whether the node shows enough of driver and control groups for a judgement."""
        return bool(self.driver) and self.cgroups.version is not None

    @property
    def limits_by(self) -> str:
        """The controller by which the driver limits memory; empty without one."""
        return counting_controller(self.accounting.running, self.cgroups.controllers)


def choices(look: LimitLook, *, no_mps: bool) -> tuple[EntryChoice, ...]:
    """Return the isolation of each entry of the config here; `no_mps` is whether MPS can share no GPU."""
    lack = _none_here(look)
    means = {entry.bursts: lack or _nobody_sets(look, entry) for entry in look.needs.entries}
    return tuple(chosen(entry, means[entry.bursts], no_mps=no_mps) for entry in look.needs.entries)


def judge_driver_limits(look: LimitLook, chosen_here: Sequence[EntryChoice]) -> Iterator[Diagnosis]:
    """Yield the lines about driver limits; none on a node without them whose config does not name them.

    `chosen_here` has the isolation of each entry of the config.
    """
    if not look.needs.driver_limits and not has_driver_limits(look.driver):
        return
    if not look.shown:
        yield not_looked_at(SUBJECT, "the driver is not loaded" if not look.driver else "no control groups are shown")
        return
    yield _judged(look, chosen_here) if look.needs.driver_limits else _not_used(look)
    yield from _turned_off_later(look)
    yield from _hidden_memory(look)


def _not_used(look: LimitLook) -> Diagnosis:
    lack = _none_here(look)
    return right(SUBJECT, f"not used by the config; {lack.found if lack else f'possible by {look.limits_by}'}")


def _judged(look: LimitLook, chosen_here: Sequence[EntryChoice]) -> Diagnosis:
    """Return the line about the driver limits that the config names."""
    without = [choice for choice in chosen_here if choice.misses_driver and choice.no_driver]
    for choice in without:
        if choice.no_driver and not choice.isolation:
            return wrong(SUBJECT, *choice.no_driver)
    with_driver = any(includes_driver((choice.isolation,)) for choice in chosen_here)
    if with_driver and look.agent.runs and look.agent.troubles:
        return wrong(SUBJECT, f"{_AGENT} sets no limits: {'; '.join(look.agent.troubles)}", _READ_LOG)
    if without and without[0].no_driver:
        lack = without[0].no_driver
        return right(SUBJECT, takes_next(lack.found, names_of(without)), lack.remedy)
    if reason := _not_known_yet(look):
        return not_looked_at(SUBJECT, reason)
    return right(SUBJECT, f"by {look.limits_by}, set by {_setters(look)}")


def _not_known_yet(look: LimitLook) -> str:
    """Return why nobody knows yet whether limits are set, since the daemon has not begun; empty if that is known."""
    if look.agent.runs:
        return "" if look.agent.ordered else _WAITS
    return will_have_hook(look.specifications)


def _setters(look: LimitLook) -> str:
    """Return who sets the limits of containers, in words."""
    hook = f"the hook {LIMITS_HOOK}"
    if not look.agent.runs:
        return hook
    early = no_hook(look.specifications) is None or in_runtime(look.specifications)
    return f"{_AGENT}, {f'and before that by {hook}' if early else 'some time after a container starts'}"


def _none_here(look: LimitLook) -> Defect | None:
    """Return why the driver of the node cannot limit memory; None if it can."""
    lack = _lack(look)
    if lack and any(is_always_driver(entry.isolations) for entry in look.needs.entries):
        return Defect(lack.found, one_of(lack.remedy, _ANOTHER))
    return lack


def _lack(look: LimitLook) -> Defect | None:
    """Return what the node lacks for driver limits; None if nothing."""
    if not has_driver_limits(look.driver):
        return Defect(
            f"driver {look.driver} has none; drivers from {FIRST_DRIVER} on have them",
            f"upgrade the driver of the node to {FIRST_DRIVER} or newer (NVIDIA's operator: driver.version)",
        )
    if look.cgroups.version != _VERSION_2:
        return Defect(
            "the node has control groups of version 1, and driver limits need version 2",
            "boot the node with systemd.unified_cgroup_hierarchy=1 on the command line of the kernel (kubernetes.io, "
            "About cgroup v2)",
        )
    if look.nvml and look.nvml.only_instances:
        return Defect(
            "the GPUs of this node are in MIG mode, in which the driver limits no memory",
            "turn MIG mode off on GPUs that are to have driver limits (nvidia-smi -i GPU -mig 0)",
        )
    mode = look.accounting.running
    lack = why_not_counted(mode, look.cgroups.controllers, look.cgroups.of_pods)
    if lack is None:
        return None
    by_setting = mode == OFF or (look.cgroups.limits_by and not look.limits_by)
    return Defect(lack.found, _without_setting(look.accounting, mode) if by_setting else lack.remedy)


def _without_setting(accounting: Accounting, mode: int | None) -> str:
    """Return what removes the setting with this mode of the accounting, as an instruction."""
    elsewhere = "the file of /etc/modprobe.d or the command line of the kernel that has it"
    place = accounting.file if accounting.next == mode else elsewhere
    return (
        f"remove {SETTING}={mode} from {PARAMETER} in {place}, and keep the other settings of that string; of several "
        "options lines with the string, the last one counts. If the initramfs has the driver, build it again "
        "(update-initramfs -u, dracut -f), and reboot the node"
    )


def _turned_off_later(look: LimitLook) -> Iterator[Diagnosis]:
    """Yield the line about a setting that turns the accounting off at the next boot."""
    if look.needs.driver_limits and look.accounting.running != OFF and look.accounting.next == OFF:
        found = f"{SETTING}=0 in {look.accounting.file} turns the accounting of the driver off at the next boot"
        yield wrong(SUBJECT, found, _without_setting(look.accounting, OFF))


def _nobody_sets(look: LimitLook, entry: EntryNeeds) -> Defect | None:
    """Return why nobody would set the limits of an entry's containers; None if a hook or the agent does.

    The daemon counts on an agent that runs, also on one in trouble.
    """
    if look.agent.runs:
        return None
    if entry.bursts:
        return Defect(f"burst needs {_AGENT}, which does not run", _START)
    if defect := no_hook(look.specifications):
        found = f"possible by {look.limits_by}, but nobody sets them: {defect.found}, and {_AGENT} does not run"
        return Defect(found, one_of(defect.remedy, _START))
    return None


def _hidden_memory(look: LimitLook) -> Iterator[Diagnosis]:
    """Yield a line for each GPU of which NVML shows less than the kernel counts, while groups have memory reserved."""
    for gpu in look.nvml.gpus if look.nvml and look.cgroups.settings else ():
        counted = look.cgroups.capacities.get(gpu.pci_bus_id[-12:].lower(), 0) // MIB
        if not gpu.divided and gpu.memory_mib < counted * _LEAST_PART:
            yield wrong(
                SUBJECT,
                f"NVML shows {gpu.memory_mib} MiB of GPU {gpu.label}, and the kernel counts {counted} MiB, so gpushare "
                f"offers too little: {some_of(look.cgroups.settings, _ENTRIES_TO_SHOW)}",
                "end what writes these files, such as Slurm (ConstrainDeviceMemory) or a desktop service, and remove "
                "the limits of the group: `nvidia-smi memory-limits --set --namespace GROUP --soft-limit 0 "
                f"--hard-limit max -i {gpu.label}`",
            )
