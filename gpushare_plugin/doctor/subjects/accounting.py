"""The setting of the driver's accounting of GPU memory by control group: of the driver that runs, and of the next one.

Facts: modprobe.d(5): files are read in the order of their names, and of two files with one name the one in the first
directory. The module takes the last value of a parameter (the kernel's kernel/params.c), so of two lines with
`NVreg_RegistryDwords` the second replaces the first.
"""

import re

from gpushare_plugin.base.structs import Struct
from gpushare_plugin.doctor.node.host import HostRoot
from gpushare_plugin.gpus.accounting import PARAMETER, PARAMETERS, mode_of, running_mode

_FOLDERS = tuple(f"{folder}/modprobe.d" for folder in ("/etc", "/run", "/usr/local/lib", "/usr/lib", "/lib"))
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
    found = Accounting(running_mode(host.line(f"/proc/{PARAMETERS}")))
    for path in _files(host):
        for options in _OPTIONS.findall(host.line(path).replace("\\\n", " ")):
            for quoted, bare in _VALUE.findall(options):
                found = Accounting(found.running, mode_of(quoted or bare), path)
    return found


def _files(host: HostRoot) -> list[str]:
    """Return the files of modprobe that count, in the order in which they are read."""
    files: dict[str, str] = {}
    for folder in reversed(_FOLDERS):
        files |= {name: f"{folder}/{name}" for name in host.names(folder, "*.conf")}
    return [files[name] for name in sorted(files)]
