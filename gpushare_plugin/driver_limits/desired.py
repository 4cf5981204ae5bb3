"""The order of `gpushare run`, from the last readable file."""

from pathlib import Path

import structlog

from gpushare_plugin.driver_limits.exchange import LimitOrder
from gpushare_plugin.gpus.exchange import ExchangeError, read_message

_log = structlog.get_logger()


class DesiredLimits:
    """The order in a file, read again and again; an unreadable file leaves the order unchanged."""

    def __init__(self, file: Path) -> None:
        """Read the order from `file`; a missing file is an empty order."""
        self._file = file
        self.order: LimitOrder | None = None
        """The last order read; None before the first successful read."""
        self.problem: str | None = None
        """Why the file cannot be read now; None without a problem."""

    def read(self) -> None:
        """Read the file."""
        try:
            found = read_message(self._file, LimitOrder)
        except ExchangeError as error:
            if str(error) != self.problem:
                _log.error("driver_limits_desired_unreadable", reason=str(error))
            self.problem = str(error)
            return
        self.problem = None
        order = found or LimitOrder()
        if order == self.order:
            return
        if found is None:
            reason = (
                "gpushare run has not ordered limits yet, which it does with --driver-limits-agent=true, the same "
                "--driver-limits-root, and a config that has driver as an isolation"
            )
            _log.info("driver_limits_waiting", path=str(self._file), reason=reason)
        elif self.order is None or order.gpus != self.order.gpus:
            _log.info("driver_limits_desired_changed", gpus=list(order.gpus))
        self.order = order
