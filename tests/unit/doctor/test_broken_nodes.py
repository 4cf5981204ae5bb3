"""Tests of `gpushare doctor` on nodes on which one thing is broken: that thing is named, with what mends it."""

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpushare_plugin.base.files.lock import lock
from gpushare_plugin.base.structs import replace
from gpushare_plugin.core.cdi import OWN_KIND
from gpushare_plugin.core.gpu import FailedGpu
from gpushare_plugin.doctor.examination import judged, read_node
from gpushare_plugin.doctor.node.host import HostRoot
from gpushare_plugin.doctor.node.needs import ConfigNeeds, EntryNeeds
from gpushare_plugin.doctor.subjects.cdi import MANAGEMENT_KIND
from gpushare_plugin.doctor.subjects.driver import DriverFacts
from gpushare_plugin.doctor.subjects.kubelet import PLUGIN_DIRECTORY, read_kubelet
from gpushare_plugin.doctor.subjects.mps import MpsUse, judge_mps, read_mps
from gpushare_plugin.doctor.subjects.plugins import PluginFacts, judge_plugins, read_plugins
from gpushare_plugin.doctor.words import lines_of
from gpushare_plugin.gpus.exchange import write_message
from gpushare_plugin.mps.exchange import MpsGpu, MpsRoot, MpsSettings, MpsStatus
from gpushare_plugin.testing.hosts import (
    BARE,
    DRIVER,
    DRIVER_LIMITS,
    GPUS,
    K3S,
    KUBEADM_CONTAINERD_1_7,
    KUBEADM_CONTAINERD_2,
    OPERATOR_24,
    OPERATOR_25_10,
    WITHOUT_GPU,
    HostDescription,
    built,
    specification,
    without_operator,
)
from tests.nodes import Cards
from tests.unit.doctor.examining import CDI, ENVVAR, MPS, examined, found, hidden, shown, wrong_lines

CONTAINERD = "/etc/containerd/config.toml"
CRI = "io.containerd.grpc.v1.cri"
DROP_IN = "/etc/containerd/conf.d/99-nvidia.toml"
SETTINGS = "/etc/nvidia-container-runtime/config.toml"
TOOLKIT = "/usr/local/nvidia/toolkit"
OPERATORS_SETTINGS = f"{TOOLKIT}/.config/nvidia-container-runtime/config.toml"
MANAGEMENT_FILE = "management.nvidia.com-gpu.json"
MOUNTS = ConfigNeeds(strategies=("volume-mounts",))
OTHER_ROOT = ConfigNeeds(driver_root="/opt/driver")

BY_SPECIFICATION = KUBEADM_CONTAINERD_2.edited(SETTINGS, 'mode = "auto"', 'mode = "cdi"')
"""A node whose toolkit looks GPUs up in CDI specifications."""
CRIO = KUBEADM_CONTAINERD_1_7.without("/etc/containerd", "/run/containerd") + HostDescription(
    {
        "/etc/crio/crio.conf": '[crio.runtime]\ndefault_runtime = "crun"\n',
        "/etc/crio/crio.conf.d/99-nvidia.toml": "[crio.runtime.runtimes.nvidia]\n"
        'runtime_path = "/usr/bin/nvidia-container-runtime"\n',
    }
)
"""CRI-O with the drop-in file that `nvidia-ctk runtime configure --runtime=crio` writes."""
DOCKER = KUBEADM_CONTAINERD_1_7 + HostDescription(
    {
        "/etc/docker/daemon.json": '{"default-runtime": "nvidia", "runtimes": {"nvidia": {"path": '
        '"nvidia-container-runtime"}}}',
        CONTAINERD: 'disabled_plugins = ["cri"]\n',
    },
    sockets=("/run/cri-dockerd.sock",),
)
"""Docker by cri-dockerd, with the containerd of Docker's packages."""


RUNNING = PluginFacts(ours=True)
"""The device plugins of a node on which the daemon runs."""
WANTED = MpsSettings(gpus=(MpsGpu(uuid=GPUS[0].uuid),))
"""The GPU that a daemon wants under MPS."""


@contextmanager
def control_daemon(root: MpsRoot) -> Iterator[None]:
    """Listen where an MPS control daemon listens."""
    root.pipe.mkdir()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(root.pipe / "control"))
        listener.listen()
        yield


SCREEN = HostDescription({"/sys/bus/pci/devices/0000:3b:00.0/class": "0x030000\n"})
"""A GPU that may be there for a screen."""


def only(index: int) -> Cards:
    """Return NVML that shows one GPU of the described nodes."""
    source = shown()
    source.inventory = replace(source.inventory, cards=source.inventory.cards[index : index + 1])
    return source


def linked(bus: str, driver: str) -> HostDescription:
    """Return the links of a GPU that another kernel driver has."""
    return HostDescription(
        links={f"/sys/bus/pci/devices/0000:{bus}:00.0/driver": f"../../../../bus/pci/drivers/{driver}"},
        directories=(f"/sys/bus/pci/drivers/{driver}",),
    )


