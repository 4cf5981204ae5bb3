"""Divides cards as ordered, one card at a time, again and again, and reports the result."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

import structlog

from gpushare_plugin.base.backoff import Backoff
from gpushare_plugin.base.errors import DriverChangedError
from gpushare_plugin.base.reported import Reported
from gpushare_plugin.base.structs import Struct, asdict
from gpushare_plugin.gpus.exchange import DesiredFile, ExchangeError, StatusFile
from gpushare_plugin.gpus.mig_driver import MigCard, MigDriver, MigError
from gpushare_plugin.gpus.source import in_thread
from gpushare_plugin.mig import exchange
from gpushare_plugin.mig.exchange import CardStatus, MigOrder, MigRoot, MigStatus, WantedCard
from gpushare_plugin.mig.work import Outcome, divide

_log = structlog.get_logger()

T = TypeVar("T")


class MigPace(Struct, frozen=True):
    """The pace of the work, in seconds."""

    look: float = 0.5
    """The time between two reads of the order."""
    ask: float = 15.0
    """The time between two reads of a card divided as ordered, two listings of the cards, and two touches of `alive`.
    """
    first: float = 1.0
    """The wait after a first failure; every further failure doubles the wait."""
    most: float = 10.0
    """The longest wait after a failure."""
    patience: float = 10.0
    """The longest wait for a running call of the driver at the end of the process."""


class _CardAttempts:
    """The last attempt at a card: what was ordered, the result, and the time of the next attempt."""

    def __init__(self, uuid: str, pace: MigPace) -> None:
        self.wanted: WantedCard | None = None
        self.next_at = 0.0
        self.backoff = Backoff(first=pace.first, most=pace.most)
        self.status = CardStatus(uuid=uuid)

    def is_due(self, wanted: WantedCard | None, now: float) -> bool:
        """Return whether the time for the next attempt has come, or the order for the card has changed."""
        return wanted != self.wanted or now >= self.next_at


class Reconciler:
    """Divides the cards as ordered in `wanted.json`, and reports the result in `status.json`."""

    def __init__(self, root: MigRoot, driver: MigDriver, pace: MigPace | None = None) -> None:
        """Divide the cards with `driver`; no other reconciler may use `root`."""
        self._driver = driver
        self._pace = pace or MigPace()
        self._desired = DesiredFile(root.wanted, MigOrder)
        self._file = StatusFile(root)
        self._cards: dict[str, _CardAttempts] = {}
        self._found: tuple[str, ...] = ()
        self._listed_at: float | None = None
        self._trouble: str | None = None
        self._changes = Reported()
        self._now: Callable[[], float] = asyncio.get_running_loop().time

    async def run(self) -> None:
        """Divide the cards until cancelled; raises DriverChangedError where only a new process can continue."""
        while True:
            try:
                await self._step()
            except DriverChangedError:
                raise
            except Exception:  # noqa: BLE001 - an error at one card must not end the work
                _log.exception("mig_step_failed", remedy="report this as a defect of gpushare")
            await asyncio.sleep(self._pace.look)

    def stop(self) -> None:
        """Withdraw the status; the instances stay unchanged."""
        self._file.withdraw()

    async def _step(self) -> None:
        self._read()
        if self._desired.known:
            order = self._desired.message
            await self._list(order)
            wanted = {each.uuid: each for each in order.gpus}
            # First of all, publish the new revision: `gpushare run` waits for the end of older orders.
            self._publish(order)
            for uuid, card in self._cards.items():
                if not card.is_due(wanted.get(uuid), self._now()):
                    continue
                await self._attempt(uuid, card, wanted.get(uuid))
                self._publish(order)
                if self._read():
                    break
        else:
            self._publish(MigOrder())

    def _read(self) -> bool:
        """Read the order; return whether the order has changed."""
        desired = self._desired
        try:
            changed = desired.read()
        except ExchangeError as error:
            _log.error("mig_desired_unreadable", reason=str(error))
            return False
        if self._changes.is_new("missing order", desired.missing) and desired.missing:
            reason = "gpushare run has not written what it wants yet; it needs the same --mig-root"
            _log.info("mig_waiting", path=str(desired.file), reason=reason)
        elif changed:
            order = desired.message
            _log.info("mig_desired_changed", gpus=[gpu.uuid for gpu in order.gpus], version=order.revision)
        return changed

    async def _list(self, order: MigOrder) -> None:
        """Update the list of cards: ask the driver every `ask` seconds, and at once after a failure."""
        if self._listed_at is None or self._now() >= self._listed_at + self._pace.ask or self._trouble is not None:
            self._listed_at = self._now()
            try:
                self._found = await self._ask(self._driver.cards)
            except MigError as error:
                self._trouble = str(error)
                if self._changes.is_new("cards", self._trouble):
                    _log.error("mig_cards_unknown", reason=self._trouble)
                return
            self._trouble = None
            self._changes.is_new("cards", None)
        uuids = dict.fromkeys((*self._found, *(each.uuid for each in order.gpus)))
        self._cards = {uuid: self._cards.get(uuid) or _CardAttempts(uuid, self._pace) for uuid in uuids}

    async def _attempt(self, uuid: str, card: _CardAttempts, wanted: WantedCard | None) -> None:
        """Divide a card as ordered, or only read a card outside the order; set the time of the next attempt."""
        driver = self._driver
        if wanted is None:
            outcome = await self._ask(lambda: _look(driver, uuid))
        else:
            outcome = await self._ask(lambda: divide(driver, wanted))
        if wanted != card.wanted:
            card.backoff.reset()
        card.wanted = wanted
        if outcome.reason is None:
            card.backoff.reset()
            wait = self._pace.ask
        else:
            wait = card.backoff.next()
        card.next_at = self._now() + wait
        if self._changes.is_new(uuid, outcome.reason) and outcome.reason is not None:
            _log.warning("mig_not_done", uuid=uuid, reason=outcome.reason, retry_seconds=wait)
        created, destroyed = card.status.created + outcome.created, card.status.destroyed + outcome.destroyed
        if outcome.card is not None:
            card.status = card_status(outcome.card, outcome.reason, created, destroyed)
        else:
            changes = {"reason": outcome.reason, "created": created, "destroyed": destroyed}
            card.status = card.status.model_copy(update=changes)

    async def _ask(self, work: Callable[[], T]) -> T:
        """Call the driver in a thread; when cancelled, wait for the running call, at most `patience` seconds."""
        begun = asyncio.create_task(in_thread(work, "mig"))
        try:
            return await asyncio.shield(begun)
        except asyncio.CancelledError:
            await asyncio.wait({begun}, timeout=self._pace.patience)
            raise

    def _publish(self, order: MigOrder) -> None:
        trouble = self._desired.problem or self._trouble
        gpus = tuple(card.status for card in self._cards.values())
        status = MigStatus(revision=order.revision, gpus=gpus, trouble=trouble)
        ready = trouble is None and all(gpu.reason is None for gpu in gpus)
        try:
            self._file.write(status, ready=ready)
        except (ExchangeError, OSError) as error:
            if self._changes.is_new("status", str(error)):
                _log.error("mig_status_not_written", reason=str(error))


def _look(driver: MigDriver, uuid: str) -> Outcome:
    """Return the division of a card outside the order; the card stays unchanged."""
    try:
        return Outcome(card=driver.read(uuid))
    except MigError as error:
        return Outcome(reasons=[str(error)])


def card_status(card: MigCard, reason: str | None, created: int, destroyed: int) -> CardStatus:
    """Return the status of a card from a read of the card."""
    return CardStatus(
        uuid=card.uuid,
        mig_mode=card.enabled,
        pending=card.pending,
        profiles=tuple(exchange.Profile(**asdict(each)) for each in card.profiles),
        instances=tuple(
            exchange.Instance(place=str(part.place), size=part.size, uuids=part.uuids)
            for part in sorted(card.parts, key=lambda part: part.place.start)
        ),
        reason=reason,
        created=created,
        destroyed=destroyed,
    )
