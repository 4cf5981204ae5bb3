"""NVIDIA's driver: the kernel module that runs, and the libraries on the node that must have the same version.

Facts: `/proc/driver/nvidia/version` and `/sys/module/nvidia/version`, chapter "The /proc/driver/nvidia interface" of
the driver's README; the files of a driver end with its version (`libnvidia-ml.so.580.95.05`, chapter "Installed
components"). NVIDIA's operator installs a driver below `/run/nvidia/driver` (NVIDIA/gpu-operator,
deployments/gpu-operator/values.yaml, `hostPaths.driverInstallDir`); the init container k8s-driver-manager of its pod
unloads the driver before (assets/state-driver/0500_daemonset.yaml there). For the modules, and what keeps them in use,
the chapters "GPUDirect RDMA Peer Memory Client" and "Using the nvidia-persistenced Utility" of the README; modinfo(8)
reads the module on the disk. The loader's cache has the paths of libraries, each ended by a zero byte (ld.so(8),
`/etc/ld.so.cache`). Bottlerocket, COS and Talos have neither dpkg nor RPM on the node, and their drivers elsewhere.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from gpushare_plugin.base.structs import Struct
from gpushare_plugin.doctor.node.diagnosis import Diagnosis, drained, not_looked_at, right, wrong
from gpushare_plugin.doctor.node.host import HostRoot
from gpushare_plugin.doctor.node.needs import ConfigNeeds
from gpushare_plugin.doctor.node.packages import has_packages
from gpushare_plugin.gpus.nvml.initialisation import LIBRARY, LIBRARY_FOLDERS

KERNEL_MODULE, LIBRARIES = "driver (kernel)", "driver (libraries)"
OPERATORS_ROOT = "/run/nvidia/driver"
"""The driver root of NVIDIA's operator, where it installs the driver itself."""

CUDA = "libcuda.so"
"""The name of CUDA's library, without version; the driver brings it, in a package of its own on Debian (libcuda1)."""

_VERSION = re.compile(r"\b\d{3,4}\.\d+(\.\d+)?\b")
_OF_A_FILE = re.compile(r"\.so\.(\d{3,4}\.\d+(?:\.\d+)?)$")


class DriverFacts(Struct, frozen=True):
    """What the node shows of NVIDIA's driver."""

    kernel: str = ""
    """The version of the loaded kernel module; empty if none is loaded."""
    kind: str = ""
    """`open` or `closed`, the kind of the loaded kernel module; empty if not known."""
    root: str | None = None
    """The driver root with the libraries, a path of the node; None if none was found."""
    library: str = ""
    """The version of NVML's library below `root`; empty if its file does not name a version."""
    cuda: str | None = ""
    """The version of CUDA's library below `root`; empty if its file does not name a version, None without the file."""
    in_packages: bool = False
    """Whether the node has a package manager, so that a driver of packages is in the usual folders."""
    elsewhere: str = ""
    """NVML's library outside of the usual folders, as the loader of the node knows it; empty without one."""

    @property
    def agrees(self) -> bool:
        """Whether the module is loaded, and the libraries are there and not known to have another version."""
        return bool(self.kernel and self.root) and self.library in {"", self.kernel}


def read_driver(host: HostRoot, needs: ConfigNeeds) -> DriverFacts:
    """Return what the node shows of the driver."""
    said = host.line("/proc/driver/nvidia/version")
    named = _VERSION.search(said)
    kernel = host.line("/sys/module/nvidia/version") or (named.group() if named else "")
    found = [
        DriverFacts(kernel, _kind(said), root, version_of(host, library), _cuda(host, root, library))
        for root in dict.fromkeys((needs.driver_root, "/", OPERATORS_ROOT))
        if (library := library_below(host, root))
    ]
    # Beside the driver that runs, there may be files of another one, such as on a node where the operator installs it.
    running = [facts for facts in found if facts.library == kernel]
    nowhere = DriverFacts(kernel, _kind(said), in_packages=has_packages(host), elsewhere=_in_cache(host))
    return next(iter(running or found), nowhere)