@pytest.mark.parametrize(
    ("host", "needs", "subject", "said", "remedy"),
    [
        (
            KUBEADM_CONTAINERD_1_7.without("/proc/driver", "/sys/module"),
            ENVVAR,
            "driver (kernel)",
            "the module nvidia is not loaded",
            "modprobe nvidia",
        ),
        (
            KUBEADM_CONTAINERD_1_7 + HostDescription({"/sys/module/nvidia/version": "570.86.15\n"}),
            ENVVAR,
            "driver (libraries)",
            "version 580.95.05 below /, but the kernel runs 570.86.15",
            "and reboot the node. If the versions still differ, two drivers are installed",
        ),
        (
            KUBEADM_CONTAINERD_1_7 + linked("3b", "nouveau") + linked("af", "nouveau"),
            ENVVAR,
            "GPUs on the PCI bus",
            "0000:3b:00.0",
            "blacklist nouveau",
        ),
        (
            KUBEADM_CONTAINERD_1_7.without("/usr/lib"),
            OTHER_ROOT,
            "driver (libraries)",
            "libnvidia-ml.so.1 is not below /opt/driver",
            "set nvidiaDriverRoot",
        ),
        (
            KUBEADM_CONTAINERD_1_7.edited(CONTAINERD, "version = 2", 'version = 2\ndisabled_plugins = ["cri"]'),
            ENVVAR,
            "container runtime",
            "turns the CRI plugin off",
            f"remove cri from disabled_plugins in {CONTAINERD}",
        ),
        (
            KUBEADM_CONTAINERD_1_7.edited(
                CONTAINERD, 'default_runtime_name = "runc"', 'default_runtime_name = "nvida"'
            ),
            ENVVAR,
            "container runtime",
            "names the handler nvida as default_runtime_name, and there is no such handler (handlers: runc, nvidia)",
            f"set default_runtime_name in {CONTAINERD} to nvidia, with which every pod can get a GPU, or to ",
        ),
        (
            OPERATOR_24.edited(CONTAINERD, "runtimes.nvidia]", "runtimes.other]").edited(
                CONTAINERD, "runtimes.nvidia.options]", "runtimes.other.options]"
            ),
            ENVVAR,
            "container runtime",
            "names the handler nvidia as default_runtime_name, and there is no such handler",
            f"set default_runtime_name in {CONTAINERD} to ",
        ),
        (
            KUBEADM_CONTAINERD_1_7.edited(CONTAINERD, "version = 2", "version = "),
            ENVVAR,
            "container runtime",
            f"{CONTAINERD}: line 1, version: Invalid value, so containerd cannot read it",
            f"correct {CONTAINERD} in line 1, or just before",
        ),
        (
            KUBEADM_CONTAINERD_1_7.edited(CONTAINERD, "/usr/bin/nvidia-container-runtime", "/usr/bin/crun"),
            ENVVAR,
            "NVIDIA's runtime",
            "(handlers: runc, nvidia), so a pod gets NVIDIA_VISIBLE_DEVICES, but no runtime acts on that",
            "--runtime=containerd` and `systemctl restart containerd`; then give the daemon and pods with a GPU a",
        ),
        (
            KUBEADM_CONTAINERD_1_7.without("/usr/bin/nvidia-container-runtime"),
            ENVVAR,
            "NVIDIA's runtime",
            "handler nvidia runs /usr/bin/nvidia-container-runtime, which is not there",
            "package nvidia-container-toolkit",
        ),
        (
            KUBEADM_CONTAINERD_2.edited(DROP_IN, "io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri"),
            ENVVAR,
            "NVIDIA's runtime",
            f"nvidia in [plugins.'io.containerd.grpc.v1.cri'] of {DROP_IN}, which has version 3",
            "move the handler there",
        ),
        (
            K3S.edited(
                "/var/lib/rancher/k3s/agent/etc/containerd/config.toml", "/usr/bin/nvidia-container-runtime", ""
            ),
            ENVVAR,
            "NVIDIA's runtime",
            "containerd of K3s has no handler",
            "run `systemctl restart k3s` (on",
        ),
        (
            CRIO.without("/etc/crio/crio.conf.d"),
            ENVVAR,
            "NVIDIA's runtime",
            "CRI-O has no handler",
            "nvidia-ctk runtime configure --runtime=crio",
        ),
        (
            DOCKER.edited("/etc/docker/daemon.json", "nvidia-container-runtime", "crun"),
            ENVVAR,
            "NVIDIA's runtime",
            "Docker has no handler",
            "--runtime=docker --set-as-default",
        ),
        (
            KUBEADM_CONTAINERD_1_7 + HostDescription({"/etc/cdi/nvidia.json": specification()}),
            CDI,
            "CDI in the container runtime",
            "off, but the config names GPUs by CDI",
            f"set `enable_cdi = true` in [plugins.'io.containerd.grpc.v1.cri'] of {CONTAINERD}",
        ),
        (
            KUBEADM_CONTAINERD_1_7.without("/usr/bin/nvidia-ctk")
            .edited(CONTAINERD, "version = 2", "version = 2")
            .without("/usr/bin/nvidia-container-runtime", "/usr/bin/nvidia-cdi-hook")
            .edited(CONTAINERD, "/usr/bin/nvidia-container-runtime", "/usr/bin/crun"),
            ENVVAR,
            "container toolkit",
            "not installed",
            "install the package nvidia-container-toolkit",
        ),
        (
            KUBEADM_CONTAINERD_1_7.edited(
                SETTINGS, "#accept-nvidia-visible-devices-envvar", "accept-nvidia-visible-devices-envvar"
            ).edited(SETTINGS, "unprivileged = true", "unprivileged = false"),
            ENVVAR,
            "settings of the container toolkit",
            "so only privileged containers get a GPU",
            f"accept-nvidia-visible-devices-envvar-when-unprivileged = true in {SETTINGS}",
        ),
        (
            KUBEADM_CONTAINERD_1_7,
            MOUNTS,
            "settings of the container toolkit",
            "but the config gives GPUs by mounts",
            f"set accept-nvidia-visible-devices-as-volume-mounts = true in {SETTINGS}",
        ),
        (
            KUBEADM_CONTAINERD_1_7.edited(SETTINGS, "environment = []", "no-cgroups = true"),
            ENVVAR,
            "settings of the container toolkit",
            "Failed to initialize NVML: Unknown Error",
            "This applies to new containers: restart pods that have a GPU",
        ),
        (
            KUBEADM_CONTAINERD_1_7.edited(SETTINGS, "environment = []", "environment = ["),
            ENVVAR,
            "settings of the container toolkit",
            f"{SETTINGS}: line 7",
            f"correct {SETTINGS} in line 7, or just before",
        ),
        (
            OPERATOR_24.edited(
                "/usr/local/nvidia/toolkit/.config/nvidia-container-runtime/config.toml",
                'root = "/run/nvidia/driver"',
                'root = "/"',
            ),
            ENVVAR,
            "settings of the container toolkit",
            "looks for the driver below / (root), but the driver is below /run/nvidia/driver",
            "delete the pod nvidia-container-toolkit-daemonset on this node (`kubectl delete pod`): its start writes",
        ),
        (
            KUBEADM_CONTAINERD_1_7.without("/usr/bin/nvidia-container-runtime-hook", "/usr/bin/nvidia-container-cli"),
            ENVVAR,
            "settings of the container toolkit",
            "mode auto: legacy runs nvidia-container-runtime-hook and nvidia-container-cli for each container",
            "install the package nvidia-container-toolkit; nvidia-container-toolkit-base alone is not enough",
        ),
        (
            OPERATOR_24.without("/usr/local/nvidia/toolkit/nvidia-container-cli"),
            ENVVAR,
            "settings of the container toolkit",
            "mode auto: legacy runs /usr/local/nvidia/toolkit/nvidia-container-cli for each container",
            "the log of the operator's pod nvidia-container-toolkit-daemonset",
        ),
        (
            BY_SPECIFICATION.without("/run/cdi/nvidia.yaml"),
            ENVVAR,
            "CDI specifications",
            "no specification in /etc/cdi or /var/run/cdi has that",
            "/usr/bin/nvidia-ctk cdi generate --device-name-strategy=uuid",
        ),
        (
            BY_SPECIFICATION + HostDescription({"/run/cdi/nvidia.yaml": specification(driver="570.86.15")}),
            ENVVAR,
            "CDI specifications",
            "/var/run/cdi/nvidia.yaml is outdated: it gives containers the CUDA library of the driver 570.86.15",
            "nvidia-ctk cdi generate",
        ),
        (
            BY_SPECIFICATION + HostDescription({"/run/cdi/copy.json": specification()}),
            ENVVAR,
            "CDI specifications",
            "/var/run/cdi/copy.json and /var/run/cdi/nvidia.yaml both describe the CDI devices",
            "remove one of the files",
        ),
        (
            BY_SPECIFICATION + HostDescription({"/run/cdi/nvidia.yaml": "kind: {password of a registry\n: x"}),
            ENVVAR,
            "CDI specifications",
            "the CDI specification /var/run/cdi/nvidia.yaml is left out: it is not valid YAML",
            "nvidia-ctk cdi generate",
        ),
        (
            KUBEADM_CONTAINERD_2.without("/usr/bin/nvidia-cdi-hook"),
            CDI,
            "CDI specifications",
            "/var/run/cdi/nvidia.yaml names files that are not on the node: /usr/bin/nvidia-cdi-hook",
            "apt-get install --reinstall nvidia-container-toolkit-base",
        ),
        (
            KUBEADM_CONTAINERD_2.edited("/run/cdi/nvidia.yaml", '"hostPath": "/usr/lib', '"hostPath": "/opt/lib'),
            CDI,
            "CDI specifications",
            "The driver or the toolkit was changed after the specification was generated",
            "--output=/var/run/cdi/nvidia.yaml",
        ),
        (
            OPERATOR_24.without("/run/nvidia/validations/toolkit-ready"),
            ENVVAR,
            "NVIDIA's GPU operator",
            "ready: driver",
            "nvidia-container-toolkit-daemonset",
        ),
        (
            KUBEADM_CONTAINERD_1_7.without("/usr/bin/nvidia-cuda-mps-control"),
            MPS,
            "MPS",
            "the driver has no /usr/bin/nvidia-cuda-mps-control",
            "install the package",
        ),
        (
            OPERATOR_24.without("/run/nvidia/driver/usr/bin/nvidia-cuda-mps-control"),
            MPS,
            "MPS",
            "the driver has no /run/nvidia/driver/usr/bin/nvidia-cuda-mps-control",
            "delete the pod nvidia-driver-daemonset on this node",
        ),
        (
            KUBEADM_CONTAINERD_1_7 + HostDescription(sockets=("/run/nvidia/mps/nvidia.com/gpu/pipe/control",)),
            MPS,
            "MPS",
            "another MPS control daemon has its pipes in /run/nvidia/mps/nvidia.com/gpu/pipe",
            "nvidia.com/gpu/pipe /usr/bin/nvidia-cuda-mps-control`",
        ),
        (
            KUBEADM_CONTAINERD_1_7 + HostDescription(sockets=("/tmp/nvidia-mps/control",)),  # noqa: S108 - of the node
            MPS,
            "MPS",
            "another MPS control daemon has its pipes in /tmp/nvidia-mps",
            "run `echo quit | CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps /usr/bin/nvidia-cuda-mps-control`",
        ),
        (
            KUBEADM_CONTAINERD_1_7.without(f"{PLUGIN_DIRECTORY}/kubelet.sock"),
            ENVVAR,
            "kubelet, device plugins",
            f"nothing listens at {PLUGIN_DIRECTORY}/kubelet.sock",
            "the kubelet runs, but its plugin socket is gone: run `systemctl restart kubelet`",
        ),
        (
            KUBEADM_CONTAINERD_1_7.without(f"{PLUGIN_DIRECTORY}/kubelet.sock", "/var/lib/kubelet/pod-resources"),
            ENVVAR,
            "kubelet, device plugins",
            f"nothing listens at {PLUGIN_DIRECTORY}/kubelet.sock",
            "after the container runtime is up; if the kubelet stops again, see `journalctl -u kubelet`",
        ),
        (
            KUBEADM_CONTAINERD_1_7.without("/var/lib/kubelet/pod-resources"),
            ENVVAR,
            "kubelet, pod-resources",
            "nothing listens",
            "kubeletRootDir",
        ),
        (
            WITHOUT_GPU + HostDescription({f"{PLUGIN_DIRECTORY}/kubelet_internal_checkpoint": "{"}),
            ENVVAR,
            "kubelet, checkpoint",
            "does not show what pods hold",
            "remove kubelet_internal_checkpoint",
        ),
        (
            KUBEADM_CONTAINERD_1_7 + HostDescription(sockets=(f"{PLUGIN_DIRECTORY}/nvidia-gpu.sock",)),
            ENVVAR,
            "other device plugins",
            "serves at nvidia-gpu.sock: they and gpushare give the same GPUs",
            "delete its DaemonSet, or keep it off this node: HAMi's by `kubectl label node NODE gpu-`",
        ),
        (
            OPERATOR_24 + HostDescription(sockets=(f"{PLUGIN_DIRECTORY}/nvidia-gpu.sock",)),
            ENVVAR,
            "other device plugins",
            "serves at nvidia-gpu.sock: they and gpushare give the same GPUs",
            "kubectl label --overwrite node NODE nvidia.com/gpu.deploy.device-plugin=false",
        ),
        (
            OPERATOR_24 + HostDescription(sockets=(f"{PLUGIN_DIRECTORY}/aliyungpushare.sock",)),
            ENVVAR,
            "other device plugins",
            "Aliyun's device plugin serves at aliyungpushare.sock",
            "(aliyun.com/gpu-mem), since gpushare does not know of them, and then delete its DaemonSet (`kubectl -n",
        ),
        (
            OPERATOR_24.edited(
                OPERATORS_SETTINGS, "[nvidia-container-cli]", "[nvidia-container-cli]\nno-cgroups = true"
            ),
            ENVVAR,
            "settings of the container toolkit",
            "has no-cgroups = true",
            f"on this node (`kubectl delete pod`): its start writes {OPERATORS_SETTINGS} anew",
        ),
        (
            OPERATOR_24.edited(OPERATORS_SETTINGS, "[nvidia-container-cli]", "[nvidia-container-cli"),
            ENVVAR,
            "settings of the container toolkit",
            "so the toolkit cannot read it",
            f"its start writes {OPERATORS_SETTINGS} anew",
        ),
        (
            OPERATOR_24,
            MOUNTS,
            "settings of the container toolkit",
            "but the config gives GPUs by mounts",
            "set ACCEPT_NVIDIA_VISIBLE_DEVICES_AS_VOLUME_MOUNTS=true in toolkit.env of NVIDIA's operator",
        ),
        (
            OPERATOR_24.edited(OPERATORS_SETTINGS, "unprivileged = true", "unprivileged = false"),
            ENVVAR,
            "settings of the container toolkit",
            "so only privileged containers get a GPU",
            "set ACCEPT_NVIDIA_VISIBLE_DEVICES_ENVVAR_WHEN_UNPRIVILEGED=true in toolkit.env of NVIDIA's operator",
        ),
    ],
)
def test_what_is_broken_is_named_with_its_remedy(  # noqa: PLR0913 - a node, and what is said of it
    *, host: HostDescription, needs: ConfigNeeds, subject: str, said: str, remedy: str, short_path: Path
) -> None:
    """The line of that part is wrong and says what was found, and the remedy names file, command or value."""
    _, report = examined(host, short_path, needs)
    lines = [line for line in wrong_lines(report) if line.subject == subject]
    assert any(said in line.found for line in lines), wrong_lines(report)
    assert any(remedy in (line.remedy or "") for line in lines), lines
    assert not any("?" in (line.remedy or "") for line in lines), "a remedy says what to do, and asks nothing"


def test_a_daemon_that_wrote_no_specification_is_noticed(short_path: Path) -> None:
    """While the daemon runs, its own specification has to be there; before, the daemon is yet to write one."""
    host = KUBEADM_CONTAINERD_2.without("/run/cdi/nvidia.yaml")
    _, before = examined(host, short_path / "before", CDI)
    assert wrong_lines(before) == []
    with built(host, short_path / "node") as folder, lock(folder / f"{PLUGIN_DIRECTORY[1:]}/gpushare.lock"):
        root = HostRoot(folder)
        (line,) = wrong_lines(judged(read_node(root, CDI, lambda _library: shown()), root))
        assert "cdi_spec_not_written in its log" in (line.remedy or "")
        (folder / "run/cdi").mkdir(exist_ok=True)
        own = specification(OWN_KIND).replace('"name": "0"', '"name": "zero"').replace('"name": "1"', '"name": "one"')
        (folder / "run/cdi/gpushare-gpu.json").write_text(own)
        by_index = ConfigNeeds(strategies=("cdi-cri",), cdi=True, by_index=True)
        assert wrong_lines(judged(read_node(root, by_index, lambda _library: shown()), root)) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "no specification in /etc/cdi or /var/run/cdi has management.nvidia.com/gpu=all"),
        ('{"cdi', f"Not usable: the CDI specification /var/run/cdi/{MANAGEMENT_FILE}"),
        (specification(MANAGEMENT_KIND, driver="570.86.15", root="/run/nvidia/driver"), "Not usable: "),
        (
            specification(MANAGEMENT_KIND, hook="/opt/gone/ctk", root="/run/nvidia/driver"),
            "not on the node: /opt/gone/",
        ),
    ],
    ids=["missing", "torn", "outdated", "hook"],
)
def test_the_daemon_needs_the_device_of_the_operator(text: str | None, said: str, short_path: Path) -> None:
    """Pods get GPUs by the names of other devices, and the daemon by its runtime class and this device."""
    file = f"/run/cdi/{MANAGEMENT_FILE}"
    host = OPERATOR_25_10.without(file) + HostDescription({} if text is None else {file: text})
    _, report = examined(host, short_path, CDI)
    (line,) = wrong_lines(report)
    assert (said in line.found, "so the daemon's pod cannot start" in line.found) == (True, True), line.found
    assert (line.remedy or "").startswith("delete the pod nvidia-container-toolkit-daemonset on this node")


def test_a_kernel_without_the_controller_memory_comes_before_the_kubelet(short_path: Path) -> None:
    """The kubelet cannot start before the kernel has the controller, so its line comes later."""
    controllers = HostDescription({"/sys/fs/cgroup/cgroup.controllers": "cpuset cpu io pids\n"})
    for host in (K3S, WITHOUT_GPU):
        dead = host.without(f"{PLUGIN_DIRECTORY}/kubelet.sock", "/var/lib/kubelet/pod-resources/kubelet.sock")
        _, report = examined(dead + controllers, short_path / str(len(host.files)))
        first, *others = wrong_lines(report)
        assert (first.subject, "memory is missing" in first.found) == ("control groups", True)
        assert "cgroup_enable=memory" in (first.remedy or "")
        assert [line.subject for line in others] == ["kubelet, device plugins", "kubelet, pod-resources"]
        assert [line.subject for line in report.lines].count("control groups") == 1


def test_a_torn_file_of_prepared_claims_keeps_the_kubelet_from_starting(short_path: Path) -> None:
    """The line comes before that of the sockets; a kubelet that runs has read the file."""
    torn = KUBEADM_CONTAINERD_2 + HostDescription({"/var/lib/kubelet/dra_manager_state": '{"v1":'})
    _, report = examined(torn, short_path / "alive")
    assert wrong_lines(report) == []
    _, report = examined(torn.without(f"{PLUGIN_DIRECTORY}/kubelet.sock"), short_path / "dead")
    line = wrong_lines(report)[0]
    assert line.found.startswith("/var/lib/kubelet/dra_manager_state is no JSON")
    assert "remove /var/lib/kubelet/dra_manager_state, and run `systemctl start kubelet`" in (line.remedy or "")


def test_the_operator_brings_the_driver_that_is_not_loaded(short_path: Path) -> None:
    """Where its pod is on the node, nobody has to install a driver, and the libraries come with the module."""
    parts = ("/proc/driver", "/sys/module/nvidia", "/run/nvidia", "/sys/bus/pci/drivers/nvidia")
    links = [path for path in OPERATOR_25_10.links if path.startswith("/sys/bus/pci")]
    source = hidden()
    _, report = examined(OPERATOR_25_10.without(*parts, *links), short_path, CDI, source)
    line = next(line for line in wrong_lines(report) if line.subject == "driver (kernel)")
    assert (line.remedy or "").startswith("see the state and the log of the pod nvidia-driver-daemonset")
    for subject in ("driver (libraries)", "GPUs on the PCI bus"):
        (line,) = [line for line in report.lines if line.subject == subject]
        assert (line.judgement, "driver (kernel) first" in line.found) == ("notLookedAt", True), line.found


