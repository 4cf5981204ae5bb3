"""A limit for the memory shared by MPS servers and clients as /dev/shm: a separate tmpfs on the host.

Facts: tmpfs(5); mount(2); mount_namespaces(7): a mount made in a container appears on the host only if the mount below
it is shared with the host (Bidirectional in Kubernetes). See proc_pid_mountinfo(5).
"""

import ctypes
import os
import re
from pathlib import Path

from gpushare_plugin.base.errors import GpushareError
from gpushare_plugin.base.memory import MIB
from gpushare_plugin.base.structs import Struct
from gpushare_plugin.config.schema.values import MemoryUnit

_NOSUID, _NODEV, _NOEXEC, _REMOUNT = 0x2, 0x4, 0x8, 0x20
_BYTES_OF_A_FILE = 4096
"""Bytes of the tmpfs for every file that the tmpfs can hold: names of files take memory of the kernel, too."""


class SharedMemoryError(GpushareError):
    """The shared memory has no limit; the message names the cause and the remedy."""


class _MountPoint(Struct, frozen=True):
    point: Path
    kind: str
    shared: bool


def bound(directory: Path, limit: MemoryUnit) -> None:
    """Mount a tmpfs of at most `limit` at `directory`, for the whole host; an existing tmpfs keeps its files.

    Raises SharedMemoryError; nothing is changed then.
    """
    directory = directory.resolve()
    found = _mount_of(directory)
    again = found.point == directory and found.kind == "tmpfs"
    if not (again or found.shared):
        raise SharedMemoryError(
            f"{found.point} is mounted without propagation to the host, so that containers would not see a tmpfs at "
            f"{directory}: give the container of gpushare mps its MPS root with mountPropagation: Bidirectional, or, "
            f"without a container, run mount --make-shared {found.point}"
        )
    size = limit.mib * MIB
    options = f"mode=1777,size={size},nr_inodes={size // _BYTES_OF_A_FILE}"
    # Pods can write any file to the tmpfs: the flags prevent use of a file as a device or a program.
    flags = _NOSUID | _NODEV | _NOEXEC | (_REMOUNT if again else 0)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"tmpfs", os.fsencode(directory), b"tmpfs", ctypes.c_ulong(flags), options.encode()) != 0:
        reason = os.strerror(ctypes.get_errno())
        raise SharedMemoryError(
            f"a tmpfs of {limit} cannot be mounted at {directory} ({reason}): run gpushare mps as root with "
            "CAP_SYS_ADMIN, and remove files there if they take more than that"
        )


def _mount_of(path: Path) -> _MountPoint:
    """Return the mount that contains `path`."""
    mounts = [_parse(line) for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    around = [each for each in mounts if path.is_relative_to(each.point)]
    # Of several mounts at the same point, the last mount counts.
    return max(reversed(around), key=lambda each: len(each.point.parts))


def _parse(line: str) -> _MountPoint:
    place, _, source = line.partition(" - ")
    _, _, _, _, point, _, *optional = place.split(" ")
    return _MountPoint(
        Path(_unescaped(point)), source.split(" ")[0], any(each.startswith("shared:") for each in optional)
    )


def _unescaped(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), text)
