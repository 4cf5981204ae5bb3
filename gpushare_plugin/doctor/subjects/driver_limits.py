"""Driver limits: whether NVIDIA's driver can limit GPU memory on the node, and who would set the limits of containers.

Facts: NVIDIA's MPS documentation, r615, "MPS v3 Memory Partitioning" (needs; what programs see of a GPU's memory). The
hook is in NVIDIA/nvidia-container-toolkit, cmd/nvidia-cdi-hook/apply-cuda-memory-limits; from version 1.20.1 on, every
specification of full GPUs that the toolkit makes has it. The daemon counts on the hook only where containers get CDI
devices, since it sees neither the toolkit's version nor the specifications of just-in-time CDI.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from gpushare_plugin.base.memory import MIB
from gpushare_plugin.base.structs import Struct
from gpushare_plugin.base.text import some_of
from gpushare_plugin.core.cdi import OWN_KIND
from gpushare_plugin.core.driver_limits import FIRST_DRIVER, LIMITS_HOOK, has_driver_limits
from gpushare_plugin.doctor.node.diagnosis import Defect, Diagnosis, not_looked_at, one_of, right, wrong
from gpushare_plugin.doctor.node.host import HostRoot, locked
from gpushare_plugin.doctor.node.needs import ConfigNeeds, by_cdi, strategies
from gpushare_plugin.doctor.node.packages import is_at_least
from gpushare_plugin.doctor.subjects.accounting import Accounting
from gpushare_plugin.doctor.subjects.cdi import SpecificationLook, files_of, generates, is_refreshed
from gpushare_plugin.doctor.subjects.cgroups import CgroupFacts
from gpushare_plugin.doctor.subjects.nvml import NvmlFacts
from gpushare_plugin.doctor.subjects.toolkit import DISABLED_HOOKS, REFRESH_VARIABLES, ToolkitFacts
from gpushare_plugin.driver_limits.exchange import DriverLimitsRoot, DriverLimitsStatus, LimitOrder
from gpushare_plugin.gpus.accounting import OFF, PARAMETER, SETTING, counting_controller, why_not_counted
from gpushare_plugin.gpus.exchange import ExchangeError, read_message

SUBJECT = "driver limits"
_FIRST_WITH_HOOK = (1, 20, 1)
_ALL_HOOKS = "all"
_VERSION_2 = 2
_ENTRIES_TO_SHOW = 3
_ANOTHER = ", or let the config take another isolation on such nodes (isolation: [driver, none])"
_AGENT = "the agent gpushare driver-limits"
_START = "start the agent on this node: driverLimits.enabled=true and cluster.followPods=true in the chart"
_WAITS = (
    f"{_AGENT} runs, and the daemon of gpushare has ordered no limits from it, so nothing is known of whether it can "
    "set any; start the daemon with this config and --driver-limits-agent=true, and run doctor again"
)
_READ_LOG = "see the log of the pod of `gpushare driver-limits` on this node"
_RESTART = "restart the daemon of gpushare on this node, which then writes its specification again"
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
    def toolkit(self) -> ToolkitFacts:
        """The container toolkit."""
        return self.specifications.toolkit

    @property
    def limits_by(self) -> str:
        """The controller by which the driver limits memory; empty without one."""
        return counting_controller(self.accounting.running, self.cgroups.controllers)


def judge_driver_limits(look: LimitLook) -> Iterator[Diagnosis]:
    """Yield the lines about driver limits; none on a node without them whose config does not name them."""
    if not look.needs.driver_limits and not has_driver_limits(look.driver):
        return
    if not look.driver or look.cgroups.version is None:
        yield not_looked_at(SUBJECT, "the driver is not loaded" if not look.driver else "no control groups are shown")
        return
    defect = _none_here(look) or (_nobody_sets(look) if look.needs.driver_limits else None)
    yield not_looked_at(SUBJECT, _WAITS) if defect is None and _waits(look) else _judged(look, defect)
    yield from _turned_off_later(look)
    yield from _hidden_memory(look)


def _judged(look: LimitLook, defect: Defect | None) -> Diagnosis:
    """Return the line about driver limits that are missing because of `defect`; None where nothing is missing."""
    needs = look.needs
    if not needs.driver_limits:
        return right(SUBJECT, f"not used by the config; {defect.found if defect else f'possible by {look.limits_by}'}")
    if defect is None:
        return right(SUBJECT, f"by {look.limits_by}, set by {_setters(look)}")
    if needs.only_driver_limits:
        return wrong(SUBJECT, *defect)
    instead = f"so the config takes the next isolation of its list: {' or '.join(needs.instead_of_driver)}"
    unlimited = needs.instead_of_driver == ("none",)
    nothing = ", with which nothing limits the memory of containers" if "none" in needs.instead_of_driver else ""
    return right(
        SUBJECT,
        f"{'no limits: ' if unlimited else ''}{defect.found}, {instead}{nothing}; for driver limits, {defect.remedy}",
    )


def _waits(look: LimitLook) -> bool:
    """Return whether the agent that the config needs has nothing to do yet, so that nobody knows whether it can."""
    return look.needs.driver_limits and bool(look.agent.runs) and not look.agent.ordered


def _setters(look: LimitLook) -> str:
    """Return who sets the limits of containers, in words."""
    hook = f"the hook {LIMITS_HOOK}"
    if not look.agent.runs:
        return hook
    early = _no_hook(look) is None or _in_runtime(look)
    return f"{_AGENT}, {f'and before that by {hook}' if early else 'some time after a container starts'}"


def _none_here(look: LimitLook) -> Defect | None:
    """Return why the driver of the node cannot limit memory; None if it can."""
    lack = _lack(look)
    if lack and look.needs.only_driver_limits:
        return Defect(lack.found, f"{lack.remedy}{_ANOTHER}")
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


def _nobody_sets(look: LimitLook) -> Defect | None:
    """Return why nobody would set the limits of containers; None if a hook or the agent does."""
    if look.agent.runs:
        if look.agent.troubles:
            return Defect(f"{_AGENT} sets no limits: {'; '.join(look.agent.troubles)}", _READ_LOG)
        return None
    if look.needs.burst:
        return Defect(f"burst needs {_AGENT}, which does not run", _START)
    if defect := _no_hook(look):
        found = f"possible by {look.limits_by}, but nobody sets them: {defect.found}, and {_AGENT} does not run"
        return Defect(found, one_of(defect.remedy, _START))
    return None


def _no_hook(look: LimitLook) -> Defect | None:
    """Return why the daemon counts on no hook; None if all CDI devices that it can give have the hook."""
    if not look.needs.cdi:
        found = f"the daemon sees no hook of containers without CDI devices ({strategies(look.needs)})"
        return Defect(found, by_cdi(look.needs))
    for kinds in look.specifications.needed:
        files = files_of(look.specifications, kinds)
        if not files:
            return Defect("no CDI specification has the GPUs", "mend the line about CDI specifications first")
        if without := [file for file, content in files.items() if LIMITS_HOOK not in content.hooks]:
            return Defect(f"{without[0]} has no {LIMITS_HOOK}", _adds_hook(look, kinds))
    return None


def _adds_hook(look: LimitLook, kinds: Sequence[str]) -> str:
    """Return what brings the hook into the specification of the node, as an instruction."""
    toolkit = look.toolkit
    found = {name.partition("=")[0] for name in look.specifications.cdi.devices}
    own = found.intersection(kinds) == {OWN_KIND}
    by_hand = "" if is_refreshed(look.specifications) else ". Leave out the option --disable-hook"
    steps = [_RESTART if own else f"{generates(look.specifications)}{by_hand}"]
    if is_refreshed(look.specifications) and _leaves_out(toolkit.refresh_disabled_hooks):
        steps.insert(0, f"remove {LIMITS_HOOK} from {DISABLED_HOOKS} in {REFRESH_VARIABLES}")
    if not is_at_least(toolkit.version, *_FIRST_WITH_HOOK):
        steps.insert(0, _upgrade(toolkit))
    return ". Then ".join(steps)


def _in_runtime(look: LimitLook) -> bool:
    """Return whether NVIDIA's runtime runs the hook in each container, by specifications that it makes itself."""
    toolkit = look.toolkit
    has_hook = is_at_least(toolkit.version, *_FIRST_WITH_HOOK) and not _leaves_out(toolkit.disabled_hooks)
    return look.needs.runtime and not look.needs.cdi and bool(toolkit.just_in_time) and has_hook


def _leaves_out(hooks: tuple[str, ...]) -> bool:
    return not {LIMITS_HOOK, _ALL_HOOKS}.isdisjoint(hooks)


def _upgrade(toolkit: ToolkitFacts) -> str:
    first = ".".join(map(str, _FIRST_WITH_HOOK))
    now = f", {toolkit.version} now," if toolkit.version else ""
    return f"upgrade NVIDIA's container toolkit{now} to {first} or newer (NVIDIA's operator: from 26.7.1 on)"


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