def test_device_nodes_of_a_specification_are_looked_for(short_path: Path) -> None:
    """By CDI nobody makes them; NVIDIA's runtime makes them itself, so the config by variables needs none."""
    host = KUBEADM_CONTAINERD_2.without(*(f"/dev/nvidia{name}" for name in ("0", "1", "ctl", "-uvm")))
    _, report = examined(host, short_path / "cdi", CDI)
    (line,) = wrong_lines(report)
    assert "names files that are not on the node: /dev/nvidia" in line.found
    assert (line.remedy or "").startswith("run `nvidia-smi` and `nvidia-modprobe -u -c=0` on the node")
    _, report = examined(host, short_path / "variables")
    assert wrong_lines(report) == []


def test_the_daemon_set_of_nvidias_mps_goes_before_its_daemon(short_path: Path) -> None:
    """A DaemonSet starts a daemon again that was told to quit."""
    pod = "/var/log/pods/nvdp_nvdp-nvidia-device-plugin-mps-control-daemon-x1_4b1f6c2e-0000-4c00-8000-000000000003"
    listening = HostDescription(sockets=("/run/nvidia/mps/nvidia.com/gpu/pipe/control",), directories=(pod,))
    _, report = examined(KUBEADM_CONTAINERD_2 + listening, short_path, MPS)
    (line,) = wrong_lines(report)
    assert (line.remedy or "").startswith("turn MPS off in NVIDIA's device plugin")
    assert "listens then, run `echo quit" in (line.remedy or "")


@pytest.mark.parametrize("needs", [ENVVAR, CDI, MPS], ids=["envvar", "cdi", "mps"])
def test_containers_need_the_library_of_cuda(needs: ConfigNeeds, short_path: Path) -> None:
    """A driver without CUDA's library, or with that of another driver, serves no program; NVML works without."""
    folder = "/usr/lib/x86_64-linux-gnu"
    without = KUBEADM_CONTAINERD_2.without(f"{folder}/libcuda.so.1", f"{folder}/libcuda.so.{DRIVER}")
    _, report = examined(without, short_path / "without", needs)
    (line,) = wrong_lines(report)
    assert line.found.startswith("libcuda.so.1 below / is missing")
    assert f"install version {DRIVER} of the package of the driver" in (line.remedy or "")
    other = HostDescription({f"{folder}/libcuda.so.570.86.15": ""}, {f"{folder}/libcuda.so.1": "libcuda.so.570.86.15"})
    _, report = examined(KUBEADM_CONTAINERD_2 + other, short_path / "other", needs)
    (line,) = wrong_lines(report)
    assert line.found.startswith(f"libcuda.so.1 below / has version 570.86.15, and libnvidia-ml.so.1 has {DRIVER}")


@pytest.mark.parametrize(
    ("host", "root"),
    [(KUBEADM_CONTAINERD_2.without("/run/cdi/nvidia.yaml"), ""), (OPERATOR_25_10, "/run/nvidia/driver")],
)
def test_the_daemon_mends_its_own_specification_when_it_starts(
    host: HostDescription, root: str, short_path: Path
) -> None:
    """Another file would not help: the daemon's names a program that is gone, until the daemon is restarted.

    In nobody's way is the file where NVIDIA's has the GPUs.
    """
    own = "/run/cdi/gpushare-gpu.json"
    host += HostDescription({own: specification(OWN_KIND, hook="/opt/gone/nvidia-ctk", root=root)})
    _, before = examined(host, short_path / "before", CDI)
    assert wrong_lines(before) == []
    with built(host, short_path / "node") as folder, lock(folder / f"{PLUGIN_DIRECTORY[1:]}/gpushare.lock"):
        node = HostRoot(folder)
        (line,) = wrong_lines(judged(read_node(node, CDI, lambda _library: shown()), node))
        assert line.found.startswith("/var/run/cdi/gpushare-gpu.json names files that are not on the node: /opt/gone")
        assert (line.remedy or "").startswith("restart the daemon of gpushare on this node")
        (folder / "etc/cdi").mkdir(parents=True, exist_ok=True)
        (folder / "etc/cdi/nvidia.yaml").write_text(specification(root=root, hook="/usr/bin/env"))
        (folder / "usr/bin").mkdir(parents=True, exist_ok=True)
        (folder / "usr/bin/env").touch()
        assert wrong_lines(judged(read_node(node, CDI, lambda _library: shown()), node)) == []


def test_an_old_card_for_the_screen_is_not_wrong(short_path: Path) -> None:
    """Beside GPUs with NVIDIA's driver, the kernel's own driver may have another."""
    _, report = examined(KUBEADM_CONTAINERD_1_7 + linked("3b", "nouveau") + SCREEN, short_path, source=only(1))
    assert wrong_lines(report) == []
    assert "1 with the kernel driver nouveau" in found(report, "GPUs on the PCI bus")


@pytest.mark.parametrize("driver", ["nouveau", ""])
def test_a_gpu_that_nvidias_driver_does_not_have_is_named(driver: str, short_path: Path) -> None:
    """A GPU without a screen that another driver or none has is wrong, beside a GPU that is offered to pods."""
    link = "/sys/bus/pci/devices/0000:af:00.0/driver"
    other = linked("af", driver) if driver else HostDescription()
    _, report = examined(KUBEADM_CONTAINERD_1_7.without(link) + other, short_path / "lost", source=only(0))
    (line,) = wrong_lines(report)
    assert line.subject == "GPUs on the PCI bus"
    assert "; gpushare does not offer 0000:af:00.0, because NVIDIA's driver does not have this GPU (" in line.found
    assert line.remedy is not None
    assert "Then reboot the node. Give a GPU that is not for containers to vfio-pci" in line.remedy
    _, report = examined(KUBEADM_CONTAINERD_1_7 + linked("af", "vfio-pci"), short_path / "of a virtual machine")
    assert found(report, "GPUs on the PCI bus").endswith(
        "; given to virtual machines, and not for containers: 0000:af:00.0"
    )


def test_a_gpu_that_the_kernel_driver_could_not_start_is_wrong(short_path: Path) -> None:
    """A GPU that has NVIDIA's kernel driver, and that NVML does not list, is named by its address."""
    _, report = examined(KUBEADM_CONTAINERD_1_7, short_path / "lost", source=only(1))
    (line,) = wrong_lines(report)
    assert (line.subject, line.found) == (
        "NVML",
        "does not list 0000:3b:00.0, though the kernel driver nvidia has this GPU, so no pod gets it",
    )
    source = only(1)
    source.inventory = replace(source.inventory, failed=(FailedGpu(0, "GPU is lost", None, lost=True),))
    _, report = examined(KUBEADM_CONTAINERD_1_7, short_path / "silent", source=source)
    assert ["GPU 0 does not answer" in line.found for line in wrong_lines(report)] == [True]


def test_a_config_that_does_not_fit_the_gpus_of_the_node_is_wrong(short_path: Path) -> None:
    """The line about the config has the words of the daemon, and follows the lines about missing GPUs."""
    misfit = 'config.yaml:6: sharing.memory.resources[0].devices: "5" matches no GPU'
    _, report = examined(KUBEADM_CONTAINERD_1_7, short_path, source=only(1), misfits=(misfit,))
    assert [line.subject for line in wrong_lines(report)] == ["NVML", "config"]
    assert found(report, "config").endswith(f". The daemon rejects it for the GPUs of this node: {misfit}")


def test_a_kubelet_with_another_root_directory_is_found(short_path: Path) -> None:
    """The socket is looked for where the daemon gets it from, and where k0s has it."""
    host = KUBEADM_CONTAINERD_1_7.without("/var/lib/kubelet/pod-resources")
    elsewhere = "/opt/kubelet/pod-resources/kubelet.sock"
    with_option = ConfigNeeds(pod_resources_socket=elsewhere)
    _, report = examined(host + HostDescription(sockets=(elsewhere,)), short_path / "one", with_option)
    assert found(report, "kubelet, pod-resources") == f"the kubelet listens at {elsewhere}"
    of_k0s = "/var/lib/k0s/kubelet/pod-resources/kubelet.sock"
    _, report = examined(host + HostDescription(sockets=(of_k0s,)), short_path / "two")
    assert found(report, "kubelet, pod-resources") == f"the kubelet listens at {of_k0s}"


@pytest.mark.parametrize(
    ("host", "file"),
    [
        (KUBEADM_CONTAINERD_1_7, CONTAINERD),
        (CRIO, "/etc/crio/crio.conf.d/99-nvidia.toml"),
        (DOCKER, "/etc/docker/daemon.json"),
    ],
    ids=["containerd", "CRI-O", "Docker"],
)
def test_settings_of_a_file_that_cannot_be_read_are_not_known(
    host: HostDescription, file: str, short_path: Path
) -> None:
    """The file is wrong; whether the handler and CDI are in there is not looked at."""
    _, report = examined(host + HostDescription({file: "version = "}), short_path, CDI)
    assert "container runtime" in {line.subject for line in wrong_lines(report)}
    for subject in ("NVIDIA's runtime", "CDI in the container runtime"):
        assert found(report, subject) == f"{file} may decide this; mend what is wrong with the container runtime first"
        assert subject not in {line.subject for line in wrong_lines(report)}


def test_programs_of_legacy_mode_are_needed_in_no_other_mode(short_path: Path) -> None:
    """With just-in-time CDI, -base of the toolkit is enough; legacy mode looks in the whole search path."""
    programs = ("/usr/bin/nvidia-container-runtime-hook", "/usr/bin/nvidia-container-cli")
    _, report = examined(KUBEADM_CONTAINERD_2.without(*programs), short_path / "jit")
    assert wrong_lines(report) == []
    elsewhere = HostDescription({path.replace("/usr/bin", "/usr/local/bin"): "" for path in programs})
    _, report = examined(KUBEADM_CONTAINERD_1_7.without(*programs) + elsewhere, short_path / "elsewhere")
    assert wrong_lines(report) == []


def test_what_an_operator_left_behind_is_named_and_not_wrong(short_path: Path) -> None:
    """A toolkit that works is right without the operator, which nobody takes for one that runs."""
    _, report = examined(without_operator(OPERATOR_24), short_path / "used")
    assert wrong_lines(report) == []
    said = found(report, "NVIDIA's GPU operator")
    assert said.startswith(
        "does not manage this node; left over of an operator that is gone: /run/nvidia/driver, "
        "/usr/local/nvidia/toolkit"
    )
    assert "to replace it, install the package nvidia-container-toolkit, remove the handlers with programs in" in said
    rest = HostDescription({"/usr/local/nvidia/toolkit/nvidia-ctk": ""})
    _, report = examined(KUBEADM_CONTAINERD_2 + rest, short_path / "unused")
    assert "`rm -r /usr/local/nvidia/toolkit` removes that" in found(report, "NVIDIA's GPU operator")
    assert found(report, "container toolkit") == "1.18.1, in /usr/bin"


def test_a_toolkit_that_nobody_uses_is_none(short_path: Path) -> None:
    """The left toolkit of an operator is not configured for the container runtime: the package is installed instead."""
    left = without_operator(OPERATOR_25_10).without("/run/nvidia", "/run/cdi")
    bare = left.without("/etc/containerd/conf.d") + BARE
    _, report = examined(bare, short_path)
    toolkit, handler = wrong_lines(report)
    assert (toolkit.subject, toolkit.found.partition(":")[0]) == ("container toolkit", "not installed")
    assert "nvidia-ctk runtime configure" in (handler.remedy or "")
    assert "operator" not in (handler.remedy or "")


def test_the_pods_of_an_operator_that_is_gone_are_not_named(short_path: Path) -> None:
    """What is broken in its toolkit or driver is mended without its pods, which would never start."""
    host = without_operator(OPERATOR_25_10).without("/usr/local/nvidia/toolkit/nvidia-cdi-hook")
    host += HostDescription({"/sys/module/nvidia/version": "570.86.15\n"})
    _, report = examined(host, short_path)
    lines = wrong_lines(report)
    assert [line.subject for line in lines] == ["driver (libraries)", "NVML", "container toolkit", "CDI specifications"]
    remedies = [line.remedy or "" for line in lines]
    assert not any("-daemonset " in remedy or "toolkit.env" in remedy for remedy in remedies)
    assert "`rm -r /usr/local/nvidia/toolkit`" in remedies[2] == remedies[3]
    assert sum(line.startswith("3. container toolkit, CDI specifications: Install") for line in lines_of(report)) == 1


