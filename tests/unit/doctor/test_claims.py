"""Tests of what `gpushare doctor` says of GPUs by claim."""

import json
from pathlib import Path

import pytest

from gpushare_plugin.base.files.lock import lock
from gpushare_plugin.base.structs import replace
from gpushare_plugin.config.loading.load import load
from gpushare_plugin.doctor.examination import DoctorReport, judged, read_node
from gpushare_plugin.doctor.node.diagnosis import Diagnosis
from gpushare_plugin.doctor.node.host import HostRoot
from gpushare_plugin.doctor.node.needs import ConfigNeeds, needs_of
from gpushare_plugin.doctor.subjects.claims import SUBJECT
from gpushare_plugin.doctor.subjects.kubelet import PLUGIN_DIRECTORY
from gpushare_plugin.kubelet.claim_files import GIVEN_VERSION, RECORD_VERSION
from gpushare_plugin.testing.hosts import (
    KUBEADM_CONTAINERD_1_7,
    KUBEADM_CONTAINERD_2,
    WITHOUT_GPU,
    HostDescription,
    built,
    specification,
)
from tests.unit.doctor.examining import ENVVAR, examined, found, shown, wrong_lines

NAME = "gpu.gpushare.io"
CLAIMS = replace(ENVVAR, dra=NAME)
"""A config that gives GPUs by claim."""
SHARES = replace(CLAIMS, dra_shares=True)
"""A config that gives shares by claim."""
ROOT = "/var/lib/kubelet"
REGISTRY, DRIVER = f"{ROOT}/plugins_registry", f"{ROOT}/plugins/{NAME}"
PACKAGE = "Package: kubelet\nStatus: install ok installed\nVersion: 1.35.1-1.1\n"
READY = KUBEADM_CONTAINERD_2 + HostDescription(
    {"/var/lib/dpkg/status": f"{KUBEADM_CONTAINERD_2.files['/var/lib/dpkg/status']}\n{PACKAGE}"},
    directories=(REGISTRY,),
)
"""A node on which the kubelet looks for DRA drivers."""
SERVED = READY + HostDescription(sockets=(f"{REGISTRY}/{NAME}~a1b2-reg.sock", f"{DRIVER}/dra~a1b2.sock"))
"""The same with the sockets of our DRA driver."""
GIVEN, RECORD = f"{DRIVER}/gpushare-given.json", f"{DRIVER}/claims/0a1b.json"
NEWER = HostDescription({RECORD: json.dumps({"version": RECORD_VERSION + 1})})


def while_served(host: HostDescription, folder: Path, needs: ConfigNeeds = CLAIMS) -> DoctorReport:
    """Return the judgement of a node on which the daemon of gpushare runs."""
    with built(host, folder), lock(folder / f"{PLUGIN_DIRECTORY[1:]}/gpushare.lock"):
        root = HostRoot(folder)
        return judged(read_node(root, needs, lambda _library: shown()), root)


def of_claims(report: DoctorReport) -> Diagnosis:
    """Return the line about GPUs by claim."""
    (line,) = [line for line in report.lines if line.subject == SUBJECT]
    return line


def test_nvidias_dra_driver_beside_gpushare_is_wrong(short_path: Path) -> None:
    """Both give the same GPUs, whether or not gpushare gives GPUs by claim; a socket without a program is nobody."""
    place = f"{REGISTRY}/gpu.nvidia.com-reg.sock"
    for needs in (ENVVAR, CLAIMS):
        _, report = examined(READY + HostDescription(sockets=(place,)), short_path / f"{needs.dra}", needs)
        (line,) = wrong_lines(report)
        assert line.found.startswith(f"NVIDIA's DRA driver gpu.nvidia.com listens in {REGISTRY}, too: both")
        assert "resources.gpus.enabled=false" in (line.remedy or "")
    _, report = examined(READY + HostDescription({place: ""}), short_path / "dead", CLAIMS)
    assert wrong_lines(report) == []


def test_a_config_without_claims_needs_nothing_for_them(short_path: Path) -> None:
    """Without the section `dra`, and on a node without a GPU, nothing is looked at."""
    _, report = examined(KUBEADM_CONTAINERD_2, short_path / "config")
    assert found(report, SUBJECT) == "the config gives no GPU by claim: it has no section dra"
    _, report = examined(WITHOUT_GPU, short_path / "gpu", CLAIMS)
    assert found(report, SUBJECT) == "this machine has no NVIDIA GPU"


