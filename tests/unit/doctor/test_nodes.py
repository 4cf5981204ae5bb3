"""Tests of `gpushare doctor` on nodes as people have them: nothing that is said of them is false."""

from pathlib import Path

import pytest

from gpushare_plugin.base.errors import UnresponsiveGpusError
from gpushare_plugin.base.structs import replace
from gpushare_plugin.core.gpu import FailedGpu
from gpushare_plugin.doctor.examination import judged
from gpushare_plugin.doctor.node.host import HostRoot
from gpushare_plugin.doctor.node.needs import ConfigNeeds
from gpushare_plugin.doctor.subjects.rights import RightsFacts
from gpushare_plugin.doctor.words import lines_of
from gpushare_plugin.testing.hosts import (
    GPUS,
    K3S,
    KUBEADM_CONTAINERD_1_7,
    KUBEADM_CONTAINERD_2,
    OPERATOR_24,
    OPERATOR_25_10,
    OPERATOR_NRI,
    WITHOUT_GPU,
    HostDescription,
    specification,
)
from tests.unit.doctor.examining import CDI, ENVVAR, MPS, examined, found, hidden, shown, wrong_lines

TOOLKIT = "/usr/local/nvidia/toolkit"
SETTINGS = f"{TOOLKIT}/.config/nvidia-container-runtime/config.toml"
FROM_OPERATOR = HostDescription(
    {"/etc/cdi/nvidia.yaml": specification(hook=f"{TOOLKIT}/nvidia-cdi-hook", root="/run/nvidia/driver")}
)
"""What the remedy for a node of NVIDIA's operator generates."""
WITH_KIND = OPERATOR_25_10.edited(SETTINGS, '"management.nvidia.com/gpu"', '"nvidia.com/gpu"')
"""A node of NVIDIA's operator whose runtime looks for the kind of the generated specification."""


@pytest.mark.parametrize(
    ("host", "needs"),
    [
        (KUBEADM_CONTAINERD_1_7, ENVVAR),
        (KUBEADM_CONTAINERD_2, ENVVAR),
        (KUBEADM_CONTAINERD_2, CDI),
        (K3S, ENVVAR),
        (OPERATOR_24, ENVVAR),
        (WITHOUT_GPU, ENVVAR),
        (WITH_KIND + FROM_OPERATOR, ENVVAR),
        (OPERATOR_25_10 + FROM_OPERATOR, CDI),
        (OPERATOR_NRI + FROM_OPERATOR, CDI),
    ],
    ids=["1.7", "2", "2 by CDI", "K3s", "operator 24", "no GPU", "operator 25.10", "25.10 by CDI", "NRI by CDI"],
)
def test_nothing_is_wrong_on_a_node_that_works(host: HostDescription, needs: ConfigNeeds, short_path: Path) -> None:
    """A node on which pods get their GPUs has no wrong line, whether or not NVML can be asked."""
    _, report = examined(host, short_path / "seen", needs)
    assert wrong_lines(report) == []
    assert report.wrong == 0
    _, unseen = examined(host, short_path / "unseen", needs, hidden())
    assert wrong_lines(unseen) == []


