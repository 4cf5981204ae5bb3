"""The side of `gpushare run` in the exchange with `gpushare mig`: writes orders, and tracks the orders in effect.

An instance listed by an order as `removable` may be destroyed until `gpushare mig` has read a later order without the
entry, or does not run: after a start, `gpushare mig` reads the newest order.
"""

from collections.abc import Sequence

import structlog

from gpushare_plugin.base.structs import Struct
from gpushare_plugin.gpus.exchange import AgentFiles, ExchangeError, read_message
from gpushare_plugin.mig.exchange import MigOrder, MigRoot, MigStatus, WantedCard

_log = structlog.get_logger()


class MigView(Struct, frozen=True):
    """The state of `gpushare mig` at one moment."""

    status: MigStatus | None = None
    """The status; None while `gpushare mig` does not run, or without a readable status."""
    confirmed: int = -1
    """The revision of the newest order if older orders no longer have any effect, otherwise -1."""
    trouble: str | None = None
    """Why orders cannot be written or are not carried out; None without a problem."""


class MigLink:
    """Writes orders for `gpushare mig`, and reads the status."""

    def __init__(self, root: MigRoot) -> None:
        """Continue from the order of an earlier daemon; an unreadable order may have named any instance removable."""
        self._files = AgentFiles(root, MigStatus)
        self._written: MigOrder | None = None
        self._known = True
        self._orders: dict[int, frozenset[str]] = {}
        self._revision = 0
        try:
            self._written = read_message(root.wanted, MigOrder)
            status = read_message(root.status, MigStatus)
        except ExchangeError as error:
            _log.warning("mig_file_unreadable", reason=str(error))
            self._known, status = self._written is not None, None
        if self._written is not None:
            self._orders[self._written.revision] = _removable(self._written)
            self._revision = self._written.revision
        self._revision = max(self._revision, status.revision if status else 0)

    @property
    def in_use(self) -> bool:
        """Whether the last order names any card, or an older order may still have an effect."""
        return bool(self._written and self._written.gpus) or len(self._orders) > 1 or not self._known

    def may_be_destroyed(self, uuid: str) -> bool:
        """Return whether an order that may still have an effect names the instance as removable."""
        return not self._known or any(uuid in removable for removable in self._orders.values())

    def order(self, gpus: Sequence[WantedCard]) -> None:
        """Write an order for these cards if anything changed; after a failed write, the next call tries again."""
        gpus = tuple(gpus)
        first = not self._known and not self._orders
        if not first and self._files.trouble is None and gpus == (self._written.gpus if self._written else ()):
            return
        self._revision += 1
        order = MigOrder(revision=self._revision, gpus=gpus)
        # Remember the order before the write: even after a failed write, the file may have the order.
        self._orders[self._revision] = _removable(order)
        try:
            self._files.write(order)
        except ExchangeError as error:
            _log.error("mig_desired_not_written", reason=str(error))
        if self._files.trouble is None:
            self._written = order

    def look(self) -> MigView:
        """Return the current state of `gpushare mig`."""
        seen = self._files.look()
        status = seen.status
        newest = self._revision if self._files.trouble is None else -1
        has_read = seen.runs is False or (status is not None and status.revision == newest)
        return MigView(status, newest if has_read else -1, seen.trouble or (status.trouble if status else None))

    def confirm(self, view: MigView) -> None:
        """Forget the orders older than the order confirmed by `view`: they no longer have any effect."""
        if view.confirmed in self._orders:
            self._orders = {revision: each for revision, each in self._orders.items() if revision >= view.confirmed}
            self._known = True


def _removable(order: MigOrder) -> frozenset[str]:
    return frozenset(uuid for card in order.gpus for uuid in card.removable)
