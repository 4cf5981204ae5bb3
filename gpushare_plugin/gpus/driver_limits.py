"""The means of the host to limit memory by NVIDIA's driver, as far as they can be seen before a limit is set.

Facts: NVIDIA, "Multi-Process Service", r615, "MPS v3 Memory Partitioning" (cgroups of version 2; the controller dmem
where it is on, else misc; no MIG); the kernel's Documentation/admin-guide/cgroup-v2.rst (`cgroup.controllers` is in
every cgroup of version 2, `cgroup.events` in each but the root); the hook in NVIDIA/nvidia-container-toolkit,
cmd/nvidia-cdi-hook/apply-cuda-memory-limits, part of version 1.20.1. The version of the driver says whether NVML has
the functions, too: NVML does not start beside a kernel module of another version (nvml.h,
`NVML_ERROR_LIB_RM_VERSION_MISMATCH`).
"""

from collections.abc import Sequence
from pathlib import Path

from gpushare_plugin.base.structs import replace
from gpushare_plugin.base.text import some_of
from gpushare_plugin.config.findings import GPUS_TO_NAME
from gpushare_plugin.config.schema.sections import Flags
from gpushare_plugin.core.cdi import CdiDevices
from gpushare_plugin.core.driver_limits import FIRST_DRIVER, LIMITS_HOOK, DriverLimits, has_driver_limits
from gpushare_plugin.core.gpu import Gpu, Inventory
from gpushare_plugin.gpus.accounting import PARAMETERS, running_mode, why_not_counted
from gpushare_plugin.gpus.cgroups import Kubepods, controllers_of, why_no_tree
from gpushare_plugin.sharing.ways.cdi import CdiNames

_MOUNTED_BY = " (chart: driverLimits.enabled, or driverLimits.readCgroups)"


def means_of(  # noqa: PLR0913 - the parts of a host
    inventory: Inventory,
    flags: Flags,
    devices: CdiDevices | None,
    cgroup_root: Path,
    procfs: Path,
    *,
    agent: bool,
) -> DriverLimits:
    """Return the means of the host to set driver limits; of simulated GPUs, those that their file describes.

    `devices` are the CDI devices of the host, None where containers get none; `procfs` is the `/proc` of this process.
    """
    if (described := inventory.driver_limits) is not None:
        return replace(described, agent=agent or described.agent)
    missing = _missing(inventory.driver_version, cgroup_root, procfs)
    whole = [gpu for gpu in inventory.cards if not gpu.mig_enabled]
    return DriverLimits(missing, _no_hook(whole, flags, devices), agent)


def _missing(driver_version: str, cgroup_root: Path, procfs: Path) -> str:
    """Return why the driver cannot limit memory on the host; empty if it can, as far as that can be seen."""
    if not has_driver_limits(driver_version):
        found = driver_version or "of unknown version"
        return f"NVIDIA's driver {found} limits no memory, which drivers from {FIRST_DRIVER} on do"
    if reason := why_no_tree(cgroup_root, _MOUNTED_BY):
        return reason
    is_root = not (cgroup_root / "cgroup.events").exists()  # a container sees only what its own cgroup has
    kernel, of_pods = (controllers_of(cgroup_root), Kubepods.below(cgroup_root).controllers) if is_root else ((), ())
    lack = why_not_counted(_mode(procfs), kernel or (), of_pods)
    return "; ".join(lack or ())


def _mode(procfs: Path) -> int | None:
    try:
        return running_mode((procfs / PARAMETERS).read_text(errors="replace"))
    except OSError:  # a container need not show the file
        return None


def _no_hook(gpus: Sequence[Gpu], flags: Flags, devices: CdiDevices | None) -> str:
    """Return why no hook limits containers on each of `gpus`; empty where each of their CDI devices has the hook."""
    if devices is None or not flags.plugin.uses_cdi:
        return (
            "containers get no CDI devices with a hook that sets limits (flags.plugin.deviceListStrategy: cdi-cri "
            "gives them)"
        )
    names = [CdiNames(flags, devices).of(gpu) for gpu in gpus]
    without = [name for name in names if name not in devices.limiting]
    if not without:
        return ""
    return (
        f"no hook {LIMITS_HOOK} is in the CDI specification of {some_of(without, GPUS_TO_NAME)} (NVIDIA's container "
        "toolkit from 1.20.1 on writes it: generate the specification again)"
    )
