"""The side of `gpushare run` in the exchange with `gpushare driver-limits`: orders limits, and tracks them."""

import asyncio
from collections.abc import Callable, Mapping

import structlog

from gpushare_plugin.base.files.lock import is_locked
from gpushare_plugin.base.reported import Reported
from gpushare_plugin.base.structs import Struct, field
from gpushare_plugin.driver_limits.exchange import DriverLimitsRoot, DriverLimitsStatus, LimitOrder, LimitStatus
from gpushare_plugin.gpus.exchange import ExchangeError, read_message, write_message

_log = structlog.get_logger()

_NOT_PROVEN = "gpushare driver-limits has not proven yet that limits can be set on this GPU"


class DriverLimitsView(Struct, frozen=True):
    """What `gpushare driver-limits` reports at one moment."""

    limits: Mapping[tuple[str, str], LimitStatus] = field(default_factory=dict)
    """How limits stand, by the ID of the container and the UUID of the GPU."""
    unable: Mapping[str, str] = field(default_factory=dict)
    """The ordered GPUs on which limits cannot be set, by UUID, with the reason."""
    trouble: str | None = None
    """Why no limits are set, or nothing is known of limits; None without a problem."""


class DriverLimitsLink:
    """Orders limits from `gpushare driver-limits`, and tracks how the limits stand."""

    def __init__(self, root: DriverLimitsRoot, changed: Callable[[], None], every: float = 1.0) -> None:
        """Read the status every `every` seconds, and call `changed` after every change of `view`.

        Nothing is ordered before the first call of `order`; until then, the order of an earlier process counts.
        """
        self._root = root
        self._changed = changed
        self._every = every
        self._order: LimitOrder | None = None
        self._trouble: str | None = None
        self._changes = Reported()
        self.view = DriverLimitsView()
        """What the last look found."""

    def ordered_before(self) -> LimitOrder:
        """Return the last order, even of an earlier process; an empty order if none can be read."""
        try:
            return read_message(self._root.wanted, LimitOrder) or LimitOrder()
        except ExchangeError as error:
            _log.warning("driver_limits_file_unreadable", reason=str(error))
            return LimitOrder()

    def order(self, order: LimitOrder) -> None:
        """Order limits; `view` tells at once on which GPUs limits cannot be set.

        After a failed write, `watch` tries again later; meanwhile `view` has the reason.
        """
        if order != self._order or self._trouble is not None:
            self._order = order
            self._write(order)
            self.view = self._look(order)

    async def watch(self) -> None:
        """Keep `view` up to date until cancelled."""
        while True:
            await asyncio.sleep(self._every)
            if self._order is None:
                continue
            if self._trouble is not None:
                self._write(self._order)
            view = self._look(self._order)
            if view != self.view:
                self.view = view
                self._changed()

    def _write(self, order: LimitOrder) -> None:
        try:
            self._root.path.mkdir(parents=True, exist_ok=True)
            write_message(self._root.wanted, order)
        except (OSError, ExchangeError) as error:
            self._trouble = f"what is wanted cannot be written for gpushare driver-limits: {error}"
            if self._changes.is_new("wanted", self._trouble):
                _log.error("driver_limits_desired_not_written", reason=self._trouble)
        else:
            self._trouble = None
            self._changes.is_new("wanted", None)

    def _look(self, order: LimitOrder) -> DriverLimitsView:
        status, trouble = None, self._trouble
        try:
            if is_locked(self._root.lock):
                status = read_message(self._root.status, DriverLimitsStatus)
                trouble = trouble or (status.trouble if status is not None else None)
            else:
                trouble = trouble or (
                    "gpushare driver-limits does not run on this node, or uses another root than "
                    f"{self._root.path}; in the chart, driverLimits.enabled: true starts it"
                )
        except (OSError, ExchangeError) as error:
            trouble = trouble or f"the status of gpushare driver-limits cannot be read: {error}"
        status = status or DriverLimitsStatus()
        known = {gpu.uuid: gpu.reason or (None if gpu.proven else _NOT_PROVEN) for gpu in status.gpus}
        reasons = {uuid: trouble or known.get(uuid, _NOT_PROVEN) for uuid in order.gpus}
        return DriverLimitsView(
            {(each.container_id, gpu.uuid): gpu for each in status.containers for gpu in each.gpus},
            {uuid: reason for uuid, reason in reasons.items() if reason is not None},
            trouble,
        )
