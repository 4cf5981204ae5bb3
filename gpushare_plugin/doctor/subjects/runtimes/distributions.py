"""The Kubernetes distributions that bring a containerd: where its configuration is, and what people edit there.

K3s and RKE2 make a configuration of their own and find NVIDIA's runtime when they start (k3s-io/k3s,
pkg/agent/containerd/nvidia.go, docs.k3s.io, "NVIDIA Container Runtime Support"), below the directory of --data-dir,
with the default handler of --default-runtime (issue 9702 there); of a template beside the file, if there is one: the
first of config-v3.toml.tmpl and config.toml.tmpl, in which `{{ template "base" . }}` stands for all that they write
themselves (pkg/agent/containerd/config.go, `writeContainerdConfig`); the socket of their containerd is the same for
every directory. k0s reads /etc/k0s (docs.k0sproject.io, "Runtime"), MicroK8s
/var/snap/microk8s/current/args/containerd.toml (its add-on nvidia).
"""

import re
from typing import NamedTuple

from gpushare_plugin.doctor.node.host import HostRoot
from gpushare_plugin.doctor.node.rancher import data_directory
from gpushare_plugin.doctor.subjects.runtimes.runtime import FOR_PODS


class Distribution(NamedTuple):
    """Where a Kubernetes distribution has the configuration of its containerd."""

    name: str
    """The name, empty for a containerd of the node."""
    file: str
    """The configuration, a path of the node."""
    service: str
    """What restarts containerd there."""
    adds_nvidia: str
    """How NVIDIA's runtime gets into the configuration, as an instruction; empty where a start finds it."""
    templates: tuple[str, ...] = ()
    """The names of the templates beside `file`, of which each start makes `file`; none where people edit `file`."""
    rancher: str = ""
    """The name of the directories of K3s and RKE2; empty for others."""

    def adds(self, host: HostRoot) -> str:
        """Return how NVIDIA's runtime gets into the configuration, as an instruction."""
        if self.adds_nvidia:
            return self.adds_nvidia
        template = self.template(host)
        if template and not self.extends(host, template):
            return (
                f"write a table for the handler nvidia like that of runc into {template}, with BinaryName = "
                f'"{_PROGRAM}" in its options, and run {self.service}'
            )
        install = "" if host.exists(_PROGRAM) else "install NVIDIA's container toolkit and "
        return f"{install}run {self.service}, whose start finds the runtime in /usr/bin"

    def default_setting(self, host: HostRoot) -> str:
        """Return the setting of which a start makes that of the default handler, with its place; empty without one."""
        if not self.rancher:
            return ""
        template = self.template(host)
        if template and (not self.extends(host, template) or _DEFAULT in host.line(template)):
            return f"{_DEFAULT} in {template} (of which each start of {self.name} makes {self.file})"
        return f"default-runtime in /etc/rancher/{self.rancher}/config.yaml"

    def template(self, host: HostRoot) -> str | None:
        """Return the template of which each start makes the configuration; None without one."""
        return host.first(*self._template_paths())

    @staticmethod
    def extends(host: HostRoot, template: str) -> bool:
        """Return whether a template only adds to what the distribution writes itself."""
        return _BASE in "".join(host.line(template).split())

    def edited(self, host: HostRoot, file: str, drop_ins: str = "") -> str:
        """Return what people edit for a setting in `file`, in words.

        `drop_ins` is a pattern of drop-in files that the configuration imports, and that count more.
        """
        if file != self.file or not self.templates:
            return file
        template = self.template(host)
        made = f"of which each start of {self.name} makes {file}"
        if template and not self.extends(host, template):
            return f"{template} ({made})"
        if drop_ins:
            return f"a new file {drop_ins} (which {file} imports)"
        return (
            f"{template or self._new_template(host)} ({made}; first make this template a copy of {file}, since a table "
            f"that {self.name} writes itself may not stand there twice)"
        )

    def _new_template(self, host: HostRoot) -> str:
        """Return the template that is to be made; only the last one is for a file of version 2."""
        return self._template_paths()[-1 if _OF_VERSION_2.search(host.line(self.file)) else 0]

    def _template_paths(self) -> list[str]:
        return [f"{self.file.rpartition('/')[0]}/{name}" for name in self.templates]


_CONFIGURES = f"run `nvidia-ctk runtime configure --runtime=containerd` and `systemctl restart containerd`; {FOR_PODS}"
_PROGRAM = "/usr/bin/nvidia-container-runtime"
_DEFAULT = "default_runtime_name"
TEMPLATES = ("config-v3.toml.tmpl", "config.toml.tmpl")
"""The names of the templates of K3s and RKE2, beside the configuration that is made of the first one that is there."""
_BASE = 'template"base"'
"""What stands in a template, without spaces, for all that the distribution writes itself."""
_OF_VERSION_2 = re.compile(r"^version\s*=\s*2\b", re.MULTILINE)
RANCHERS_SOCKET = "/run/k3s/containerd/containerd.sock"
"""Where the containerd of K3s and RKE2 listens."""
_BELOW_DATA = "agent/etc/containerd/config.toml"
"""The configuration of containerd below the directory with the state of K3s or RKE2."""


def _restarts(service: str, agent: str) -> str:
    """Return what restarts a distribution, as an instruction."""
    return f"`systemctl restart {service}` (on a node without control plane `systemctl restart {agent}`)"


_DISTRIBUTIONS = (
    Distribution(
        "K3s",
        f"/var/lib/rancher/k3s/{_BELOW_DATA}",
        _restarts("k3s", "k3s-agent"),
        "",
        TEMPLATES,
        "k3s",
    ),
    Distribution(
        "RKE2",
        f"/var/lib/rancher/rke2/{_BELOW_DATA}",
        _restarts("rke2-server", "rke2-agent"),
        "",
        TEMPLATES,
        "rke2",
    ),
    Distribution(
        "k0s",
        "/etc/k0s/containerd.toml",
        _restarts("k0scontroller", "k0sworker"),
        "write the handler into a file of /etc/k0s/containerd.d and restart k0s",
    ),
    Distribution(
        "MicroK8s",
        "/var/snap/microk8s/current/args/containerd.toml",
        "`snap restart microk8s.daemon-containerd`",
        "run `microk8s enable nvidia`",
    ),
    Distribution("", "/etc/containerd/config.toml", "`systemctl restart containerd`", _CONFIGURES),
)


def find_distribution(host: HostRoot) -> Distribution | None:
    """Return whose containerd the node has, None without a configuration or a socket of containerd."""
    for each in _DISTRIBUTIONS:
        found = _placed(host, each) if each.rancher else each
        if host.exists(found.file):
            return found
    return _DISTRIBUTIONS[-1] if host.exists("/run/containerd/containerd.sock") else None


def _placed(host: HostRoot, distribution: Distribution) -> Distribution:
    """Return K3s or RKE2 with its configuration below the directory with its state."""
    return distribution._replace(file=f"{data_directory(host, distribution.rancher)}/{_BELOW_DATA}")
