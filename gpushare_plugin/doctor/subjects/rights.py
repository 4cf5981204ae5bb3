"""The rights of this process, which decide how much of the node it can see; and SELinux, which decides for pods.

Facts: proc_pid_status(5) (`CapEff`); the kernel's Documentation/admin-guide/LSM/SELinux.rst and selinux(8)
(`/sys/fs/selinux/enforce`).
"""

import os
from collections.abc import Collection, Iterator
from pathlib import Path

from gpushare_plugin.base.structs import Struct
from gpushare_plugin.base.text import some_of
from gpushare_plugin.doctor.node.diagnosis import WITH_RIGHTS, Diagnosis, not_looked_at, right
from gpushare_plugin.doctor.node.host import HostRoot

RIGHTS, SELINUX = "rights of this process", "SELinux"
_STATUS = Path("/proc/self/status")
_PATHS_TO_SHOW = 2
_SYS_ADMIN = 21
"""The number of CAP_SYS_ADMIN (capability.h)."""


class RightsFacts(Struct, frozen=True):
    """The rights of this process."""

    user: int
    """The effective user ID."""
    sys_admin: bool
    """Whether the process has CAP_SYS_ADMIN."""
    enforcing: bool | None
    """Whether SELinux rejects what its policy does not allow; None without SELinux."""


def read_rights(host: HostRoot) -> RightsFacts:
    """Return the rights of this process, and whether the node enforces SELinux."""
    enforce = host.line("/sys/fs/selinux/enforce")
    return RightsFacts(os.geteuid(), bool(_capabilities() >> _SYS_ADMIN & 1), enforce == "1" if enforce else None)


def _capabilities() -> int:
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1], 16) for line in lines if line.startswith("CapEff:")), 0)


def judge_rights(facts: RightsFacts, refused: Collection[str]) -> Iterator[Diagnosis]:
    """Yield the lines about the rights of this process, which may not read the paths in `refused`, and SELinux."""
    who = "root" if facts.user == 0 else f"user {facts.user}"
    rights = f"{who}, {'with' if facts.sys_admin else 'without'} CAP_SYS_ADMIN"
    if refused:
        paths = some_of(sorted(refused), _PATHS_TO_SHOW)
        yield not_looked_at(
            RIGHTS, f"{rights}, may not read {paths}: lines above say less than they could. {WITH_RIGHTS}"
        )
    else:
        yield right(RIGHTS, rights)
    if facts.enforcing:
        yield right(
            SELINUX,
            "enforcing: the daemon's pod needs seLinuxOptions {type: spc_t} in securityContext of the chart to reach "
            "the kubelet's sockets",
        )
    else:
        yield right(SELINUX, "off" if facts.enforcing is None else "permissive")
