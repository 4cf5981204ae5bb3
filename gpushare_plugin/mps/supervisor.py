"""The supervisor of the MPS control daemon: compares the actual with the desired state, and corrects differences.

Like a session with the kubelet, the supervisor compares again and again, and corrects the first difference. A daemon
left by an earlier run is therefore no special case: if the daemon answers, the supervisor keeps the daemon and its
clients. A failed correction is tried again after longer and longer pauses (`Attempts`), and what is served is reported
to the plugin and to the readiness probe (`StatusReport`).
"""

import asyncio
from collections.abc import Mapping

import structlog

from gpushare_plugin.base.backoff import Backoff
from gpushare_plugin.base.reported import Reported
from gpushare_plugin.base.structs import Struct
from gpushare_plugin.gpus.exchange import DesiredFile, ExchangeError, StatusFile
from gpushare_plugin.mps.control import Control, ControlError
from gpushare_plugin.mps.exchange import MpsRoot, MpsSettings, MpsStatus
from gpushare_plugin.mps.lifecycle import Lifecycle, RunningDaemon
from gpushare_plugin.mps.modes import ExclusiveModes

_log = structlog.get_logger()

_WITHOUT_FILE = "gpushare run has not written desired settings yet; it needs the same --mps-root"
_WITHOUT_GPUS = "no config of this node shares a GPU through MPS"


class StatusReport:
    """Writes the status to a file whenever the status changes, and keeps a second file for the readiness probe.

    The second file exists while MPS serves every desired GPU and the desired settings can be read.
    """

    def __init__(self, root: MpsRoot) -> None:
        """Write to `status.json` and `ready` of `root`."""
        self._file = StatusFile(root)

    def publish(
        self,
        desired: DesiredFile[MpsSettings],
        daemon: RunningDaemon | None,
        refused: Mapping[str, str],
        reason: str | None,
    ) -> None:
        """Report the settings in force and the clients of `daemon`, and why desired GPUs are not served.

        `daemon` is None without a daemon that answers. `refused` has, by UUID, why GPUs were left out; `reason` is the
        reason for all remaining unserved GPUs.
        """
        status = MpsStatus(trouble=desired.problem, problem=reason)
        if daemon is not None:
            clients = daemon.clients
            known = {"clients": clients.found, "clients_asked_at": clients.asked_at}
            status = status.model_copy(update={"in_force": daemon.limits.in_force, **known})
        for gpu in desired.message.gpus:
            if gpu.uuid in refused:
                status.not_served[gpu.uuid] = refused[gpu.uuid]
            elif status.why_not(gpu, desired.message) is not None:
                status.not_served[gpu.uuid] = reason or "the MPS control daemon does not serve it yet"
        try:
            self._file.write(status, ready=not status.not_served and status.trouble is None)
        except (ExchangeError, OSError) as error:
            _log.error("mps_status_not_written", reason=str(error))

    def withdraw(self) -> None:
        """Remove the status and the file for the readiness probe."""
        self._file.withdraw()


class Attempts:
    """Tracks when the next attempt is due, later after every failure, and why the work is not done yet."""

    def __init__(self, steady: float) -> None:
        """Forget failures once attempts have succeeded for `steady` seconds; the first attempt is due at once."""
        self._steady = steady
        self._now = asyncio.get_running_loop().time
        self._backoff = Backoff(first=1.0, most=60.0)
        self._next_at = 0.0
        self._well_since: float | None = None
        self.reason: str | None = None
        """Why the work is not done, by the last attempt; None when all of it is done."""

    @property
    def due(self) -> bool:
        """Whether it is time for the next attempt."""
        return self._now() >= self._next_at

    def at_once(self) -> None:
        """Make the next attempt due at once, because the work to do has changed."""
        self._next_at = 0.0

    def failed(self, reason: str, at_most: float | None = None) -> None:
        """Log a failure; the next attempt is due after the back-off or `at_most` seconds, whichever is sooner."""
        wait = self._backoff.next()
        if at_most is not None:
            wait = min(wait, at_most)
        self._next_at = self._now() + wait
        self._well_since = None
        self.reason = reason
        _log.error("mps_failed", reason=reason, retry_seconds=wait)

    def succeeded(self, reason: str | None) -> None:
        """Note a success; `reason` says why a part of the work still waits although nothing failed."""
        self.reason = reason
        if self._well_since is None:
            self._well_since = self._now()
        elif self._now() - self._well_since > self._steady:
            self._backoff.reset()


