"""The limits of one running daemon, set and set again: what is the same for every protocol, and protocol 2."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping

import structlog

from gpushare_plugin.mps.control import Control
from gpushare_plugin.mps.exchange import ListedClient, MpsSettings, served_gpus
from gpushare_plugin.mps.processes import MpsProcess

_log = structlog.get_logger()


class Applied(ABC):
    """Keeps the limits of one running daemon as desired."""

    def __init__(self, control: Control, process: MpsProcess, every: float) -> None:
        """Set the limits of `process`, the daemon behind `control`, again every `every` seconds."""
        self._control = control
        self._process = process
        self._every = every
        self._now = asyncio.get_running_loop().time
        self._look_at = 0.0
        self._in_force: MpsSettings | None = None
        self.changed: Mapping[str, str] = {}
        """The limits that another process had changed, as found by the last check, by the name of the limit."""

    @property
    def in_force(self) -> MpsSettings:
        """The GPUs of the daemon and the limits in force; empty until limits have been set."""
        return self._in_force or MpsSettings()

    @abstractmethod
    async def apply(self, desired: MpsSettings) -> bool:
        """Bring the limits to `desired`, unless that is for another protocol; return whether the limits were set.

        Raises ControlError.
        """

    @abstractmethod
    async def probe(self) -> None:
        """Make sure that the daemon answers; raises ControlError."""

    @abstractmethod
    async def clients(self) -> tuple[ListedClient, ...]:
        """Return the processes that use the daemon's servers; raises ControlError."""


class AppliedLimits(Applied):
    """The limits of one running daemon with protocol 2; a limit has the name of its command."""

    async def apply(self, desired: MpsSettings) -> bool:
        """Set the limits of the daemon's GPUs; GPUs outside `desired` keep their limits. Raises ControlError.

        Unchanged limits are set again at intervals, because any process with access to the daemon's socket can change
        limits. Settings for another protocol change nothing. Returns whether the limits were set.
        """
        if desired.protocol != self._process.protocol:
            return False
        devices = self._process.devices
        settings = MpsSettings(
            gpus=served_gpus(devices, *self.in_force.gpus, *desired.gpus),
            active_thread_percentage=desired.active_thread_percentage,
        )
        if settings != self._in_force:
            await self._control.limit(devices, desired)
            _log.info("mps_limits_set", pid=self._process.pid)
            self._in_force, self.changed = settings, {}
        elif self._now() >= self._look_at:
            changed = await self._control.restore(devices, desired)
            if changed and changed != self.changed:
                _log.warning("mps_limits_restored", pid=self._process.pid, found=changed)
            self.changed = changed
        else:
            return False
        self._look_at = self._now() + self._every
        return True

    async def probe(self) -> None:
        """Make sure that the daemon answers; raises ControlError."""
        await self._control.probe()

    async def clients(self) -> tuple[ListedClient, ...]:
        """Return the processes that use the daemon's servers; raises ControlError."""
        return await self._control.clients()
