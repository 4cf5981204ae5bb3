"""The driver's accounting of GPU memory by cgroup: whether setting, kernel and cgroups of pods let it count containers.

Facts: NVIDIA, "Multi-Process Service", r615, "MPS v3 Memory Partitioning" (`RmMemacctMode` in `NVreg_RegistryDwords`: 0
off, 1 by misc, 2 by dmem, 3 as the kernel allows). `/proc/driver/nvidia/params` has the settings of the module that
runs (NVIDIA/open-gpu-kernel-modules, kernel-open/nvidia/nv-procfs.c, `nv_procfs_read_params`). A process counts in the
nearest cgroup that has the controller (kernel-open/nvidia/os-interface.c there, `os_cgroup_for_pid`).
"""

import re
from collections.abc import Collection, Mapping
from typing import NamedTuple

PARAMETERS = "driver/nvidia/params"
"""The file with the settings of the module, below `/proc`."""
PARAMETER = "NVreg_RegistryDwords"
"""The parameter of the kernel module that has the setting."""
SETTING = "RmMemacctMode"
"""The setting, one of many in the same string."""
OFF = 0
"""The setting that turns the accounting off."""
FORCED: Mapping[int | None, str] = {1: "misc", 2: "dmem"}
"""The settings that name the controller."""

_CONTROLLERS = ("dmem", "misc")
"""The controllers by which the driver can count, the first of them where the kernel has both."""

_MODE = re.compile(rf"(?:^|;)\s*{SETTING}\s*=\s*(?:0x)?([0-9])\s*(?:;|$)")
_SHOWN = re.compile(r'^RegistryDwords: "(.*)"$', re.MULTILINE)


def mode_of(settings: str) -> int | None:
    """Return the mode in the string of settings; None for the default, with which the driver counts memory."""
    modes = _MODE.findall(settings)
    return int(modes[-1]) if modes else None


def running_mode(parameters: str) -> int | None:
    """Return the mode of the module that runs, by the text of the file PARAMETERS; None for the default."""
    shown = _SHOWN.search(parameters)
    return mode_of(shown[1]) if shown else None


class Lack(NamedTuple):
    """A reason why the driver does not count the memory of containers."""

    found: str
    """What was found, for people."""
    remedy: str
    """What to do, as an instruction."""


def counting_controller(mode: int | None, kernel: Collection[str]) -> str:
    """Return the controller by which the driver counts in a mode, of those that the kernel has; empty without one."""
    forced = FORCED.get(mode)
    return next((name for name in ((forced,) if forced else _CONTROLLERS) if name in kernel), "")


def why_not_counted(mode: int | None, kernel: Collection[str], of_pods: Collection[str]) -> Lack | None:
    """Return why the driver does not count what containers use; None if it does.

    `kernel` are the controllers of the root of all cgroups, and `of_pods` those of the cgroup of all pods; both are
    empty where they are not known.
    """
    if mode == OFF:
        off = f"{_setting(OFF)}, a parameter of the kernel module nvidia, turns the driver's accounting of memory off"
        return Lack(off, _REMOVE_SETTING)
    if not kernel:
        return None
    if not (by := counting_controller(mode, kernel)):
        return _without_controller(mode, kernel)
    if of_pods and by not in of_pods:
        return Lack(
            f"the kubepods cgroup has the controllers {' '.join(of_pods)}, and not {by}, so the driver would count "
            "containers in a cgroup above, and enforce no limits of theirs",
            _turns_on(by),
        )
    return None


def _without_controller(mode: int | None, kernel: Collection[str]) -> Lack:
    """Return why the kernel lacks the controller by which the driver is to count."""
    if not set(_CONTROLLERS).isdisjoint(kernel):
        only = (
            f"{_setting(mode)} has the driver count memory by {FORCED[mode]} alone, a controller that the kernel lacks"
        )
        return Lack(f"{only} (controllers: {' '.join(kernel)})", _REMOVE_SETTING)
    also = f"; {_REMOVE_SETTING}" if mode in FORCED else ""
    return Lack(
        f"the kernel has neither of the cgroup controllers dmem and misc, by which the driver counts memory "
        f"(controllers: {' '.join(kernel)})",
        f"boot a kernel with CONFIG_CGROUP_DMEM (from 6.14 on) or CONFIG_CGROUP_MISC, and without cgroup_disable{also}",
    )


def _setting(mode: int | None) -> str:
    return f"{SETTING}={mode} in {PARAMETER}"


_REMOVE_SETTING = f"remove {SETTING} from {PARAMETER} in /etc/modprobe.d, and reboot the node"


def _turns_on(controller: str) -> str:
    """Return what turns a controller on for the cgroups of pods, now and at each boot, as an instruction.

    Sources: tmpfiles.d(5), the line type `w`; systemd-tmpfiles-setup.service(8), which runs at each boot.
    """
    file = "/etc/tmpfiles.d/gpushare-cgroup.conf"
    return (
        f"run `echo 'w /sys/fs/cgroup/cgroup.subtree_control - - - - +{controller}' > {file} && systemd-tmpfiles "
        f"--create {file}` on the node, which turns the controller on now and at each boot, and restart the kubelet. "
        "Containers have to be started by runc, which turns on every controller of the node for them"
    )