def test_an_operator_that_runs_and_is_not_ready_is_wrong_at_once(short_path: Path) -> None:
    """Without any validation, its pods show that it runs; a node that shows no pods lets nobody know that."""
    host = OPERATOR_24.without("/run/nvidia/validations")
    _, report = examined(host, short_path / "pods")
    (line,) = wrong_lines(report)
    said = "has not found its driver and toolkit ready (/run/nvidia/validations/driver-ready and"
    assert line.found.startswith(said)
    _, report = examined(host.without("/run/nvidia/driver"), short_path / "empty", source=hidden())
    assert found(report, "NVIDIA's GPU operator").startswith(said)
    _, report = examined(host.without("/var/log/pods"), short_path / "unknown")
    assert wrong_lines(report) == []
    assert found(report, "NVIDIA's GPU operator").startswith("installs driver and toolkit on this node")


def test_ldconfig_of_legacy_mode_has_to_be_there(short_path: Path) -> None:
    """The setting of a driver that is gone keeps pods from starting; the name may lack .real; other modes need none."""
    gone = "/run/nvidia/driver/sbin/ldconfig.real"
    host = KUBEADM_CONTAINERD_1_7.edited(SETTINGS, "@/sbin/ldconfig.real", f"@{gone}")
    _, report = examined(host, short_path / "gone")
    (line,) = wrong_lines(report)
    assert f"names {gone} as ldconfig, which is not on the node" in line.found
    assert line.remedy == f'set ldconfig = "@/sbin/ldconfig" in the table nvidia-container-cli of {SETTINGS}'
    _, report = examined(host.edited(SETTINGS, f"@{gone}", "@/sbin/ldconfig"), short_path / "mended")
    assert wrong_lines(report) == []
    bare = host.edited(SETTINGS, f"@{gone}", "@/sbin/ldconfig").without("/sbin/ldconfig.real")
    _, report = examined(bare, short_path / "bare")
    assert wrong_lines(report)[0].remedy == "install ldconfig (package libc-bin, or glibc)"
    root = host.edited(SETTINGS, "environment = []", 'root = "/run/nvidia/driver"')
    _, report = examined(root, short_path / "both")
    (line,) = wrong_lines(report)
    assert (line.remedy or "").startswith('set root = "/" and ldconfig = "@/sbin/ldconfig" in the table')
    _, report = examined(OPERATOR_25_10.without(gone), short_path / "cdi")
    (line,) = wrong_lines(report)
    assert "nvidia-legacy" not in (line.remedy or "")


def test_a_left_toolkit_is_replaced_once_whatever_is_wrong_with_it(short_path: Path) -> None:
    """One item replaces the toolkit of an operator that is gone; K3s finds the package at its start."""
    moved = without_operator(OPERATOR_24).without("/run/nvidia/driver", f"{TOOLKIT}/nvidia-container-cli") + BARE
    _, report = examined(moved, short_path / "kubeadm")
    lines = wrong_lines(report)
    assert [line.subject for line in lines] == ["settings of the container toolkit"] * 2
    assert lines[0].remedy == lines[1].remedy
    assert f"remove the handlers with programs in {TOOLKIT} from {CONTAINERD}, `rm -r" in (lines[0].remedy or "")
    made = "/var/lib/rancher/k3s/agent/etc/containerd/config.toml"
    files = {path: text for path, text in moved.files.items() if path.startswith(TOOLKIT)}
    k3s = K3S.edited(made, "/usr/bin", TOOLKIT) + HostDescription(files)
    _, report = examined(k3s, short_path / "k3s")
    (remedy,) = {line.remedy for line in wrong_lines(report)}
    assert remedy == (
        f"install the package nvidia-container-toolkit, `rm -r {TOOLKIT}`, and run `systemctl restart k3s` (on a node "
        "without control plane `systemctl restart k3s-agent`), whose start finds the package"
    )
    template = f"{made}.tmpl"
    _, report = examined(k3s + HostDescription({template: k3s.files[made]}), short_path / "template")
    assert f", write /usr/bin instead of {TOOLKIT} into {template}, `rm" in (wrong_lines(report)[0].remedy or "")


def test_a_left_hook_without_its_program_is_removed(short_path: Path) -> None:
    """CRI-O runs the hook in every container, so no pod starts once the operator's toolkit is gone."""
    hook, program = "/usr/share/containers/oci/hooks.d/oci-nvidia-hook.json", f"{TOOLKIT}/nvidia-container-runtime-hook"
    host = CRIO + HostDescription({hook: json.dumps({"version": "1.0.0", "hook": {"path": program}})})
    _, report = examined(host, short_path / "gone")
    (line,) = wrong_lines(report)
    assert line.remedy == f"remove {hook} and run `systemctl restart crio`"
    _, report = examined(host + HostDescription({program: ""}), short_path / "there")
    assert wrong_lines(report) == []
    assert f"left over of an operator that is gone: {TOOLKIT}, {hook}" in found(report, "NVIDIA's GPU operator")


def test_a_control_daemon_that_nobody_needs_is_named(short_path: Path) -> None:
    """Where the config does not use MPS, a control daemon in our root is told with what ends it, and is not wrong."""
    host = KUBEADM_CONTAINERD_1_7 + HostDescription(sockets=("/run/nvidia/mps/pipe/control",))
    _, report = examined(host, short_path)
    assert wrong_lines(report) == []
    assert found(report, "MPS") == (
        "not used by the config; an MPS control daemon listens in /run/nvidia/mps/pipe nevertheless; to end that "
        "daemon, run `echo quit | CUDA_MPS_PIPE_DIRECTORY=/run/nvidia/mps/pipe /usr/bin/nvidia-cuda-mps-control`"
    )


def test_a_list_that_comes_to_no_limits_says_which_isolations_are_missing(short_path: Path) -> None:
    """A node without MPS and without driver limits is right with `none` as the last one, and says why."""
    needs = replace(ENVVAR, mps_protocol=3, entries=(EntryNeeds(("driver", "mps", "none")),))
    _, report = examined(KUBEADM_CONTAINERD_1_7, short_path, needs)
    assert wrong_lines(report) == []
    for subject, why in (
        ("MPS", "MPS of driver 580.95.05 has no protocol 3"),
        ("driver limits", "driver 580.95.05 has"),
    ):
        assert f"no limits: {why}" in found(report, subject)
        assert "takes the next isolation of its list: none, with which nothing limits" in found(report, subject)


def test_an_outdated_specification_has_its_command(short_path: Path) -> None:
    """Also where nothing is wrong with it: the daemon will write its own, or nobody names devices of CDI."""
    host = KUBEADM_CONTAINERD_1_7.edited(CONTAINERD, f'[plugins."{CRI}"]\n', f'[plugins."{CRI}"]\nenable_cdi = true\n')
    host += HostDescription({"/etc/cdi/nvidia.yaml": specification(driver="570.86.15")})
    for needs in (CDI, ENVVAR):
        _, report = examined(host, short_path / needs.strategies[0], needs)
        assert wrong_lines(report) == []
        assert (
            "run `/usr/bin/nvidia-ctk cdi generate --device-name-strategy=uuid --output=/etc/cdi/nvidia.yaml`"
            in found(report, "CDI specifications")
        )


def test_a_mount_of_a_file_system_is_no_missing_file(short_path: Path) -> None:
    """The source of a tmpfs is a word, not a path of the node."""
    document = json.loads(specification())
    document["containerEdits"]["mounts"].append({"hostPath": "tmpfs", "containerPath": "/x", "type": "tmpfs"})
    host = KUBEADM_CONTAINERD_2 + HostDescription({"/run/cdi/nvidia.yaml": json.dumps(document)})
    _, report = examined(host, short_path, CDI)
    assert wrong_lines(report) == []


def test_mps_that_serves_is_right_wherever_the_driver_is(short_path: Path) -> None:
    """The control daemon of a driver outside of the usual folders is not found by doctor, but by `gpushare mps`."""
    with built(WITHOUT_GPU + HostDescription(directories=("/run/nvidia/mps",)), short_path) as folder:
        host = HostRoot(folder)
        root = MpsRoot(folder / "run/nvidia/mps")
        with lock(root.lock), control_daemon(root):
            write_message(root.wanted, WANTED)
            write_message(root.status, MpsStatus(in_force=WANTED))
            (line,) = judge_mps(read_mps(host, MPS, DriverFacts()), MPS, DriverFacts(), RUNNING, MpsUse(needed=True))
    assert line.judgement == "right"


def test_sockets_at_which_nobody_listens_are_seen(short_path: Path) -> None:
    """A kubelet that was killed leaves its sockets, and so does a plugin, which then gives GPUs to nobody."""
    host = KUBEADM_CONTAINERD_1_7 + HostDescription(sockets=(f"{PLUGIN_DIRECTORY}/nvidia-gpu.sock",))
    with built(host, short_path):
        pass
    root = HostRoot(short_path)
    report = judged(read_node(root, ENVVAR, lambda _library: shown()), root)
    assert [line.subject for line in wrong_lines(report)] == ["kubelet, device plugins", "kubelet, pod-resources"]
    assert (
        found(report, "other device plugins") == "none of NVIDIA GPUs; other sockets: nvidia-gpu.sock (nobody listens)"
    )


FOLDER = "/usr/lib/x86_64-linux-gnu"
LIBRARIES = tuple(path for path in (*BARE.files, *BARE.links, *BARE.nvml) if path.startswith(f"{FOLDER}/lib"))
"""The libraries of a driver of packages."""
EMPTY_ROOT = HostDescription(directories=("/run/nvidia/driver",))


@pytest.mark.parametrize(
    ("host", "remedy"),
    [
        (KUBEADM_CONTAINERD_1_7.without(*LIBRARIES), f"install NVIDIA's driver {DRIVER} with its libraries"),
        (OPERATOR_25_10.without("/run/nvidia/driver") + EMPTY_ROOT, "log of the pod nvidia-driver-daemonset"),
        (
            without_operator(OPERATOR_25_10).without("/run/nvidia/driver"),
            f"have NVIDIA's operator install the driver again, or install NVIDIA's driver {DRIVER}",
        ),
    ],
    ids=["packages", "operator", "operator that is gone"],
)
def test_libraries_of_the_driver_that_are_nowhere_are_wrong(
    host: HostDescription, remedy: str, short_path: Path
) -> None:
    """The module alone gives no container a GPU, whichever way GPUs are given, and other lines send people there."""
    for needs in (ENVVAR, CDI):
        _, report = examined(host, short_path / f"{needs.cdi}", needs, hidden())
        (line,) = [line for line in wrong_lines(report) if line.subject == "driver (libraries)"]
        assert remedy in (line.remedy or "")
        assert found(report, "NVML") == "do what is said of driver (libraries) first: NVML is one of these libraries"


def test_libraries_of_the_driver_can_be_where_doctor_does_not_look(short_path: Path) -> None:
    """On a node without packages, or with a library that its loader or its toolkit knows, nothing is said wrong."""
    bare = KUBEADM_CONTAINERD_1_7.without(*LIBRARIES)
    loaded = HostDescription({"/etc/ld.so.cache": "x\0/opt/nv/libnvidia-ml.so.1\0", "/opt/nv/libnvidia-ml.so.1": ""})
    rooted = bare.edited(SETTINGS, "environment = []", 'root = "/opt/nv"') + HostDescription(
        {"/opt/nv/usr/lib64/libnvidia-ml.so.1": ""}
    )
    for name, host in (("cos", bare.without("/var/lib/dpkg")), ("loader", bare + loaded), ("toolkit", rooted)):
        _, report = examined(host, short_path / name, source=hidden())
        assert "driver (libraries)" not in [line.subject for line in wrong_lines(report)]
    _, report = examined(bare, short_path / "answers", source=shown())
    assert wrong_lines(report) == []
    assert "but is at /opt/nv/libnvidia-ml.so.1; an" in found(
        examined(bare + loaded, short_path / "again", source=hidden())[1], "driver (libraries)"
    )


def test_nvml_that_answers_with_another_driver_is_not_right(short_path: Path) -> None:
    """NVML gets its version from the kernel, so a driver is being changed where the kernel runs another one."""
    host = KUBEADM_CONTAINERD_1_7 + HostDescription({"/sys/module/nvidia/version": "570.86.15\n"})
    _, report = examined(host, short_path, source=shown())
    assert [line.subject for line in wrong_lines(report)] == ["driver (libraries)", "NVML"]
    assert "answers with driver 580.95.05, but the kernel runs 570.86.15" in found(report, "NVML")


REFRESHED = HostDescription({"/etc/systemd/system/nvidia-cdi-refresh.service": ""})
"""The service of toolkit 1.18 and newer."""
OUTDATED = HostDescription({"/run/cdi/nvidia.yaml": specification(driver="570.86.15")})
"""A specification for the driver that the node had before."""


