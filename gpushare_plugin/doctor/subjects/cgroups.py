"""The control groups of the node: their version, and the controllers by which the driver can limit memory of GPUs.

Facts: the kernel's Documentation/admin-guide/cgroup-v2.rst (`cgroup.controllers`; `dmem.capacity` has a line for each
region of device memory; `dmem.min`, `dmem.low` and `dmem.max` have the values of a group); for the driver's memory
limits, from r615 on by `dmem` or `misc`, NVIDIA's open-gpu-kernel-modules, kernel-open/nvidia/os-interface.c, and its
MPS documentation, "MPS v3 Memory Partitioning". Kubernetes needs the controller memory (kubernetes/system-validators,
cgroup_validator_linux.go; k3s-io/k3s, pkg/cgroups), which some kernels have off (docs.k3s.io, "Requirements"). The
groups of pods: pkg/kubelet/cm/qos_container_manager_linux.go in Kubernetes.
"""

import re
from collections.abc import Iterator, Mapping

from gpushare_plugin.base.memory import MIB
from gpushare_plugin.base.structs import Struct, field
from gpushare_plugin.core.driver_limits import FIRST_DRIVER, has_driver_limits
from gpushare_plugin.doctor.node.diagnosis import Diagnosis, not_looked_at, right, wrong
from gpushare_plugin.doctor.node.host import HostRoot
from gpushare_plugin.gpus.accounting import counting_controller
from gpushare_plugin.gpus.cgroups import Kubepods

SUBJECT = "control groups"
_ROOT = "/sys/fs/cgroup"
_LIST = "cgroup.controllers"
_OF_PODS, _OF_KUBELET = "kubepods", "memory"
_RESERVATIONS, _LIMIT = ("dmem.min", "dmem.low"), "dmem.max"
_REGION = re.compile(r"^nvidia/([\w:.]+)/\S+ (\d{1,20})$", re.ASCII | re.MULTILINE)
"""`nvidia/0000:3b:00.0/vidmem 42949672960`."""


class CgroupFacts(Struct, frozen=True):
    """What the node shows of its control groups."""

    version: int | None
    """1 or 2; None where the file system of control groups is not there."""
    controllers: tuple[str, ...] = ()
    """The controllers of version 2."""
    capacities: Mapping[str, int] = field(default_factory=dict)
    """The bytes of each GPU that the kernel counts in the controller dmem, by PCI address."""
    of_pods: tuple[str, ...] = ()
    """The controllers of the kubepods cgroup, which has all pods; none where the kubelet has not made that cgroup."""
    settings: tuple[str, ...] = ()
    """The limits and reservations of GPU memory of whole groups of services or pods, in words."""

    @property
    def limits_by(self) -> str:
        """The controller by which a driver can limit memory of GPUs, `dmem` or `misc`; empty without one."""
        return counting_controller(None, self.controllers)


def read_cgroups(host: HostRoot) -> CgroupFacts:
    """Return what the node shows of its control groups."""
    if not host.exists(f"{_ROOT}/{_LIST}"):
        return CgroupFacts(1 if host.names(_ROOT) else None)
    controllers = tuple(host.line(f"{_ROOT}/{_LIST}").split())
    capacities = dict(_regions(host, f"{_ROOT}/dmem.capacity"))
    pods = Kubepods.below(host.resolved(_ROOT))
    settings = tuple(_settings(host, pods)) if capacities else ()
    return CgroupFacts(2, controllers, capacities, pods.controllers, settings)


def _regions(host: HostRoot, path: str) -> Iterator[tuple[str, int]]:
    """Yield the PCI address and the bytes of each line about a GPU of NVIDIA; a line without a number is left out."""
    for address, size in _REGION.findall(host.line(path)):
        yield address, int(size)


def _settings(host: HostRoot, kubepods: Kubepods) -> Iterator[str]:
    """Yield the limits and reservations of the groups above those of pods, and of the groups of services, in words."""
    groups = [f"{_ROOT}/{name}" for name in host.names(_ROOT) if host.is_directory(f"{_ROOT}/{name}")]
    pods = [f"/{top.relative_to(host.root)}" for top in kubepods.tops]
    classes = [f"{group}/{name}" for group in pods for name in host.names(group, f"*{_OF_PODS}-*.slice")]
    classes += [f"{group}/{name}" for group in pods for name in ("besteffort", "burstable")]
    for group in dict.fromkeys((*groups, *pods, *classes)):
        for setting in (*_RESERVATIONS, _LIMIT):
            for address, value in _regions(host, f"{group}/{setting}"):
                if value or setting == _LIMIT:
                    yield f"{group}/{setting} has {value // MIB} MiB of {address}"


def judge_cgroups(facts: CgroupFacts, driver: str) -> Iterator[Diagnosis]:
    """Yield the line about control groups; `driver` is the version of the kernel module, empty without one."""
    if facts.version is None:
        yield not_looked_at(SUBJECT, f"{_ROOT} is empty or missing")
    elif facts.version == 1:
        yield right(SUBJECT, "version 1; memory limits of NVIDIA's driver need version 2")
    elif facts.controllers and _OF_KUBELET not in facts.controllers:
        yield wrong(
            SUBJECT,
            f"version 2, controllers {' '.join(facts.controllers)}: {_OF_KUBELET} is missing, without which no kubelet "
            "starts pods",
            "remove cgroup_disable=memory from the parameters of the kernel (`cat /proc/cmdline`); where that is not "
            "among them, add cgroup_enable=memory, on a Raspberry Pi cgroup_memory=1, too. Then reboot the node",
        )
    else:
        yield right(SUBJECT, f"version 2, controllers {' '.join(facts.controllers)}; {_limits(facts, driver)}")


def _limits(facts: CgroupFacts, driver: str) -> str:
    if not facts.limits_by:
        return "memory limits of NVIDIA's driver need the controller dmem or misc"
    if not has_driver_limits(driver):
        return f"memory limits by {facts.limits_by} need driver {FIRST_DRIVER} or newer"
    return f"the kernel has {facts.limits_by}, by which NVIDIA's driver can limit memory"
