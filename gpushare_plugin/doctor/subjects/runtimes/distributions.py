"""The Kubernetes distributions that bring a containerd: where its configuration is, and what people edit there.

K3s and RKE2 make a configuration of their own and find NVIDIA's runtime when they start (k3s-io/k3s,
pkg/agent/containerd/nvidia.go, docs.k3s.io, "NVIDIA Container Runtime Support"); of a template beside the file, if
there is one: the first of config-v3.toml.tmpl and config.toml.tmpl, in which `{{ template "base" . }}` stands for all
that they write themselves (pkg/agent/containerd/config.go, `writeContainerdConfig`). k0s reads /etc/k0s
(docs.k0sproject.io, "Runtime"), MicroK8s /var/snap/microk8s/current/args/containerd.toml (its add-on nvidia).
"""

import re
from typing import NamedTuple

from gpushare_plugin.doctor.node.host import HostRoot
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
    """How NVIDIA's runtime gets into the configuration, as an instruction."""
    templates: tuple[str, ...] = ()
    """The names of the templates beside `file`, of which each start makes `file`; none where people edit `file`."""

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
_FINDS = "install NVIDIA's container toolkit and restart {}, which finds the runtime in /usr/bin when it starts"
TEMPLATES = ("config-v3.toml.tmpl", "config.toml.tmpl")
"""The names of the templates of K3s and RKE2, beside the configuration that is made of the first one that is there."""
_BASE = 'template"base"'
"""What stands in a template, without spaces, for all that the distribution writes itself."""
_OF_VERSION_2 = re.compile(r"^version\s*=\s*2\b", re.MULTILINE)
_DISTRIBUTIONS = (
    Distribution(
        "K3s",
        "/var/lib/rancher/k3s/agent/etc/containerd/config.toml",
        "systemctl restart k3s, or k3s-agent",
        _FINDS.format("K3s"),
        TEMPLATES,
    ),
    Distribution(
        "RKE2",
        "/var/lib/rancher/rke2/agent/etc/containerd/config.toml",
        "systemctl restart rke2-server, or rke2-agent",
        _FINDS.format("RKE2"),
        TEMPLATES,
    ),
    Distribution(
        "k0s",
        "/etc/k0s/containerd.toml",
        "systemctl restart k0scontroller, or k0sworker",
        "write the handler into a file of /etc/k0s/containerd.d and restart k0s",
    ),
    Distribution(
        "MicroK8s",
        "/var/snap/microk8s/current/args/containerd.toml",
        "snap restart microk8s.daemon-containerd",
        "run `microk8s enable nvidia`",
    ),
    Distribution("", "/etc/containerd/config.toml", "systemctl restart containerd", _CONFIGURES),
)


def find_distribution(host: HostRoot) -> Distribution | None:
    """Return whose containerd the node has, None without a configuration or a socket of containerd."""
    for each in _DISTRIBUTIONS:
        if host.exists(each.file):
            return each
    return _DISTRIBUTIONS[-1] if host.exists("/run/containerd/containerd.sock") else None