def _in_cache(host: HostRoot) -> str:
    """Return where the cache of the loader has NVML's library; empty where the cache has none that is there."""
    cached = re.findall(rf"/[^\0]*/{re.escape(LIBRARY)}(?=\0)", host.line("/etc/ld.so.cache"))
    return host.first(*cached) or ""


def version_of(host: HostRoot, library: str) -> str:
    """Return the version that the file of a library of the driver names; empty if the file names none."""
    version = _OF_A_FILE.search(host.target(library))
    return version[1] if version else ""


def _cuda(host: HostRoot, root: str, library: str) -> str | None:
    """Return the version of CUDA's library below a driver root, first beside `library`; None without the file."""
    folders = (library.rpartition("/")[0], *(f"{root.rstrip('/')}/{folder}" for folder in LIBRARY_FOLDERS))
    # A link to nowhere is no library.
    there = (path for folder in folders if host.exists(host.target(path := f"{folder}/{CUDA}.1")))
    found = next(there, None)
    return None if found is None else version_of(host, found)


def _kind(said: str) -> str:
    """Return the kind of the kernel module by the text of `/proc/driver/nvidia/version`."""
    return ("open" if "Open Kernel Module" in said else "closed") if "Kernel Module" in said else ""


def library_below(host: HostRoot, root: str) -> str | None:
    """Return the path of NVML's library below a driver root of the node; None without a library there."""
    return host.first(*(f"{root.rstrip('/')}/{folder}/{LIBRARY}" for folder in LIBRARY_FOLDERS))


class Installer(NamedTuple):
    """Who brings the driver of a node, as far as the node shows that."""

    operator: bool = False
    """Whether NVIDIA's operator installs the driver."""
    was_operator: bool = False
    """Whether an operator that is gone left something on the node."""
    in_pod: bool = False
    """Whether the root may be that of a pod, which can lack a part of the driver."""
    hidden: bool = False
    """Whether the libraries can be where doctor does not look, as NVML or the toolkit has them, or in a pod."""


def judge_driver(facts: DriverFacts, needs: ConfigNeeds, node: str, installer: Installer) -> Iterator[Diagnosis]:
    """Yield the lines about kernel module and libraries of a machine that has GPUs.

    `node` is the name of the node, for commands.
    """
    if facts.kernel:
        yield right(KERNEL_MODULE, f"{facts.kernel}{facts.kind and f', {facts.kind} kernel module'}")
    else:
        yield wrong(
            KERNEL_MODULE,
            "the module nvidia is not loaded: /proc/driver/nvidia/version and /sys/module/nvidia/version are missing",
            "see the state and the log of the pod nvidia-driver-daemonset on this node (`kubectl get pods -n "
            "gpu-operator -o wide`), which loads the module; `dmesg | grep -i nvrm` on the node says why a module fails"
            if installer.operator
            else "install NVIDIA's driver for the running kernel and run `modprobe nvidia`; `dmesg | grep -i nvrm` "
            "says why it fails. With NVIDIA's operator, see the log of the pod nvidia-driver-daemonset on this node",
        )
    yield _libraries(facts, needs, node, installer)