@pytest.mark.parametrize(
    ("host", "first", "never"),
    [
        (
            BY_SPECIFICATION + OUTDATED,
            "--output=/var/run/cdi/nvidia.yaml` on the node, and again after each boot",
            "systemctl",
        ),
        (BY_SPECIFICATION + OUTDATED + REFRESHED, "systemctl restart nvidia-cdi-refresh.service", "nvidia-ctk"),
        (
            BY_SPECIFICATION.without("/run/cdi") + REFRESHED,
            "systemctl restart nvidia-cdi-refresh.service",
            "nvidia-ctk",
        ),
        (
            BY_SPECIFICATION.without("/run/cdi")
            + HostDescription({"/etc/cdi/nvidia.json": OUTDATED.files["/run/cdi/nvidia.yaml"]})
            + REFRESHED,
            "--output=/etc/cdi/nvidia.json` on the node, and again after each change",
            "systemctl",
        ),
        (BY_SPECIFICATION.without("/run/cdi"), "give GPUs by CDI", "nvidia-legacy"),
        (OPERATOR_25_10, "give GPUs by CDI", "systemctl"),
    ],
    ids=["in /run", "by a service", "by a service, no file", "in /etc", "no file", "operator"],
)
def test_the_best_way_to_a_specification_comes_first(
    host: HostDescription, first: str, never: str, short_path: Path
) -> None:
    """A file that is there is generated again, by the service of the toolkit if that writes the file.

    Where there is none, nothing has to be repeated with the daemon's own specification. Ways that the node does not
    have are not named.
    """
    _, report = examined(host, short_path)
    (line,) = wrong_lines(report)
    assert line.remedy is not None
    assert first in line.remedy.partition("(b)")[0]
    assert never not in line.remedy


def test_legacy_mode_is_a_way_where_there_is_a_handler_for_it(short_path: Path) -> None:
    """NVIDIA's operator makes one."""
    _, report = examined(OPERATOR_25_10, short_path)
    (line,) = wrong_lines(report)
    _, _, legacy = (line.remedy or "").partition("(c) ")
    assert legacy.startswith("give the daemon and pods runtimeClassName nvidia-legacy; ")
    assert "doctor goes on calling this line wrong" in legacy


def test_a_specification_that_is_there_is_not_generated_again(short_path: Path) -> None:
    """Where nvidia.com/gpu has every GPU, the runtime has only to look there; one without its hook is generated."""
    hook = "/usr/local/nvidia/toolkit/nvidia-cdi-hook"
    spec = specification(hook=hook, root="/run/nvidia/driver")
    _, report = examined(OPERATOR_25_10 + HostDescription({"/etc/cdi/nvidia.yaml": spec}), short_path / "there")
    (line,) = wrong_lines(report)
    assert "(a) set NVIDIA_CONTAINER_RUNTIME_MODES_CDI_DEFAULT_KIND=nvidia.com/gpu" in (line.remedy or "")
    assert "cdi generate" not in (line.remedy or "")
    stale = HostDescription({"/etc/cdi/nvidia.yaml": spec.replace(hook, "/usr/bin/gone/nvidia-cdi-hook")})
    _, report = examined(OPERATOR_25_10 + stale, short_path / "stale")
    (line,) = wrong_lines(report)
    assert "cdi generate" in (line.remedy or "")
    assert ". Then set NVIDIA_CONTAINER_RUNTIME_MODES_CDI_DEFAULT_KIND" in (line.remedy or "")


def test_the_specification_of_the_operator_is_left_to_the_operator(short_path: Path) -> None:
    """After an upgrade of the driver, the toolkit's pod writes its own specification; GPUs get another file."""
    of_operator = "/run/cdi/management.nvidia.com-gpu.json"
    old = specification("management.nvidia.com/gpu", driver="570.86.15", root="/run/nvidia/driver")
    _, report = examined(OPERATOR_25_10 + HostDescription({of_operator: old}), short_path)
    (line,) = wrong_lines(report)
    assert f"--output=/var{of_operator}" not in (line.remedy or "")
    assert "--output=/etc/cdi/nvidia.yaml" in (line.remedy or "")
    assert (line.remedy or "").startswith(
        "delete the pod nvidia-container-toolkit-daemonset on this node (`kubectl delete pod`): its start writes "
        f"/var{of_operator} again, "
    )


def test_the_program_that_generates_a_specification_is_installed_first(short_path: Path) -> None:
    """No command is named that the node cannot run: where nvidia-ctk is gone, the toolkit is installed again first."""
    package = BY_SPECIFICATION.without("/run/cdi/nvidia.yaml", "/usr/bin/nvidia-ctk")
    _, report = examined(package, short_path / "package")
    (line,) = wrong_lines(report)
    assert "--reinstall nvidia-container-toolkit-base" in (line.remedy or "").partition("nvidia-ctk cdi generate")[0]
    assert found(report, "container toolkit") == "1.18.1, in /usr/bin, which lacks nvidia-ctk"
    _, report = examined(OPERATOR_25_10.without("/usr/local/nvidia/toolkit/nvidia-ctk"), short_path / "operator")
    (line,) = wrong_lines(report)
    assert "(b) install the toolkit of NVIDIA's operator again: see the state" in (line.remedy or "")
    assert "start installs the toolkit, and then run `/usr/local/nvidia/toolkit/nvidia-ctk" in (line.remedy or "")


def test_a_device_whose_hook_is_missing_is_not_called_usable(short_path: Path) -> None:
    """A container that gets such a device cannot start, and the operator's toolkit is to be installed again first."""
    _, report = examined(OPERATOR_25_10.without("/usr/local/nvidia/toolkit/nvidia-cdi-hook"), short_path)
    toolkit, specifications = wrong_lines(report)
    assert toolkit.found.startswith("1.18.0, in /usr/local/nvidia/toolkit, which lacks nvidia-cdi-hook, so")
    assert specifications.found.endswith("Usable: nothing")


def test_a_plugin_that_nobody_knows_may_be_of_gpus(short_path: Path) -> None:
    """Where the checkpoint shows nvidia.com/gpu, and only unknown plugins listen, the line is not right."""
    checkpoint = f"{PLUGIN_DIRECTORY}/kubelet_internal_checkpoint"
    shows = json.dumps({"Data": {"PodDeviceEntries": None, "RegisteredDevices": {"nvidia.com/gpu": ["a", "b"]}}})
    host = KUBEADM_CONTAINERD_1_7 + HostDescription(sockets=(f"{PLUGIN_DIRECTORY}/of-somebody.sock",))
    _, report = examined(host, short_path / "other")
    assert found(report, "other device plugins") == "none of NVIDIA GPUs; other sockets: of-somebody.sock"
    _, report = examined(host + HostDescription({checkpoint: shows}), short_path / "gpus")
    (line,) = [line for line in report.lines if line.subject == "other device plugins"]
    assert line.judgement == "notLookedAt"
    assert "shows nvidia.com/gpu (2 healthy)" in line.found
    assert "whether of-somebody.sock does" in line.found


def test_a_broken_checkpoint_does_not_show_what_unknown_plugins_serve(short_path: Path) -> None:
    """Beside a checkpoint that cannot be read, nobody knows whether an unknown plugin serves GPUs."""
    torn = HostDescription({f"{PLUGIN_DIRECTORY}/kubelet_internal_checkpoint": '{"Data": {"Regis'})
    unknown = HostDescription(sockets=(f"{PLUGIN_DIRECTORY}/of-somebody.sock",))
    _, report = examined(KUBEADM_CONTAINERD_1_7 + torn + unknown, short_path / "unknown")
    (line,) = [line for line in report.lines if line.subject == "other device plugins"]
    assert line.judgement == "notLookedAt"
    assert "nothing shows whether of-somebody.sock serves nvidia.com/gpu" in line.found
    assert line.found.endswith("mend the line about kubelet, checkpoint first")
    _, report = examined(KUBEADM_CONTAINERD_1_7 + torn, short_path / "none")
    assert found(report, "other device plugins") == "none"


@pytest.mark.parametrize(
    "host",
    [
        KUBEADM_CONTAINERD_1_7 + HostDescription({"/sys/module/nvidia/version": "570.86.15\n"}),
        WITHOUT_GPU + HostDescription({f"{PLUGIN_DIRECTORY}/kubelet_internal_checkpoint": "{"}),
    ],
    ids=["driver", "checkpoint"],
)
def test_a_node_that_was_drained_takes_pods_again(host: HostDescription, short_path: Path) -> None:
    """The remedy names the command to drain the node, and after the work the one that lets pods come again."""
    _, report = examined(host, short_path)
    remedy = wrong_lines(report)[0].remedy or ""
    assert remedy.startswith("drain the node (`kubectl drain NODE --ignore-daemonsets --delete-emptydir-data`)")
    assert remedy.endswith(
        "After the last item here that drains the node, let pods come again: `kubectl uncordon NODE`"
    )


def test_the_kubelets_service_is_that_of_the_node(short_path: Path) -> None:
    """K3s has the kubelet in services of its own, so commands name these, as do remedies about claims."""
    stopped = K3S.without(f"{PLUGIN_DIRECTORY}/kubelet.sock", "/var/lib/kubelet/pod-resources")
    _, report = examined(stopped, short_path / "k3s")
    first, second = wrong_lines(report)
    assert (second.remedy or "").startswith("do what is said of kubelet, device plugins; if the --root-dir")
    assert (first.remedy or "").startswith(
        "run `systemctl start k3s` (on a node without control plane `systemctl start k3s-agent`); if the"
    )
    assert "see `journalctl -u k3s` (on a node without control plane `journalctl -u k3s-agent`)" in (first.remedy or "")


def test_without_the_driver_no_command_for_a_specification_is_named(short_path: Path) -> None:
    """The command needs the driver root, which is not known before the driver is there."""
    host = OPERATOR_25_10.without("/proc/driver", "/sys/module", "/run/nvidia/driver")
    _, report = examined(host, short_path)
    line = wrong_lines(report)[-1]
    assert line.subject == "CDI specifications"
    assert "(b) do what is said of driver (libraries) first: doctor then names the command" in (line.remedy or "")
    assert "cdi generate" not in (line.remedy or "")


def test_a_broken_checkpoint_is_named_once_by_its_path_on_the_node(short_path: Path) -> None:
    """Neither the root of the node, nor the path a second time, is in the line."""
    checkpoint = f"{PLUGIN_DIRECTORY}/kubelet_internal_checkpoint"
    _, report = examined(WITHOUT_GPU + HostDescription({checkpoint: "{"}), short_path / "text")
    assert found(report, "kubelet, checkpoint").startswith(
        f"{checkpoint} does not show what pods hold, since it is no "
    )
    directory = WITHOUT_GPU.without(checkpoint) + HostDescription(directories=(checkpoint,))
    _, report = examined(directory, short_path / "directory")
    said = found(report, "kubelet, checkpoint")
    assert said == (
        f"{checkpoint} does not show what pods hold, since it is no checkpoint of the kubelet: is a directory"
    )


def test_a_drop_in_file_that_nobody_reads_is_named(short_path: Path) -> None:
    """The handler then is missing, too; the first remedy mends both."""
    host = KUBEADM_CONTAINERD_2.edited(CONTAINERD, 'imports = ["/etc/containerd/conf.d/*.toml"]\n', "")
    _, report = examined(host, short_path)
    first, second = wrong_lines(report)
    assert f"{DROP_IN} has no effect" in first.found
    assert 'imports = ["/etc/containerd/conf.d/*.toml"]' in (first.remedy or "")
    assert second.subject == "NVIDIA's runtime"


def test_a_list_of_imports_that_is_there_is_extended(short_path: Path) -> None:
    """A second list of imports keeps containerd from reading its file, and is the only defect then."""
    imports = 'imports = ["/etc/containerd/conf.d/*.toml"]\n'
    host = KUBEADM_CONTAINERD_2.edited(CONTAINERD, imports, "imports = []\n")
    _, report = examined(host, short_path / "empty")
    (first, _) = wrong_lines(report)
    remedy = first.remedy or ""
    assert f'add "/etc/containerd/conf.d/*.toml" to the list `imports` that {CONTAINERD} has' in remedy
    _, report = examined(host.edited(CONTAINERD, "imports = []\n", f"{imports}imports = []\n"), short_path / "twice")
    (line,) = wrong_lines(report)
    assert f"{CONTAINERD}: line 2: imports stands a second time, after line 1" in line.found
    assert f"keep imports once in {CONTAINERD} (lines 1 and 2); of two lists, keep" in (line.remedy or "")


