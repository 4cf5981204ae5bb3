"""The order of `gpushare run`, from the last readable file."""

from pathlib import Path

import structlog

from gpushare_plugin.gpus.exchange import ExchangeError, read_message
from gpushare_plugin.mig.exchange import MigOrder

_log = structlog.get_logger()


class DesiredLayouts:
    """The order in a file, read again and again; an unreadable file leaves the order unchanged."""

    def __init__(self, file: Path) -> None:
        """Read the order from `file`; a missing file is an empty order."""
        self._file = file
        self.order: MigOrder | None = None
        """The last order read; None before the first successful read."""
        self.problem: str | None = None
        """Why the file cannot be read now; None without a problem."""

    def read(self) -> bool:
        """Read the file; return whether the order has changed."""
        try:
            found = read_message(self._file, MigOrder)
        except ExchangeError as error:
            if str(error) != self.problem:
                _log.error("mig_desired_unreadable", reason=str(error))
            self.problem = str(error)
            return False
        self.problem = None
        order = found or MigOrder()
        if order == self.order:
            return False
        if found is None:
            reason = "gpushare run has not written what it wants yet; it needs the same --mig-root"
            _log.info("mig_waiting", path=str(self._file), reason=reason)
        else:
            _log.info("mig_desired_changed", gpus=[gpu.uuid for gpu in order.gpus], version=order.revision)
        self.order = order
        return True
