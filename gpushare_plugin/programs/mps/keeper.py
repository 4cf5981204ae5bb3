"""The life of the control daemon: taken over or started, limited, watched, replaced, ended.

Like a session with the kubelet, this compares what is with what should be, again and again, and mends the first
difference. So a daemon that an earlier run left is no special case: one that answers is kept, with its clients.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

import structlog

from gpushare_plugin.adapters.host.mps.exchange import (
    ExchangeError,
    MpsGpu,
    MpsRoot,
    MpsSettings,
    MpsStatus,
    is_uuid,
    read_message,
    write_message,
)
from gpushare_plugin.foundation.backoff import Backoff
from gpushare_plugin.programs.mps.control import Control, ControlError, ProgramError
from gpushare_plugin.programs.mps.modes import ExclusiveModes
from gpushare_plugin.programs.mps.processes import MpsProcess, servers

_log = structlog.get_logger()

SILENCES = 3
"""Questions in a row without an answer after which a daemon is replaced, if nobody loses anything by that."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How often things happen, in seconds.

    `look` is between looks at what is wanted and whether the daemon lives; `ask` between questions whether it answers,
    and whether compute modes are as they should be; `steady` is how long all must be well until failures are forgotten.
    `patience` is how long each answer is waited for.
    """

    look: float = 1.0
    ask: float = 15.0
    steady: float = 60.0
    patience: float = 10.0


@dataclass(slots=True)
class _Daemon:
    """The daemon that runs: what is in force there, when it is asked next, and how often it gave no answer since.

    `changed` are limits that others had changed when they were last looked at.
    """

    process: MpsProcess
    in_force: MpsSettings | None = None
    ask_at: float = 0.0
    silences: int = 0
    changed: dict[str, str] = field(default_factory=dict)


class Keeper:
    """Keeps one control daemon as `wanted.json` wants it, and says in `status.json` how that goes."""

    def __init__(
        self,
        root: MpsRoot,
        control: Control,
        modes: ExclusiveModes,
        pace: Pace | None = None,
        *,
        replace_silent: bool = False,
    ) -> None:
        """Look after the daemon that `control` speaks to; its directories are there, and no other keeper is.

        `replace_silent` is for a silent daemon that has servers: replace it, which ends every program that uses them.
        """
        self._root = root
        self._control = control
        self._modes = modes
        self._pace = pace or Pace()
        self._replace_silent = replace_silent
        self._now: Callable[[], float] = asyncio.get_running_loop().time
        self._wanted = MpsSettings()
        self._wanted_is_known = False
        self._trouble: str | None = None
        self._refused: dict[str, str] = {}
        self._modes_at = 0.0
        self._daemon: _Daemon | None = None
        self._nothing_left = False
        self._reason: str | None = None
        self._backoff = Backoff(first=1.0, most=60.0)
        self._again_at = 0.0
        self._well_since: float | None = None
        self._status: MpsStatus | None = None

    async def run(self) -> None:
        """Keep the daemon, for ever."""
        while True:
            try:
                await self._step()
            except Exception:  # noqa: BLE001 - nothing may end the process that has the daemon in its container
                _log.exception("a step broke; this is a defect of gpushare, please report it")
            await asyncio.sleep(self._pace.look)

    async def stop(self) -> None:
        """End the daemon and its servers, put compute modes back, and leave nothing that says otherwise."""
        self._root.status.unlink(missing_ok=True)
        if (process := self._control.find()) is not None:
            await self._control.quit(process)
            _log.info("MPS control daemon ended", pid=process.pid)
        await self._end_orphans()
        await self._modes.release(keep=())

    async def _step(self) -> None:
        self._read_wanted()
        self._look_at_daemon()
        if self._wanted_is_known:
            await self._approach()
        self._publish()

    async def _approach(self) -> None:
        await self._claim_modes()
        if self._now() >= self._again_at:
            try:
                self._reason = await self._mend(self._wanted.without(self._refused))
            except ControlError as error:
                if self._daemon is not None:
                    self._daemon.ask_at = 0.0
                self._failed(str(error))
            else:
                self._well()
        held = self._daemon.process.devices if self._daemon else ()
        await self._modes.release(keep={*self._wanted.uuids, *held})

    # ------------------------------------------------------------------ what is

    def _read_wanted(self) -> None:
        try:
            wanted = read_message(self._root.wanted, MpsSettings) or MpsSettings()
        except ExchangeError as error:
            if str(error) != self._trouble:
                _log.error("what is wanted cannot be read, all stays as it is", reason=str(error))
            self._trouble = str(error)
            return
        self._trouble = None
        self._wanted_is_known = True
        if wanted != self._wanted:
            _log.info(
                "wanted under MPS",
                gpus={gpu.uuid: gpu.memory_limit_mib for gpu in wanted.gpus},
                active_thread_percentage=wanted.active_thread_percentage,
            )
            self._wanted = wanted
            self._modes_at = self._again_at = 0.0

    def _look_at_daemon(self) -> None:
        if self._nothing_left or (self._daemon is not None and self._daemon.process.alive):
            return
        found = self._control.find()
        if self._daemon is not None:
            self._failed(f"the MPS control daemon, process {self._daemon.process.pid}, has ended; it is started again")
        self._daemon = None
        if found is not None:
            _log.info("MPS control daemon taken over", pid=found.pid, gpus=found.devices)
            self._daemon = _Daemon(found)

    async def _claim_modes(self) -> None:
        if self._now() < self._modes_at:
            return
        refused = await self._modes.claim(gpu.uuid for gpu in self._wanted.gpus)
        for uuid, reason in refused.items() - self._refused.items():
            _log.error("GPU left out of MPS", uuid=uuid, reason=reason)
        self._refused = refused
        self._modes_at = self._now() + self._pace.ask

    # ------------------------------------------------------------------ what should be

    async def _mend(self, target: MpsSettings) -> str | None:
        """Bring the daemon to `target`; return why some of it must wait, None when nothing must.

        Raises ControlError when the daemon does not do what it is asked.
        """
        daemon = self._daemon
        asked = False
        if daemon is not None:
            asked = await self._probe(daemon)
        else:
            if not self._nothing_left:
                await self._end_orphans()
            # Nobody but us starts anything here, so that not all processes of the node must be looked at again.
            self._nothing_left = not target.gpus
            if self._nothing_left:
                return None
            process = await self._control.start([gpu.uuid for gpu in target.gpus])
            _log.info("MPS control daemon started", pid=process.pid, gpus=process.devices)
            self._daemon = daemon = _Daemon(process, ask_at=self._now() + self._pace.ask)
        waiting = None
        if target.uuids != frozenset(daemon.process.devices):
            clients = await self._control.clients()
            if not clients:
                await self._control.quit(daemon.process)
                _log.info("MPS control daemon ended for one with other GPUs", pid=daemon.process.pid)
                self._daemon = None
                return await self._mend(target)
            waiting = (
                f"the MPS control daemon can change its GPUs only by a new start, which waits for {clients} "
                f"process{'es' if clients > 1 else ''} that use it"
            )
        await self._limit(daemon, target, look=asked)
        return waiting

    async def _probe(self, daemon: _Daemon) -> bool:
        """Ask the daemon for a sign of life when it is due; return whether it was."""
        if self._now() < daemon.ask_at:
            return False
        try:
            await self._control.probe()
        except ProgramError:
            raise
        except ControlError as error:
            daemon.silences += 1
            raise ControlError(f"{error}; {await self._consequence(daemon)}") from error
        daemon.silences = 0
        daemon.ask_at = self._now() + self._pace.ask
        return True

    async def _consequence(self, daemon: _Daemon) -> str:
        """Do what a silence asks for, and return that with what is known of its cause.

        The daemon is ended only where that costs no program its life: anybody who reaches its socket can silence it.
        """
        cause = await asyncio.to_thread(self._control.holders, daemon.process)
        if daemon.silences < SILENCES:
            return f"{cause}; it is asked again"
        if not self._replace_silent and (living := servers(self._root.pipe)):
            pids = ", ".join(str(server.pid) for server in living)
            return (
                f"{cause}; it is left alone, for programs that use its servers ({pids}) would end with it: end what is "
                "connected to it, or stop gpushare mps to end them all"
            )
        await daemon.process.end()
        self._daemon = None
        return f"{cause}; process {daemon.process.pid} is replaced"

    async def _limit(self, daemon: _Daemon, target: MpsSettings, *, look: bool) -> None:
        """Set the limits of the daemon's GPUs; a GPU that is no longer wanted keeps what it has.

        Those that are set already are set again at each look, for anybody who reaches the socket can change them.
        """
        known = {gpu.uuid: gpu for gpu in (*(daemon.in_force.gpus if daemon.in_force else ()), *target.gpus)}
        settings = MpsSettings(
            # A daemon that was found may have GPUs of which nobody knows the limits.
            gpus=tuple(known.get(uuid) or MpsGpu(uuid=uuid) for uuid in daemon.process.devices if is_uuid(uuid)),
            active_thread_percentage=target.active_thread_percentage,
        )
        if settings != daemon.in_force:
            await self._control.limit(daemon.process.devices, target)
            _log.info("MPS limits set", pid=daemon.process.pid)
            daemon.in_force = settings
        elif look:
            changed = await self._control.restore(daemon.process.devices, target)
            if changed and changed != daemon.changed:
                _log.warning("limits of MPS were changed by others, set again", pid=daemon.process.pid, found=changed)
            daemon.changed = changed

    async def _end_orphans(self) -> None:
        """End servers whose control daemon is gone: they hold GPUs that are exclusive, and nobody can reach them."""
        for server in servers(self._root.pipe):
            _log.warning("ending an MPS server that was left without its control daemon", pid=server.pid)
            await server.end()

    # ------------------------------------------------------------------ how it goes

    def _failed(self, reason: str) -> None:
        wait = self._backoff.next()
        if self._daemon is not None:
            # It may be well again any moment, and its GPUs wait for that.
            wait = min(wait, self._pace.ask)
        self._again_at = self._now() + wait
        self._well_since = None
        self._nothing_left = False
        self._reason = reason
        _log.error("MPS failed, trying again", reason=reason, wait_seconds=wait)

    def _well(self) -> None:
        if self._well_since is None:
            self._well_since = self._now()
        elif self._now() - self._well_since > self._pace.steady:
            self._backoff.reset()

    def _publish(self) -> None:
        answering = self._daemon is not None and not self._daemon.silences
        in_force = (self._daemon.in_force if self._daemon and answering else None) or MpsSettings()
        status = MpsStatus(in_force=in_force, trouble=self._trouble)
        reason = self._reason or "it is being brought under MPS"
        for gpu in self._wanted.gpus:
            if gpu.uuid in self._refused:
                status.not_served[gpu.uuid] = self._refused[gpu.uuid]
            elif status.why_not(gpu, self._wanted.active_thread_percentage) is not None:
                status.not_served[gpu.uuid] = reason
        if self._status is not None and status == self._status.model_copy(update={"since": ""}):
            return
        status = status.model_copy(update={"since": datetime.now(UTC).isoformat(timespec="seconds")})
        try:
            write_message(self._root.status, status)
        except ExchangeError as error:
            _log.error("nobody can be told what MPS serves", reason=str(error))
            return
        self._status = status
