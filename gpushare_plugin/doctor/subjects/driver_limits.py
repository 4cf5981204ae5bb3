"""Driver limits: whether NVIDIA's driver can limit GPU memory on the node, and who would set the limits of containers.

Facts: NVIDIA's MPS documentation, r615, "MPS v3 Memory Partitioning" (needs; what programs see of a GPU's memory). The
hook is in NVIDIA/nvidia-container-toolkit, cmd/nvidia-cdi-hook/apply-cuda-memory-limits; from version 1.20.1 on, every
specification of full GPUs that the toolkit makes has it; in its legacy mode, containers have no hooks of CDI.
"""

from collections.abc import Iterator
from typing import NamedTuple

from gpushare_plugin.base.memory import MIB
from gpushare_plugin.base.text import some_of
from gpushare_plugin.core.driver_limits import FIRST_DRIVER, LIMITS_HOOK, has_driver_limits
from gpushare_plugin.doctor.node.diagnosis import Defect, Diagnosis, not_looked_at, one_of, right, wrong
from gpushare_plugin.doctor.node.needs import ConfigNeeds, by_cdi
from gpushare_plugin.doctor.node.packages import is_at_least
from gpushare_plugin.doctor.subjects.accounting import FORCED, OFF, PARAMETER, SETTING, Accounting
from gpushare_plugin.doctor.subjects.cdi import SpecificationLook, files_of, generates, is_refreshed
from gpushare_plugin.doctor.subjects.cgroups import CgroupFacts
from gpushare_plugin.doctor.subjects.nvml import NvmlFacts
from gpushare_plugin.doctor.subjects.toolkit import DISABLED_HOOKS, REFRESH_VARIABLES, ToolkitFacts

SUBJECT = "driver limits"
_FIRST_WITH_HOOK = (1, 20, 1)
_ALL_HOOKS = "all"
_VERSION_2 = 2
_ENTRIES_TO_SHOW = 3
_LEAST_PART = 15 / 16
"""NVML shows at least this part of the memory that the kernel counts; the driver itself takes some percent."""


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
        forced = FORCED.get(self.accounting.running)
        if forced is None or forced in self.cgroups.controllers:
            return forced or self.cgroups.limits_by
        return ""


def judge_driver_limits(look: LimitLook) -> Iterator[Diagnosis]:
    """Yield the lines about driver limits; none on a node without them whose config does not name them."""
    if not look.needs.driver_limits and not has_driver_limits(look.driver):
        return
    if not look.driver or look.cgroups.version is None:
        yield not_looked_at(SUBJECT, "the driver is not loaded" if not look.driver else "no control groups are shown")
        return
    yield _judged(look, _none_here(look) or _nobody_sets(look))
    yield from _turned_off_later(look)
    yield from _hidden_memory(look)


def _judged(look: LimitLook, defect: Defect | None) -> Diagnosis:
    """Return the line about driver limits that are missing because of `defect`; None where nothing is missing."""
    needs = look.needs
    if defect is None:
        unused = "" if needs.driver_limits else "; not used by the config"
        return right(SUBJECT, f"by {look.limits_by}, set by the hook {LIMITS_HOOK}{unused}")
    if needs.only_driver_limits:
        return wrong(SUBJECT, *defect)
    if needs.driver_limits:
        instead = "so the config takes the next isolation of its list; for driver limits"
        return right(SUBJECT, f"{defect.found}, {instead}, {defect.remedy}")
    return right(SUBJECT, f"not used by the config; {defect.found}")


def _none_here(look: LimitLook) -> Defect | None:
    """Return why the driver of the node cannot limit memory; None if it can."""
    if not has_driver_limits(look.driver):
        return Defect(
            f"driver {look.driver} has none; drivers from {FIRST_DRIVER} on have them",
            f"upgrade the driver of the node to {FIRST_DRIVER} or newer (NVIDIA's operator: driver.version), or let "
            "the config take another isolation on such nodes (isolation: [driver, none])",
        )
    if look.cgroups.version != _VERSION_2:
        return Defect(
            "the node has control groups of version 1, and driver limits need version 2",
            "boot the node with systemd.unified_cgroup_hierarchy=1 on the command line of the kernel (kubernetes.io, "
            "About cgroup v2)",
        )
    if look.accounting.running == OFF:
        return Defect(f"{SETTING}=0 turns the accounting of the driver off", _turns_on(look.accounting))
    if not look.limits_by:
        return Defect(
            f"the kernel has neither of the controllers dmem and misc: {' '.join(look.cgroups.controllers)}",
            "boot a kernel with CONFIG_CGROUP_DMEM (from 6.14 on) or CONFIG_CGROUP_MISC, and without cgroup_disable",
        )
    return None


