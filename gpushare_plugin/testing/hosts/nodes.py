"""Nodes as people have them. Each text is ours; the facts in it are those of the sources named there."""

import json

from gpushare_plugin.base.memory import MIB
from gpushare_plugin.testing.hosts.description import HostDescription
from gpushare_plugin.testing.nvml import DRIVER_WITH_LIMITS, FakeGpu

DRIVER = "580.95.05"
"""The driver of all nodes, those with driver limits aside."""
GPUS = (
    FakeGpu(uuid="GPU-5f4c2a1b-7a3e-4c59-9d60-1f2e3d4c5b6a", pci_bus_id="00000000:3B:00.0"),
    FakeGpu(uuid="GPU-8e1d0c2f-4b5a-4677-8899-a0b1c2d3e4f5", pci_bus_id="00000000:AF:00.0"),
)
"""The GPUs of all nodes, as NVML shows them."""

_PCI = "/sys/bus/pci/devices"
_PLUGINS = "/var/lib/kubelet/device-plugins"
_TOOLKIT = "/usr/local/nvidia/toolkit"
_OPERATORS_DRIVER = "/run/nvidia/driver"
_POD_LOGS = "/var/log/pods"

# The kernel's Documentation/ABI/testing/sysfs-bus-pci: a network card, and what every node of Kubernetes has besides.
# Links below /sys are relative; /var/run is a link to /run (file-hierarchy(7)). The kubelet keeps a directory for the
# logs of each pod of the node (pkg/kubelet/kuberuntime/helpers.go in Kubernetes, `BuildPodLogsDirectory`).
WITHOUT_GPU = HostDescription(
    files={
        "/etc/hostname": "worker-17.example.com\n",
        f"{_PCI}/0000:18:00.0/vendor": "0x8086\n",
        f"{_PCI}/0000:18:00.0/class": "0x020000\n",
        "/sys/fs/cgroup/cgroup.controllers": "cpuset cpu io memory hugetlb pids rdma misc dmem\n",
        # pkg/kubelet/cm/devicemanager/checkpoint in Kubernetes.
        f"{_PLUGINS}/kubelet_internal_checkpoint": json.dumps(
            {"Data": {"PodDeviceEntries": None, "RegisteredDevices": {}}, "Checksum": 1}
        ),
    },
    links={"/var/run": "/run"},
    directories=("/run", f"{_POD_LOGS}/kube-system_kube-proxy-x7k2p_0d7e3f0a-5c1b-4b57-9d6e-6a1f2b3c4d5e"),
    sockets=(f"{_PLUGINS}/kubelet.sock", "/var/lib/kubelet/pod-resources/kubelet.sock"),
)
"""A node of kubeadm without a GPU and without anything of NVIDIA's."""


def _card(address: str) -> HostDescription:
    device = f"{_PCI}/{address}"
    return HostDescription(
        {f"{device}/vendor": "0x10de\n", f"{device}/class": "0x030200\n"},
        {f"{device}/driver": "../../../../bus/pci/drivers/nvidia"},
    )


# The driver's README, "The /proc/driver/nvidia interface", "Installed components" and, for the device nodes, the FAQ
# "How and when are the NVIDIA device files created?".
_KERNEL = (
    HostDescription(
        {
            **{f"/dev/nvidia{name}": "" for name in ("0", "1", "ctl", "-uvm")},
            "/proc/driver/nvidia/version": f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {DRIVER}\n",
            "/sys/module/nvidia/version": f"{DRIVER}\n",
        },
        directories=("/sys/bus/pci/drivers/nvidia",),
    )
    + _card("0000:3b:00.0")
    + _card("0000:af:00.0")
)


