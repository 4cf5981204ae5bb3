"""The driver's accounting of GPU memory by cgroup, which a setting of the kernel module can turn off.

Facts: NVIDIA, "Multi-Process Service", r615, "MPS v3 Memory Partitioning" (`RmMemacctMode` in `NVreg_RegistryDwords`: 0
off, 1 by misc, 2 by dmem, 3 as the kernel allows). `/proc/driver/nvidia/params` has the settings of the module that
runs (NVIDIA/open-gpu-kernel-modules, kernel-open/nvidia/nv-procfs.c, `nv_procfs_read_params`).
"""

import re
from collections.abc import Mapping

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
