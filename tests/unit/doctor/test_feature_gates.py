"""Tests of where the kubelet's feature gates are found: in its files, and in the files with its flags."""

from pathlib import Path

import pytest

from gpushare_plugin.doctor.node.host import HostRoot
from gpushare_plugin.doctor.subjects.feature_gates import turned_off_in
from gpushare_plugin.testing.hosts import HostDescription, built

GATE, CONFIG = "DynamicResourceAllocation", "/var/lib/kubelet/config.yaml"
OFF, ON = (f"featureGates: {{{GATE}: {each}}}\n" for each in ("false", "true"))
FLAGS, SYSCONFIG = "/var/lib/kubelet/kubeadm-flags.env", "/etc/sysconfig/kubelet"
UNIT, DROP_IN = "/usr/lib/systemd/system/kubelet.service", "kubelet.service.d/20-site.conf"
CONF_D = "/var/lib/rancher/k3s/agent/etc/kubelet.conf.d"
K3S, RKE2 = "/etc/rancher/k3s/config.yaml", "/etc/rancher/rke2/config.yaml.d/gates.yaml"
MICROK8S = "/var/snap/microk8s/current/args/kubelet"


def flags(value: str) -> str:
    """Return a file with variables that has the gate in a flag of the kubelet."""
    return f'KUBELET_KUBEADM_ARGS="--node-ip=10.0.0.1 --feature-gates=Other=true,{GATE}={value} --v=2"\n'


@pytest.mark.parametrize(
    ("distribution", "files", "settings"),
    [
        ("", {CONFIG: OFF}, [f"featureGates in {CONFIG}"]),
        ("", {CONFIG: ON, FLAGS: flags("false")}, [f"--feature-gates in {FLAGS}"]),
        ("", {CONFIG: OFF, FLAGS: flags("False")}, [f"featureGates in {CONFIG}", f"--feature-gates in {FLAGS}"]),
        ("", {CONFIG: OFF, FLAGS: flags("true")}, []),
        ("", {FLAGS: flags("0"), SYSCONFIG: flags("1")}, []),
        ("", {FLAGS: flags("t"), SYSCONFIG: flags("f")}, [f"--feature-gates in {SYSCONFIG}"]),
        ("", {FLAGS: f"# {flags('false')}"}, []),
        ("", {FLAGS: flags("false").replace(GATE, f"Other{GATE}")}, []),
        ("", {UNIT: f"[Service]\nExecStart=/usr/bin/kubelet \\\n  --feature_gates \\\n  {GATE}=false\n"}, None),
        (
            "",
            {
                f"/usr/lib/systemd/system/{DROP_IN}": f"ExecStart=k --feature-gates={GATE}=false\n",
                f"/etc/systemd/system/{DROP_IN}": "ExecStart=k\n",
            },
            [],
        ),
        ("K3s", {FLAGS: flags("false")}, []),
        ("K3s", {f"{CONF_D}/10-site.conf": OFF, f"{CONF_D}/20-site.conf": ON}, []),
        ("K3s", {f"{CONF_D}/10-site.conf": OFF, f"{CONF_D}/00.conf": ON}, [f"featureGates in {CONF_D}/10-site.conf"]),
        ("K3s", {K3S: f"kubelet-arg:\n- v=2\n- feature-gates={GATE}=false\n"}, [f"kubelet-arg in {K3S}"]),
        ("K3s", {K3S: f"kubelet-arg: --feature-gates={GATE}=false\n"}, [f"kubelet-arg in {K3S}"]),
        ("K3s", {K3S: f"kube-apiserver-arg: ['feature-gates={GATE}=false']\n"}, []),
        ("RKE2", {RKE2: f"kubelet-arg+: ['feature-gates={GATE}=false']\n"}, [f"kubelet-arg in {RKE2}"]),
        (
            "K3s",
            {
                K3S: f"kubelet-arg: ['feature-gates={GATE}=true']\n",
                "/etc/systemd/system/k3s-agent.service": f"ExecStart=k3s '--kubelet-arg=feature-gates={GATE}=false'",
            },
            ["--kubelet-arg in /etc/systemd/system/k3s-agent.service"],
        ),
        ("MicroK8s", {MICROK8S: f"--v=2\n--feature-gates={GATE}=false\n"}, [f"--feature-gates in {MICROK8S}"]),
    ],
)
def test_a_gate_that_is_turned_off_is_found(
    *, distribution: str, files: dict[str, str], settings: list[str] | None, tmp_path: Path
) -> None:
    """Flags count more than files; every setting that turns the gate off is named, if the last one does."""
    with built(HostDescription(files), tmp_path):
        found = turned_off_in(HostRoot(tmp_path), GATE, CONFIG, distribution)
    assert list(found) == ([f"--feature-gates in {UNIT}"] if settings is None else settings)
