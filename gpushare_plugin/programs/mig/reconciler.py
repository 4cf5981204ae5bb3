"""Brings cards to what is wanted, one at a time, again and again, and reports how that goes."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

import structlog

from gpushare_plugin.adapters.host.exchange import ExchangeError, StatusFile
from gpushare_plugin.adapters.host.mig import exchange
from gpushare_plugin.adapters.host.mig.driver import MigCard, MigDriver, MigError
from gpushare_plugin.adapters.host.mig.exchange import CardStatus, MigOrder, MigRoot, MigStatus, WantedCard
from gpushare_plugin.adapters.host.source import in_thread
from gpushare_plugin.foundation.backoff import Backoff
from gpushare_plugin.foundation.errors import DriverChangedError
from gpushare_plugin.foundation.reported import Changes
from gpushare_plugin.foundation.structs import Struct, asdict
from gpushare_plugin.programs.mig.desired import DesiredLayouts
from gpushare_plugin.programs.mig.work import Outcome, divide

_log = structlog.get_logger()

T = TypeVar("T")


class Pace(Struct, frozen=True):
    """How often things happen, in seconds.

    `look` is between looks at what is wanted, `ask` between looks at a card that is as wanted. What failed is tried
    again after `first`, then ever later up to `most`. At the end, `patience` is how long a call of the driver may take.
    """

    look: float = 0.5
    ask: float = 15.0
    first: float = 1.0
    most: float = 10.0
    patience: float = 10.0


class _Attempts:
    """What was wanted of a card at the last attempt, what came of it, and when the next one is due."""

    def __init__(self, uuid: str, pace: Pace) -> None:
        self.wanted: WantedCard | None = None
        self.next_at = 0.0
        self.backoff = Backoff(first=pace.first, most=pace.most)
        self.status = CardStatus(uuid=uuid)

    def is_due(self, wanted: WantedCard | None, now: float) -> bool:
        """Return whether it is time for the next attempt, or something else is wanted."""
        return wanted != self.wanted or now >= self.next_at


class Reconciler:
    """Divides the cards as `wanted.json` says, and reports in `status.json` how that goes."""

    def __init__(self, root: MigRoot, driver: MigDriver, pace: Pace | None = None) -> None:
        """Divide with `driver`; no other reconciler uses `root`."""
        self._driver = driver
        self._pace = pace or Pace()
        self._desired = DesiredLayouts(root.wanted)
        self._file = StatusFile(root)
        self._cards: dict[str, _Attempts] = {}
        self._found: tuple[str, ...] = ()
        self._listed_at: float | None = None
        self._trouble: str | None = None
        self._changes = Changes()
        self._now: Callable[[], float] = asyncio.get_running_loop().time

    async def run(self) -> None:
        """Divide the cards until cancelled; raises DriverChangedError where only a new process can go on."""
        while True:
            try:
                await self._step()
            except DriverChangedError:
                raise
            except Exception:  # noqa: BLE001 - nothing may end it for one card
                _log.exception("mig_step_failed", remedy="report this as a defect of gpushare")
            await asyncio.sleep(self._pace.look)

    def stop(self) -> None:
        """Withdraw the status; instances stay as they are."""
        self._file.withdraw()

    async def _step(self) -> None:
        self._desired.read()
        if (order := self._desired.order) is not None:
            await self._list(order)
            wanted = {each.uuid: each for each in order.gpus}
            # Whoever wrote the order reads first that it counts, and no older one any more.
            self._publish(order)
            for uuid, card in self._cards.items():
                if not card.is_due(wanted.get(uuid), self._now()):
                    continue
                await self._attempt(uuid, card, wanted.get(uuid))
                self._publish(order)
                if self._desired.read():
                    break
        else:
            self._publish(MigOrder())

    async def _list(self, order: MigOrder) -> None:
        """Find the cards, now and then."""
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
        self._cards = {uuid: self._cards.get(uuid) or _Attempts(uuid, self._pace) for uuid in uuids}

    async def _attempt(self, uuid: str, card: _Attempts, wanted: WantedCard | None) -> None:
        """Do what is wanted of a card, or only look at it; remember when to do so again."""
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
        """Have the driver do something; what has begun is waited for when this process is to end, but not for long."""
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
    """Return how a card of which nothing is wanted is divided; nothing of it is changed."""
    try:
        return Outcome(card=driver.read(uuid))
    except MigError as error:
        return Outcome(reasons=[str(error)])


def card_status(card: MigCard, reason: str | None, created: int, destroyed: int) -> CardStatus:
    """Return the status of a card that was read."""
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
