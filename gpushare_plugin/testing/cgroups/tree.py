"""A tree of cgroups (version 2): files in a folder that look like the kernel's, or cgroups of the machine.

Facts: the kernel's Documentation/admin-guide/cgroup-v2.rst (core files; a controller is enabled from the top down; when
a cgroup can be removed); kernel/cgroup/dmem.c and misc.c there (files of the controllers, and which the root has).
"""

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Protocol

ADDRESS = ".address"
"""The file of a described cgroup with the address of the kernel's object, which only the kernel and the driver see."""
_PROCESSES, _CONTROLLERS, _EVENTS = "cgroup.procs", "cgroup.controllers", "cgroup.events"
_DMEM = {"max": "max", "low": 0, "min": 0, "current": 0, "peak": 0}
"""The files of the controller dmem, with the number of each region of memory in a new cgroup."""


class Cgroups(Protocol):
    """Cgroups that a test makes."""

    root: Path
    """The directory in which a program under test looks for cgroups, in place of `/sys/fs/cgroup`."""

    def make(self, path: str, without: Collection[str] = ()) -> Path:
        """Make a cgroup, and the missing ones above, and return its directory; what is there already stays.

        The cgroups that are made have the controllers of their parents, except for those in `without`.
        """
        ...

    def remove(self, cgroup: Path) -> None:
        """Remove a cgroup; raises OSError (EBUSY) for one with processes or children."""
        ...

    def enter(self, cgroup: Path, pid: int) -> None:
        """Put a described process into a cgroup."""
        ...

    def leave(self, cgroup: Path, pid: int) -> None:
        """Let a described process of a cgroup end."""
        ...


class CgroupTree:
    """Cgroups described by files in a folder."""

    def __init__(
        self,
        root: Path,
        controllers: Collection[str] = ("cpu", "memory", "pids", "misc"),
        regions: Mapping[str, int] | None = None,
        *,
        reuses_addresses: bool = False,
    ) -> None:
        """Make the root of a tree whose kernel has these `controllers`.

        `regions` are the memories that the controller dmem knows, with their bytes. With `reuses_addresses` the kernel
        gives a new cgroup the address of the one that was removed last, and otherwise an address of its own.
        """
        self.root = root
        self._regions = dict(regions or {})
        self._addresses = count(1)
        self._free: list[str] = []
        self._reuses = reuses_addresses
        root.mkdir(parents=True, exist_ok=True)
        self._describe(root, controllers)

    def make(self, path: str, without: Collection[str] = ()) -> Path:
        """Make a cgroup, and the missing ones above."""
        cgroup = self.root
        for name in Path(path).parts:
            above, cgroup = cgroup, cgroup / name
            if not cgroup.exists():
                enabled = [each for each in controllers_of(above) if each not in without]
                (above / "cgroup.subtree_control").write_text(" ".join(enabled) + "\n")
                cgroup.mkdir()
                self._describe(cgroup, enabled)
        return cgroup

    def remove(self, cgroup: Path) -> None:
        """Remove a cgroup; raises OSError (EBUSY) for one with processes or children."""
        if processes_of(cgroup) or any(each.is_dir() for each in cgroup.iterdir()):
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), str(cgroup))
        self._free.append((cgroup / ADDRESS).read_text())
        shutil.rmtree(cgroup)

    def enter(self, cgroup: Path, pid: int) -> None:
        """Put a process into a cgroup."""
        self._populate(cgroup, [*processes_of(cgroup), pid])

    def leave(self, cgroup: Path, pid: int) -> None:
        """Let a process of a cgroup end."""
        self._populate(cgroup, [each for each in processes_of(cgroup) if each != pid])

    def _populate(self, cgroup: Path, processes: Collection[int]) -> None:
        """Write down the processes of a cgroup, and in it and all above whether there are any in or below them."""
        (cgroup / _PROCESSES).write_text("".join(f"{each}\n" for each in processes))
        for each in lineage(cgroup):
            if each != self.root:
                populated = any(file.read_text() for file in each.rglob(_PROCESSES))
                (each / _EVENTS).write_text(f"populated {populated:d}\nfrozen 0\n")

    def _describe(self, cgroup: Path, controllers: Collection[str]) -> None:
        is_root = cgroup == self.root
        files = {
            _PROCESSES: "",
            _CONTROLLERS: " ".join(controllers) + "\n",
            "cgroup.subtree_control": "\n",
            ADDRESS: self._free.pop() if self._free and self._reuses else f"{next(self._addresses)}\n",
        }
        if not is_root:
            files[_EVENTS] = "populated 0\nfrozen 0\n"
        if "misc" in controllers:
            files |= {"misc.capacity": ""} if is_root else {"misc.max": "", "misc.current": "", "misc.events": ""}
        if "dmem" in controllers:
            files |= {"dmem.capacity": _lines(self._regions)} if is_root else {}
            names = ("current",) if is_root else _DMEM
            files |= {f"dmem.{name}": _lines(dict.fromkeys(self._regions, _DMEM[name])) for name in names}
        for name, text in files.items():
            (cgroup / name).write_text(text)


