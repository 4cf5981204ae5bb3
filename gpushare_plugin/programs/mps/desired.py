"""What the plugin desires under MPS, from the last file that could be read."""

from pathlib import Path

import structlog

from gpushare_plugin.adapters.host.exchange import ExchangeError, read_message
from gpushare_plugin.adapters.host.mps.exchange import MpsSettings

_log = structlog.get_logger()

_WITHOUT_FILE = "gpushare run has not written desired settings yet; it needs the same --mps-root"
_WITHOUT_GPUS = "no config of this node shares a GPU through MPS"


class DesiredSettings:
    """The settings in a file, read again and again; one that cannot be read changes nothing."""

    def __init__(self, file: Path) -> None:
        """Read `file`, which need not be there: then nothing is desired."""
        self._file = file
        self.settings = MpsSettings()
        self.known = False
        """Whether the file could be read once."""
        self.problem: str | None = None
        """Why the file cannot be read now."""
        self._idle: str | None = None

    def read(self) -> bool:
        """Read the file; return whether other settings are desired than before."""
        try:
            found = read_message(self._file, MpsSettings)
        except ExchangeError as error:
            if str(error) != self.problem:
                _log.error("mps_desired_unreadable", reason=str(error))
            self.problem = str(error)
            return False
        self.problem = None
        self.known = True
        settings = found or MpsSettings()
        self._log_idle(found)
        if settings == self.settings:
            return False
        _log.info(
            "mps_desired_changed",
            gpus=[gpu.uuid for gpu in settings.gpus],
            memory_limits_mib=[gpu.memory_limit_mib for gpu in settings.gpus],
            active_thread_percentage=settings.active_thread_percentage,
        )
        self.settings = settings
        return True

    def _log_idle(self, found: MpsSettings | None) -> None:
        """Log once why there is nothing to serve: a process that does nothing and says nothing looks broken."""
        idle = _WITHOUT_FILE if found is None else None if found.gpus else _WITHOUT_GPUS
        if idle is not None and idle != self._idle:
            _log.info("mps_waiting", path=str(self._file), reason=idle)
        self._idle = idle