# pkg/lookup/library.go (folders) and internal/discover/symlinks.go (links) of NVIDIA/nvidia-container-toolkit; of the
# driver's libraries, those of CUDA and of NVML. Other libraries are in the same folder.
def _libraries(root: str) -> HostDescription:
    folder = f"{root}/usr/lib/x86_64-linux-gnu"
    names = ("libcuda.so", "libnvidia-ml.so", "libnvidia-ptxjitcompiler.so")
    return HostDescription(
        {
            f"{folder}/libc.so.6": "",
            f"{folder}/libcuda.so.{DRIVER}": "",
            f"{folder}/libnvidia-ptxjitcompiler.so.{DRIVER}": "",
            f"{root}/usr/bin/nvidia-smi": "",
            f"{root}/usr/bin/nvidia-cuda-mps-control": "",
            f"{root}/sbin/ldconfig.real": "",
        },
        {f"{folder}/{name}.1": f"{name}.{DRIVER}" for name in names},
        nvml=(f"{folder}/libnvidia-ml.so.{DRIVER}",),
    )


BARE = WITHOUT_GPU + _KERNEL + _libraries("")
"""A node with NVIDIA's driver from packages, and nothing else: no toolkit, no specification."""


# deb-control(5); names of packages: docs.nvidia.com, "Installing the NVIDIA Container Toolkit"; docs.docker.com.
def _packages(**versions: str) -> str:
    names = {name.replace("_", "-").replace("containerd-io", "containerd.io"): each for name, each in versions.items()}
    return "\n".join(
        f"Package: {name}\nStatus: install ok installed\nVersion: {version}\n" for name, version in names.items()
    )


# api/config/v1/config.go of NVIDIA/nvidia-container-toolkit: what its package installs. Which package has which
# program: packaging/debian/*.install there; nvidia-container-cli is in libnvidia-container-tools, which the package
# nvidia-container-toolkit needs (packaging/debian/control there; NVIDIA/libnvidia-container, pkg/rpm/SPECS).
_SETTINGS = """\
#accept-nvidia-visible-devices-as-volume-mounts = false
#accept-nvidia-visible-devices-envvar-when-unprivileged = true
disable-require = false

[nvidia-container-cli]
environment = []
ldconfig = "@/sbin/ldconfig.real"

[nvidia-container-runtime]
mode = "auto"
runtimes = ["runc", "crun"]

[nvidia-container-runtime.modes.cdi]
default-kind = "nvidia.com/gpu"
spec-dirs = ["/etc/cdi", "/var/run/cdi"]
"""

_TOOLKIT_PACKAGE = HostDescription(
    {
        "/usr/bin/nvidia-ctk": "",
        "/usr/bin/nvidia-cdi-hook": "",
        "/usr/bin/nvidia-container-runtime": "",
        "/usr/bin/nvidia-container-runtime-hook": "",
        "/usr/bin/nvidia-container-cli": "",
        "/etc/nvidia-container-runtime/config.toml": _SETTINGS,
    }
)


def _handler(section: str, name: str, program: str) -> str:
    """Return a handler as pkg/config/engine/containerd of NVIDIA/nvidia-container-toolkit writes it."""
    handler = f'plugins."{section}".containerd.runtimes.{name}'
    return f"""
[{handler}]
runtime_type = "io.containerd.runc.v2"

[{handler}.options]
BinaryName = "{program}"
SystemdCgroup = true
"""


_V2, _V3 = "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"
_NVIDIAS = "/usr/bin/nvidia-container-runtime"

# docs/cri/config.md of containerd/containerd, of 1.7; a registry with a password, which nobody may see.
_CONTAINERD_1_7 = f"""\
version = 2
root = "/var/lib/containerd"

[plugins."{_V2}"]
sandbox_image = "registry.example.com/pause:3.10"

[plugins."{_V2}".containerd]
default_runtime_name = "runc"

[plugins."{_V2}".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins."{_V2}".registry.configs."registry.example.com".auth]
username = "robot"
password = "a secret of the registry"
"""

KUBEADM_CONTAINERD_1_7 = (
    BARE
    + _TOOLKIT_PACKAGE
    + HostDescription(
        {
            "/etc/containerd/config.toml": _CONTAINERD_1_7 + _handler(_V2, "nvidia", _NVIDIAS),
            "/var/lib/dpkg/status": _packages(containerd_io="1.7.28-1", nvidia_container_toolkit_base="1.17.8-1"),
        },
        sockets=("/run/containerd/containerd.sock",),
    )
)
"""kubeadm with containerd 1.7, and NVIDIA's driver and toolkit 1.17 from packages."""


