"""The life of the MPS control daemon: adopted or started, asked whether it answers, replaced, ended."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import structlog

from gpushare_plugin.foundation.structs import Struct
from gpushare_plugin.programs.mps.control_daemon.applied_limits import AppliedLimits
from gpushare_plugin.programs.mps.control_daemon.control import Control, ControlError, ProgramError
from gpushare_plugin.programs.mps.control_daemon.processes import MpsProcess, servers

_log = structlog.get_logger()

MOST_UNANSWERED = 3
"""Questions in a row without an answer after which a daemon is replaced, if no program ends by that."""


class RunningDaemon(Struct):
    """A daemon that runs: its limits, when it is asked next, and how many questions in a row it has not answered."""

    process: MpsProcess
    limits: AppliedLimits
    ask_at: float = 0.0
    unanswered: int = 0


class Lifecycle:
    """One control daemon of a pipe directory: the one that runs, whoever started it, or one for the GPUs desired."""

    def __init__(self, pipe: Path, control: Control, ask_every: float, *, replace_silent: bool) -> None:
        """Look after the daemon that `control` speaks to, and ask it every `ask_every` seconds whether it answers.

        `replace_silent`: replace an unresponsive daemon also while it has servers; programs that use them end.
        """
        self._pipe = pipe
        self._control = control
        self._ask_every = ask_every
        self._replace_silent = replace_silent
        self._now = asyncio.get_running_loop().time
        self._nothing_left = False
        self.daemon: RunningDaemon | None = None

    @property
    def devices(self) -> tuple[str, ...]:
        """The GPUs of the daemon that runs, in its order."""
        return self.daemon.process.devices if self.daemon else ()

    def refresh(self) -> MpsProcess | None:
        """Look for a daemon unless one is known to live; return the one that has ended since the last look."""
        if self._nothing_left or (self.daemon is not None and self.daemon.process.alive):
            return None
        ended, self.daemon = self.daemon, None
        if (found := self._control.find()) is not None:
            _log.info("mps_daemon_adopted", pid=found.pid, gpus=found.devices)
            self.daemon = self._running(found)
        return ended.process if ended else None

    async def bring_to(self, uuids: Sequence[str]) -> str | None:
        """Have a daemon that answers and has exactly these GPUs, none for no GPUs.

        Returns why that must wait, None when it need not. Raises ControlError when the daemon does not do what it is
        asked.
        """
        if self.daemon is not None:
            await self._ask_whether_it_answers(self.daemon)
        else:
            await self._start(uuids)
        if self.daemon is None or frozenset(uuids) == frozenset(self.devices):
            return None
        if clients := await self._control.clients():
            return "the MPS control daemon must restart to change its GPUs, which waits for " + (
                f"{clients} processes that use it" if clients > 1 else "1 process that uses it"
            )
        await self._control.quit(self.daemon.process)
        _log.info("mps_daemon_stopped", pid=self.daemon.process.pid, reason="a new one starts with other GPUs")
        self.daemon = None
        return await self.bring_to(uuids)

    def ask_soon(self) -> None:
        """Ask at the next step whether the daemon answers, for it has not done what it should."""
        if self.daemon is not None:
            self.daemon.ask_at = 0.0

    async def end(self) -> None:
        """End the daemon and its servers, whoever started them."""
        if (process := self._control.find()) is not None:
            await self._control.quit(process)
            _log.info("mps_daemon_stopped", pid=process.pid, reason="gpushare mps ends")
        await self._end_orphans()

    def _running(self, process: MpsProcess) -> RunningDaemon:
        return RunningDaemon(process, AppliedLimits(self._control, process, self._ask_every))

    async def _start(self, uuids: Sequence[str]) -> None:
        if not self._nothing_left:
            await self._end_orphans()
        # Only we start anything here, so that not all processes of the node must be searched again.
        self._nothing_left = not uuids
        if uuids:
            process = await self._control.start(uuids)
            _log.info("mps_daemon_started", pid=process.pid, gpus=process.devices)
            self.daemon = self._running(process)
            self.daemon.ask_at = self._now() + self._ask_every

    async def _ask_whether_it_answers(self, daemon: RunningDaemon) -> None:
        if self._now() < daemon.ask_at:
            return
        try:
            await self._control.probe()
        except ProgramError:
            raise
        except ControlError as error:
            daemon.unanswered += 1
            raise ControlError(f"{error}; {await self._consequence(daemon)}") from error
        daemon.unanswered = 0
        daemon.ask_at = self._now() + self._ask_every

    async def _consequence(self, daemon: RunningDaemon) -> str:
        """Do what an unanswered question requires, and return that with what is known of its cause.

        The daemon is ended only where no program ends by that: any process that reaches its socket can keep it busy.
        """
        cause = await asyncio.to_thread(self._control.holders, daemon.process)
        if daemon.unanswered < MOST_UNANSWERED:
            return f"{cause}; asking again"
        if not self._replace_silent and (living := servers(self._pipe)):
            pids = ", ".join(str(server.pid) for server in living)
            return (
                f"{cause}; not replacing it, because programs that use its servers ({pids}) would end with it: end the "
                "processes that are connected to it, or stop gpushare mps to end all programs under MPS"
            )
        await daemon.process.end()
        self.daemon = None
        return f"{cause}; replacing process {daemon.process.pid}"

    async def _end_orphans(self) -> None:
        """End servers whose control daemon is gone: they hold GPUs that are exclusive, and no client can reach them."""
        for server in servers(self._pipe):
            _log.warning("mps_server_orphaned", pid=server.pid)
            await server.end()
