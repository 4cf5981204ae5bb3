"""What is known of the limits on one GPU: which containers have theirs since when, and when each is due again."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import structlog

from gpushare_plugin.base.backoff import Backoff
from gpushare_plugin.base.memory import MIB
from gpushare_plugin.base.structs import Struct
from gpushare_plugin.core.driver_limits import MemoryLimit
from gpushare_plugin.driver_limits.exchange import GpuStatus, LimitStatus
from gpushare_plugin.driver_limits.reservations import Reservations, StaleReservation
from gpushare_plugin.driver_limits.work import Job, Keep, LimitWork, Report
from gpushare_plugin.gpus.cgroups import Kubepods

_log = structlog.get_logger()

NO_CGROUP = "the cgroup of the container is not found: the container has not started or has ended"
"""Why a container has no limits, where the cgroup tells."""


class LimitsPace(Struct, frozen=True):
    """The times of the work, in seconds."""

    look: float = 1.0
    """The pause between two looks at all containers, and the longest wait for calls of the driver at a look."""
    ask: float = 15.0
    """The time between two checks of reserved memory, and between two touches of the file for the liveness probe."""
    first: float = 1.0
    """The wait before another attempt after a failure."""
    most: float = 60.0
    """The longest wait before another attempt."""
    patience: float = 10.0
    """The time after which a GPU counts as silent, and the longest wait for calls at the end of the process."""


class Retry(Struct):
    """When something is tried again."""

    backoff: Backoff
    """The waits after failures."""
    next_at: float = 0.0
    """The time of the next attempt."""

    def failed(self, now: float) -> float:
        """Count a failure; return the seconds until the next attempt."""
        wait = self.backoff.next()
        self.next_at = now + wait
        return wait

    def succeeded(self) -> None:
        """Make the next attempt due at once, and later waits short."""
        self.backoff.reset()
        self.next_at = 0.0


class _Limited(Struct):
    """The limits of a container on the GPU."""

    limit: MemoryLimit
    """The wanted limits."""
    retry: Retry
    """When the limits are looked at again."""
    cgroup: Path | None = None
    """The cgroup as last found; None while not found."""
    late: float | None = None
    """The seconds that the container ran before the wanted limits were in effect; None before they were."""
    differed: bool = False
    """Whether other limits than the wanted limits were found before."""
    corrected: int = 0
    """How often the limits were set again."""
    reason: str | None = None
    """Why the limits are not in effect."""


class GpuLimits:
    """The limits of all containers on one GPU."""

    def __init__(self, uuid: str, pace: LimitsPace, now: Callable[[], float]) -> None:
        """Know nothing yet; `now` returns seconds."""
        self.uuid = uuid
        """The UUID of the GPU."""
        self._pace = pace
        self._now = now
        self._containers: dict[str, _Limited] = {}
        self._leaving: dict[str, _Limited] = {}
        self._proven = False
        self._proof = self._retry()
        self._reason: str | None = None
        self._reserved = False
        self._reservations_at = 0.0
        self._stale: tuple[StaleReservation, ...] = ()

    def _retry(self) -> Retry:
        return Retry(Backoff(first=self._pace.first, most=self._pace.most))

    # ------------------------------------------------------------------ what is wanted

    def remember(self, container_id: str, status: LimitStatus) -> None:
        """Take over what an earlier process reported of a container."""
        self._leaving[container_id] = _Limited(
            status.limit, self._retry(), late=status.late, corrected=status.corrected, differed=bool(status.late)
        )

    def want(self, wanted: Mapping[str, MemoryLimit], cgroups: Mapping[str, Path | None], *, bursts: bool) -> None:
        """Set the wanted limits by the ID of the container; `cgroups` has the cgroups of all these containers.

        With `bursts`, containers that were never wanted may have left memory reserved: the hook limits a container that
        may end before the next look, or while no agent runs.
        """
        for id_ in self._containers.keys() - wanted.keys():
            self._leaving[id_] = self._containers.pop(id_)
        for id_, limit in wanted.items():
            each = self._containers.get(id_) or self._leaving.pop(id_, None)
            if each is None:
                each = _Limited(limit, self._retry())
            elif each.limit != limit:
                each = _Limited(limit, self._retry(), differed=True)
            each.cgroup = cgroups[id_]
            self._containers[id_] = each
        self._reserved |= bursts or any(limit.soft for limit in wanted.values())

    @property
    def idle(self) -> bool:
        """Whether no container has or had limits here."""
        return not self._containers and not self._leaving

    # ------------------------------------------------------------------ the work

    def job(self, root: Path, kubepods: Kubepods, *, offered: bool) -> Job:
        """Return the work that is due; the GPU is proven to take limits only where `offered` with limits."""
        now = self._now()
        keep = tuple(
            Keep(id_, each.cgroup, each.limit, each.late is not None)
            for id_, each in self._containers.items()
            if each.cgroup is not None and now >= each.retry.next_at
        )
        for id_ in [id_ for id_, each in self._leaving.items() if each.cgroup is None]:
            self._forget(id_)
        proof = offered and not self._proven and now >= self._proof.next_at
        return Job(
            self.uuid,
            kubepods.tops if proof else (),
            keep,
            {id_: each.cgroup for id_, each in self._leaving.items() if each.cgroup is not None},
            self._due_reservations(root, kubepods, now),
        )

    def _due_reservations(self, root: Path, kubepods: Kubepods, now: float) -> Reservations | None:
        if not self._reserved or now < self._reservations_at:
            return None
        self._reservations_at = now + self._pace.ask
        return Reservations(root, kubepods, frozenset(each for each in self._stale if not each.repaired))

    def _forget(self, id_: str) -> None:
        if self._leaving.pop(id_).limit.soft:  # the cgroups above may reserve memory for the container still
            self._reserved, self._reservations_at = True, 0.0

    def take(self, report: Report) -> None:
        """Take in what came of the work."""
        for id_, kept in report.kept.items():
            if (each := self._containers.get(id_)) is not None:
                self._take_one(id_, each, kept)
        for id_ in report.left & self._leaving.keys():
            self._forget(id_)
        self._take_proof(report)
        if report.reservations is not None:
            self._take_stale(report.reservations.stale)
            # A check that could not compare all cgroups proves nothing: another one follows.
            self._reserved |= not report.reservations.complete

    def _take_one(self, id_: str, each: _Limited, kept: LimitWork) -> None:
        if kept.gone:
            each.cgroup = None
            return
        if kept.reason is not None:
            each.differed = True
            wait = each.retry.failed(self._now())
            if kept.reason != each.reason:
                _log.warning(
                    "driver_limit_not_set",
                    uuid=self.uuid,
                    container_id=id_,
                    reason=kept.reason,
                    retry_seconds=wait,
                )
            each.reason = kept.reason
            return
        each.retry.succeeded()
        each.reason = None
        if kept.changed:
            self._take_change(id_, each, kept)
        elif each.late is None:
            each.late = round(kept.age, 1) if each.differed else 0.0

    def _take_change(self, id_: str, each: _Limited, kept: LimitWork) -> None:
        again = each.late is not None
        each.corrected += again
        each.late = round(kept.age, 1)
        each.differed = True
        limit, found = each.limit.words, "no limit" if kept.found is None else kept.found.words
        if again:
            _log.warning(
                "driver_limit_changed", uuid=self.uuid, container_id=id_, found=found, limit=limit, reason=_CHANGED
            )
        else:
            _log.info("driver_limit_set", uuid=self.uuid, container_id=id_, limit=limit, seconds=each.late)

    def _take_proof(self, report: Report) -> None:
        if report.proven:
            if not self._proven:
                _log.info("driver_limits_proven", uuid=self.uuid)
            self._proven, self._reason = True, None
            self._proof.succeeded()
        elif report.reason is not None:
            wait = self._proof.failed(self._now())
            if report.reason != self._reason:
                _log.error("driver_limits_impossible", uuid=self.uuid, reason=report.reason, retry_seconds=wait)
            self._reason = report.reason

    def _take_stale(self, stale: tuple[StaleReservation, ...]) -> None:
        for each in stale:
            path, found_mib, expected_mib = str(each.cgroup), each.found // MIB, each.expected // MIB
            if each.repaired:
                _log.info(
                    "driver_reservation_repaired",
                    uuid=self.uuid,
                    path=path,
                    found_mib=found_mib,
                    expected_mib=expected_mib,
                )
            elif each not in self._stale:
                _log.warning(
                    "driver_reservation_stale",
                    uuid=self.uuid,
                    path=path,
                    found_mib=found_mib,
                    expected_mib=expected_mib,
                    reason=_STALE,
                )
        self._stale = stale
        self._reserved = bool(stale) or any(each.limit.soft for each in self._all())
        if stale:
            self._reservations_at = self._now() + self._pace.look

    def _all(self) -> Iterable[_Limited]:
        return (*self._containers.values(), *self._leaving.values())

    # ------------------------------------------------------------------ what is reported

    @property
    def status(self) -> GpuStatus:
        """The status of the GPU."""
        return GpuStatus(uuid=self.uuid, proven=self._proven, reason=self._reason)

    def limit_status(self, container_id: str) -> LimitStatus:
        """Return the status of a wanted container on the GPU."""
        each = self._containers[container_id]
        reason = each.reason or (NO_CGROUP if each.cgroup is None else None)
        return LimitStatus(
            uuid=self.uuid,
            hard_mib=None if each.limit.hard is None else each.limit.hard // MIB,
            soft_mib=each.limit.soft // MIB,
            late=None if reason else each.late,
            corrected=each.corrected,
            reason=reason,
        )


_CHANGED = "the limits that were set were changed or removed: by another program, or by a restart of the driver"
_STALE = (
    "the cgroup reserves more memory than the containers below: a container with a burst ended without a call of the "
    "driver's library; gpushare repairs the cgroup at the next look"
)