def specification(
    kind: str = "nvidia.com/gpu",
    *,
    hook: str = "/usr/bin/nvidia-cdi-hook",
    root: str = "",
    driver: str = DRIVER,
    limits: bool = False,
) -> str:
    """Return a specification as pkg/nvcdi of NVIDIA/nvidia-container-toolkit makes it, much shortened, as JSON.

    Devices have the names of cmd/nvidia-ctk/cdi/generate/generate.go: the index, the UUID, and `all`; of the kind for
    management (pkg/nvcdi/management.go) there is only `all`. With `limits`, each device of a GPU has the hook of
    version 1.20.1 that sets driver limits (cmd/nvidia-cdi-hook/apply-cuda-memory-limits).
    """
    library = f"/usr/lib/x86_64-linux-gnu/libcuda.so.{driver}"
    work = ["nvidia-cdi-hook", "update-ldcache", "--folder", "/usr/lib/x86_64-linux-gnu"]
    edits = {
        "env": ["NVIDIA_VISIBLE_DEVICES=void"],
        "deviceNodes": [{"path": "/dev/nvidiactl"}, {"path": "/dev/nvidia-uvm"}],
        "hooks": [{"hookName": "createContainer", "path": hook, "args": work}],
        "mounts": [{"hostPath": f"{root}{library}", "containerPath": library, "options": ["ro", "bind"]}],
    }
    nodes = [{"path": f"/dev/nvidia{index}"} for index, _ in enumerate(GPUS)]
    devices = {name: [index] for index, gpu in enumerate(GPUS) for name in (str(index), gpu.uuid)}
    everything = {"all": list(range(len(GPUS)))}

    def edited(indices: list[int]) -> dict[str, object]:
        set_limits = [_limits_hook(hook, root, GPUS[index].uuid) for index in indices]
        return {"deviceNodes": [nodes[index] for index in indices], **({"hooks": set_limits} if limits else {})}

    document = {
        "cdiVersion": "0.5.0",
        "kind": kind,
        "devices": [
            {"name": name, "containerEdits": edited(indices)}
            for name, indices in (everything if kind.startswith("management.") else devices | everything).items()
        ],
        "containerEdits": edits,
    }
    return json.dumps(document, indent=1)


def _limits_hook(hook: str, root: str, uuid: str) -> dict[str, object]:
    arguments = ["nvidia-cdi-hook", "apply-cuda-memory-limits", "--driver-root", root or "/", "--gpu-id", uuid]
    return {"hookName": "createRuntime", "path": hook, "args": arguments}


# RELEASES.md and docs/containerd-2.0.md of containerd/containerd; nvidia-ctk 1.18 writes a drop-in file
# (pkg/config/engine/containerd/config_drop_in.go), and nvidia-cdi-refresh the specification (deployments/systemd).
KUBEADM_CONTAINERD_2 = (
    BARE
    + _TOOLKIT_PACKAGE
    + HostDescription(
        {
            "/etc/containerd/config.toml": f"""\
imports = ["/etc/containerd/conf.d/*.toml"]
version = 3

[plugins."{_V3}".containerd]
default_runtime_name = "runc"

[plugins."{_V3}".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
""",
            "/etc/containerd/conf.d/99-nvidia.toml": f"version = 3\n{_handler(_V3, 'nvidia', _NVIDIAS)}",
            "/var/lib/dpkg/status": _packages(containerd_io="2.1.4-1", nvidia_container_toolkit_base="1.18.1-1"),
            "/run/cdi/nvidia.yaml": specification(),
        },
        sockets=("/run/containerd/containerd.sock",),
    )
)
"""kubeadm with containerd 2, and NVIDIA's driver and toolkit 1.18 from packages."""


def _of_driver(host: HostDescription, version: str) -> HostDescription:
    """Return a node with another version of the driver."""

    def other(text: str) -> str:
        return text.replace(DRIVER, version)

    return HostDescription(
        {other(path): other(text) for path, text in host.files.items()},
        {path: other(target) for path, target in host.links.items()},
        host.directories,
        host.sockets,
        tuple(map(other, host.nvml)),
    )


