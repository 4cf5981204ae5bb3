"""The memory that processes allocate on the cards of a described node, as the driver charges it to their cgroups.

Facts: [S] NVIDIA/open-gpu-kernel-modules 615.71.09, src/nvidia/src/kernel/mem_mgr/memacct.c (what is charged, and to
which cgroup) and kernel-open/nvidia/os-interface.c (`task_cgroup`: the cgroup of a process is the nearest one with the
controller); [K] torvalds/linux, kernel/cgroup/dmem.c; [M] NVIDIA, "Multi-Process Service", r615, "MPS v3 Memory
Partitioning". The library's own part is memory_limits.c.
"""

import fcntl
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from gpushare_plugin.base.memory import MIB
from gpushare_plugin.testing.cgroups.tree import ADDRESS, controllers_of, lineage

_ENTRY = struct.Struct("=6Q")
"""`struct limit_entry` of memory_limits.c."""


class Charge(Protocol):
    """Bytes that count for a cgroup, until they are released."""

    def release(self) -> None:
        """Count the bytes no longer."""
        ...


@dataclass(eq=False)
class HeldMemory:
    """Memory of a card that a process has; it is in use until each process that has it has freed it."""

    gpu: int
    """The index of the card."""
    mib: int
    """The size in MiB."""
    charges: Sequence[Charge]
    """What counts for limits; nothing where the driver charges nothing."""
    users: int = 1
    """The processes that have the memory."""

    def share(self) -> None:
        """Import the memory into another process, which the memory is not charged to ([S]: charges are counted)."""
        self.users += 1

    def free(self) -> None:
        """Free the memory in one process."""
        self.users -= 1
        if self.users == 0:
            for charge in self.charges:
                charge.release()


class Account(Protocol):
    """Who may allocate how much."""

    def charge(self, gpu: int, cgroup: Path, size: int) -> Sequence[Charge] | None:
        """Charge `size` bytes of a card to the cgroup of a process; None where that is beyond a limit."""
        ...


class ChargedMemory:
    """The memory of all cards of a node."""

    def __init__(self, account: Account | None) -> None:
        """Charge allocations to cgroups by `account`; None for a driver that charges nothing."""
        self._account = account
        self._allocations: list[HeldMemory] = []

    def allocate(self, gpu: int, cgroup: Path | None, mib: int, most: int, *, managed: bool) -> HeldMemory | None:
        """Allocate memory of a card that has `most` MiB for all; see `FakeNvml.allocate`."""
        if managed:
            return HeldMemory(gpu, mib, ())  # [M]: only the memory of the host counts
        if self.used_mib(gpu) + mib > most:
            return None
        charges: Sequence[Charge] | None = ()
        if self._account is not None and cgroup is not None:
            charges = self._account.charge(gpu, cgroup, mib * MIB)
        if charges is None:
            return None
        self._allocations.append(HeldMemory(gpu, mib, charges))
        return self._allocations[-1]

    def used_mib(self, gpu: int) -> int:
        """Return how much of a card processes have."""
        self._allocations = [each for each in self._allocations if each.users]
        return sum(each.mib for each in self._allocations if each.gpu == gpu)


class _Entry(NamedTuple):
    card: int
    device: int
    address: int
    soft: int
    hard: int
    used: int


class DriverTable:
    """The account of the driver itself, backend `misc`: only the limits of the nearest cgroup that has some count."""

    def __init__(self, file: Path) -> None:
        """Keep the account in the library's file."""
        self._file = file

    def charge(self, gpu: int, cgroup: Path, size: int) -> Sequence[Charge] | None:
        """Charge to the nearest cgroup with limits; nothing where there is none ([S]: NV_ERR_INVALID_LIMIT)."""
        with _locked(self._file) as table:
            entries = _entries(table.read_bytes())
            for each in lineage(_counted_in(cgroup)):
                for number, entry in enumerate(entries):
                    if (entry.card, entry.device, entry.address) != (gpu, *_identity(each)):
                        continue
                    if entry.used + size > entry.hard:
                        return None
                    entries[number] = entry._replace(used=entry.used + size)
                    table.write_bytes(_packed(entries))
                    return (_TableCharge(self._file, entry[:3], size),)
        return ()


