"""Which container a process of the host is in, by its cgroup.

Facts: cgroups(7), proc_pid_cgroup(5), proc_pid_stat(5); how the kubelet names the cgroups of pods, from
pkg/kubelet/cm in Kubernetes (cgroup_manager_linux.go, pod_container_manager_linux.go); how runtimes name those of
containers: containerd and Docker `<ID>` or `<runtime>-<ID>.scope`, CRI-O `crio-<ID>.scope`.
"""

import os
import re
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from gpushare_plugin.foundation.text import in_words
from gpushare_plugin.model.usage.sample import HOST, Owner

_HOST_NAMESPACE = "pid:[4026531836]"
"""The PID namespace that the kernel starts with, which has the same number everywhere (PROC_PID_INIT_INO)."""

_UID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32}"
"""The second form is that of static pods, the hash of their manifest."""
_POD_FOLDER = re.compile(rf"pod({_UID})")
_POD_SLICE = re.compile(r"(?:[\w-]+-)?kubepods(?:-burstable|-besteffort)?-pod(\w+)\.slice")
"""With the systemd driver: dashes of the UID are underscores, because a dash leads to the parent slice."""
_CONTAINER = re.compile(r"(?:.*-)?([0-9a-f]{64})(?:\.scope)?")

_TICKS = os.sysconf("SC_CLK_TCK")
_STATE, _START = 0, 19
"""Fields of /proc/PID/stat, counted from the one behind the name."""
_ENDED = {"Z", "X"}


class HostProcess(NamedTuple):
    """What the kernel knows of a process: the name of its program, and whose it is."""

    program: str
    owner: Owner


def why_unknown(procfs: Path) -> str | None:
    """Return why process IDs of the host mean others here, or nothing; None where they mean the same.

    The driver reports IDs of the host's PID namespace. A node that is itself a container, as with kind, has another.
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
    """Return the time on the clock that the kernel notes the start of processes by, in seconds."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def look_up(pids: Iterable[int], seen_at: float, procfs: Path) -> Mapping[int, HostProcess]:
    """Return the processes of the host that had these IDs at a time of `now`; those that ended since are left out.

    A process that began later only has the ID of another one.
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
    except OSError:  # it has ended
        return None
    program, began = _identity(before)
    if began is None or began > seen_at or _identity(after)[1] != began:
        return None
    return HostProcess(program, owner(cgroups))


def _identity(stat: str) -> tuple[str, float | None]:
    """Return the name of a process, and when it began, None once it has ended; a process chooses its name itself."""
    name, _, rest = stat.partition("(")[2].rpartition(")")
    name = "".join(character if character.isprintable() else "?" for character in name)
    fields = rest.split()
    if len(fields) <= _START or fields[_STATE] in _ENDED:
        return name, None
    return name, int(fields[_START]) / _TICKS


def owner(cgroups: str) -> Owner:
    """Return whose a process is, by the text of its /proc/PID/cgroup.

    With version 1 each hierarchy has a line, and a container may be in some of them only. The outermost pod of a path
    counts: whatever is below, a container may have made itself, under the name of any other pod.

    So it is where the node itself is a container: its cgroup is no pod's, as in `/docker/<ID>/kubelet/kubepods/pod…`,
    or is not shown at all, since paths begin at the cgroup namespace of the reader and lead out of it by `/../..`
    (cgroup_namespaces(7)). Only where the node is a pod of another cluster, and its container has neither a cgroup nor
    a PID namespace of its own, its processes would be those of that pod: of one that this kubelet does not know, and
    never of a wrong one.
    """
    # By what the kernel ends lines with, and forbids in names: others, such as U+2028, may be in them.
    owners = [_owner(line.split(":", maxsplit=2)[-1]) for line in cgroups.split("\n")]
    in_pods = (each for each in owners if each.pod_uid)
    return next(in_pods, None) or next((each for each in owners if each.container_id), HOST)


def _owner(path: str) -> Owner:
    uid = container = ""
    # A runtime that has another driver than the kubelet writes `<slice>:<runtime>:<ID>`.
    for part in re.split("[/:]", path):
        if not uid and (pod := _pod(part)):
            uid, container = pod, ""
        elif (match := _CONTAINER.fullmatch(part)) and not container:
            container = match[1]
    return Owner(uid, container)


def _pod(part: str) -> str:
    if match := _POD_FOLDER.fullmatch(part):
        return match[1]
    if match := _POD_SLICE.fullmatch(part):
        return match[1].replace("_", "-")
    return ""
