"""What is reported to the plugin: which GPUs MPS serves, and why others are not served."""

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import structlog

from gpushare_plugin.adapters.host.mps.exchange import ExchangeError, MpsSettings, MpsStatus, write_message
from gpushare_plugin.programs.mps.desired import DesiredSettings

_log = structlog.get_logger()


class StatusReport:
    """The status in a file, written when it is another than before."""

    def __init__(self, file: Path) -> None:
        """Write to `file`."""
        self._file = file
        self._written: MpsStatus | None = None

    def publish(
        self, desired: DesiredSettings, in_force: MpsSettings, refused: Mapping[str, str], reason: str | None
    ) -> None:
        """Report what is in force; `refused` are GPUs that are left out, and `reason` is why others are not served."""
        status = MpsStatus(in_force=in_force, trouble=desired.problem)
        for gpu in desired.settings.gpus:
            if gpu.uuid in refused:
                status.not_served[gpu.uuid] = refused[gpu.uuid]
            elif status.why_not(gpu, desired.settings.active_thread_percentage) is not None:
                status.not_served[gpu.uuid] = reason or "the MPS control daemon does not serve it yet"
        if self._written is not None and status == self._written.model_copy(update={"since": ""}):
            return
        status = status.model_copy(update={"since": datetime.now(UTC).isoformat(timespec="seconds")})
        try:
            write_message(self._file, status)
        except ExchangeError as error:
            _log.error("mps_status_not_written", reason=str(error))
            return
        self._written = status

    def withdraw(self) -> None:
        """Report nothing any more."""
        self._file.unlink(missing_ok=True)
