"""Cgroups for tests: described by files, or of the machine where that can be; and the cgroups of pods in them."""

from gpushare_plugin.testing.cgroups.kubepods import Driver, PodCgroups, Prefix, Qos
from gpushare_plugin.testing.cgroups.tree import (
    Cgroups,
    CgroupTree,
    RealCgroups,
    controllers_of,
    lineage,
    processes_of,
    real_cgroups,
)

__all__ = [
    "CgroupTree",
    "Cgroups",
    "Driver",
    "PodCgroups",
    "Prefix",
    "Qos",
    "RealCgroups",
    "controllers_of",
    "lineage",
    "processes_of",
    "real_cgroups",
]