# NVIDIA's MPS documentation, r615, "MPS v3 Memory Partitioning"; the name of a GPU's region in the controller dmem:
# kernel-open/nvidia/os-interface.c of NVIDIA/open-gpu-kernel-modules.
DRIVER_LIMITS_OLD_TOOLKIT = _of_driver(KUBEADM_CONTAINERD_2, DRIVER_WITH_LIMITS) + HostDescription(
    {
        "/proc/driver/nvidia/params": 'EnableGpuFirmware: 18\nRegistryDwords: ""\nRegistryDwordsPerDevice: ""\n',
        "/sys/fs/cgroup/dmem.capacity": "".join(
            f"nvidia/{gpu.pci_bus_id[-12:].lower()}/vidmem {gpu.memory_mib * MIB}\n" for gpu in GPUS
        ),
        "/sys/fs/cgroup/kubepods.slice/cgroup.controllers": "cpuset cpu io memory hugetlb pids rdma misc dmem\n",
        "/sys/fs/cgroup/kubepods.slice/dmem.max": "",
    }
)
"""kubeadm with containerd 2, a driver that can limit memory, by dmem, and toolkit 1.18, which has no hook for that."""

DRIVER_LIMITS = DRIVER_LIMITS_OLD_TOOLKIT.edited(
    "/var/lib/dpkg/status", "Version: 1.18.1-1", "Version: 1.20.1-1"
) + HostDescription({"/run/cdi/nvidia.yaml": specification(driver=DRIVER_WITH_LIMITS, limits=True)})
"""The same with toolkit 1.20.1, whose specification and just-in-time CDI have the hook that sets driver limits."""

# docs.k3s.io, "NVIDIA Container Runtime Support"; pkg/agent/containerd/nvidia.go of k3s-io/k3s; for the socket,
# docs.k3s.io, "Advanced Options". K3s has its own containerd.
K3S = (
    BARE
    + _TOOLKIT_PACKAGE
    + HostDescription(
        {
            "/var/lib/rancher/k3s/agent/etc/containerd/config.toml": f"""\
version = 3
root = "/var/lib/rancher/k3s/agent/containerd"
state = "/run/k3s/containerd"

[plugins."{_V2}"]
stream_server_address = "127.0.0.1"
{_handler(_V3, "runc", "")}{_handler(_V3, "nvidia", _NVIDIAS)}""",
            "/var/lib/dpkg/status": _packages(nvidia_container_toolkit_base="1.17.8-1"),
        },
        sockets=("/run/k3s/containerd/containerd.sock",),
    )
)
"""K3s, with NVIDIA's driver and toolkit from packages."""

# cmd/nvidia-ctk-installer of NVIDIA/nvidia-container-toolkit: all of the toolkit is below toolkit.installDir, where
# nvidia-ctk is a shell script around nvidia-ctk.real (toolkit/installer/executables.go).
_OPERATORS_SETTINGS = f"""\
accept-nvidia-visible-devices-as-volume-mounts = false
accept-nvidia-visible-devices-envvar-when-unprivileged = true

[nvidia-container-cli]
ldconfig = "@{_OPERATORS_DRIVER}/sbin/ldconfig.real"
path = "{_TOOLKIT}/nvidia-container-cli"
root = "{_OPERATORS_DRIVER}"

[nvidia-container-runtime]
mode = "auto"
runtimes = ["runc", "crun"]

[nvidia-container-runtime-hook]
path = "{_TOOLKIT}/nvidia-container-runtime-hook"

[nvidia-container-runtime.modes.cdi]
default-kind = "management.nvidia.com/gpu"
"""


def _operator(toolkit: str, settings: str) -> HostDescription:
    """Return what an operator with its own driver and toolkit has on a node."""
    programs = (
        "nvidia-ctk",
        "nvidia-ctk.real",
        "nvidia-cdi-hook",
        "nvidia-container-cli",
        "nvidia-container-runtime",
        "nvidia-container-runtime-hook",
        "nvidia-container-runtime.cdi",
    )
    return _libraries(_OPERATORS_DRIVER) + HostDescription(
        {
            **{f"{_TOOLKIT}/{name}": "" for name in (*programs, "nvidia-container-runtime.legacy")},
            f"{_TOOLKIT}/libnvidia-container.so.{toolkit}": "",
            f"{_TOOLKIT}/.config/nvidia-container-runtime/config.toml": settings,
            "/run/nvidia/validations/driver-ready": "",
            "/run/nvidia/validations/toolkit-ready": "",
        },
        {f"{_TOOLKIT}/libnvidia-container.so.1": f"libnvidia-container.so.{toolkit}"},
        directories=tuple(
            f"{_POD_LOGS}/gpu-operator_{name}-{number}qw9d_4b1f6c2e-0000-4c00-8000-00000000000{number}"
            for number, name in enumerate(
                ("nvidia-driver-daemonset", "nvidia-container-toolkit-daemonset", "nvidia-operator-validator")
            )
        ),
        sockets=("/run/containerd/containerd.sock",),
    )


