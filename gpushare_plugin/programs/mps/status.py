"""What is reported to the plugin and to the readiness probe: which GPUs MPS serves, and why others are not served."""

from collections.abc import Mapping
from datetime import UTC, datetime

import structlog

from gpushare_plugin.adapters.host.mps.exchange import ExchangeError, MpsRoot, MpsSettings, MpsStatus, write_message
from gpushare_plugin.programs.mps.desired import DesiredSettings

_log = structlog.get_logger()


class StatusReport:
    """The status in a file, written when it is another than before, and a file that is there while all is served."""

    def __init__(self, root: MpsRoot) -> None:
        """Write to `status.json` and `ready` of `root`."""
        self._root = root
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
            write_message(self._root.status, status)
            self._mark_ready(status)
        except (ExchangeError, OSError) as error:
            _log.error("mps_status_not_written", reason=str(error))
            return
        self._written = status

    def withdraw(self) -> None:
        """Report nothing any more."""
        for file in (self._root.status, self._root.ready):
            file.unlink(missing_ok=True)

    def _mark_ready(self, status: MpsStatus) -> None:
        if status.not_served or status.trouble is not None:
            self._root.ready.unlink(missing_ok=True)
        else:
            self._root.ready.touch()