def test_containerd_1_is_not_told_to_import_a_file_that_hides_its_section(short_path: Path) -> None:
    """The import would drop the section of the configuration, registries and all, so the handler moves there."""
    section = "io.containerd.grpc.v1.cri"
    handler = (
        f"[plugins.'{section}'.containerd.runtimes.nvidia.options]\nBinaryName = '/usr/bin/nvidia-container-runtime'\n"
    )
    host = KUBEADM_CONTAINERD_1_7.edited(CONTAINERD, "/usr/bin/nvidia-container-runtime", "/usr/bin/crun")
    _, report = examined(host + HostDescription({DROP_IN: f"version = 2\n{handler}"}), short_path / "section")
    (first, _) = wrong_lines(report)
    assert f"write the handlers of {DROP_IN} into [plugins.'{section}'] of {CONTAINERD}" in (first.remedy or "")
    bare = HostDescription({CONTAINERD: "version = 2\n", DROP_IN: f"version = 2\n{handler}"})
    _, report = examined(host + bare, short_path / "bare")
    (first, _) = wrong_lines(report)
    assert 'add `imports = ["/etc/containerd/conf.d/*.toml"]`' in (first.remedy or "")


def test_cdi_is_turned_on_in_the_file_that_turns_it_off(short_path: Path) -> None:
    """An imported file counts more than the file that imports it, so the remedy names the imported file."""
    site = "/etc/containerd/conf.d/50-site.toml"
    off = "version = 3\n[plugins.'io.containerd.cri.v1.runtime']\nenable_cdi = false\n"
    host = KUBEADM_CONTAINERD_2 + HostDescription({site: off})
    _, report = examined(host, short_path / "off", CDI)
    (line,) = wrong_lines(report)
    assert f"set `enable_cdi = true` in [plugins.'io.containerd.cri.v1.runtime'] of {site}, and" in (line.remedy or "")
    _, report = examined(host.edited(site, "false", "true"), short_path / "on", CDI)
    assert wrong_lines(report) == []


def test_containerd_1_takes_its_section_from_the_file_read_last(short_path: Path) -> None:
    """An imported file with one setting hides the handlers of all others; the words name both files, and mend it."""
    section, site = "io.containerd.grpc.v1.cri", "/etc/containerd/conf.d/50-site.toml"
    cdi = f"version = 2\n[plugins.'{section}']\nenable_cdi = true\n"
    imports = 'version = 2\nimports = ["/etc/containerd/conf.d/*.toml"]'
    host = KUBEADM_CONTAINERD_1_7.edited(CONTAINERD, "version = 2", imports) + HostDescription({site: cdi})
    _, report = examined(host, short_path / "hidden")
    first, second = wrong_lines(report)
    assert f"NVIDIA's handler in {CONTAINERD} has no effect" in first.found
    assert f"move all settings of that section into {site}, those of {CONTAINERD} included" in (first.remedy or "")
    assert second.subject == "NVIDIA's runtime"
    assert (second.remedy or "").startswith("mend what is wrong with the container runtime first, and run doctor again")
    handler = (
        f"[plugins.'{section}'.containerd.runtimes.nvidia.options]\nBinaryName = '/usr/bin/nvidia-container-runtime'\n"
    )
    _, report = examined(host.edited(site, cdi, cdi + handler), short_path / "moved")
    assert wrong_lines(report) == []


def test_containerd_1_turns_cdi_on_in_the_file_read_last(short_path: Path) -> None:
    """A value in another file has no effect."""
    section, site = "io.containerd.grpc.v1.cri", "/etc/containerd/conf.d/99-nvidia.toml"
    handler = (
        f"[plugins.'{section}'.containerd.runtimes.nvidia.options]\nBinaryName = '/usr/bin/nvidia-container-runtime'"
    )
    last = f"version = 2\n{handler}\n"
    on = f'version = 2\nimports = ["{site}"]\n[plugins."{section}"]\nenable_cdi = true\n'
    host = KUBEADM_CONTAINERD_1_7 + HostDescription({CONTAINERD: on, site: last})
    _, report = examined(host, short_path, CDI)
    (line,) = wrong_lines(report)
    assert f"set `enable_cdi = true` in [plugins.'{section}'] of {site}" in (line.remedy or "")


def test_the_toolkit_is_installed_before_its_commands_are_run(short_path: Path) -> None:
    """On a node without the toolkit, `nvidia-ctk runtime configure` comes after the package that has nvidia-ctk."""
    _, report = examined(BARE + HostDescription({CONTAINERD: "version = 2\n"}), short_path)
    first, second = wrong_lines(report)
    assert "install the package nvidia-container-toolkit" in (first.remedy or "")
    assert "nvidia-ctk runtime configure" in (second.remedy or "")


def test_the_toolkit_is_installed_before_a_specification_is_generated(short_path: Path) -> None:
    """On a node without the toolkit, the command for a specification comes after the package that has nvidia-ctk."""
    host = BARE + HostDescription({CONTAINERD: "version = 3\n", "/etc/cdi/nvidia.yaml": specification()})
    _, report = examined(host, short_path, CDI)
    (line,) = wrong_lines(report)
    assert "names files that are not on the node: /usr/bin/nvidia-cdi-hook" in line.found
    assert (line.remedy or "").startswith(
        "install the package nvidia-container-toolkit-base, and then run `nvidia-ctk cdi generate"
    )


def test_with_cdi_only_the_daemon_uses_nvidias_runtime(short_path: Path) -> None:
    """By CDI a pod needs no runtime class; the daemon needs GPUs of its own, also where there is no handler."""
    _, report = examined(KUBEADM_CONTAINERD_2, short_path / "handler", CDI)
    assert "; only the daemon uses it, by a runtime class with that handler" in found(report, "NVIDIA's runtime")
    _, report = examined(KUBEADM_CONTAINERD_2.without(DROP_IN), short_path / "none", CDI)
    assert "(docs/cdi.md, The daemon's own GPUs)" in found(report, "NVIDIA's runtime")
    _, report = examined(KUBEADM_CONTAINERD_2, short_path / "envvar")
    assert "; a pod needs a runtime class with that handler" in found(report, "NVIDIA's runtime")


@pytest.mark.parametrize(("host", "needs"), [(CRIO, ENVVAR), (DOCKER, ENVVAR)], ids=["CRI-O", "Docker"])
def test_other_runtimes_are_understood(host: HostDescription, needs: ConfigNeeds, short_path: Path) -> None:
    """CRI-O and Docker with NVIDIA's runtime have no wrong line; the containerd of Docker is not the kubelet's."""
    _, report = examined(host, short_path, needs)
    assert wrong_lines(report) == []


CRIO_DROP_IN = "/etc/crio/crio.conf.d/99-nvidia.toml"
DOCKERS = "/etc/docker/daemon.json"


@pytest.mark.parametrize(
    ("host", "said", "remedy"),
    [
        (
            CRIO.edited("/etc/crio/crio.conf", '"crun"', '"youki"'),
            "the handler youki as default_runtime, and there is no such handler (handlers: crun, nvidia), so CRI-O",
            "in /etc/crio/crio.conf to nvidia, with which every pod can get a GPU, or to crun, with which a pod",
        ),
        (
            CRIO.edited("/etc/crio/crio.conf", '"crun"', '"nvidia"').edited(CRIO_DROP_IN, ".nvidia]", ".other]"),
            "names the handler nvidia as default_runtime",
            "set default_runtime in /etc/crio/crio.conf to other, with which every pod can get a GPU, or to crun, with",
        ),
        (
            DOCKER.edited(DOCKERS, '"default-runtime": "nvidia"', '"default-runtime": "nvida"'),
            "the handler nvida as default-runtime, and there is no such handler (handlers: runc, nvidia)",
            f"set default-runtime in {DOCKERS} to nvidia, with which every pod can get a GPU, or to runc, with which a",
        ),
    ],
    ids=["CRI-O", "CRI-O, nvidia", "Docker"],
)
def test_a_default_handler_that_is_not_there_is_wrong(
    *, host: HostDescription, said: str, remedy: str, short_path: Path
) -> None:
    """Such a CRI-O or Docker does not start; the remedy names the file, the setting and the service."""
    _, report = examined(host, short_path)
    line = wrong_lines(report)[0]
    assert line.subject == "container runtime"
    assert said in line.found
    assert remedy in (line.remedy or "")


@pytest.mark.parametrize(
    "host",
    [
        CRIO.edited("/etc/crio/crio.conf", '"crun"', '""'),
        CRIO.edited("/etc/crio/crio.conf", '"crun"', '"runc"'),
        CRIO.edited("/etc/crio/crio.conf", '"crun"', '"youki"')
        + HostDescription({"/etc/crio/crio.conf.d/more/10.conf": "[crio.runtime.runtimes.youki]\n"}),
        DOCKER.edited(DOCKERS, '"default-runtime": "nvidia"', '"default-runtime": "io.containerd.kata.v2"'),
        DOCKER
        + HostDescription(
            {
                DOCKERS: '{"default-runtime": "nvidia"}',
                "/etc/systemd/system/docker.service.d/gpu.conf": "[Service]\nExecStart=/usr/bin/dockerd "
                "--add-runtime=nvidia=/usr/bin/nvidia-container-runtime\n",
            }
        ),
    ],
    ids=["CRI-O, empty", "CRI-O up to 1.30", "CRI-O, a folder", "Docker, a shim", "Docker, an option"],
)
def test_a_default_handler_that_the_runtime_knows_is_right(host: HostDescription, short_path: Path) -> None:
    """A built-in handler, one of a file in a folder of CRI-O, a shim, and a runtime of dockerd's options are there."""
    _, report = examined(host, short_path)
    assert wrong_lines(report) == []


def test_only_the_file_with_the_handler_is_named_as_its_place(short_path: Path) -> None:
    """Of several files that the runtime reads, the one that defines NVIDIA's handler is named with the handler."""
    _, report = examined(KUBEADM_CONTAINERD_2, short_path / "there")
    assert found(report, "container runtime").endswith(f", which reads {CONTAINERD}, {DROP_IN}")
    assert f"nvidia runs /usr/bin/nvidia-container-runtime, by {DROP_IN}; " in found(report, "NVIDIA's runtime")
    _, report = examined(KUBEADM_CONTAINERD_2.without("/usr/bin/nvidia-container-runtime"), short_path / "gone", CDI)
    (line,) = wrong_lines(report)
    assert f"(b) remove the handler from {DROP_IN} and run `systemctl restart containerd`" in (line.remedy or "")


def test_what_is_done_about_a_missing_program_leads_in_no_circle(short_path: Path) -> None:
    """Where the config needs the handler, the handler is not to be removed; the operator's program is the operator's.

    A package does not install the program of NVIDIA's operator, so the handler of an operator that is gone has to go.
    """
    _, report = examined(KUBEADM_CONTAINERD_2.without("/usr/bin/nvidia-container-runtime"), short_path / "package")
    (line,) = wrong_lines(report)
    assert line.remedy == "install NVIDIA's container toolkit (package nvidia-container-toolkit)"
    k3s = K3S.without("/usr/bin/nvidia-container-runtime")
    _, report = examined(k3s, short_path / "k3s", CDI)
    (line,) = wrong_lines(report)
    assert (
        "(b) run `systemctl restart k3s` (on a node without control plane `systemctl restart k3s-agent`): each start "
        in (line.remedy or "")
    )
    gone = OPERATOR_24.without("/usr/local/nvidia")
    said = []
    for number, host in enumerate((gone, without_operator(gone), without_operator(gone).without("/var/log/pods"))):
        _, report = examined(host, short_path / f"{number}")
        (line,) = [line for line in wrong_lines(report) if line.subject == "NVIDIA's runtime"]
        said.append(line.remedy or "")
    assert "handler nvidia-legacy runs /usr/local/nvidia/toolkit/nvidia-container-runtime.legacy, " in line.found
    log = "see the log of its pod nvidia-container-toolkit-daemonset on this node"
    assert said[0] == f"NVIDIA's operator installs these programs: {log}"
    first, _, second = said[1].partition(". Then ")
    assert first.startswith(f"remove these handlers from {CONTAINERD}")
    assert second.startswith(
        "install NVIDIA's container toolkit (package nvidia-container-toolkit), and run `nvidia-ctk"
    )
    assert f"(a) where NVIDIA's operator runs, {log}. (b) where the operator is gone, remove" in said[2]


def test_with_cdi_too_the_daemon_keeps_a_handler(short_path: Path) -> None:
    """The handler of an operator that is gone is replaced, because the daemon may get the GPUs by the handler."""
    _, report = examined(without_operator(OPERATOR_24.without("/usr/local/nvidia")), short_path, CDI)
    (line,) = [line for line in wrong_lines(report) if line.subject == "NVIDIA's runtime"]
    assert ". Then install NVIDIA's container toolkit" in (line.remedy or "")
    assert (line.remedy or "").endswith("(docs/cdi.md, The daemon's own GPUs)")


