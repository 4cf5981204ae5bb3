"""The memory that cgroups reserve for the containers below them, and what containers left behind there.

With the kernel's controller `dmem`, NVML adds the soft limit of a cgroup to `dmem.min` of every cgroup above, and
subtracts it only when the soft limit is lowered through NVML. The end of a container removes the cgroup alone, so the
cgroups above keep reserving memory for nobody (NVIDIA, "MPS v3 Memory Partitioning", "Ancestor reservation
propagation"). Nothing of this was seen on a card.

The repair sets the cgroup above through NVML as well, which corrects what is above that cgroup by the same amount.
Files `dmem.*` are never written here.
"""

from collections.abc import Iterator
from pathlib import Path

from gpushare_plugin.base.structs import Struct, replace
from gpushare_plugin.core.driver_limits import MemoryLimit
from gpushare_plugin.gpus.cgroups import Kubepods, subdirectories
from gpushare_plugin.gpus.memory_limits import LimitError, MemoryLimits

_FILE = "dmem.min"
"""The file of a cgroup that can reserve memory of devices (the kernel's Documentation/admin-guide/cgroup-v2.rst)."""


class StaleReservation(Struct, frozen=True):
    """A cgroup that reserves more memory than the cgroups below it."""

    cgroup: Path
    """The cgroup."""
    found: int
    """The bytes that the cgroup reserves."""
    expected: int
    """The bytes that the cgroups below reserve together."""
    repaired: bool = False
    """Whether the cgroup was set to reserve the expected bytes."""


class ReservationCheck(Struct, frozen=True):
    """What a check found."""

    stale: tuple[StaleReservation, ...] = ()
    """The cgroups that reserve more memory than the cgroups below them, each after those below."""
    complete: bool = True
    """Whether all cgroups were compared; one may end during the check, or the GPU may not answer."""


class Reservations(Struct, frozen=True):
    """A check of the cgroups above containers."""

    root: Path
    """The root of the tree of cgroups, which reserves nothing."""
    kubepods: Kubepods
    """The cgroups that contain all pods."""
    before: frozenset[StaleReservation] = frozenset()
    """What the last check found. Only what is found twice is repaired: a limit may be set at this moment."""

    def check(self, limits: MemoryLimits, uuid: str) -> ReservationCheck:
        """Find the cgroups that reserve too much; repair those that the last check found."""
        stale: list[StaleReservation] = []
        complete = True
        for cgroup in self._from_below():
            try:
                stale += self._checked(limits, uuid, cgroup)
            except LimitError:
                complete = False
        return ReservationCheck(tuple(stale), complete)

    def _from_below(self) -> Iterator[Path]:
        yield from self.kubepods.above_containers()
        outside = dict.fromkeys(each for top in self.kubepods.tops for each in top.parents)
        yield from (each for each in outside if each != self.root and each.is_relative_to(self.root))

    def _checked(self, limits: MemoryLimits, uuid: str, cgroup: Path) -> Iterator[StaleReservation]:
        """Yield a cgroup that reserves too much, nothing for any other cgroup; raises LimitError."""
        found = _compared(limits, uuid, cgroup)
        if found is not None and found in self.before:
            hard = limits.read(uuid, cgroup).limit.hard
            limits.set(uuid, cgroup, MemoryLimit(hard, found.expected))
            yield replace(found, repaired=True)
        elif found is not None:
            yield found


def _compared(limits: MemoryLimits, uuid: str, cgroup: Path) -> StaleReservation | None:
    """Return a cgroup that reserves more than the cgroups below, None for any other cgroup; raises LimitError."""
    if not (cgroup / _FILE).exists() or not (found := limits.read(uuid, cgroup).limit.soft):
        return None
    expected = sum(limits.read(uuid, each).limit.soft for each in subdirectories(cgroup) if (each / _FILE).exists())
    return StaleReservation(cgroup, found, expected) if found > expected else None