@pytest.mark.parametrize(
    ("host", "subject", "part"),
    [
        (KUBEADM_CONTAINERD_1_7, "container runtime", "containerd 1.7.28, which reads /etc/containerd/config.toml"),
        (KUBEADM_CONTAINERD_1_7, "CDI in the container runtime", "off; the config does not use CDI"),
        (KUBEADM_CONTAINERD_1_7, "NVIDIA's runtime", "such as runtimeClassName nvidia"),
        (KUBEADM_CONTAINERD_1_7, "container toolkit", "1.17.8, in /usr/bin"),
        (KUBEADM_CONTAINERD_1_7, "settings of the container toolkit", "mode auto: legacy"),
        (KUBEADM_CONTAINERD_1_7, "driver (kernel)", "580.95.05, open kernel module"),
        (KUBEADM_CONTAINERD_1_7, "control groups", "memory limits by dmem need driver 615"),
        (KUBEADM_CONTAINERD_1_7, "NVIDIA's GPU operator", "does not manage this node"),
        (KUBEADM_CONTAINERD_2, "container runtime", "/etc/containerd/conf.d/99-nvidia.toml"),
        (KUBEADM_CONTAINERD_2, "CDI in the container runtime", "on, specifications in /etc/cdi and /var/run/cdi"),
        (KUBEADM_CONTAINERD_2, "settings of the container toolkit", "mode auto: just-in-time CDI"),
        (KUBEADM_CONTAINERD_2, "NVML", "0 NVIDIA A100-SXM4-40GB, 1 NVIDIA A100-SXM4-40GB"),
        (K3S, "container runtime", "containerd of K3s 2.x"),
        (OPERATOR_24, "driver (libraries)", "580.95.05, below /run/nvidia/driver"),
        (OPERATOR_24, "NVIDIA's runtime", "every pod gets it"),
        (OPERATOR_24, "NVIDIA's GPU operator", "installs driver and toolkit on this node; its runtime, without CDI"),
        (OPERATOR_24, "container toolkit", "1.17.3, in /usr/local/nvidia/toolkit"),
        (OPERATOR_25_10, "NVIDIA's GPU operator", "CDI (cdi.enabled, the default from 25.10 on)"),
        (OPERATOR_25_10, "settings of the container toolkit", "as management.nvidia.com/gpu=…"),
        (OPERATOR_NRI, "NVIDIA's GPU operator", "as with cdi.nriPluginEnabled"),
    ],
)
def test_what_is_said_of_a_node_is_true(host: HostDescription, subject: str, part: str, short_path: Path) -> None:
    """Versions, files and modes are those of the node."""
    _, report = examined(host, short_path)
    assert part in found(report, subject)


def test_an_operator_from_25_10_on_lacks_a_specification(short_path: Path) -> None:
    """Its runtime looks GPUs up in CDI specifications, which it makes for its own pods only."""
    _, report = examined(OPERATOR_25_10, short_path)
    (line,) = wrong_lines(report)
    assert line.subject == "CDI specifications"
    assert "mode cdi" in line.found
    assert f"management.nvidia.com/gpu={GPUS[0].uuid}" in line.found
    assert "Usable: management.nvidia.com/gpu=all" in line.found
    assert line.remedy is not None
    assert line.remedy.startswith("do one of these, the best here first. (a) give GPUs by CDI, with `helm upgrade")
    assert "without this option, doctor still judges by deviceListStrategy envvar" in line.remedy
    assert f"{TOOLKIT}/nvidia-ctk cdi generate --driver-root=/run/nvidia/driver" in line.remedy
    assert "--output=/etc/cdi/nvidia.yaml" in line.remedy
    assert "Then set NVIDIA_CONTAINER_RUNTIME_MODES_CDI_DEFAULT_KIND=nvidia.com/gpu in toolkit.env" in line.remedy
    assert "runtimeClassName nvidia-legacy" in line.remedy


def test_an_operator_with_nri_has_no_handler(short_path: Path) -> None:
    """There no variable has an effect: the remedy is CDI, for which the daemon will write a specification."""
    _, report = examined(OPERATOR_NRI, short_path / "envvar")
    (line,) = wrong_lines(report)
    assert line.subject == "NVIDIA's runtime"
    assert line.remedy is not None
    assert "--device-list-strategy=cdi-cri" in line.remedy
    assert "nvidia-ctk runtime configure" not in line.remedy
    _, by_cdi = examined(OPERATOR_NRI, short_path / "cdi", CDI)
    assert wrong_lines(by_cdi) == []
    (later,) = [
        line for line in by_cdi.lines if line.subject == "CDI specifications" and "the daemon will" in line.found
    ]
    assert later.judgement == "notLookedAt"


