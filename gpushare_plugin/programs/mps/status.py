"""What is reported to the plugin and to the readiness probe: which GPUs MPS serves, and why others are not served."""

from collections.abc import Mapping

import structlog

from gpushare_plugin.adapters.host.exchange import ExchangeError, StatusFile
from gpushare_plugin.adapters.host.mps.exchange import MpsRoot, MpsSettings, MpsStatus
from gpushare_plugin.programs.mps.desired import DesiredSettings

_log = structlog.get_logger()


class StatusReport:
    """The status in a file, written when it is another than before, and a file that is there while all is served."""

    def __init__(self, root: MpsRoot) -> None:
        """Write to `status.json` and `ready` of `root`."""
        self._file = StatusFile(root)

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
        try:
            self._file.write(status, ready=not status.not_served and status.trouble is None)
        except (ExchangeError, OSError) as error:
            _log.error("mps_status_not_written", reason=str(error))

    def withdraw(self) -> None:
        """Report nothing any more."""
        self._file.withdraw()