def test_a_driver_that_the_kubelet_finds_is_right(short_path: Path) -> None:
    """With both sockets and files of this version, claims are served; before the daemon runs, that is not known."""
    files = HostDescription(
        {GIVEN: json.dumps({"gpus": {}, "version": GIVEN_VERSION}), RECORD: json.dumps({"version": RECORD_VERSION})}
    )
    report = while_served(SERVED + files, short_path / "served")
    assert wrong_lines(report) == []
    assert of_claims(report).judgement == "right"
    assert of_claims(report).found == f"the DRA driver {NAME} listens in {REGISTRY}; prepared claims: 1"
    _, report = examined(READY, short_path / "before", CLAIMS)
    assert of_claims(report).judgement == "notLookedAt"
    assert "registers once the daemon of gpushare runs" in of_claims(report).found


@pytest.mark.parametrize(
    ("host", "said", "remedy"),
    [
        (
            READY.edited("/var/lib/dpkg/status", "Version: 1.35.1", "Version: 1.33.4"),
            "the kubelet has version 1.33.4, and GPUs by claim need Kubernetes 1.34 or newer",
            "upgrade the cluster",
        ),
        (
            READY + HostDescription({f"{ROOT}/config.yaml": "featureGates:\n  DynamicResourceAllocation: false\n"}),
            f"featureGates in {ROOT}/config.yaml turns the feature gate DynamicResourceAllocation off",
            "remove DynamicResourceAllocation from featureGates",
        ),
        (KUBEADM_CONTAINERD_2, f"{REGISTRY} is not there", "kubeletRootDir"),
        (SERVED + NEWER, f"a newer version of gpushare wrote {RECORD}", "go back to the newer version"),
        (
            READY,
            f"no DRA driver listens at {REGISTRY}/{NAME}~*-reg.sock and {DRIVER}/dra~*.sock",
            f"set dra.enabled=true and dra.driver={NAME} in the values of the chart",
        ),
        (SERVED.without(f"{DRIVER}/dra~a1b2.sock"), f"no DRA driver listens at {DRIVER}/dra~*.sock", "dra.enabled"),
    ],
    ids=["version", "gate", "registry", "newer", "silent", "half"],
)
def test_what_keeps_claims_from_gpus_is_wrong(
    *, host: HostDescription, said: str, remedy: str, short_path: Path
) -> None:
    """While the daemon runs, the line names what is missing, and what brings GPUs to claims."""
    report = while_served(host, short_path)
    (line,) = wrong_lines(report)
    assert (line.subject, said in line.found) == (SUBJECT, True), line.found
    assert remedy in (line.remedy or "")


@pytest.mark.parametrize(
    "text",
    [
        "featureGates: {DynamicResourceAllocation: false}\n",
        '{"kind": "KubeletConfiguration", "featureGates": {"DynamicResourceAllocation": false}}',
        'featureGates:\n  "DynamicResourceAllocation": false # for now\n',
    ],
    ids=["flow", "JSON", "quoted"],
)
def test_a_feature_gate_is_found_however_it_is_written(text: str, short_path: Path) -> None:
    """The file of the kubelet is YAML; a text that is none, or another gate, says nothing."""
    config = f"{ROOT}/config.yaml"
    report = while_served(SERVED + HostDescription({config: text}), short_path / "off")
    assert f"featureGates in {config} turns the feature gate DynamicResourceAllocation off" in of_claims(report).found
    for number, other in enumerate((text.replace("false", "true"), text.replace("Dynamic", "Other"), "{" * 9000)):
        report = while_served(SERVED + HostDescription({config: other}), short_path / str(number))
        assert wrong_lines(report) == []


def test_a_kubelet_without_a_package_has_no_known_version(short_path: Path) -> None:
    """That of K3s is in the program of K3s: the line says so, and is not wrong."""
    host = SERVED.edited("/var/lib/dpkg/status", "Package: kubelet", "Package: other")
    line = of_claims(while_served(host, short_path))
    assert (line.judgement, "version of the kubelet not known" in line.found) == ("right", True)


def test_a_damaged_file_is_mended_by_the_daemon(short_path: Path) -> None:
    """Nothing is to be done about such a file, so the line is not wrong, and says where to read more."""
    report = while_served(SERVED + HostDescription({RECORD: '{"version": ', GIVEN: "[]"}), short_path)
    assert wrong_lines(report) == []
    line = of_claims(report)
    assert line.judgement == "notLookedAt"
    assert (
        f"{GIVEN}: no JSON of gpushare, {RECORD}: no JSON of gpushare; the daemon writes such files anew" in line.found
    )