class RealCgroups:
    """Cgroups of the machine, all below one that `real_cgroups` has made."""

    def __init__(self, root: Path) -> None:
        """Make cgroups below `root`, which is a cgroup."""
        self.root = root

    def make(self, path: str, without: Collection[str] = ()) -> Path:
        """Make a cgroup, and the missing ones above; raises ValueError for controllers: the machine decides on them."""
        if without:
            raise ValueError(f"controllers of cgroups of the machine are as they are: {', '.join(without)}")
        cgroup = self.root / path
        cgroup.mkdir(parents=True, exist_ok=True)
        return cgroup

    def remove(self, cgroup: Path) -> None:
        """Remove a cgroup; raises OSError (EBUSY) for one with processes or children."""
        cgroup.rmdir()

    def enter(self, cgroup: Path, pid: int) -> None:
        """Do nothing: a described process is in no cgroup of the machine."""

    def leave(self, cgroup: Path, pid: int) -> None:
        """Do nothing, as `enter`."""


@contextlib.contextmanager
def real_cgroups() -> Iterator[RealCgroups | None]:
    """Make a cgroup of the machine, and remove it with all below at the end; None where that is not possible."""
    mount = next(_mounts(), None)
    if mount is None or not os.access(mount, os.W_OK):
        yield None
        return
    root = Path(tempfile.mkdtemp(prefix="gpushare-test-", dir=mount))
    try:
        yield RealCgroups(root)
    finally:
        for folder, _, _ in os.walk(root, topdown=False):
            Path(folder).rmdir()


def controllers_of(cgroup: Path) -> list[str]:
    """Return the controllers that count for the processes of a cgroup itself."""
    return (cgroup / _CONTROLLERS).read_text().split()


def processes_of(cgroup: Path) -> list[int]:
    """Return the processes of a cgroup."""
    return [int(each) for each in (cgroup / _PROCESSES).read_text().split()]


def is_cgroup(path: Path) -> bool:
    """Return whether a directory is a cgroup."""
    return (path / _PROCESSES).exists()


def lineage(cgroup: Path) -> Iterator[Path]:
    """Yield a cgroup, and then each ancestor up to the root."""
    while is_cgroup(cgroup):
        yield cgroup
        cgroup = cgroup.parent


def _lines(numbers: Mapping[str, object]) -> str:
    return "".join(f"{name} {number}\n" for name, number in numbers.items())


def _mounts() -> Iterator[Path]:
    """Yield where cgroups of version 2 are mounted (proc_pid_mountinfo(5))."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        mount, _, kind = line.partition(" - ")
        if kind.split()[0] == "cgroup2":
            yield Path(mount.split()[4])
