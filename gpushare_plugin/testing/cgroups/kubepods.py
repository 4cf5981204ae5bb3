"""The cgroups of pods and their containers, under the names of a kubelet and of a container runtime.

Facts: pkg/kubelet/cm in Kubernetes (cgroup_manager_linux.go, pod_container_manager_linux.go) for pods;
internal/cri/server/podsandbox of containerd, internal/config/cgmgr of CRI-O, and systemd.slice(5) for containers.
"""

import contextlib
from collections.abc import Collection, Iterator
from pathlib import Path, PurePosixPath
from typing import Literal

from gpushare_plugin.base.structs import Struct
from gpushare_plugin.testing.cgroups.tree import Cgroups

Driver = Literal["systemd", "cgroupfs"]
"""The cgroup driver of kubelet and runtime."""
Qos = Literal["guaranteed", "burstable", "besteffort"]
"""The QoS class of a pod."""
Prefix = Literal["cri-containerd", "crio", "docker"]
"""How a runtime begins the names of scopes with the systemd driver."""


class PodCgroups(Struct, frozen=True):
    """The cgroups of a node's pods."""

    cgroups: Cgroups
    """Where the cgroups are made."""
    driver: Driver = "systemd"
    """The cgroup driver of kubelet and runtime."""
    above: str = ""
    """The kubelet's `--cgroup-root` without the slash, as `kubelet` in a node of kind; empty for the root."""
    prefix: Prefix = "cri-containerd"
    """The runtime's prefix of scopes."""
    inner: str = ""
    """The cgroup that the runtime makes in a scope for the processes, as crun's `container`; empty for none."""

    def container(self, pod_uid: str, container_id: str, qos: Qos = "burstable", without: Collection[str] = ()) -> Path:
        """Make the cgroup of a container, and return where its processes are; `without` are controllers left out."""
        return self.cgroups.make(str(self.path(pod_uid, container_id, qos)), without)

    def path(self, pod_uid: str, container_id: str, qos: Qos = "burstable") -> PurePosixPath:
        """Return the path of the processes of a container, below the root."""
        pod = self._pod(pod_uid, qos)
        return pod / container_id if self.driver == "cgroupfs" else pod / self._scope(container_id) / self.inner

    def runtime_path(self, pod_uid: str, container_id: str, qos: Qos = "burstable") -> str:
        """Return `linux.cgroupsPath` of a container's OCI specification."""
        pod = self._pod(pod_uid, qos)
        return f"/{pod / container_id}" if self.driver == "cgroupfs" else f"{pod.name}:{self.prefix}:{container_id}"

    def remove_container(self, pod_uid: str, container_id: str, qos: Qos = "burstable") -> None:
        """Remove the cgroup of a container, whose processes have ended."""
        cgroup = self.cgroups.root / self.path(pod_uid, container_id, qos)
        self.cgroups.remove(cgroup)
        if self.inner and self.driver == "systemd":
            self.cgroups.remove(cgroup.parent)

    def remove_pod(self, pod_uid: str, qos: Qos = "burstable") -> None:
        """Remove the cgroup of a pod, whose containers are removed already; nothing if there is none."""
        with contextlib.suppress(FileNotFoundError):
            self.cgroups.remove(self.cgroups.root / self._pod(pod_uid, qos))

    def _scope(self, container_id: str) -> str:
        return f"{self.prefix}-{container_id}.scope"

    def _pod(self, uid: str, qos: Qos) -> PurePosixPath:
        names = [*filter(None, [self.above]), "kubepods", *([] if qos == "guaranteed" else [qos])]
        if self.driver == "cgroupfs":
            return PurePosixPath(*names, f"pod{uid}")
        return PurePosixPath(*_slices([*names, f"pod{uid.replace('-', '_')}"]))


def _slices(names: Collection[str]) -> Iterator[str]:
    """Yield the names of slices, of which each begins with the names of those above (systemd.slice(5))."""
    begin = ""
    for name in names:
        begin = f"{begin}-{name}" if begin else name
        yield f"{begin}.slice"
