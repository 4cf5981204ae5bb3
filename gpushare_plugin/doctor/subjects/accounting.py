"""The driver's accounting of GPU memory by control group, which a setting of the kernel module can turn off.

Facts: NVIDIA's MPS documentation, r615, "MPS v3 Memory Partitioning" (`RmMemacctMode` in `NVreg_RegistryDwords`: 0 off,
1 by misc, 2 by dmem, 3 as the kernel allows). `/proc/driver/nvidia/params` has the settings of the module that runs
(NVIDIA/open-gpu-kernel-modules, kernel-open/nvidia/nv-procfs.c, `nv_procfs_read_params`). modprobe.d(5): files are read
in the order of their names, and of two files with one name the one in the first directory; the module takes the last
value of a parameter (the kernel's kernel/params.c), so of two lines with `NVreg_RegistryDwords` the second replaces the
first.
"""

import re
from collections.abc import Mapping

from gpushare_plugin.base.structs import Struct
from gpushare_plugin.doctor.node.host import HostRoot

OFF = 0
"""The setting that turns the accounting off."""
FORCED: Mapping[int | None, str] = {1: "misc", 2: "dmem"}
"""The settings that name the controller."""
SETTING = "RmMemacctMode"
"""The setting, one of many in the same string."""
PARAMETER = "NVreg_RegistryDwords"
"""The parameter of the kernel module that has the setting."""

_RUNNING = "/proc/driver/nvidia/params"
_FOLDERS = tuple(f"{folder}/modprobe.d" for folder in ("/etc", "/run", "/usr/local/lib", "/usr/lib", "/lib"))
_MODE = re.compile(rf"(?:^|;)\s*{SETTING}\s*=\s*(?:0x)?([0-9])\s*(?:;|$)")
_AS_SHOWN = re.compile(r'^RegistryDwords: "(.*)"$', re.MULTILINE)
_OPTIONS = re.compile(r"^[ \t]*options[ \t]+nvidia[ \t](.*)$", re.MULTILINE)
_VALUE = re.compile(rf"{PARAMETER}=(?:\"([^\"]*)\"|(\S*))")


class Accounting(Struct, frozen=True):
    """The setting of the driver's accounting; None is the default of the driver, which counts memory."""

    running: int | None = None
    """The setting of the kernel module that runs."""
    next: int | None = None
    """The setting at the next load of the kernel module."""
    file: str = ""
    """The file with the setting at the next load, a path of the node; empty without such a file."""


def read_accounting(host: HostRoot) -> Accounting:
    """Return the setting of the driver's accounting."""
    shown = _AS_SHOWN.search(host.line(_RUNNING))
    found = Accounting(_mode(shown[1] if shown else ""))
    for path in _files(host):
        for options in _OPTIONS.findall(host.line(path).replace("\\\n", " ")):
            for quoted, bare in _VALUE.findall(options):
                found = Accounting(found.running, _mode(quoted or bare), path)
    return found


def _files(host: HostRoot) -> list[str]:
    """Return the files of modprobe that count, in the order in which they are read."""
    files: dict[str, str] = {}
    for folder in reversed(_FOLDERS):
        files |= {name: f"{folder}/{name}" for name in host.names(folder, "*.conf")}
    return [files[name] for name in sorted(files)]


def _mode(settings: str) -> int | None:
    modes = _MODE.findall(settings)
    return int(modes[-1]) if modes else None