class MpsPace(Struct, frozen=True):
    """The times of the supervisor, in seconds."""

    look: float = 1.0
    """The pause between two looks at the desired settings and at the process of the daemon."""
    ask: float = 15.0
    """The time between two questions whether the daemon answers, and between two checks of limits and compute modes.

    The file for the liveness probe is touched at the same interval. After a failure of a running daemon, the next
    attempt follows within the interval.
    """
    steady: float = 60.0
    """How long attempts must succeed until earlier failures are forgotten."""
    patience: float = 10.0
    """The longest wait for an answer of the daemon."""


class Supervisor:
    """Runs one MPS control daemon according to `wanted.json`, and reports the result in `status.json`."""

    def __init__(
        self,
        root: MpsRoot,
        control: Control,
        modes: ExclusiveModes,
        pace: MpsPace | None = None,
        *,
        replace_silent: bool = False,
    ) -> None:
        """Supervise the daemon behind `control`: the directories of `root` exist, and no second supervisor runs.

        `replace_silent`: replace an unresponsive daemon even while the daemon has servers; programs using the servers
        end.
        """
        self._modes = modes
        self._pace = pace or MpsPace()
        self._desired = DesiredFile(root.wanted, MpsSettings)
        self._changes = Reported()
        self._life = Lifecycle(root.pipe, control, self._pace.ask, replace_silent=replace_silent)
        self._attempts = Attempts(self._pace.steady)
        self._report = StatusReport(root)
        self._now = asyncio.get_running_loop().time
        self._refused: dict[str, str] = {}
        self._modes_at = 0.0

    async def run(self) -> None:
        """Run the daemon until cancelled."""
        while True:
            try:
                await self._step()
            except Exception:  # noqa: BLE001 - no defect may end this process: the daemon runs in the same container
                _log.exception("mps_step_failed", remedy="report this as a defect of gpushare")
            await asyncio.sleep(self._pace.look)

    async def stop(self) -> None:
        """End the daemon and the MPS servers, restore the compute modes, and withdraw the status."""
        self._report.withdraw()
        await self._life.end()
        await self._modes.release(keep=())

    async def _step(self) -> None:
        if self._read():
            self._modes_at = 0.0
            self._attempts.at_once()
        if (ended := self._life.refresh()) is not None:
            reason = f"the MPS control daemon (process {ended.pid}) has ended; restarting it"
            self._attempts.failed(reason, at_most=self._pace.ask)
        if self._desired.known:
            await self._approach()
        self._publish()

    def _read(self) -> bool:
        """Read the desired settings; return whether the settings have changed."""
        desired = self._desired
        try:
            changed = desired.read()
        except ExchangeError as error:
            _log.error("mps_desired_unreadable", reason=str(error))
            return False
        settings = desired.message
        idle = _WITHOUT_FILE if desired.missing else None if settings.gpus else _WITHOUT_GPUS
        # An idle process without a log line looks broken.
        if self._changes.is_new("idle", idle) and idle is not None:
            _log.info("mps_waiting", path=str(desired.file), reason=idle)
        if changed:
            _log.info(
                "mps_desired_changed",
                gpus=[gpu.uuid for gpu in settings.gpus],
                memory_limits_mib=[gpu.memory_limit_mib for gpu in settings.gpus],
                active_thread_percentage=settings.active_thread_percentage,
            )
        return changed

    async def _approach(self) -> None:
        await self._claim_modes()
        if self._attempts.due:
            try:
                waiting = await self._correct(self._desired.message.without(self._refused))
            except ControlError as error:
                self._life.ask_soon()
                # A running daemon may recover at any moment, and the GPUs of the daemon wait for the recovery.
                self._attempts.failed(str(error), at_most=self._pace.ask if self._life.daemon else None)
            else:
                self._attempts.succeeded(waiting)
        await self._modes.release(keep={*self._desired.message.uuids, *self._life.devices})

    async def _claim_modes(self) -> None:
        if self._now() < self._modes_at:
            return
        refused = await self._modes.claim(gpu.uuid for gpu in self._desired.message.gpus)
        for uuid, reason in refused.items() - self._refused.items():
            _log.error("mps_gpu_rejected", uuid=uuid, reason=reason)
        self._refused = refused
        self._modes_at = self._now() + self._pace.ask

    async def _correct(self, target: MpsSettings) -> str | None:
        """Bring the daemon to `target`; return why a part of `target` must wait, None when nothing must wait."""
        waiting = await self._life.bring_to([gpu.uuid for gpu in target.gpus], target.protocol)
        if (daemon := self._life.daemon) is not None and await daemon.limits.apply(target):
            await daemon.clients.ask(daemon.limits.changed)
        return waiting

    def _publish(self) -> None:
        daemon = self._life.daemon
        answering = None if daemon is None or daemon.unanswered else daemon
        self._report.publish(self._desired, answering, self._refused, self._attempts.reason)
