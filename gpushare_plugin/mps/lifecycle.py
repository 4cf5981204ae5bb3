"""The life of the MPS control daemon: adopted or started, limited, asked for signs of life, replaced, ended."""

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path

import structlog

from gpushare_plugin.base.structs import Struct
from gpushare_plugin.core.namespaces import WITH_NAMESPACES, MpsProtocol
from gpushare_plugin.mps.applied import Applied, AppliedLimits
from gpushare_plugin.mps.clients import ListedClients
from gpushare_plugin.mps.control import Control, ControlError, ProgramError
from gpushare_plugin.mps.namespaces import AppliedNamespaces
from gpushare_plugin.mps.processes import STAYS, MpsProcess, servers

_log = structlog.get_logger()


MOST_UNANSWERED = 3
"""Unanswered questions in a row after which the daemon is replaced, if no program ends with it."""


class RunningDaemon(Struct):
    """A running control daemon."""

    process: MpsProcess
    """The process of the daemon."""
    limits: Applied
    """The limits of the daemon."""
    clients: ListedClients
    """The clients of the daemon."""
    ask_at: float = 0.0
    """When the daemon is next asked for a sign of life, in seconds of the event loop's clock."""
    unanswered: int = 0
    """The number of questions in a row without an answer."""


class Lifecycle:
    """Looks after the control daemon of a pipe directory: a daemon found running, or a new one for the desired GPUs."""

    def __init__(self, pipe: Path, control: Control, ask_every: float, *, replace_silent: bool) -> None:
        """Look after the daemon behind `control`, and ask the daemon for a sign of life every `ask_every` seconds.

        `replace_silent`: replace an unresponsive daemon even while the daemon has servers; programs using the servers
        end.
        """
        self._pipe = pipe
        self._control = control
        self._ask_every = ask_every
        self._replace_silent = replace_silent
        self._now = asyncio.get_running_loop().time
        self._nothing_left = False
        self.daemon: RunningDaemon | None = None
        """The running daemon, None where no daemon is known."""

    @property
    def devices(self) -> tuple[str, ...]:
        """The GPUs of the running daemon, in the daemon's order; empty without a daemon."""
        return self.daemon.process.devices if self.daemon else ()

    def refresh(self) -> MpsProcess | None:
        """Look for a daemon unless the known daemon lives; return the daemon that has ended since the last look."""
        if self._nothing_left or (self.daemon is not None and self.daemon.process.alive):
            return None
        ended, self.daemon = self.daemon, None
        if (found := self._control.find()) is not None:
            _log.info("mps_daemon_adopted", pid=found.pid, gpus=found.devices)
            self.daemon = self._running(found)
        return ended.process if ended else None

    async def bring_to(self, uuids: Sequence[str], protocol: MpsProtocol = 2) -> str | None:
        """Make sure that the daemon answers, and has the GPUs `uuids` and the protocol; without GPUs, none is to run.

        Returns why the change must wait, None when nothing must wait. Raises ControlError if the daemon does not carry
        out a command.
        """
        if self.daemon is not None:
            await self._ask_whether_it_answers(self.daemon)
        else:
            await self._start(uuids, protocol)
        if self.daemon is None or not (change := self._change(self.daemon.process, uuids, protocol)):
            return None
        if clients := await self.daemon.limits.clients():
            return f"the MPS control daemon must restart to change its {change}, which waits for " + (
                f"{len(clients)} processes that use it" if len(clients) > 1 else "1 process that uses it"
            )
        await self._control.quit(self.daemon.process)
        _log.info("mps_daemon_stopped", pid=self.daemon.process.pid, reason=f"a new one starts with other {change}")
        self.daemon = None
        return await self.bring_to(uuids, protocol)

    def ask_soon(self) -> None:
        """Ask for a sign of life at the next step, because the daemon did not carry out a command."""
        if self.daemon is not None:
            self.daemon.ask_at = 0.0

    async def end(self) -> None:
        """End the daemon and the MPS servers, no matter who started the daemon; a process that stays is logged."""
        if (process := self._control.find()) is not None:
            with contextlib.suppress(ControlError):  # the process stays
                await self._control.quit(process)
                _log.info("mps_daemon_stopped", pid=process.pid, reason="gpushare mps ends")
        await self._end_orphans()

    @staticmethod
    def _change(process: MpsProcess, uuids: Sequence[str], protocol: MpsProtocol) -> str:
        """Return, in words, what a daemon cannot change while it runs; empty if nothing has to change."""
        if frozenset(uuids) != frozenset(process.devices):
            return "GPUs"
        return "protocol" if uuids and process.protocol != protocol else ""

    def _running(self, process: MpsProcess) -> RunningDaemon:
        applied = AppliedNamespaces if process.protocol == WITH_NAMESPACES else AppliedLimits
        limits = applied(self._control, process, self._ask_every)
        return RunningDaemon(process, limits, ListedClients(limits.clients))

    async def _start(self, uuids: Sequence[str], protocol: MpsProtocol) -> None:
        if not self._nothing_left:
            await self._end_orphans()
        # Only this process starts daemons in the pipe directory: no later look has to search all processes of the node.
        self._nothing_left = not uuids
        if uuids:
            process = await self._control.start(uuids, protocol)
            _log.info("mps_daemon_started", pid=process.pid, gpus=process.devices)
            self.daemon = self._running(process)
            self.daemon.ask_at = self._now() + self._ask_every

    async def _ask_whether_it_answers(self, daemon: RunningDaemon) -> None:
        if self._now() < daemon.ask_at:
            return
        try:
            await daemon.limits.probe()
        except ProgramError:
            raise
        except ControlError as error:
            daemon.unanswered += 1
            raise ControlError(f"{error}; {await self._consequence(daemon)}") from error
        daemon.unanswered = 0
        daemon.ask_at = self._now() + self._ask_every

    async def _consequence(self, daemon: RunningDaemon) -> str:
        """Act on an unanswered question; return the action and the known cause in words, for a message.

        Without `replace_silent`, the daemon is ended only if no program ends with it: any process with access to the
        socket can keep the daemon busy.
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
        if not await daemon.process.end():
            return f"{cause}; process {daemon.process.pid} cannot be replaced: {STAYS}"
        self.daemon = None
        return f"{cause}; replacing process {daemon.process.pid}"

    async def _end_orphans(self) -> None:
        """End MPS servers whose control daemon is gone: they hold exclusive GPUs, and no client can reach them."""
        for server in servers(self._pipe):
            _log.warning("mps_server_orphaned", pid=server.pid)
            await server.end()