def test_a_machine_without_gpu_is_not_judged_by_what_gpus_need(short_path: Path) -> None:
    """Of driver, toolkit and CDI nothing is expected there, and NVML is not asked."""
    source = shown()
    source.trouble = AssertionError("NVML was asked")
    _, report = examined(WITHOUT_GPU, short_path, CDI, source)
    assert found(report, "NVML") == found(report, "CDI specifications") == "this machine has no NVIDIA GPU"
    assert wrong_lines(report) == []
    assert report.not_looked_at > report.right > 0


def test_an_empty_root_is_no_node(short_path: Path) -> None:
    """In a pod without the root of the node, nothing is said to be wrong."""
    _, report = examined(HostDescription(), short_path / "nothing", source=hidden())
    assert report.wrong == 0
    assert "not known whether this machine has GPUs" in found(report, "driver (kernel)")


def test_a_directory_of_a_kubelet_that_has_not_run_says_nothing(short_path: Path) -> None:
    """An empty directory, such as of the kubelet's package, is no kubelet that has stopped."""
    empty = HostDescription(directories=("/var/lib/kubelet",))
    _, report = examined(WITHOUT_GPU.without("/var/lib/kubelet") + empty, short_path)
    assert report.wrong == 0
    assert found(report, "kubelet, device plugins").startswith("/var/lib/kubelet is empty or not there")


def test_what_nvml_would_know_is_said_to_be_unknown(short_path: Path) -> None:
    """Without NVML a specification is right if it has any GPU, and the line says what is not known."""
    _, report = examined(KUBEADM_CONTAINERD_2, short_path, CDI, hidden())
    assert "whether every GPU has one is not known without NVML" in found(report, "CDI specifications")
    assert "no access to the device nodes" in found(report, "NVML")


def test_without_the_module_of_the_driver_no_other_place_is_named_for_nvml(short_path: Path) -> None:
    """Neither this process nor any other sees a GPU then: the line of the module comes first."""
    _, report = examined(KUBEADM_CONTAINERD_1_7.without("/proc/driver", "/sys/module"), short_path, source=hidden())
    assert found(report, "NVML").startswith("mend the line about the driver (kernel) first")


def test_a_package_that_was_removed_has_no_version(short_path: Path) -> None:
    """The package manager remembers it, with its version."""
    host = KUBEADM_CONTAINERD_1_7.edited("/var/lib/dpkg/status", "install ok installed", "deinstall ok config-files")
    _, report = examined(host, short_path)
    assert found(report, "container toolkit") == "version unknown, in /usr/bin"
    assert found(report, "CDI in the container runtime") == "not known; the config does not use CDI"


def test_the_root_of_a_pod_is_no_node(short_path: Path) -> None:
    """In the daemon's pod, which sees the driver and the kubelet, nothing false is said of files of the node."""
    inside = ("/sys", "/proc", "/usr/lib", "/var/lib/kubelet")
    seen = HostDescription(
        {path: text for path, text in OPERATOR_25_10.files.items() if path.startswith(inside)},
        {path: target for path, target in KUBEADM_CONTAINERD_1_7.links.items() if path.startswith(inside)},
        sockets=tuple(path for path in OPERATOR_25_10.sockets if path.startswith(inside)),
        directories=OPERATOR_25_10.directories,
        nvml=KUBEADM_CONTAINERD_1_7.nvml,
    )
    for needs in (ENVVAR, CDI, MPS):
        _, report = examined(seen, short_path / f"{needs.cdi}{len(needs.entries)}", needs)
        assert wrong_lines(report) == []
        assert "mount the root of the node" in found(report, "NVIDIA's GPU operator")
        assert found(report, "CDI specifications") == found(report, "container toolkit") == found(report, "MPS")


def test_gpus_of_virtual_machines_are_none_of_containers(short_path: Path) -> None:
    """A node that gives its GPUs to virtual machines needs nothing for containers."""
    given = {f"/sys/bus/pci/devices/0000:{bus}:00.0/driver": "../../drivers/vfio-pci" for bus in ("3b", "af")}
    host = WITHOUT_GPU + HostDescription(
        {path: text for path, text in KUBEADM_CONTAINERD_1_7.files.items() if path.startswith("/sys/bus/pci/devices/")},
        given,
        ("/sys/bus/pci/drivers/vfio-pci", "/sys/bus/pci/devices/drivers/vfio-pci"),
    )
    _, report = examined(host, short_path)
    assert report.wrong == 0
    assert found(report, "NVML") == "every GPU is given to virtual machines"


