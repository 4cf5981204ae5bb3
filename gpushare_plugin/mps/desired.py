"""The MPS settings desired by the plugin, from the last readable version of a file."""

from pathlib import Path

import structlog

from gpushare_plugin.gpus.exchange import ExchangeError, read_message
from gpushare_plugin.mps.exchange import MpsSettings

_log = structlog.get_logger()

_WITHOUT_FILE = "gpushare run has not written desired settings yet; it needs the same --mps-root"
_WITHOUT_GPUS = "no config of this node shares a GPU through MPS"


class DesiredSettings:
    """The desired settings, read from a file again and again; an unreadable file changes nothing."""

    def __init__(self, file: Path) -> None:
        """Read from `file`; while the file is missing, no GPU is desired under MPS."""
        self._file = file
        self.settings = MpsSettings()
        """The desired settings, by the last successful look at the file."""
        self.known = False
        """Whether a look at the file has succeeded; a missing file counts, too."""
        self.problem: str | None = None
        """Why the file could not be read at the last look; None after a successful look."""
        self._idle: str | None = None

    def read(self) -> bool:
        """Read the file; return whether the desired settings have changed."""
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
        """Log once why no GPU is to be served: an idle process without a log line looks broken."""
        idle = _WITHOUT_FILE if found is None else None if found.gpus else _WITHOUT_GPUS
        if idle is not None and idle != self._idle:
            _log.info("mps_waiting", path=str(self._file), reason=idle)
        self._idle = idle
