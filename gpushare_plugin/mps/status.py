"""The report to the plugin and to the readiness probe: the GPUs served by MPS, and why the remaining GPUs are not."""

from collections.abc import Mapping

import structlog

from gpushare_plugin.gpus.exchange import ExchangeError, StatusFile
from gpushare_plugin.mps.desired import DesiredSettings
from gpushare_plugin.mps.exchange import MpsRoot, MpsSettings, MpsStatus

_log = structlog.get_logger()


class StatusReport:
    """Writes the status to a file whenever the status changes, and keeps a second file for the readiness probe.

    The second file exists while MPS serves every desired GPU and the desired settings can be read.
    """

    def __init__(self, root: MpsRoot) -> None:
        """Write to `status.json` and `ready` of `root`."""
        self._file = StatusFile(root)

    def publish(
        self, desired: DesiredSettings, in_force: MpsSettings, refused: Mapping[str, str], reason: str | None
    ) -> None:
        """Report the settings `in_force`, and the reason for every desired GPU that MPS does not serve.

        `refused` has, by UUID, why GPUs were left out; `reason` is the reason for all remaining unserved GPUs.
        """
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
        """Remove the status and the file for the readiness probe."""
        self._file.withdraw()