def test_each_gpu_that_does_not_answer_is_a_line(short_path: Path) -> None:
    """The others are right all the same."""
    source = shown()
    source.inventory = replace(source.inventory, failed=(FailedGpu(2, "GPU is lost", None, lost=True),))
    _, report = examined(KUBEADM_CONTAINERD_1_7, short_path, source=source)
    (line,) = wrong_lines(report)
    assert "GPU 2 does not answer: GPU is lost" in line.found


def test_a_failure_of_nvml_is_a_wrong_line(short_path: Path) -> None:
    """NVML that can be asked and fails is told with its own words."""
    source = shown()
    source.trouble = UnresponsiveGpusError("no GPU answers")
    _, report = examined(KUBEADM_CONTAINERD_1_7, short_path, source=source)
    (line,) = wrong_lines(report)
    assert (line.subject, line.found) == ("NVML", "no GPU answers")


def test_what_needs_no_container_runtime_is_looked_at_without_one(short_path: Path) -> None:
    """On a node whose container runtime is not found, what the root shows of toolkit, CDI and MPS is judged anyway."""
    bare = KUBEADM_CONTAINERD_2.without("/etc/containerd", "/run/containerd", "/usr/bin/containerd")
    spec = HostDescription({"/etc/cdi/nvidia.yaml": "no: specification"}, directories=("/run/nvidia/mps",))
    spec += HostDescription({"/usr/bin/nvidia-cuda-mps-control": ""})
    facts, report = examined(bare + spec, short_path, MPS)
    assert facts.runtime is None
    assert found(report, "container toolkit") == "1.18.1, in /usr/bin"
    assert found(report, "MPS").startswith("nothing serves MPS in /run/nvidia/mps")
    assert "mount the root of the node" not in found(report, "CDI specifications")
    assert "mount the root of the node" in found(report, "container runtime")


def test_k3s_whose_directory_is_not_known_is_said_to_run(short_path: Path) -> None:
    """Its socket is there, so nobody is sent to another root; its own configuration tells doctor the directory."""
    made = "/var/lib/rancher/k3s/agent/etc/containerd/config.toml"
    moved = HostDescription({made.replace("/var/lib/rancher", "/data"): K3S.files[made]})
    _, report = examined(K3S.without("/var/lib/rancher") + moved, short_path / "unknown")
    assert found(report, "container runtime").startswith("the containerd of K3s or RKE2 has the socket /run/k3s/")
    given = HostDescription({"/etc/rancher/k3s/config.yaml": "data-dir: /data/k3s\n"})
    _, report = examined(K3S.without("/var/lib/rancher") + moved + given, short_path / "known")
    assert wrong_lines(report) == []
    assert found(report, "NVIDIA's runtime").startswith("nvidia runs /usr/bin/nvidia-container-runtime, by /data/k3s/")


PAGE = Path(__file__).parents[3] / "docs/doctor.md"


def test_the_sample_of_the_page_is_what_doctor_prints(short_path: Path) -> None:
    """The page shows the report of a node with one fault, its counts included, without the lines that are right."""
    host = KUBEADM_CONTAINERD_1_7.edited(
        "/etc/nvidia-container-runtime/config.toml", "environment = []", "no-cgroups = true"
    )
    facts, _ = examined(host, short_path)
    report = judged(replace(facts, rights=RightsFacts(user=0, sys_admin=True, enforcing=None)), HostRoot(short_path))
    shown = replace(report, lines=tuple(line for line in report.lines if line.judgement != "right"))
    printed = "\n".join(lines_of(shown, 140))
    assert f"<!-- sample -->\n\n```\n{printed}\n```\n\n<!-- end of sample -->" in PAGE.read_text(), printed
