"""The feature gates of the kubelet, by the files that the kubelet and its service read; the process is not asked.

Facts of Kubernetes: kubernetes.io, "Set Kubelet Parameters Via A Configuration File" (of the files *.conf of
--config-dir, the last by name counts); cmd/kubelet/app/server.go, `kubeletConfigFlagPrecedence` (a flag counts more
than the files); `WordSepNormalizeFunc` in component-base (an underscore in a flag is a hyphen); kubernetes.io,
"Configuring each kubelet in your cluster using kubeadm" (kubeadm-flags.env, and KUBELET_EXTRA_ARGS in
/etc/default/kubelet or /etc/sysconfig/kubelet, the last of them). Units and their drop-in files: systemd.unit(5). K3s
and RKE2 give the kubelet a directory of files (k3s-io/k3s, pkg/daemons/agent/agent_linux.go, `kubeletArgsAndConfig`)
and the flags of `kubelet-arg` in their own configuration, or in the command of their unit, which counts more
(docs.k3s.io, "Configuration Options"). MicroK8s has the flags in a file of its own (microk8s.io, "Services and ports").
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from gpushare_plugin.doctor.node.host import HostRoot
from gpushare_plugin.doctor.node.rancher import SERVICES, config_files, data_directory, document, settled, unit_files
from gpushare_plugin.doctor.subjects.runtimes.runtime import table, text, texts

_OF_RANCHER = {"K3s": "k3s", "RKE2": "rke2"}
"""The names of the directories of K3s and RKE2."""
_UNITS = {"k0s": ("k0scontroller", "k0sworker")}
"""The services that have the kubelet of other distributions."""
_FLAG_FILES = {
    "": ("/var/lib/kubelet/kubeadm-flags.env", "/etc/default/kubelet", "/etc/sysconfig/kubelet"),
    "MicroK8s": ("/var/snap/microk8s/current/args/kubelet",),
}
"""The files with flags of the kubelet, a later one of which counts more, by the distribution."""
_FLAG = re.compile(r"--feature[-_]gates[=\s]+[\"']?([\w.,=-]*)")
_RANCHER_FLAG = re.compile(r"--kubelet-arg[=\s]+[\"']?feature[-_]gates=([\w.,=-]*)")
_RANCHER_VALUE = re.compile(r"^-{0,2}feature[-_]gates=(.*)")
_YES, _NO = frozenset({"1", "t", "true"}), frozenset({"0", "f", "false"})
"""What Go reads as a truth value, in lower case (strconv.ParseBool)."""


class _GateSetting(NamedTuple):
    """What one setting says of a feature gate."""

    setting: str
    """The setting with its file, such as `featureGates in /var/lib/kubelet/config.yaml`."""
    on: bool | None
    """Whether the setting turns the gate on; None where it says nothing of the gate."""


def turned_off_in(host: HostRoot, gate: str, config: str, distribution: str) -> tuple[str, ...]:
    """Return the settings that turn a feature gate of the kubelet off, each with its file; none if one turns it on.

    `config` is the configuration file of the kubelet, and `distribution` the Kubernetes distribution that brings the
    kubelet; empty for a kubelet of the node.
    """
    said = [each for each in _said(host, gate, config, distribution) if each.on is not None]
    return tuple(each.setting for each in said if not each.on) if said and not said[-1].on else ()


def turned_on(host: HostRoot, gate: str, config: str, distribution: str) -> bool:
    """Return whether a setting turns a feature gate of the kubelet on, and no later one off; see `turned_off_in`."""
    return next(
        (each.on for each in reversed(list(_said(host, gate, config, distribution))) if each.on is not None), False
    )


def _said(host: HostRoot, gate: str, config: str, distribution: str) -> Iterator[_GateSetting]:
    """Yield what each setting says of a gate; a later one counts more."""
    name = _OF_RANCHER.get(distribution, "")
    services = SERVICES[name] if name else _UNITS.get(distribution, ("kubelet",))
    drop_ins = host.matching(f"{data_directory(host, name)}/agent/etc/kubelet.conf.d/*.conf") if name else ()
    for file in (config, *drop_ins):
        given = table(document(host, file), "featureGates").get(gate)
        yield _GateSetting(f"featureGates in {file}", given if isinstance(given, bool) else None)
    for file in config_files(host, name) if name else ():
        yield _GateSetting(f"kubelet-arg in {file}", _in_flags("\n".join(_rancher_values(host, file)), gate))
    flag, spelled = (_RANCHER_FLAG, "--kubelet-arg") if name else (_FLAG, "--feature-gates")
    for file in (*unit_files(host, services), *_FLAG_FILES.get(distribution, ())):
        flags = "\n".join(flag.findall(settled(host.line(file))))
        yield _GateSetting(f"{spelled} in {file}", _in_flags(flags, gate))


def _rancher_values(host: HostRoot, file: str) -> Iterator[str]:
    """Yield the feature gates that the kubelet gets by a configuration file of K3s or RKE2, as in a flag."""
    given = table(document(host, file))
    for key in ("kubelet-arg", "kubelet-arg+"):
        value = given.get(key)
        for each in (text(value), *texts(value)):
            if found := _RANCHER_VALUE.match(each):
                yield found[1]


def _in_flags(flags: str, gate: str) -> bool | None:
    """Return what feature gates of flags, as in `A=true,B=false`, say of a gate; None where they say nothing."""
    values = [value.lower() for value in re.findall(rf"(?:^|,){re.escape(gate)}=(\w+)", flags, re.MULTILINE)]
    known = [value in _YES for value in values if value in _YES | _NO]
    return known[-1] if known else None
