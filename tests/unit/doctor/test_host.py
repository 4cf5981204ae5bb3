"""Tests of reading a node below a root: bounded, and never outside the root."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare_plugin.doctor.examination import judged, read_node
from gpushare_plugin.doctor.node.host import LARGEST_FILE, HostRoot, UnreadableError
from gpushare_plugin.testing.hosts import GPUS, KUBEADM_CONTAINERD_1_7, HostDescription, built, specification
from tests.unit.doctor.examining import CDI, ENVVAR, shown, wrong_lines

NOBODY = 65534


@contextlib.contextmanager
def as_nobody() -> Iterator[None]:
    """Give up the rights of root for a while, where this process has them."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(user)


@pytest.fixture
def host(tmp_path: Path) -> HostRoot:
    """Return the root of a node below a directory that has a file beside the node."""
    (tmp_path / "secret").write_text("of another machine")
    (tmp_path / "node/etc").mkdir(parents=True)
    return HostRoot(tmp_path / "node")


@pytest.mark.parametrize("target", ["/secret", "../../secret", "../../../../secret", "/../secret"])
def test_links_stay_within_the_root(host: HostRoot, target: str) -> None:
    """A link of the node leads where it leads on the node, and never to a file of this machine."""
    (host.root / "etc/link").symlink_to(target)
    assert host.text("/etc/link") is None
    (host.root / "secret").write_text("of the node")
    assert host.text("/etc/link") == "of the node"
    assert host.target("/etc/link") == "/secret"


def test_a_directory_can_be_a_link(host: HostRoot) -> None:
    """`/var/run` leads to `/run`, for files, lists and sockets."""
    (host.root / "run/cdi").mkdir(parents=True)
    (host.root / "run/cdi/nvidia.yaml").write_text("kind: x")
    (host.root / "var").mkdir()
    (host.root / "var/run").symlink_to("/run")
    assert host.text("/var/run/cdi/nvidia.yaml") == "kind: x"
    assert host.names("/var/run/cdi", "*.yaml") == ("nvidia.yaml",)
    assert list(host.matching("/var/run/cdi/*.json")) == []


def test_links_in_a_circle_lead_nowhere(host: HostRoot) -> None:
    """Such a path counts as missing, as every path that leads to no file."""
    (host.root / "etc/one").symlink_to("two")
    (host.root / "etc/two").symlink_to("one")
    assert host.text("/etc/one") is None
    assert host.names("/etc/one") == ()
    assert not host.exists("/etc/one")


def test_a_specification_can_be_a_link(short_path: Path) -> None:
    """A link of a directory with specifications leads where it leads on the node, not on this machine."""
    file = HostDescription({"/opt/cdi.json": specification()}, {"/etc/cdi/nvidia.json": "/opt/cdi.json"})
    with built(KUBEADM_CONTAINERD_1_7 + file, short_path) as folder:
        facts = read_node(HostRoot(folder), CDI, lambda _library: shown())
    assert facts.cdi.devices[f"nvidia.com/gpu={GPUS[0].uuid}"] == "/etc/cdi/nvidia.json"
    assert facts.cdi.unusable == ()


def test_a_file_without_end_is_not_read(host: HostRoot) -> None:
    """Neither a file larger than allowed nor a pipe keeps doctor busy."""
    with (host.root / "etc/large").open("wb") as file:
        file.truncate(LARGEST_FILE + 1)
    os.mkfifo(host.root / "etc/pipe")
    for name in ("large", "pipe"):
        with pytest.raises(UnreadableError, match=f"/etc/{name}"):
            host.text(f"/etc/{name}")
    assert host.line("/etc/large") == ""


def test_bytes_that_are_no_text_are_replaced(host: HostRoot) -> None:
    """A broken file is still read."""
    (host.root / "etc/file").write_bytes(b"a\xff\0b")
    assert host.text("/etc/file") == "a\N{REPLACEMENT CHARACTER}\0b"


@pytest.mark.parametrize(
    ("part", "subject"),
    [
        ("etc/nvidia-container-runtime", "settings of the container toolkit"),
        ("run/nvidia", "NVIDIA's GPU operator"),
        ("usr/local/nvidia", "NVIDIA's GPU operator"),
        ("etc/containerd", "container runtime"),
        ("etc/containerd", "CDI in the container runtime"),
        ("var/lib/kubelet", "kubelet, device plugins"),
    ],
)
def test_what_may_not_be_read_is_not_called_right(part: str, subject: str, short_path: Path) -> None:
    """A part of a node below a directory that is closed to this process counts neither as there nor as missing."""
    short_path.chmod(0o755)
    with built(KUBEADM_CONTAINERD_1_7, short_path / "node") as folder:
        (folder / part).mkdir(parents=True, exist_ok=True)
        (folder / part).chmod(0o000)
        with as_nobody():
            host = HostRoot(folder)
            report = judged(read_node(host, ENVVAR, lambda _library: shown()), host)
        (folder / part).chmod(0o700)
    (line,) = [line for line in report.lines if line.subject == subject]
    assert (line.judgement, f"may not read /{part}" in line.found) == ("notLookedAt", True), line.found
    assert "with CAP_DAC_READ_SEARCH" in line.found


def test_sockets_of_the_kubelet_say_nothing_of_its_checkpoint(short_path: Path) -> None:
    """A process that may read the checkpoint and not connect to the sockets knows what the checkpoint says."""
    short_path.chmod(0o755)
    with built(KUBEADM_CONTAINERD_1_7, short_path / "node") as folder:
        for place in ("device-plugins", "pod-resources"):
            (folder / f"var/lib/kubelet/{place}/kubelet.sock").chmod(0o600)
        with as_nobody():
            host = HostRoot(folder)
            report = judged(read_node(host, ENVVAR, lambda _library: shown()), host)
    lines = {line.subject: line.judgement for line in report.lines}
    assert (lines["kubelet, checkpoint"], lines["kubelet, pod-resources"]) == ("right", "notLookedAt")


def test_what_may_not_be_read_is_not_called_wrong(short_path: Path) -> None:
    """Without the right to read parts of the node, doctor says what it may not read, and asks to be run as root."""
    short_path.chmod(0o755)
    parts = ("etc/containerd", "etc/crio/crio.conf.d", "var/lib/kubelet/device-plugins", "sys/bus/pci/devices")
    with built(KUBEADM_CONTAINERD_1_7, short_path / "node") as folder:
        (folder / "etc/crio/crio.conf.d").mkdir(parents=True)
        for part in parts:
            (folder / part).chmod(0o000)
        with as_nobody():
            host = HostRoot(folder)
            report = judged(read_node(host, ENVVAR, lambda _library: shown()), host)
        for part in parts:
            (folder / part).chmod(0o700)
    assert wrong_lines(report) == []
    doubtful = [line.found for line in report.lines if "Run doctor as root" in line.found]
    assert any("may not read" in text and "handler" in text for text in doubtful)
    parts_of_runtime = ("container runtime", "NVIDIA's runtime", "CDI in the container runtime")
    assert {line.judgement for line in report.lines if line.subject in parts_of_runtime} == {"notLookedAt"}
    rights = next(line for line in report.lines if line.subject == "rights of this process")
    assert rights.judgement == "notLookedAt"
