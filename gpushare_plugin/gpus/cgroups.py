"""The cgroup of a container in the host's tree of cgroups (version 2), found by the IDs of pod and container.

Facts: the kubelet's names for the cgroups of pods, also below the directory of its `--cgroup-root`, as in nodes of
kind: pkg/kubelet/cm in Kubernetes (cgroup_manager_linux.go, pod_container_manager_linux.go). The runtimes' names for
the cgroups of containers: `<ID>` with the cgroupfs driver; with the systemd driver `cri-containerd-<ID>.scope`,
`crio-<ID>.scope` and, with cri-dockerd, `docker-<ID>.scope`. CRI-O's `crio-conmon-<ID>.scope` has no process of the
container. crun keeps a container in a cgroup `container` of the scope, later versions only if told to
(`run.oci.systemd.subgroup`; containers/crun#1768).

The kernel counts a process with a controller in the nearest cgroup for which the controller is enabled (its
Documentation/admin-guide/cgroup-v2.rst, "Enabling and Disabling"); the driver takes just that cgroup for the cgroup of
the process (NVIDIA/open-gpu-kernel-modules 615.71.09, kernel-open/nvidia/os-interface.c, `os_cgroup_for_pid`).

Names are compared whole, and no link is followed: a container that may create cgroups does so below its own cgroup,
where nothing but the `container` of crun is looked for.
"""

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from gpushare_plugin.base.structs import Struct
from gpushare_plugin.gpus.containers import CONTAINER_ID, POD_UID, uid_of_pod

_KUBEPODS = "kubepods"
MEMORY_CONTROLLERS = frozenset({"dmem", "misc"})
"""The controllers by which the driver limits memory, and finds the cgroup of a process."""
_QOS_CLASSES = ("burstable", "besteffort")
_POD_UID, _CONTAINER_ID = re.compile(POD_UID), re.compile(CONTAINER_ID)
_SCOPES = ("cri-containerd-{}.scope", "crio-{}.scope", "docker-{}.scope")


def pod_runs(root: Path, pod_uid: str) -> bool:
    """Return whether processes of a pod run; False where no cgroup of the pod is found below `root`, see above."""
    return Kubepods.below(root).runs(pod_uid)


def counted_above(cgroup: Path) -> Path | None:
    """Return the ancestor in which the driver counts the processes of a cgroup; None where in the cgroup itself.

    The driver takes limits for a cgroup in any case; where the driver counts elsewhere, it does not enforce the limits.
    Also None where nothing is known of the controllers.
    """
    levels = []
    while (controllers := controllers_of(cgroup)) is not None:
        levels.append((cgroup, bool(MEMORY_CONTROLLERS.intersection(controllers))))
        cgroup = cgroup.parent
    counting = (each for each, counts in levels if counts)
    if not levels or levels[0][1]:
        return None
    return next(counting, None)


def controllers_of(cgroup: Path) -> list[str] | None:
    """Return the controllers of a cgroup of version 2; None for another directory."""
    try:
        return (cgroup / "cgroup.controllers").read_text().split()
    except (OSError, UnicodeDecodeError):
        return None


def why_no_tree(root: Path, mounted_by: str = "") -> str:
    """Return why `root` is no tree of cgroups of version 2, and what to change, for people; empty if it is one.

    `mounted_by` says what mounts the tree, in brackets behind the remedy.
    """
    if controllers_of(root) is not None:
        return ""
    if not root.exists():
        return (
            f"there is no {root}, where the host's tree of cgroups of version 2 is expected; mount the tree "
            f"there{mounted_by}, or name with --cgroup-root where it is mounted"
        )
    return (
        f"{root} is no tree of cgroups of version 2, which driver limits need; boot the node with version 2 "
        "(systemd.unified_cgroup_hierarchy=1), or name its tree with --cgroup-root"
    )


