"""Tests that no content of any file of a node ends doctor: it says what it can, whatever is there."""

import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare_plugin.base.structs import replace
from gpushare_plugin.doctor.bundle import write_bundle
from gpushare_plugin.doctor.node.needs import EntryNeeds
from gpushare_plugin.doctor.words import lines_of
from gpushare_plugin.testing.hosts import DRIVER_LIMITS, KUBEADM_CONTAINERD_1_7, OPERATOR_25_10, HostDescription
from tests.unit.doctor.examining import CDI, ENVVAR, examined

TOOLKIT = "/usr/local/nvidia/toolkit/.config/nvidia-container-runtime/config.toml"
FILES = (
    "/etc/containerd/config.toml",
    "/etc/containerd/conf.d/99-nvidia.toml",
    "/etc/cdi/other.json",
    "/etc/cdi/other.yaml",
    "/etc/crio/crio.conf",
    "/etc/docker/daemon.json",
    "/etc/hostname",
    "/etc/modprobe.d/nvidia.conf",
    "/etc/nvidia-container-toolkit/nvidia-cdi-refresh.env",
    "/proc/driver/nvidia/params",
    "/proc/driver/nvidia/version",
    "/run/gpushare/driver-limits/status.json",
    "/run/nvidia/mps/status.json",
    "/sys/bus/pci/devices/0000:3b:00.0/class",
    "/sys/fs/cgroup/cgroup.controllers",
    "/sys/fs/cgroup/dmem.capacity",
    "/sys/fs/cgroup/kubepods.slice/cgroup.controllers",
    "/sys/fs/cgroup/kubepods.slice/dmem.min",
    "/sys/fs/selinux/enforce",
    "/sys/module/nvidia/version",
    "/var/lib/dpkg/status",
    "/var/lib/kubelet/config.yaml",
    "/var/lib/kubelet/kubeadm-flags.env",
    "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint",
    TOOLKIT,
)
"""Every file of which doctor reads the content."""
VIDMEM = "nvidia/0000:3b:00.0/vidmem"

_LEAVES = st.none() | st.booleans() | st.integers() | st.text(max_size=8)
_KEYS = st.sampled_from(
    ["plugins", "runtimes", "containerd", "options", "devices", "containerEdits", "hooks", "mounts", "Data", "kind"]
)
_DOCUMENTS = st.recursive(
    _LEAVES, lambda below: st.lists(below, max_size=3) | st.dictionaries(_KEYS, below, max_size=3)
)


@given(
    st.dictionaries(
        st.sampled_from(FILES),
        st.text(max_size=40)
        | _DOCUMENTS.map(json.dumps)
        | st.sampled_from(["[" * 9000, "{", "version = 3\nimports = 7\n", f"{VIDMEM} {'9' * 20}\n", f"{VIDMEM} -1\n"])
        | st.sampled_from(
            ['RegistryDwords: "RmMemacctMode=0"\n', "options nvidia NVreg_RegistryDwords=RmMemacctMode=0"]
        ),
        min_size=1,
        max_size=5,
    ),
    st.sampled_from([OPERATOR_25_10, DRIVER_LIMITS]),
)
def test_any_content_is_survived(contents: dict[str, str], node: HostDescription) -> None:
    """Every part has its line, in text and in the archive, whatever the files of the node have in them."""
    sendable = {path: text.encode(errors="replace").decode() for path, text in contents.items()}
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="gs-") as folder:
        needs = replace(CDI, entries=(EntryNeeds(("driver",)),))
        facts, report = examined(node + HostDescription(sendable), Path(folder, "node"), needs)
        subjects = {line.subject for line in report.lines}
        assert {"driver (kernel)", "kubelet, checkpoint", "control groups", "SELinux"} <= subjects
        assert list(lines_of(report, 80))
        write_bundle(Path(folder, "bundle.tar.gz"), facts, report, ())


@pytest.mark.parametrize(
    "text",
    [
        "version = 2\n[plugins]\n'io.containerd.grpc.v1.cri' = 7\n",
        "version = 2\n[plugins.'io.containerd.grpc.v1.cri'.containerd]\nruntimes = [1, 2]\ndefault_runtime_name = 7\n",
        "version = 2\n[plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes]\nnvidia = 'nvidia-container-runtime'\n",
        "version = 'two'\nimports = ['/etc/containerd/config.toml', '/etc/containerd/*', '../*', '']\n",
        "version = 2\n[plugins.'io.containerd.grpc.v1.cri']\ncdi_spec_dirs = ['', '..', '/etc/loop', '/dev/zero']\n",
        "disabled_plugins = 'cri'\n",
    ],
)
def test_values_of_other_kinds_are_survived(text: str, short_path: Path) -> None:
    """A number where containerd expects a table counts as missing."""
    host = KUBEADM_CONTAINERD_1_7 + HostDescription(
        {"/etc/containerd/config.toml": text}, {"/etc/loop": "loop", "/etc/containerd/loop.toml": "/etc/loop"}
    )
    _, report = examined(host, short_path, ENVVAR)
    assert report.lines