def _libraries(facts: DriverFacts, needs: ConfigNeeds, node: str, installer: Installer) -> Diagnosis:
    if facts.root is None:
        return _not_found(facts, needs, node, installer)
    if facts.kernel and facts.library and facts.library != facts.kernel:
        return wrong(
            LIBRARIES,
            f"version {facts.library} below {facts.root}, but the kernel runs {facts.kernel}: the driver was upgraded "
            "or installed twice, and NVML refuses to work (driver/library version mismatch)",
            _loads_operators(node)
            if installer.operator and facts.root == OPERATORS_ROOT
            else drained(
                node,
                "and reboot the node. If the versions still differ, two drivers are installed: compare `modinfo -F "
                "version nvidia` with the packages (`dpkg -l | grep nvidia`, or `rpm -qa | grep -i nvidia`), and "
                "remove one. Instead of the reboot, you can stop what else uses the GPUs (nvidia-persistenced, DCGM), "
                "unload the modules (nvidia-peermem, nvidia-uvm, nvidia-drm, nvidia-modeset, nvidia; a node may lack "
                "some), and run `modprobe nvidia`",
            ),
        )
    if (facts.cuda is None and not installer.in_pod) or (facts.cuda and facts.library and facts.cuda != facts.library):
        has = f"has version {facts.cuda}, and {LIBRARY} has {facts.library}" if facts.cuda else "is missing"
        return wrong(
            LIBRARIES,
            f"{CUDA}.1 below {facts.root} {has}, so no program in a container can use CUDA",
            _loads_operators(node)
            if installer.operator and facts.root == OPERATORS_ROOT
            else f"install version {facts.library or facts.kernel} of the package of the driver that has {CUDA}.1 "
            "(libcuda1, libnvidia-compute-<version>, or nvidia-driver-cuda-libs), remove other versions, and run "
            "`ldconfig`",
        )
    return right(LIBRARIES, f"{facts.library or 'version unknown'}, below {facts.root}")


def _not_found(facts: DriverFacts, needs: ConfigNeeds, node: str, installer: Installer) -> Diagnosis:
    """Return the line about libraries that are in none of the usual places."""
    expected = needs.driver_root == "/" or (installer.operator and needs.driver_root == OPERATORS_ROOT)
    lost = facts.kernel and expected and not installer.hidden
    if lost and (mends := _brings(facts, node, installer)):
        found = f"{LIBRARY} is neither in the usual folders of the node nor below {OPERATORS_ROOT}"
        return wrong(LIBRARIES, f"{found}, so no container gets the driver", mends)
    if not facts.kernel and installer.operator and expected:
        return not_looked_at(
            LIBRARIES,
            f"{LIBRARY} is not below {OPERATORS_ROOT}, where the pod nvidia-driver-daemonset installs the driver: mend "
            f"the line about the {KERNEL_MODULE} first",
        )
    if needs.driver_root != "/":
        return wrong(
            LIBRARIES,
            f"{LIBRARY} is not below {needs.driver_root}, which the config names as driver root (nvidiaDriverRoot)",
            "set nvidiaDriverRoot to the directory that has the driver's usr/lib64 or usr/lib: / for a driver that is "
            f"installed on the node, {OPERATORS_ROOT} for one that NVIDIA's operator installs",
        )
    return not_looked_at(
        LIBRARIES,
        f"{LIBRARY} is neither in the usual folders of the node nor below {OPERATORS_ROOT}"
        f"{facts.elsewhere and f', but is at {facts.elsewhere}'}; an operating system with the driver elsewhere "
        "(Bottlerocket, COS, Talos) needs that directory as nvidiaDriverRoot",
    )


def _brings(facts: DriverFacts, node: str, installer: Installer) -> str:
    """Return what installs missing libraries of the driver, as an instruction; empty where they may be elsewhere."""
    if installer.operator:
        return _loads_operators(node)
    if facts.elsewhere or not (facts.in_packages or installer.was_operator):
        return ""
    again = "have NVIDIA's operator install the driver again, or " if installer.was_operator else ""
    return (
        f"{again}install NVIDIA's driver {facts.kernel} with its libraries (docs.nvidia.com, NVIDIA Driver "
        "Installation Guide); with another version, reboot the node then. Where the driver is in another directory, "
        "name this as nvidiaDriverRoot"
    )


def _loads_operators(node: str) -> str:
    """Return what loads the kernel module of the driver that NVIDIA's operator installed, as an instruction."""
    return drained(
        node,
        "and see the state and the log of the pod nvidia-driver-daemonset on this node (`kubectl get pods -n "
        "gpu-operator -o wide`): its init container k8s-driver-manager unloads the module of the driver before, which "
        "fails while a program uses the GPUs. Delete this pod (`kubectl delete pod`), or reboot the node: its start "
        "loads the module of its own driver",
    )