class Kubepods(Struct, frozen=True):
    """The cgroups that contain all pods of the node: one, or several after a change of the kubelet's settings."""

    tops: tuple[Path, ...]
    """The directories, of the systemd driver (`….slice`) or the cgroupfs driver."""

    @classmethod
    def below(cls, root: Path) -> Self:
        """Look for the cgroups of all pods in `root`, and in each directory of `root`."""
        return cls(tuple(top for top in (*_tops(root), *_nested(root)) if _is_directory(top)))

    @property
    def controllers(self) -> tuple[str, ...]:
        """The controllers of any of these cgroups, in one of which the pods are."""
        return tuple(dict.fromkeys(name for top in self.tops for name in controllers_of(top) or ()))

    def container(self, pod_uid: str, container_id: str) -> Path | None:
        """Return the cgroup of a container, None if not found.

        The runtime's processes of the container are in this cgroup, or in cgroups that the container created below. An
        ID of another form than the kubelet's and the runtime's finds nothing.
        """
        if not (_POD_UID.fullmatch(pod_uid) and _CONTAINER_ID.fullmatch(container_id)):
            return None
        names = (container_id, *(scope.format(container_id) for scope in _SCOPES))
        for pod in self._pods(pod_uid):
            if found := next((pod / name for name in names if _is_directory(pod / name)), None):
                return _within(found)
        return None

    def runs(self, pod_uid: str) -> bool:
        """Return whether processes run in the cgroup of a pod, or below; False where no such cgroup is found."""
        return _POD_UID.fullmatch(pod_uid) is not None and any(map(_is_populated, self._pods(pod_uid)))

    def above_containers(self) -> Iterator[Path]:
        """Yield every cgroup above containers, each after those below: pods, their QoS class, and all pods."""
        for top in self.tops:
            classes = [above for above, _ in _places(top, "") if above != top and _is_directory(above)]
            for above in (*classes, top):
                yield from (each for each in subdirectories(above) if uid_of_pod(each.name))
            yield from classes
            yield top

    def _pods(self, uid: str) -> Iterator[Path]:
        """Yield the existing cgroups of a pod; the QoS class of the pod is not known."""
        for top in self.tops:
            for above, name in _places(top, uid):
                if _is_directory(above) and _is_directory(above / name):
                    yield above / name


def _tops(directory: Path) -> Iterator[Path]:
    yield directory / f"{_KUBEPODS}.slice"
    yield directory / _KUBEPODS


def _nested(root: Path) -> Iterator[Path]:
    """Yield where the cgroups of all pods would be with a `--cgroup-root` of the kubelet."""
    for above in subdirectories(root):
        yield above / (f"{above.stem}-{_KUBEPODS}.slice" if above.suffix == ".slice" else _KUBEPODS)


def subdirectories(cgroup: Path) -> list[Path]:
    """Return the cgroups directly below a cgroup; none for a cgroup that is gone."""
    try:
        with os.scandir(cgroup) as entries:
            return [cgroup / entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def _places(top: Path, uid: str) -> Iterator[tuple[Path, str]]:
    """Yield the directories in which the cgroup of a pod can be, each with the name of the cgroup."""
    if top.suffix != ".slice":
        yield top, f"pod{uid}"
        yield from ((top / qos, f"pod{uid}") for qos in _QOS_CLASSES)
        return
    # In names of slices a dash separates parent and child, so the kubelet replaces the dashes of the UID.
    pod = f"pod{uid.replace('-', '_')}.slice"
    yield top, f"{top.stem}-{pod}"
    yield from ((top / f"{top.stem}-{qos}.slice", f"{top.stem}-{qos}-{pod}") for qos in _QOS_CLASSES)


def _within(cgroup: Path) -> Path:
    """Return the cgroup of crun in the scope of a container, where the scope itself has no process.

    A container that may create cgroups can create the same name, but stays limited while a process of the container
    is outside of the new cgroup.
    """
    inner = cgroup / "container"
    if cgroup.suffix == ".scope" and _is_directory(inner) and not _has_processes(cgroup):
        return inner
    return cgroup


def _has_processes(cgroup: Path) -> bool:
    try:
        return bool((cgroup / "cgroup.procs").read_bytes())
    except OSError:  # not known
        return True


def _is_populated(cgroup: Path) -> bool:
    """Return whether a process is in a cgroup of version 2 or below (cgroup-v2.rst, "Un-populated Notification")."""
    try:
        return "populated 1" in (cgroup / "cgroup.events").read_text().splitlines()
    except OSError:  # removed meanwhile
        return False


def _is_directory(path: Path) -> bool:
    try:
        return stat.S_ISDIR(path.lstat().st_mode)
    except OSError:
        return False