def _turns_on(accounting: Accounting) -> str:
    """Return what turns the accounting on, as an instruction."""
    elsewhere = "the file of /etc/modprobe.d or the command line of the kernel that has it"
    place = accounting.file if accounting.next == OFF else elsewhere
    return (
        f"remove {SETTING}=0 from {PARAMETER} in {place}, and keep the other settings of that string; of several "
        "options lines with the string, the last one counts. If the initramfs has the driver, build it again "
        "(update-initramfs -u, dracut -f), and reboot the node"
    )


def _turned_off_later(look: LimitLook) -> Iterator[Diagnosis]:
    """Yield the line about a setting that turns the accounting off at the next boot."""
    if look.needs.driver_limits and look.accounting.running != OFF and look.accounting.next == OFF:
        found = f"{SETTING}=0 in {look.accounting.file} turns the accounting of the driver off at the next boot"
        yield wrong(SUBJECT, found, _turns_on(look.accounting))


def _nobody_sets(look: LimitLook) -> Defect | None:
    """Return why nobody would set the limits of containers; None if a hook does."""
    defect = _no_hook(look)
    if defect is None:
        return None
    return Defect(f"possible by {look.limits_by}, but no hook sets them: {defect.found}", defect.remedy)


def _no_hook(look: LimitLook) -> Defect | None:
    """Return why no hook sets the limits of a container; None if a hook does, for each way to its GPUs."""
    for kinds in look.specifications.needed:
        files = files_of(look.specifications, kinds)
        if not files:
            return Defect("no CDI specification has the GPUs", "mend the line about CDI specifications first")
        if without := [file for file, content in files.items() if LIMITS_HOOK not in content.hooks]:
            return Defect(f"{without[0]} has no {LIMITS_HOOK}", _adds_hook(look))
    if look.needs.runtime and not look.toolkit.by_specification:
        return _not_just_in_time(look.toolkit, look.needs)
    return None


def _adds_hook(look: LimitLook) -> str:
    """Return what brings the hook into the specification of the node, as an instruction."""
    toolkit = look.toolkit
    steps = [f"{generates(look.specifications)}. Leave out the option --disable-hook"]
    if is_refreshed(look.specifications) and _leaves_out(toolkit.refresh_disabled_hooks):
        steps.insert(0, f"remove {LIMITS_HOOK} from {DISABLED_HOOKS} in {REFRESH_VARIABLES}")
    if not is_at_least(toolkit.version, *_FIRST_WITH_HOOK):
        steps.insert(0, _upgrade(toolkit))
    return ". Then ".join(steps)


def _not_just_in_time(toolkit: ToolkitFacts, needs: ConfigNeeds) -> Defect | None:
    """Return why the specification that NVIDIA's runtime makes for each container has no hook; None if it has one."""
    if not toolkit.just_in_time:
        mode = "" if toolkit.mode == "auto" else f', and set mode = "auto" in {toolkit.file}'
        return Defect(
            f"NVIDIA's runtime (toolkit {_version(toolkit)}, mode {toolkit.mode}) runs no hooks of CDI",
            one_of(f"{_upgrade(toolkit)}{mode}", by_cdi(needs)),
        )
    if not is_at_least(toolkit.version, *_FIRST_WITH_HOOK):
        return Defect(f"toolkit {_version(toolkit)} has no {LIMITS_HOOK}", _upgrade(toolkit))
    if _leaves_out(toolkit.disabled_hooks):
        return Defect(
            f"nvcdi-disable-hooks in {toolkit.file} leaves {LIMITS_HOOK} out",
            f"remove it from nvcdi-disable-hooks in [nvidia-container-runtime.modes.jit-cdi] of {toolkit.file}",
        )
    return None


def _leaves_out(hooks: tuple[str, ...]) -> bool:
    return not {LIMITS_HOOK, _ALL_HOOKS}.isdisjoint(hooks)


def _version(toolkit: ToolkitFacts) -> str:
    return toolkit.version or "of unknown version"


def _upgrade(toolkit: ToolkitFacts) -> str:
    first = ".".join(map(str, _FIRST_WITH_HOOK))
    return (
        f"upgrade NVIDIA's container toolkit, {_version(toolkit)} now, to {first} or newer (NVIDIA's operator: from "
        "26.7.1 on)"
    )


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