def test_a_daemon_that_does_not_stay_up_is_no_daemon_to_come(short_path: Path) -> None:
    """Its pod is on the node: the log of the pod is named. Other pods of gpushare are no daemon."""
    for number, (pod, expected) in enumerate((("gpushare-x7k2p", True), ("gpushare-extender-x7k2p", False))):
        logs = f"/var/log/pods/kube-system_{pod}_4b1f6c2e-0000-4c00-8000-000000000003"
        _, report = examined(KUBEADM_CONTAINERD_2 + HostDescription(directories=(logs,)), short_path / f"{number}")
        found = [line.remedy or "" for line in wrong_lines(report)]
        assert [f"kubectl -n kube-system logs {pod} --previous" in each for each in found] == [True] * expected


@pytest.mark.parametrize("name", ["config-v3.toml.tmpl", "config.toml.tmpl"])
def test_a_handler_of_a_template_is_removed_from_the_template(name: str, short_path: Path) -> None:
    """K3s makes its configuration of a template at each start, so a handler of the template would come back."""
    folder = "/var/lib/rancher/k3s/agent/etc/containerd"
    made = HostDescription({f"{folder}/{name}": K3S.files[f"{folder}/config.toml"]})
    _, report = examined(K3S.without("/usr/bin/nvidia-container-runtime") + made, short_path / "of the template", CDI)
    (line,) = wrong_lines(report)
    assert f"(b) remove the handler from {folder}/{name}, of which each start makes " in (line.remedy or "")
    other = HostDescription({f"{folder}/{name}": '{{ template "base" . }}\n'})
    _, report = examined(K3S.without("/usr/bin/nvidia-container-runtime") + other, short_path / "found", CDI)
    (line,) = wrong_lines(report)
    assert (
        "(b) run `systemctl restart k3s` (on a node without control plane `systemctl restart k3s-agent`): each start "
        in (line.remedy or "")
    )


def test_the_kubelet_says_which_runtime_counts(short_path: Path) -> None:
    """Where the kubelet's flags name containerd, what else is installed does not matter."""
    flags = 'KUBELET_KUBEADM_ARGS="--container-runtime-endpoint=unix:///run/containerd/containerd.sock"\n'
    host = KUBEADM_CONTAINERD_1_7 + HostDescription(
        {"/var/lib/kubelet/kubeadm-flags.env": flags, "/etc/crio/crio.conf": ""}, sockets=("/run/cri-dockerd.sock",)
    )
    _, report = examined(host, short_path)
    assert found(report, "container runtime").startswith("containerd 1.7.28")


def test_a_hook_of_cri_o_is_nvidias_runtime(short_path: Path) -> None:
    """NVIDIA's operator without CDI installs a hook that acts in every container."""
    hook = "/usr/share/containers/oci/hooks.d/oci-nvidia-hook.json"
    _, report = examined(CRIO.without("/etc/crio/crio.conf.d") + HostDescription({hook: "{}"}), short_path)
    assert wrong_lines(report) == []
    assert "every pod gets it" in found(report, "NVIDIA's runtime")


@pytest.mark.parametrize(
    ("host", "package", "given", "expected"),
    [
        (KUBEADM_CONTAINERD_1_7, "1.7.28", 3, 2),
        (KUBEADM_CONTAINERD_1_7, "1.6.32", 3, 2),
        (KUBEADM_CONTAINERD_2, "2.1.4", 4, 3),
    ],
)
def test_a_file_that_is_too_new_for_its_containerd_is_refused(
    host: HostDescription, package: str, given: int, expected: int, short_path: Path
) -> None:
    """Doctor names the file, the version that is too new, and the newest one that this containerd reads."""
    with_package = host.edited("/var/lib/dpkg/status", "1.7.28-1" if expected == 2 else "2.1.4-1", f"{package}-1")
    newer = with_package.edited(CONTAINERD, f"version = {expected}", f"version = {given}")
    if expected > 2:
        newer = newer.edited(DROP_IN, f"version = {expected}", f"version = {given}")
    _, report = examined(newer, short_path / "new")
    (line,) = wrong_lines(report)
    assert f"containerd {package} does not start with {CONTAINERD} (version {given})" in line.found
    assert f"version = {expected}" in (line.remedy or "")
    _, report = examined(with_package, short_path / "old")
    assert wrong_lines(report) == []


@pytest.mark.parametrize("package", ["1.7.16", "1.6.31"])
def test_an_older_containerd_1_takes_a_file_of_version_3(package: str, short_path: Path) -> None:
    """Releases from before the check of the version read the old section, whatever version the file names."""
    host = KUBEADM_CONTAINERD_1_7.edited("/var/lib/dpkg/status", "1.7.28", package)
    _, report = examined(host.edited(CONTAINERD, "version = 2", "version = 3"), short_path)
    assert wrong_lines(report) == []


def test_containerd_1_does_not_know_the_newest_section(short_path: Path) -> None:
    """A handler there has no effect, unless the old section has the handler, too: 2.0 and newer take either one."""
    old, newest = "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"
    in_newest = KUBEADM_CONTAINERD_1_7.files[CONTAINERD].replace(old, newest)
    host = KUBEADM_CONTAINERD_1_7 + HostDescription({CONTAINERD: in_newest})
    _, report = examined(host, short_path / "newest")
    (line,) = wrong_lines(report)
    assert line.subject == "NVIDIA's runtime"
    assert f"containerd 1.x does not see where it is written: nvidia in [plugins.'{newest}']" in line.found
    assert f"expected in [plugins.'{old}']" in line.found
    _, report = examined(host.edited("/var/lib/dpkg/status", "1.7.28", "2.1.4"), short_path / "2")
    assert wrong_lines(report) == []
    both = KUBEADM_CONTAINERD_1_7.files[CONTAINERD] + in_newest[in_newest.index("[") :]
    _, report = examined(host + HostDescription({CONTAINERD: both}), short_path / "both")
    assert wrong_lines(report) == []


def test_a_newer_containerd_moves_handlers(short_path: Path) -> None:
    """From 2.3 on, the old section of a file of version 3 counts, and nothing is wrong with that."""
    old = KUBEADM_CONTAINERD_2.edited(DROP_IN, "io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri")
    _, report = examined(old.edited("/var/lib/dpkg/status", "2.1.4", "2.3.1"), short_path)
    assert wrong_lines(report) == []
    assert "nvidia runs /usr/bin/nvidia-container-runtime" in found(report, "NVIDIA's runtime")


def test_what_was_left_of_another_installation_is_no_mistake(short_path: Path) -> None:
    """Neither libraries of another driver beside the operator's, nor its toolkit and drop-in file afterwards."""
    folder = "/usr/lib/x86_64-linux-gnu"
    libraries = HostDescription(
        {f"{folder}/libnvidia-ml.so.535.183.01": ""}, {f"{folder}/libnvidia-ml.so.1": "libnvidia-ml.so.535.183.01"}
    )
    _, report = examined(OPERATOR_24 + libraries, short_path / "driver")
    assert wrong_lines(report) == []
    assert found(report, "driver (libraries)") == "580.95.05, below /run/nvidia/driver"
    rest = HostDescription({"/usr/local/nvidia/toolkit/nvidia-ctk": "", DROP_IN: "version = 2\n"})
    _, report = examined(KUBEADM_CONTAINERD_1_7 + rest, short_path / "toolkit")
    assert wrong_lines(report) == []


def test_a_version_that_is_not_known_is_no_mistake(short_path: Path) -> None:
    """Without the version of containerd, a file of version 2 may have CDI or not: nothing is said to be wrong."""
    host = KUBEADM_CONTAINERD_1_7.without("/var/lib/dpkg") + HostDescription({"/etc/cdi/nvidia.json": specification()})
    _, report = examined(host, short_path, CDI)
    assert wrong_lines(report) == []
    assert "the version of containerd decides" in found(report, "CDI in the container runtime")


HAMI = ConfigNeeds(entries=(EntryNeeds(("hami-core",)),))
HAMI_FILES = HostDescription(
    {"/usr/local/vgpu/libvgpu.so": "", "/usr/local/vgpu/ld.so.preload": "/usr/local/vgpu/libvgpu.so\n"}
)


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (HostDescription(), "/usr/local/vgpu has no libvgpu.so and no ld.so.preload"),
        (HAMI_FILES.without("/usr/local/vgpu/libvgpu.so"), "/usr/local/vgpu has no libvgpu.so, so containers"),
        (HAMI_FILES.without("/usr/local/vgpu/ld.so.preload"), "/usr/local/vgpu has no ld.so.preload, so containers"),
        (
            HAMI_FILES.edited("/usr/local/vgpu/ld.so.preload", "/usr/local/vgpu", "/opt"),
            "/usr/local/vgpu/ld.so.preload does not name /usr/local/vgpu/libvgpu.so",
        ),
    ],
)
def test_the_library_of_hami_core_has_to_be_there(files: HostDescription, said: str, short_path: Path) -> None:
    """Without its two files, containers do not start or have no limit."""
    _, report = examined(KUBEADM_CONTAINERD_1_7 + files, short_path, HAMI)
    (line,) = wrong_lines(report)
    assert line.subject == "HAMi-core"
    assert said in line.found
    assert "hamiCore.libraryDirectory" in (line.remedy or "")


def test_the_library_of_hami_core_can_be_there_under_the_name_that_hami_gives_it(short_path: Path) -> None:
    """From 2.5 on, HAMi installs its library with its version in the name, and mounts the library without."""
    versioned = {f"/usr/local/vgpu/libvgpu.so.{each}": "" for each in ("v2.9.0", "v2.10.0")}
    files = HAMI_FILES.without("/usr/local/vgpu/libvgpu.so") + HostDescription(versioned)
    _, report = examined(KUBEADM_CONTAINERD_1_7 + files, short_path, HAMI)
    (line,) = wrong_lines(report)
    assert line.remedy == (
        "copy the newest of HAMi's libvgpu.so.v2.10.0, libvgpu.so.v2.9.0 in /usr/local/vgpu to libvgpu.so there "
        "(docs/moving.md, HAMi)"
    )


def test_the_library_of_hami_core_is_needed_only_where_the_config_comes_to_it(short_path: Path) -> None:
    """A node that takes driver limits first needs no library; elsewhere the directory of the config counts."""
    needs = replace(HAMI, hami_directory="/opt/hami")
    files = {path.replace("/usr/local/vgpu", "/opt/hami"): text for path, text in HAMI_FILES.files.items()}
    _, report = examined(KUBEADM_CONTAINERD_1_7 + HostDescription(files), short_path / "there", needs)
    assert wrong_lines(report) == []
    assert found(report, "HAMi-core") == "libvgpu.so and ld.so.preload are in /opt/hami"
    wished = replace(CDI, entries=(EntryNeeds(("driver", "hami-core")),))
    _, report = examined(DRIVER_LIMITS, short_path / "driver", wished)
    assert "HAMi-core" not in {line.subject for line in report.lines}


@pytest.fixture
def served(short_path: Path) -> Iterator[Path]:
    """Build a node on which `gpushare mps` and `gpushare run` hold their locks, and yield its folder."""
    with built(
        KUBEADM_CONTAINERD_1_7 + HostDescription(directories=("/run/nvidia/mps",)), short_path / "node"
    ) as folder:
        root = MpsRoot(folder / "run/nvidia/mps")
        with lock(root.lock), lock(folder / f"{PLUGIN_DIRECTORY[1:]}/gpushare.lock"):
            write_message(root.wanted, WANTED)
            write_message(root.status, MpsStatus(in_force=WANTED))
            yield folder


def test_what_gpushare_itself_does_is_seen(served: Path) -> None:
    """The locks of the daemon and of `gpushare mps` show that both run."""
    host = HostRoot(served)
    with control_daemon(MpsRoot(served / "run/nvidia/mps")):
        (line,) = judge_mps(
            read_mps(host, MPS, DriverFacts(root="/")), MPS, DriverFacts(), RUNNING, MpsUse(needed=True)
        )
    assert (line.judgement, line.found) == ("right", "gpushare mps serves in /run/nvidia/mps")
    ours, _ = judge_plugins(read_plugins(host), read_kubelet(host, ENVVAR), "NODE", operator=False)
    assert ours.judgement == "right"
    write_message(MpsRoot(served / "run/nvidia/mps").status, MpsStatus(trouble="wanted.json cannot be read"))
    (line,) = judge_mps(read_mps(host, MPS, DriverFacts(root="/")), MPS, DriverFacts(), RUNNING, MpsUse(needed=True))
    assert (line.judgement, "wanted.json cannot be read" in line.found) == ("wrong", True)


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (None, f"{GPUS[0].uuid}: gpushare mps has not started to serve this GPU yet"),
        (MpsStatus(), f"{GPUS[0].uuid}: gpushare mps has not started to serve this GPU yet"),
        (MpsStatus(in_force=WANTED), "no MPS control daemon listens at /run/nvidia/mps/pipe/control"),
    ],
    ids=["no status", "nothing in force", "no socket"],
)
def test_mps_that_does_not_serve_is_wrong(status: MpsStatus | None, said: str, served: Path) -> None:
    """A lock alone shows a program, not that it serves the GPUs that the daemon wants under MPS."""
    root = MpsRoot(served / "run/nvidia/mps")
    root.status.unlink()
    if status is not None:
        write_message(root.status, status)
    (line,) = judge_mps(
        read_mps(HostRoot(served), MPS, DriverFacts(root="/")), MPS, DriverFacts(), RUNNING, MpsUse(needed=True)
    )
    assert (line.judgement, said in line.found) == ("wrong", True)


