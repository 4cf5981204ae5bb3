"""The limits of a running daemon: set when the desired limits change, and set again at intervals."""

import asyncio

import structlog

from gpushare_plugin.mps.control import Control
from gpushare_plugin.mps.exchange import MpsGpu, MpsSettings, is_uuid
from gpushare_plugin.mps.processes import MpsProcess

_log = structlog.get_logger()


class AppliedLimits:
    """The limits of one running daemon."""

    def __init__(self, control: Control, process: MpsProcess, every: float) -> None:
        """Set the limits of `process`, the daemon behind `control`, again every `every` seconds."""
        self._control = control
        self._process = process
        self._every = every
        self._now = asyncio.get_running_loop().time
        self._look_at = 0.0
        self._in_force: MpsSettings | None = None
        self._changed: dict[str, str] = {}

    @property
    def in_force(self) -> MpsSettings:
        """The GPUs of the daemon and the limits in force; empty until limits have been set."""
        return self._in_force or MpsSettings()

    async def apply(self, desired: MpsSettings) -> None:
        """Set the limits of the daemon's GPUs; GPUs outside `desired` keep their limits. Raises ControlError.

        Unchanged limits are set again at intervals, because any process with access to the daemon's socket can change
        limits.
        """
        devices = self._process.devices
        known = {gpu.uuid: gpu for gpu in (*self.in_force.gpus, *desired.gpus)}
        settings = MpsSettings(
            # A daemon of an earlier run may have GPUs with unknown limits.
            gpus=tuple(known.get(uuid) or MpsGpu(uuid=uuid) for uuid in devices if is_uuid(uuid)),
            active_thread_percentage=desired.active_thread_percentage,
        )
        if settings != self._in_force:
            await self._control.limit(devices, desired)
            _log.info("mps_limits_set", pid=self._process.pid)
            self._in_force = settings
        elif self._now() >= self._look_at:
            changed = await self._control.restore(devices, desired)
            if changed and changed != self._changed:
                _log.warning("mps_limits_restored", pid=self._process.pid, found=changed)
            self._changed = changed
        else:
            return
        self._look_at = self._now() + self._every
