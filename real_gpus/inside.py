"""Starts a program with the mounts and in the cgroup of a container: `python -m real_gpus.inside JSON`.

A mount namespace (mount_namespaces(7)) with a root of its own holds the directories of the machine and the mounts of
the container. Both end with the program, and the machine sees nothing of them. This module imports nothing of gpushare.
"""

import ctypes
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_LIBC = ctypes.CDLL(None, use_errno=True)
_NEW_MOUNT_NAMESPACE = 0x00020000
_READ_ONLY, _REMOUNT, _BIND, _WITH_ALL_BELOW, _PRIVATE = 1, 32, 4096, 16384, 1 << 18
"""Flags of mount(2) and unshare(2), from linux/mount.h and linux/sched.h."""


def main(text: str) -> None:
    """Become the program that `text` describes.

    `command` and `environment` are those of the program; `cgroup` is the folder of the cgroup, empty for none; `root`
    an empty folder; `mounts` are triples of a path in the container, a path of the machine and whether the mount is
    read-only; `user` is the user ID of the program.
    """
    wanted: Mapping[str, Any] = json.loads(text)
    if wanted["cgroup"]:
        with Path(wanted["cgroup"], "cgroup.procs").open("a") as processes:
            processes.write(f"{os.getpid()}\n")
    if wanted["mounts"]:
        _enter(Path(wanted["root"]), wanted["mounts"])
    if wanted["user"] != os.geteuid():
        os.setgroups([])
        os.setgid(wanted["user"])
        os.setuid(wanted["user"])
    os.execvpe(wanted["command"][0], wanted["command"], wanted["environment"])  # noqa: S606 - our own program


def _enter(root: Path, mounts: Sequence[tuple[str, str, bool]]) -> None:
    if _LIBC.unshare(_NEW_MOUNT_NAMESPACE):
        raise _error("unshare")
    _mount("none", Path("/"), "", _WITH_ALL_BELOW | _PRIVATE)
    _mount("tmpfs", root, "tmpfs", 0)
    for each in Path("/").iterdir():
        here = root / each.name
        if each.is_symlink():
            here.symlink_to(each.readlink())
        elif each.is_dir():
            here.mkdir()
            _mount(str(each), here, "", _BIND | _WITH_ALL_BELOW)
    for inside, outside, read_only in mounts:
        target = root / inside.lstrip("/")
        target.mkdir(parents=True, exist_ok=True)
        _mount(outside, target, "", _BIND)
        if read_only:
            _mount("none", target, "", _BIND | _REMOUNT | _READ_ONLY)
    os.chroot(root)
    os.chdir("/")


def _mount(source: str, target: Path, kind: str, flags: int) -> None:
    if _LIBC.mount(source.encode(), os.fsencode(target), kind.encode(), flags, None):
        raise _error(f"mount {source} at {target}")


def _error(what: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{what}: {os.strerror(number)}")


if __name__ == "__main__":
    main(sys.argv[1])