def test_a_dead_socket_of_the_control_daemon_does_not_count(served: Path) -> None:
    """A control daemon that was killed leaves its socket, and serves no pod."""
    root = MpsRoot(served / "run/nvidia/mps")
    with control_daemon(root):
        pass
    (line,) = judge_mps(
        read_mps(HostRoot(served), MPS, DriverFacts(root="/")), MPS, DriverFacts(), RUNNING, MpsUse(needed=True)
    )
    assert line.judgement == "wrong"
    assert "no MPS control daemon listens at /run/nvidia/mps/pipe/control" in line.found


def test_a_dead_socket_of_another_control_daemon_is_in_nobodys_way(short_path: Path) -> None:
    """The socket that a control daemon left keeps nobody from MPS, so nothing is said to be done about it."""
    pipes = "/run/nvidia/mps/nvidia.com/gpu/pipe"
    with built(KUBEADM_CONTAINERD_1_7 + HostDescription(sockets=(f"{pipes}/control",)), short_path):
        pass
    (line,) = judge_mps(
        read_mps(HostRoot(short_path), MPS, DriverFacts(root="/")), MPS, DriverFacts(), RUNNING, MpsUse(needed=True)
    )
    assert line.found == (
        "nothing serves MPS in /run/nvidia/mps; left over of a daemon that has ended, and in nobody's way: "
        f"{pipes}/control (nobody listens)"
    )


def test_a_control_daemon_without_gpushare_mps_is_told(short_path: Path) -> None:
    """Where a control daemon listens in our root, nobody says that nothing serves there; a dead socket is left over."""
    control = "/run/nvidia/mps/pipe/control"
    with built(KUBEADM_CONTAINERD_1_7 + HostDescription(sockets=(control,)), short_path):
        facts = read_mps(HostRoot(short_path), MPS, DriverFacts(root="/"))
        (line,) = judge_mps(facts, MPS, DriverFacts(), RUNNING, MpsUse(needed=True))
        assert line.found.startswith(f"an MPS control daemon listens at {control}, but no `gpushare mps` manages")
    (line,) = judge_mps(
        read_mps(HostRoot(short_path), MPS, DriverFacts(root="/")), MPS, DriverFacts(), RUNNING, MpsUse(needed=True)
    )
    assert line.found.startswith("nothing serves MPS in /run/nvidia/mps; left over of a daemon that has ended")
    assert f"{control} (nobody listens)" in line.found


def test_mps_of_others_is_ended_by_what_the_node_has(short_path: Path) -> None:
    """The command has the path of the program; without the program, the process is to be ended."""
    other = HostDescription(sockets=("/run/nvidia/mps/nvidia.com/gpu/pipe/control",))
    _, report = examined(OPERATOR_24 + other, short_path / "operator", MPS)
    (line,) = wrong_lines(report)
    assert "/gpu/pipe /run/nvidia/driver/usr/bin/nvidia-cuda-mps-control`" in (line.remedy or "")
    assert "other plugin" not in (line.remedy or "")
    bare = KUBEADM_CONTAINERD_1_7.without("/usr/bin/nvidia-cuda-mps-control")
    _, report = examined(bare + other, short_path / "bare", MPS)
    (line,) = wrong_lines(report)
    assert (line.remedy or "").startswith("end the process nvidia-cuda-mps-control with the directory")


def test_all_that_is_wrong_with_mps_is_told_at_once(short_path: Path) -> None:
    """Both control daemons, the service that starts one again, and the protocol are told in one report."""
    needs = replace(MPS, mps_protocol=3)
    both = HostDescription(
        {"/etc/systemd/system/nvidia-mps.service": "[Service]\nExecStart=/usr/bin/nvidia-cuda-mps-control -f\n"},
        sockets=("/run/nvidia/mps/pipe/control", "/tmp/nvidia-mps/control"),  # noqa: S108 - of the node
    )
    _, report = examined(KUBEADM_CONTAINERD_1_7 + both, short_path, needs)
    others, protocol = wrong_lines(report)
    assert "in /tmp/nvidia-mps, and a GPU can have one only; another listens in /run/nvidia/mps/pipe" in others.found
    remedy = others.remedy or ""
    assert remedy.startswith("run `systemctl disable --now nvidia-mps.service`; where a daemon still listens then, run")
    assert "=/tmp/nvidia-mps /usr/bin" in remedy
    assert "=/run/nvidia/mps/pipe /usr/bin" in remedy
    assert "has no protocol 3" in protocol.found


def test_mps_waits_for_the_daemon_that_labels_the_node(short_path: Path) -> None:
    """Before the daemon runs, nothing is wrong with MPS, since the chart starts `gpushare mps` by its label."""
    _, report = examined(KUBEADM_CONTAINERD_1_7, short_path / "before", MPS)
    assert wrong_lines(report) == []
    assert "the daemon labels the node, then the chart starts gpushare mps" in found(report, "MPS")
    with (
        built(KUBEADM_CONTAINERD_1_7, short_path / "node") as folder,
        lock(folder / f"{PLUGIN_DIRECTORY[1:]}/gpushare.lock"),
    ):
        root = HostRoot(folder)
        (line,) = wrong_lines(judged(read_node(root, MPS, lambda _library: shown()), root))
    assert (line.subject, line.found) == ("MPS", "nothing serves MPS in /run/nvidia/mps")
    assert "set mps.enabled=true of the chart" in (line.remedy or "")


def test_mps_of_another_plugin_waits_until_its_pods_are_drained(short_path: Path) -> None:
    """The line about MPS leads to the line about that plugin, and names the command for the pipes that are there."""
    pipes = "/run/nvidia/mps/nvidia.com/gpu/pipe"
    sockets = (f"{pipes}/control", f"{PLUGIN_DIRECTORY}/nvidia-gpu.sock")
    _, report = examined(KUBEADM_CONTAINERD_1_7 + HostDescription(sockets=sockets), short_path, MPS)
    other, mps = wrong_lines(report)
    assert (mps.remedy or "").startswith(f"where the MPS control daemon runs on after the item about {other.subject}")
    assert f"CUDA_MPS_PIPE_DIRECTORY={pipes} " in (mps.remedy or "")


def test_mps_that_nobody_wants_yet_is_not_judged(served: Path) -> None:
    """Without the daemon, `gpushare mps` has nothing to serve."""
    MpsRoot(served / "run/nvidia/mps").wanted.unlink()
    (line,) = judge_mps(
        read_mps(HostRoot(served), MPS, DriverFacts(root="/")), MPS, DriverFacts(), RUNNING, MpsUse(needed=True)
    )
    assert (line.judgement, "the daemon of gpushare has not requested that" in line.found) == ("notLookedAt", True)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("SystemdCgroup = true", "SystemdCgroup = false", "handler nvidia lacks SystemdCgroup = true, which runc has"),
        ("", "", ""),
    ],
)
def test_the_handler_has_the_control_groups_of_the_kubelet(*, old: str, new: str, said: str, short_path: Path) -> None:
    """Where systemd makes the control groups for the kubelet and runc, it makes those of NVIDIA's runtime, too."""
    runc = f'[plugins."{CRI}".containerd.runtimes.runc.options]\nSystemdCgroup = true\n\n'
    host = KUBEADM_CONTAINERD_1_7.edited(CONTAINERD, old, new)
    host = host.edited(CONTAINERD, f'[plugins."{CRI}".registry', f'{runc}[plugins."{CRI}".registry')
    host += HostDescription({"/var/lib/kubelet/config.yaml": "cgroupDriver: systemd\n"})
    _, report = examined(host, short_path / "systemd")
    assert [line.found.startswith(said) for line in wrong_lines(report)] == ([True] if said else [])
    _, report = examined(host.without("/var/lib/kubelet/config.yaml"), short_path / "unknown")
    assert wrong_lines(report) == []


def test_secrets_of_a_file_that_is_no_yaml_are_not_told(short_path: Path) -> None:
    """The line of a broken specification says where it is broken, and quotes nothing of it."""
    host = KUBEADM_CONTAINERD_2 + HostDescription({"/etc/cdi/broken.yaml": "kind: {password of a registry\n: x"})
    _, report = examined(host, short_path)
    assert all("password" not in line.found for line in report.lines)


def test_management_devices_do_not_count_as_gpus(short_path: Path) -> None:
    """The device of NVIDIA's operator for its own pods is told as one that the config does not use, or is no GPU's."""
    _, report = examined(OPERATOR_25_10, short_path / "cdi", CDI)
    assert any(
        "devices that the config does not use: management.nvidia.com/gpu (1)" in line.found for line in report.lines
    )
    for needs in (ENVVAR, MOUNTS):
        _, report = examined(OPERATOR_25_10, short_path / needs.strategies[0], needs)
        assert f"needs management.nvidia.com/gpu={GPUS[0].uuid}" in found(report, "CDI specifications")


def test_protocol_3_of_mps_needs_a_driver_that_has_it(short_path: Path) -> None:
    """A node with an older driver cannot serve the config; one from 615 on lacks only `gpushare mps`."""
    needs = replace(MPS, mps_protocol=3)
    _, old = examined(KUBEADM_CONTAINERD_2, short_path / "old", needs)
    (line,) = wrong_lines(old)
    assert line.found.startswith("MPS of driver 580.95.05 has no protocol 3")
    assert "set flags.mpsProtocol to 2" in (line.remedy or "")
    _, new = examined(DRIVER_LIMITS, short_path / "new", needs)
    assert wrong_lines(new) == []
    assert found(new, "MPS").startswith("nothing serves MPS in /run/nvidia/mps before the daemon of gpushare runs")


def test_a_toolkit_that_is_there_is_not_to_be_installed(short_path: Path) -> None:
    """Where only the handlers of an operator that is gone are left, the package beside them is configured."""
    host = KUBEADM_CONTAINERD_2.edited(DROP_IN, "/usr/bin/nvidia", f"{TOOLKIT}/nvidia")
    _, report = examined(host, short_path)
    (line,) = wrong_lines(report)
    assert "Then run `nvidia-ctk runtime configure --runtime=containerd`" in (line.remedy or "")


def test_what_another_line_says_is_not_said_again(short_path: Path) -> None:
    """Where a config by claim has CDI turned on, the way by CDI does not say so, and an old Kubernetes comes before."""
    needs = replace(ENVVAR, dra="gpu.gpushare.io")
    off = "version = 3\n[plugins.'io.containerd.cri.v1.runtime']\nenable_cdi = false\n"
    old = "Package: kubelet\nStatus: install ok installed\nVersion: 1.33.4-1.1\n"
    files = HostDescription({"/etc/containerd/conf.d/00-site.toml": off, "/var/lib/dpkg/status": old})
    _, report = examined(OPERATOR_25_10 + files, short_path / "cdi", needs)
    claims, cdi, specifications = wrong_lines(report)
    assert claims.found.startswith("the kubelet has version 1.33.4")
    assert (cdi.remedy or "").startswith("set `enable_cdi = true` in")
    assert "the best here first. (a) give GPUs by CDI" in (specifications.remedy or "")
    _, report = examined(OPERATOR_25_10.without(f"{TOOLKIT}/nvidia-cdi-hook"), short_path / "hook")
    _, specifications = wrong_lines(report)
    assert "(b) do what is said of container toolkit, and then run `" in (specifications.remedy or "")


def test_a_way_out_is_one_that_the_node_has(short_path: Path) -> None:
    """By CDI, the runtime has CDI turned on first; a handler whose program is missing is no way."""
    off = "version = 3\n[plugins.'io.containerd.cri.v1.runtime']\nenable_cdi = false\n"
    site = "/etc/containerd/conf.d/00-site.toml"
    _, report = examined(OPERATOR_25_10 + HostDescription({site: off}), short_path / "off")
    (line,) = wrong_lines(report)
    enables = f"set `enable_cdi = true` in [plugins.'io.containerd.cri.v1.runtime'] of {site}, and run `systemctl"
    assert f"the best here first. (a) {enables}" in (line.remedy or "")
    assert "containerd`. Then give GPUs by CDI" in (line.remedy or "")
    legacy = "/usr/local/nvidia/toolkit/nvidia-container-runtime.legacy"
    _, report = examined(OPERATOR_25_10.without(legacy), short_path / "gone")
    assert "nvidia-legacy" not in (wrong_lines(report)[-1].remedy or "")
