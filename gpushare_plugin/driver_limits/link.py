"""The side of `gpushare run` in the exchange with `gpushare driver-limits`: orders limits, and tracks them."""

import asyncio
from collections.abc import Callable, Mapping

import structlog

from gpushare_plugin.base.structs import Struct, field
from gpushare_plugin.driver_limits.exchange import DriverLimitsRoot, DriverLimitsStatus, LimitOrder, LimitStatus
from gpushare_plugin.gpus.exchange import AgentFiles, ExchangeError, read_message

_log = structlog.get_logger()


class DriverLimitsView(Struct, frozen=True):
    """What `gpushare driver-limits` reports at one moment."""

    late: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """The seconds that containers ran before their limits, by the ID of the container and the UUID of the GPU.

    What was once late stays so, also while nothing runs that reports it: the process uses memory from before the limit.
    """
    unable: Mapping[str, str] = field(default_factory=dict)
    """The ordered GPUs on which limits cannot be set, by UUID, with the reason."""


class DriverLimitsLink:
    """Orders limits from `gpushare driver-limits`, and tracks how the limits stand."""

    def __init__(self, root: DriverLimitsRoot, changed: Callable[[], None], every: float = 1.0) -> None:
        """Read the status every `every` seconds, and call `changed` after every change of `view`.

        Nothing is ordered before the first call of `order`; until then, the order of an earlier process counts.
        """
        self._root = root
        self._files = AgentFiles(root, DriverLimitsStatus)
        self._changed = changed
        self._every = every
        self._order: LimitOrder | None = None
        self.view = DriverLimitsView()
        """What the last look found."""

    def ordered_before(self) -> LimitOrder:
        """Return the last order, even of an earlier process; an empty order if none can be read."""
        try:
            return read_message(self._root.wanted, LimitOrder) or LimitOrder()
        except ExchangeError as error:
            _log.warning("driver_limits_file_unreadable", reason=str(error))
            return LimitOrder()

    def order(self, order: LimitOrder) -> bool:
        """Order limits; return whether the GPUs on which limits cannot be set have changed: `view` tells at once.

        After a failed write, `watch` tries again later; meanwhile `view` has the reason.
        """
        if order == self._order and self._files.trouble is None:
            return False
        self._order = order
        self._write(order)
        before, self.view = self.view, self._look(order)
        return self.view.unable != before.unable

    async def watch(self) -> None:
        """Keep `view` up to date until cancelled."""
        while True:
            await asyncio.sleep(self._every)
            if self._order is None:
                continue
            if self._files.trouble is not None:
                self._write(self._order)
            before, self.view = self.view, self._look(self._order)
            if self.view != before:
                self._changed()

    def _write(self, order: LimitOrder) -> None:
        try:
            self._files.write(order)
        except ExchangeError as error:
            _log.error("driver_limits_desired_not_written", reason=str(error))

    def _look(self, order: LimitOrder) -> DriverLimitsView:
        seen = self._files.look()
        status = seen.status or DriverLimitsStatus()
        trouble = seen.trouble or status.trouble
        reasons = {uuid: trouble or status.why_not(uuid) for uuid in order.gpus}
        return DriverLimitsView(
            self._late(order, seen.status or self._left_behind()),
            {uuid: reason for uuid, reason in reasons.items() if reason is not None},
        )

    def _late(self, order: LimitOrder, status: DriverLimitsStatus) -> Mapping[tuple[str, str], float]:
        """Return how late the limits of ordered containers were, the latest time of each: a container grows older."""
        running = {each.container_id for each in order.containers}
        late = {key: seconds for key, seconds in self.view.late.items() if key[0] in running}
        for key, limit in _by_container(status).items():
            if key[0] in running and limit.late:
                late[key] = max(limit.late, late.get(key, 0.0))
        return late

    def _left_behind(self) -> DriverLimitsStatus:
        """Return what a process reported that has ended; nothing where that cannot be read."""
        try:
            return read_message(self._root.status, DriverLimitsStatus) or DriverLimitsStatus()
        except ExchangeError:
            return DriverLimitsStatus()


def _by_container(status: DriverLimitsStatus) -> Mapping[tuple[str, str], LimitStatus]:
    return {(each.container_id, gpu.uuid): gpu for each in status.containers for gpu in each.gpus}