def test_a_kubelet_that_does_not_run_comes_first(short_path: Path) -> None:
    """Without a kubelet nobody registers, so its lines are to be mended before that of claims."""
    report = while_served(READY.without(f"{PLUGIN_DIRECTORY}/kubelet.sock"), short_path)
    assert [line.subject for line in wrong_lines(report)] == ["kubelet, device plugins"]
    assert of_claims(report).found == "mend the lines about the kubelet first, with which DRA drivers register"


def test_claims_need_cdi_whatever_the_strategy_is(short_path: Path) -> None:
    """A container runtime with CDI off, or without the directory of the specifications of claims, gives no GPU."""
    host = KUBEADM_CONTAINERD_1_7 + HostDescription(directories=(REGISTRY,))
    _, report = examined(host, short_path / "off", CLAIMS)
    (line,) = wrong_lines(report)
    assert line.subject == "CDI in the container runtime"
    assert line.found == (
        "off, but the config gives GPUs by claim (section dra), and these come by CDI only, so containers get none"
    )
    assert "set `enable_cdi = true`" in (line.remedy or "")
    apart = "/etc/containerd/conf.d/50-site.toml"
    site = "version = 3\n[plugins.'io.containerd.cri.v1.runtime']\ncdi_spec_dirs = ['/etc/cdi']\n"
    _, report = examined(READY + HostDescription({apart: site}), short_path / "apart", CLAIMS)
    (line,) = wrong_lines(report)
    assert "but those of claims are in /var/run/cdi" in line.found
    assert "add /var/run/cdi to the directories of specifications" in (line.remedy or "")
    _, report = examined(READY, short_path / "on", CLAIMS)
    assert wrong_lines(report) == []


def test_specifications_of_claims_are_used(short_path: Path) -> None:
    """They are not told as devices that the config does not use."""
    spec = HostDescription({"/run/cdi/claim.json": specification(f"{NAME}/claim")})
    _, report = examined(READY.without("/run/cdi") + spec, short_path, CLAIMS)
    assert found(report, "CDI specifications") == (
        "none of GPUs in /etc/cdi and /var/run/cdi; the daemon writes one for each claim"
    )


@pytest.mark.parametrize(
    ("version", "files", "said", "remedy"),
    [
        (
            "1.35.1",
            {},
            "no setting turns the feature gate DRAConsumableCapacity on",
            "upgrade the cluster to Kubernetes",
        ),
        (
            "1.36.0",
            {f"{ROOT}/config.yaml": "featureGates: {DRAConsumableCapacity: false}"},
            f"featureGates in {ROOT}/config.yaml turns the feature gate DRAConsumableCapacity off",
            f"set DRAConsumableCapacity to true in featureGates in {ROOT}/config.yaml, run `systemctl restart kubelet`",
        ),
        (
            "1.33.4",
            {},
            "has version 1.33.4",
            "to Kubernetes 1.36 or newer, or 1.34 with the feature gate DRAConsumable",
        ),
        ("1.35.1", {f"{ROOT}/config.yaml": "featureGates: {DRAConsumableCapacity: true}"}, "", ""),
        ("1.36.0", {}, "", ""),
    ],
)
def test_shares_by_claim_need_a_feature_gate_before_kubernetes_1_36(
    *, version: str, files: dict[str, str], said: str, remedy: str, short_path: Path
) -> None:
    """Whole GPUs need no gate, so the line depends on what the config gives by claim."""
    host = SERVED.edited("/var/lib/dpkg/status", "Version: 1.35.1", f"Version: {version}") + HostDescription(files)
    lines = wrong_lines(while_served(host, short_path / "shares", SHARES))
    assert len(lines) == bool(said), lines
    assert all(said in line.found and remedy in (line.remedy or "") for line in lines), lines
    whole = wrong_lines(while_served(host, short_path / "whole"))
    assert len(whole) == (version == "1.33.4")


@pytest.mark.parametrize(
    ("given", "shared", "gives"),
    [("all", "[0]", True), ("[0, 1]", "[1, 2]", True), ("[0]", "[1]", False), ("1", "[0]", False)],
)
def test_a_config_gives_shares_by_claim_of_gpus_that_two_sections_name(
    *, given: str, shared: str, gives: bool, tmp_path: Path
) -> None:
    """A GPU of the section dra is given in shares where an entry of sharing has the GPU, too."""
    text = (
        f"version: v1\ndra:\n  devices: {given}\nsharing:\n  memory:\n    resources:\n"
        f"    - name: aliyun.com/gpu-mem\n      devices: {shared}\n"
    )
    file = tmp_path / "config.yaml"
    file.write_text(text)
    config = load(file).config
    assert config is not None
    assert needs_of(config, None, tmp_path).dra_shares is gives
