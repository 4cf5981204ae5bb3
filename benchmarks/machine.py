"""Facts about the machine and the versions that figures were taken with."""

import os
import platform
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from gpushare_plugin import __version__

_LIBRARIES = ("grpcio", "protobuf", "pydantic", "pydantic-core", "structlog", "nvidia-ml-py")


def machine() -> dict[str, Any]:
    """Return what must be alike for two runs to be compared, and how busy the machine was."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": f"{platform.python_implementation()} {sys.version.split()[0]}",
        "gpushare": __version__,
        "libraries": {name: version(name) for name in _LIBRARIES},
        "load_before": load(),
    }


def load() -> float:
    """Return how many tasks of the machine ran or waited for a core, on average of the last minute (getloadavg(3))."""
    return round(os.getloadavg()[0], 2)


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()