class _TableCharge(NamedTuple):
    file: Path
    key: tuple[int, int, int]
    size: int

    def release(self) -> None:
        """Take the bytes off the entry, if the driver has not forgotten the entry."""
        with _locked(self.file) as table:
            entries = _entries(table.read_bytes())
            rest = [each._replace(used=each.used - self.size) if each[:3] == self.key else each for each in entries]
            table.write_bytes(_packed(rest))


class KernelFiles:
    """The account of the kernel, backend `dmem`: the limits of every level count ([K]: page_counter_try_charge)."""

    def __init__(self, file: Path, regions: Sequence[str]) -> None:
        """Keep the account in the files of the cgroups, under the lock of `file`; `regions` are the cards' memories."""
        self._file = file
        self._regions = regions

    def charge(self, gpu: int, cgroup: Path, size: int) -> Sequence[Charge] | None:
        """Charge to the cgroup and all above."""
        region = self._regions[gpu]
        with _locked(self._file):
            levels = [each for each in lineage(cgroup) if (each / "dmem.current").exists()]
            for level in levels:
                most = read_region(level / "dmem.max", region)
                if most is not None and (read_region(level / "dmem.current", region) or 0) + size > most:
                    return None
            for level in levels:
                _add(level / "dmem.current", region, size)
        return tuple(_FileCharge(self._file, level, region, size) for level in levels)


class _FileCharge(NamedTuple):
    file: Path
    cgroup: Path
    region: str
    size: int

    def release(self) -> None:
        """Take the bytes off a level, unless the level is gone."""
        with _locked(self.file):
            if (self.cgroup / "dmem.current").exists():
                _add(self.cgroup / "dmem.current", self.region, -self.size)


def read_region(file: Path, region: str) -> int | None:
    """Return the number of a memory in a file of the controller dmem; None for `max`, and without a line or a file."""
    if not file.exists():
        return None
    value = dict(line.split() for line in file.read_text().splitlines()).get(region, "max")
    return None if value == "max" else int(value)


def write_region(file: Path, region: str, number: int | str) -> None:
    """Write the number of a memory, as the kernel does, which keeps those of other memories."""
    lines = dict(line.split() for line in file.read_text().splitlines())
    file.write_text("".join(f"{name} {value}\n" for name, value in {**lines, region: number}.items()))


def forget(file: Path, cgroups: Path | None, regions: Iterable[str]) -> None:
    """Forget the driver's table, and the numbers of these memories in all cgroups ([K]: pools go with their region).

    The driver does so when it is unloaded ([S]: memacctRemoveGpu).
    """
    with _locked(file):
        file.write_bytes(b"")
        for name, number in ("max", "max"), ("min", 0), ("low", 0), ("current", 0):
            for each in cgroups.rglob(f"dmem.{name}") if cgroups else ():
                for region in regions:
                    write_region(each, region, number)


def _add(file: Path, region: str, size: int) -> None:
    write_region(file, region, (read_region(file, region) or 0) + size)


def _counted_in(cgroup: Path) -> Path:
    """Return the cgroup in which the processes of `cgroup` are counted: the nearest one that has the controller misc.

    A tree whose root knows nothing of the controller, as that of a machine without the controller, has it everywhere.
    """
    levels = list(lineage(cgroup))
    if not levels or not (levels[-1] / "cgroup.controllers").exists() or "misc" not in controllers_of(levels[-1]):
        return cgroup
    return next(each for each in levels if "misc" in controllers_of(each))


def _identity(cgroup: Path) -> tuple[int, int]:
    """Return how the driver knows a cgroup, as `identify` of memory_limits.c."""
    address = cgroup / ADDRESS
    if address.exists():
        return 0, int(address.read_text())
    state = cgroup.stat()
    return state.st_dev, state.st_ino


def _entries(content: bytes) -> list[_Entry]:
    return [_Entry(*numbers) for numbers in _ENTRY.iter_unpack(content)]


def _packed(entries: Sequence[_Entry]) -> bytes:
    return b"".join(_ENTRY.pack(*entry) for entry in entries)


@contextmanager
def _locked(file: Path) -> Iterator[Path]:
    """Hold the lock of the library's file, which is made if it is missing."""
    with file.open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield file