def _operators_handlers(section: str) -> str:
    """Return the handlers of cmd/nvidia-ctk-installer/container/operator/operator.go."""
    return "".join(
        _handler(section, f"nvidia{mode and f'-{mode}'}", f"{_TOOLKIT}/nvidia-container-runtime{mode and f'.{mode}'}")
        for mode in ("", "cdi", "legacy")
    )


# NVIDIA's documentation of the operator 24.9: cdi.enabled is false, and its runtime is the default one.
OPERATOR_24 = (
    WITHOUT_GPU
    + _KERNEL
    + _operator("1.17.3", _OPERATORS_SETTINGS)
    + HostDescription(
        {
            "/etc/containerd/config.toml": _CONTAINERD_1_7.replace('"runc"', '"nvidia"') + _operators_handlers(_V2),
            "/var/lib/dpkg/status": _packages(containerd_io="1.7.28-1"),
        }
    )
)
"""NVIDIA's operator 24.9 with driver and toolkit of its own, its device plugin turned off."""

# controllers/object_controls.go of NVIDIA/gpu-operator, `transformToolkitCtrForCDI`: mode cdi, not the default runtime;
# assets/state-container-toolkit/0500_daemonset.yaml there: default-kind as before, of which only `all` is specified.
OPERATOR_25_10 = (
    WITHOUT_GPU
    + _KERNEL
    + _operator("1.18.0", _OPERATORS_SETTINGS.replace('mode = "auto"', 'mode = "cdi"'))
    + HostDescription(
        {
            "/etc/containerd/config.toml": 'imports = ["/etc/containerd/conf.d/*.toml"]\nversion = 3\n',
            "/etc/containerd/conf.d/99-nvidia.toml": f"version = 3\n{_operators_handlers(_V3)}",
            "/run/cdi/management.nvidia.com-gpu.json": specification(
                "management.nvidia.com/gpu", hook=f"{_TOOLKIT}/nvidia-cdi-hook", root=_OPERATORS_DRIVER
            ),
        }
    )
)
"""NVIDIA's operator 25.10 with its defaults, its device plugin turned off."""


def without_operator(host: HostDescription) -> HostDescription:
    """Return a node from which NVIDIA's operator was removed: without its pods, with the files that it leaves.

    The pod of the validator removes the validations when it ends (assets/state-operator-validation of the operator).
    """
    return host.without(
        "/run/nvidia/validations", *(each for each in host.directories if each.startswith(f"{_POD_LOGS}/gpu-operator_"))
    )


# `transformForRuntime` there: with NRI, the configuration of the runtime is not touched.
OPERATOR_NRI = OPERATOR_25_10.without("/etc/containerd/conf.d/99-nvidia.toml")
"""NVIDIA's operator with cdi.nriPluginEnabled: the container runtime has no handler for NVIDIA's runtime."""

NODES = {
    "bare": BARE,
    "kubeadm-containerd-1.7": KUBEADM_CONTAINERD_1_7,
    "kubeadm-containerd-2": KUBEADM_CONTAINERD_2,
    "driver-limits": DRIVER_LIMITS,
    "driver-limits-old-toolkit": DRIVER_LIMITS_OLD_TOOLKIT,
    "k3s": K3S,
    "operator-24": OPERATOR_24,
    "operator-25.10": OPERATOR_25_10,
    "operator-nri": OPERATOR_NRI,
    "without-gpu": WITHOUT_GPU,
}
"""All nodes, by a name for people."""
