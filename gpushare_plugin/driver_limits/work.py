"""The work on one GPU at one look: every call of the driver is here, in a thread that may hang without harm to others.

Facts: the driver keeps limits by the kernel's address of a cgroup and forgets nothing when a cgroup is removed
(NVIDIA/open-gpu-kernel-modules 615.71.09, memacct.c), so a new cgroup can begin with the limits of an old one. Only
limits that were set and read back prove that a driver limits memory: the answer to a read can be the same where no
limit was set and where nothing can be limited.
"""

import contextlib
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from gpushare_plugin.base.structs import Struct, field
from gpushare_plugin.core.driver_limits import NO_LIMIT, MemoryLimit
from gpushare_plugin.driver_limits.reservations import ReservationCheck, Reservations
from gpushare_plugin.gpus.memory_limits import LimitError, MemoryLimits, NoCgroupError, NoLimitAnswerError


class Keep(Struct, frozen=True):
    """A container that is to have limits."""

    container_id: str
    """The runtime's ID of the container."""
    cgroup: Path
    """The cgroup of the container."""
    limit: MemoryLimit
    """The limits to have."""
    confirmed: bool
    """Whether these limits were in effect before."""


class LimitWork(Struct, frozen=True):
    """What was found of the limits of a container, and done."""

    found: MemoryLimit | None = None
    """The limits before the work; None where the driver named none."""
    changed: bool = False
    """Whether the limits were set."""
    age: float = 0.0
    """The seconds for which the cgroup existed at the end of the work."""
    reason: str | None = None
    """Why the limits are not known to be in effect; None where they are."""
    gone: bool = False
    """Whether the cgroup is gone."""


class Job(Struct, frozen=True):
    """The work on a GPU at a look."""

    uuid: str
    """The UUID of the GPU."""
    prove_in: tuple[Path, ...] = ()
    """The cgroups of all pods, on which to prove that the GPU takes limits; none where no proof is due."""
    keep: tuple[Keep, ...] = ()
    """The containers that are to have limits."""
    leave: Mapping[str, Path] = field(default_factory=dict)
    """The cgroups of containers that are no longer wanted, by the ID of the container."""
    reservations: Reservations | None = None
    """The cgroups whose reserved memory is to be checked; None where no check is due."""


class Report(Struct, frozen=True):
    """What came of the work on a GPU."""

    proven: bool = False
    """Whether a limit was set and read back, or was read."""
    reason: str | None = None
    """Why the proof failed; None where the proof succeeded or was not due."""
    kept: Mapping[str, LimitWork] = field(default_factory=dict)
    """What was done for containers, by the ID of the container."""
    left: frozenset[str] = frozenset()
    """The IDs of the containers that have ended, and need nothing any more."""
    reservations: ReservationCheck | None = None
    """What the check of reserved memory found; None where no check was due."""


def work(limits: MemoryLimits, job: Job) -> Report:
    """Do the work on a GPU; may block. No failure at one container stops the work for another."""
    kept = {each.container_id: _keep(limits, job.uuid, each) for each in job.keep}
    left = frozenset(id_ for id_, cgroup in job.leave.items() if _leave(limits, job.uuid, cgroup))
    seen = any(each.limit != NO_LIMIT and kept[each.container_id].reason is None for each in job.keep)
    reason = None if seen or not job.prove_in else _prove(limits, job.uuid, job.prove_in)
    checked = None if job.reservations is None else job.reservations.check(limits, job.uuid)
    return Report(seen or (bool(job.prove_in) and reason is None), reason, kept, left, checked)


def _keep(limits: MemoryLimits, uuid: str, wanted: Keep) -> LimitWork:
    """Set the limits of a container, unless the container has them."""
    found: MemoryLimit | None = None
    try:
        with contextlib.suppress(NoLimitAnswerError):
            found = limits.read(uuid, wanted.cgroup).limit
        # Without an answer, "no limit" is set once, because of what an earlier cgroup may have left.
        silent = found is None and wanted.limit == NO_LIMIT and wanted.confirmed
        changed = found != wanted.limit and not silent
        if changed:
            limits.set(uuid, wanted.cgroup, wanted.limit)
        return LimitWork(found, changed, _age(wanted.cgroup))
    except (NoCgroupError, FileNotFoundError):
        return LimitWork(gone=True)
    except LimitError as error:
        return LimitWork(found, reason=str(error))


def _age(cgroup: Path) -> float:
    """Return the seconds since the creation of a cgroup; raises FileNotFoundError.

    The kernel keeps no time of creation of a cgroup. The time of the last change of a directory is when the kernel
    began to keep the directory in memory: at the creation, unless the kernel dropped the directory for lack of memory
    since (seen with Linux 6.18). So the true number may be larger, and is exact while the container is new.
    """
    return max(0.0, time.time() - cgroup.stat().st_ctime)


def _leave(limits: MemoryLimits, uuid: str, cgroup: Path) -> bool:
    """Remove the limits of an ended container whose cgroup still exists; return whether the container has ended."""
    try:
        ended = "populated 0" in (cgroup / "cgroup.events").read_text().splitlines()
    except OSError:
        return not cgroup.exists()
    if ended:
        with contextlib.suppress(LimitError):
            limits.set(uuid, cgroup, NO_LIMIT)
    return ended


def _prove(limits: MemoryLimits, uuid: str, tops: Iterable[Path]) -> str | None:
    """Set the limits that the kubepods cgroup has, which changes nothing; return why that fails, None otherwise."""
    reason = None
    for top in tops:
        try:
            found = NO_LIMIT
            with contextlib.suppress(NoLimitAnswerError):
                found = limits.read(uuid, top).limit
            limits.set(uuid, top, found)
        except LimitError as error:
            reason = str(error)
        else:
            return None
    return reason
