"""The container of a host process, found by the cgroup of the process.

Facts: cgroups(7), proc_pid_cgroup(5), proc_pid_stat(5). The kubelet's names for the cgroups of pods: pkg/kubelet/cm in
Kubernetes (cgroup_manager_linux.go, pod_container_manager_linux.go). The runtimes' names for the cgroups of containers:
`<ID>` or `<runtime>-<ID>.scope` with containerd and Docker, `crio-<ID>.scope` with CRI-O.
"""

import os
import re
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from gpushare_plugin.base.text import in_words
from gpushare_plugin.core.usage import HOST, Owner

_HOST_NAMESPACE = "pid:[4026531836]"
"""The kernel's first PID namespace, with the same number on every host (PROC_PID_INIT_INO)."""

POD_UID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32}"
"""The UID of a pod; the second form is the UID of a static pod, the hash of the pod's manifest."""
CONTAINER_ID = r"[0-9a-f]{64}"
"""The runtime's ID of a container."""
_POD_FOLDER = re.compile(rf"pod({POD_UID})")
_POD_SLICE = re.compile(r"(?:[\w-]+-)?kubepods(?:-burstable|-besteffort)?-pod(\w+)\.slice")
"""The cgroup of a pod with the systemd driver. A dash separates parent slices, so the UID has underscores instead of
dashes."""
_CONTAINER = re.compile(rf"(?:.*-)?({CONTAINER_ID})(?:\.scope)?")

_TICKS = os.sysconf("SC_CLK_TCK")
_STATE, _START = 0, 19
"""Positions of the state and the start time in /proc/PID/stat, counted after the program's name."""
_ENDED = {"Z", "X"}


class HostProcess(NamedTuple):
    """A process of the host, as described by the kernel."""

    program: str
    """The name of the program, with `?` for unprintable characters."""
    owner: Owner
    """The pod and the container of the process."""
    began: float
    """The start of the process, in seconds of the boot-time clock; tells processes with the same number apart."""


def why_unknown(procfs: Path) -> str | None:
    """Return why host process IDs mean other processes here; None if gpushare is in the host's PID namespace.

    The driver reports process IDs of the host's PID namespace. A node inside a container, for example with kind, has
    another PID namespace.
    """
    try:
        namespace = str((procfs / "self/ns/pid").readlink())
    except OSError as error:
        return f"it is not known whether gpushare sees the processes of the host: {in_words(error)}"
    if namespace == _HOST_NAMESPACE:
        return None
    return (
        "gpushare does not see the processes of the host, so it is not known whose those of a GPU are: it needs the "
        "host's PID namespace (hostPID; in the chart: usage.hostPID)"
    )


def now() -> float:
    """Return the seconds on the boot-time clock, which the kernel uses for the start times of processes."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def look_up(pids: Iterable[int], seen_at: float, procfs: Path) -> Mapping[int, HostProcess]:
    """Return the host processes with these IDs at the time `seen_at`, a value of `now`; ended processes are left out.

    A process that began later only reuses the ID of an ended process, and is left out, too.
    """
    found = {}
    for pid in pids:
        if (process := _process(procfs / str(pid), seen_at)) is not None:
            found[pid] = process
    return found


def _process(folder: Path, seen_at: float) -> HostProcess | None:
    try:
        before = (folder / "stat").read_text(errors="backslashreplace")
        cgroups = (folder / "cgroup").read_text(errors="backslashreplace")
        after = (folder / "stat").read_text(errors="backslashreplace")
    except OSError:  # the process has ended
        return None
    program, began = _identity(before)
    if began is None or began > seen_at or _identity(after)[1] != began:
        return None
    return HostProcess(program, owner(cgroups), began)


def _identity(stat: str) -> tuple[str, float | None]:
    """Return the name and the start time of a process; the start time of an ended process is None.

    A process chooses its own name, so unprintable characters become `?`.
    """
    name, _, rest = stat.partition("(")[2].rpartition(")")
    name = "".join(character if character.isprintable() else "?" for character in name)
    fields = rest.split()
    if len(fields) <= _START or fields[_STATE] in _ENDED:
        return name, None
    return name, int(fields[_START]) / _TICKS


def owner(cgroups: str) -> Owner:
    """Return the owner of a process, given the text of /proc/PID/cgroup.

    With cgroup version 1, every hierarchy has a line, and a container may be in only some hierarchies. The outermost
    pod of a path counts: further inside, a container can create cgroups, even under the name of another pod.

    A node may itself be a container. The cgroup of such a node belongs to no pod, as in
    `/docker/<ID>/kubelet/kubepods/pod…`, or is not shown at all: paths begin at the cgroup namespace of the reader, and
    lead out of the namespace by `/../..` (cgroup_namespaces(7)). One case remains: the node is a pod of another
    cluster, and the node's container has neither a cgroup namespace nor a PID namespace of its own. Then the node's
    processes count as processes of the outer pod, a pod unknown to this kubelet. They never count as processes of a
    wrong pod of the node.
    """
    # Split only at newlines: the kernel forbids newlines in names, but not other line separators such as U+2028.
    owners = [_owner(line.split(":", maxsplit=2)[-1]) for line in cgroups.split("\n")]
    in_pods = (each for each in owners if each.pod_uid)
    return next(in_pods, None) or next((each for each in owners if each.container_id), HOST)


def _owner(path: str) -> Owner:
    uid = container = ""
    # A runtime with another cgroup driver than the kubelet's writes `<slice>:<runtime>:<ID>`.
    for part in re.split("[/:]", path):
        if not uid and (pod := uid_of_pod(part)):
            uid, container = pod, ""
        elif (match := _CONTAINER.fullmatch(part)) and not container:
            container = match[1]
    return Owner(uid, container)


def uid_of_pod(name: str) -> str:
    """Return the UID of the pod with a cgroup of this name, empty for a name that the kubelet gives no pod."""
    if match := _POD_FOLDER.fullmatch(name):
        return match[1]
    if match := _POD_SLICE.fullmatch(name):
        return match[1].replace("_", "-")
    return ""
