"""Tests of the archive for a bug report: it has what was understood of the node, and no name and no secret."""

import json
import tarfile
from pathlib import Path

import pytest

from gpushare_plugin.doctor.bundle import LARGEST_MEMBER, BundleError, Redaction, write_bundle
from gpushare_plugin.doctor.examination import DoctorReport
from gpushare_plugin.doctor.node.diagnosis import right
from gpushare_plugin.testing.hosts import GPUS, KUBEADM_CONTAINERD_2, HostDescription, specification
from tests.unit.doctor.examining import examined

NODE = "worker-17.example.com"
POD_UID = "0b5c1c6e-6a2f-4d5e-9a0b-1c2d3e4f5a6b"
SECRETS = ("hunter2", "AKIAEXAMPLE", "alice", NODE, "worker-17", "10.1.2.3", POD_UID, "team-of-bob", GPUS[0].uuid)

# A secret, or a name, in each file that doctor reads and in which there can be one.
HOST = KUBEADM_CONTAINERD_2 + HostDescription(
    {
        "/etc/containerd/conf.d/registry.toml": """\
version = 3
[plugins."io.containerd.cri.v1.images".registry.configs."10.1.2.3".auth]
password = "hunter2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
BinaryName = "/home/alice/bin/runc"
""",
        "/etc/nvidia-container-runtime/config.toml": '[nvidia-container-cli]\nenvironment = ["TOKEN=hunter2"]\n',
        "/run/cdi/nvidia.yaml": specification().replace("NVIDIA_VISIBLE_DEVICES=void", "AWS_KEY=AKIAEXAMPLE"),
        "/etc/cdi/broken.yaml": "kind: {hunter2\n: x",
        "/etc/cdi/other.json": json.dumps(
            {
                "cdiVersion": "0.5.0",
                "kind": "example.com/device",
                "devices": [{"name": "0", "containerEdits": {"env": ["KEY=hunter2"]}}],
                "containerEdits": {"hooks": [{"path": "/usr/bin/other", "args": ["/usr/bin/other", "hunter2"]}]},
            }
        ),
        "/etc/hostname": f"{NODE}\n",
        "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint": json.dumps(
            {
                "Data": {
                    "PodDeviceEntries": [
                        {
                            "PodUID": POD_UID,
                            "ContainerName": "team-of-bob",
                            "ResourceName": "aliyun.com/gpu-mem",
                            "DeviceIDs": {"-1": [f"{GPUS[0].uuid}::0", f"{GPUS[0].uuid}::1"]},
                        }
                    ],
                    "RegisteredDevices": {"aliyun.com/gpu-mem": [f"{GPUS[0].uuid}::{each}" for each in range(39)]},
                }
            }
        ),
    }
)


def contents(file: Path) -> dict[str, str]:
    """Return the texts of an archive by their names."""
    with tarfile.open(file) as archive:
        members = {member.name: archive.extractfile(member) for member in archive}
        return {name: member.read().decode() for name, member in members.items() if member}


def test_the_archive_has_no_name_and_no_secret(short_path: Path) -> None:
    """Passwords, variables, names of node, user, pod and container, addresses and UUIDs are in none of its texts."""
    facts, report = examined(HOST, short_path / "node")
    write_bundle(short_path / "bundle.tar.gz", facts, report, (NODE,))
    texts = contents(short_path / "bundle.tar.gz")
    assert set(texts) == {f"gpushare-doctor/{name}" for name in ("report.txt", "report.json", "facts.json")}
    for name, text in texts.items():
        assert [secret for secret in SECRETS if secret in text] == [], name


def test_the_archive_has_what_a_bug_report_needs(short_path: Path) -> None:
    """Versions, files, modes, devices and counts stay, and so does which device belongs to which GPU."""
    facts, report = examined(HOST, short_path / "node")
    write_bundle(short_path / "bundle.tar.gz", facts, report, ())
    found = json.loads(contents(short_path / "bundle.tar.gz")["gpushare-doctor/facts.json"])
    assert found["driver"]["kernel"] == "580.95.05"
    assert found["runtime"]["version"] == "2.1.4"
    assert found["runtime"]["handlers"]["nvidia"] == "/usr/bin/nvidia-container-runtime"
    assert found["kubelet"]["listed"] == [["aliyun.com/gpu-mem", 39]]
    assert found["kubelet"]["held"] == 2
    shown = [gpu["uuid"] for gpu in found["nvml"]["gpus"]]
    assert {f"nvidia.com/gpu={uuid}" for uuid in shown} < set(found["cdi"]["devices"])
    assert all(uuid.startswith("GPU-00000000-") for uuid in shown)


def test_an_archive_is_never_overwritten(short_path: Path) -> None:
    """A file that is there stays as it is, and the message says what to do."""
    facts, report = examined(KUBEADM_CONTAINERD_2, short_path / "node")
    file = short_path / "bundle.tar.gz"
    file.write_text("of another node")
    with pytest.raises(BundleError, match="exists already"):
        write_bundle(file, facts, report, ())
    assert file.read_text() == "of another node"
    with pytest.raises(BundleError, match="cannot be written"):
        write_bundle(short_path / "nowhere/bundle.tar.gz", facts, report, ())


def test_the_archive_is_small(short_path: Path) -> None:
    """However much is on a node, each text of the archive is cut."""
    facts, _ = examined(KUBEADM_CONTAINERD_2, short_path / "node")
    lines = tuple(right("part", "x" * 1000) for _ in range(3000))
    report = DoctorReport(right=len(lines), wrong=0, not_looked_at=0, lines=lines)
    write_bundle(short_path / "bundle.tar.gz", facts, report, ())
    assert max(map(len, contents(short_path / "bundle.tar.gz").values())) == LARGEST_MEMBER


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("driver 580.95.05, containerd 2.1.4", "driver 580.95.05, containerd 2.1.4"),
        ("at 10.1.2.3:443 and 127.0.0.1", "at <address>:443 and 127.0.0.1"),
        ("fe80:1:2:3:4:5:6:7 of 0000:3b:00.0", "<address> of 0000:3b:00.0"),
        ("fe80::1%eth0, [2001:db8::a:1]:443, ::ffff:10.1.2.3.", "<address>%eth0, [<address>]:443, <address>."),
        (
            "::1, [::]:80, library 535.104.5.1, plugin::GPU, 12:30:01",
            "::1, [::]:80, library 535.104.5.1, plugin::GPU, 12:30:01",
        ),
        ("https://robot:pass@registry/x", "https://…@registry/x"),
        ("/home/alice/bin", "/home/…/bin"),
        ("GPU12 and gpu1, gpu1.example, GPU1-x", "GPU12 and <node>, <node>.example, GPU1-x"),
    ],
)
def test_what_names_somebody_is_replaced(text: str, redacted: str) -> None:
    """Addresses, credentials, home directories and the node's name go; versions and PCI addresses stay.

    Addresses that every machine has stay, too.
    """
    assert Redaction(("gpu1", "x"))(text) == redacted


def test_the_name_of_a_node_goes_with_and_without_its_domain() -> None:
    """Files and programs use the short name of a machine whose full name is known."""
    assert Redaction((NODE,))(f"{NODE} and worker-17") == "<node> and <node>"


def test_the_same_uuid_stays_the_same() -> None:
    """A reader can still see which lines are about the same GPU."""
    first, second, third = Redaction(())(f"{GPUS[0].uuid} {GPUS[1].uuid} {GPUS[0].uuid}").split()
    assert first == third != second
