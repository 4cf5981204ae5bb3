"""A daemon in small, without sockets, that can be killed between any two lines, also beside another daemon.

The ledger, the preparation of claims with its files, and the offer of units are the real ones.
"""

import asyncio
import sys
from collections.abc import Callable, Collection, Coroutine, Iterable
from contextvars import Context, ContextVar, copy_context
from pathlib import Path
from types import FrameType
from typing import Any, Protocol, TypeVar

from gpushare_plugin.base.published import Published
from gpushare_plugin.claims.claim import AllocatedClaim
from gpushare_plugin.claims.device import Device
from gpushare_plugin.claims.devices import device_name
from gpushare_plugin.core.gpu import Inventory
from gpushare_plugin.core.holding import Confirmed, Holding
from gpushare_plugin.core.prepared_claim import ClaimId, PreparedDevice
from gpushare_plugin.core.snapshot import Snapshot
from gpushare_plugin.node.claims.cdi_files import CdiFiles
from gpushare_plugin.node.claims.given import GivenFile
from gpushare_plugin.node.claims.gpus import ClaimGpus, offered_devices
from gpushare_plugin.node.claims.hand_over import ClaimStanding, HandOver
from gpushare_plugin.node.claims.preparation import Preparation
from gpushare_plugin.node.claims.records import ClaimRecords
from gpushare_plugin.node.news.news import News
from gpushare_plugin.node.offer import NodeOffer
from gpushare_plugin.sharing.plan import Plan
from tests.cluster.tasks import alongside

DRIVER = "gpu.example.com"

T = TypeVar("T")


class Surroundings(Protocol):
    """What a daemon has around it."""

    directory: Path
    copies: Path
    cdi: Path
    boot: str
    inventory: Inventory
    plan: Plan
    shown: Published[frozenset[str] | None]

    @property
    def snapshot(self) -> Snapshot:
        """The GPUs as the config shares them, with faults and cordons."""
        ...

    def clock(self) -> float:
        """Return the time in seconds."""
        ...

    def holdings(self) -> tuple[Holding, ...]:
        """Return the units that containers hold."""
        ...

    def publish(self, devices: Iterable[Device]) -> None:
        """Show devices in the ResourceSlices."""
        ...

    async def allocated(self, claim_id: ClaimId) -> AllocatedClaim:
        """Return a claim as the API server has it."""
        ...

    async def all_allocated(self) -> Iterable[AllocatedClaim]:
        """Return all claims that are allocated."""
        ...


class KilledError(BaseException):
    """The daemon was killed."""


class SimulatedDaemon:
    """One life of the daemon: all that is in memory."""

    def __init__(self, node: Surroundings) -> None:
        """Begin with what is in files."""
        self.node = node
        self.standing = Published(ClaimStanding())
        records = ClaimRecords(node.directory / "claims", node.boot)
        gpus = ClaimGpus(self.standing, self._given)
        self.preparation = Preparation(
            DRIVER, records, CdiFiles(node.cdi, DRIVER), node.allocated, gpus, lambda _pod: False
        )
        self.offer = NodeOffer(News(), node.clock)
        self._tasks: list[asyncio.Task[None]] = []
        self._calls: set[asyncio.Task[Any]] = set()

    @property
    def _given(self) -> GivenFile:
        return GivenFile(self.node.directory, self.node.copies)

    async def start(self) -> None:
        """Do what the daemon does before it offers anything, and go on in the background; also after `stand_by`."""
        await self.preparation.look()
        self._hand_over = HandOver(self._given, self.preparation.prepared.value, self.standing)
        self.offer.start(self.node.holdings(), self.node.inventory, {})
        self.apply()
        run = self._hand_over.run(self.node.shown, device_name, self.preparation.still, self.node, self.apply)
        self._tasks = [asyncio.create_task(run), asyncio.create_task(self._ask())]

    async def stand_by(self) -> None:
        """Prepare claims beside the daemon that serves the node, by the config of this moment."""
        await self.preparation.look()
        HandOver(self._given, self.preparation.prepared.value, self.standing).stand_by(self.node.plan, {})

    def apply(self) -> None:
        """Do what `ServedNode.apply` does, as far as the ledger is concerned."""
        plan = self._hand_over.hold_back(self.node.plan, {})
        self.offer.advance(plan, self.node.inventory)
        self._hand_over.settle(self.offer.occupied(self.node.inventory))
        self.publish()

    def publish(self) -> None:
        """Show the devices that claims can get."""
        prepared = self.preparation.prepared.value
        self.node.publish(offered_devices(self.standing.value, self.node.snapshot, prepared).devices)

    async def prepare(self, id_: ClaimId) -> tuple[PreparedDevice, ...] | str:
        """Have a claim prepared."""
        return (await self.preparation.prepare([id_]))[id_.uid]

    async def unprepare(self, id_: ClaimId) -> None:
        """Give a claim back."""
        assert not (await self.preparation.unprepare([id_]))[id_.uid]

    async def stop(self) -> None:
        """End what goes on in the background; calls under way go on."""
        await _ended(self._tasks)

    async def die(self) -> None:
        """End everything."""
        await _ended([*self._tasks, *self._calls])

    # ------------------------------------------------------------------ one daemon beside another

    async def does(self, work: Coroutine[Any, Any, T]) -> T:
        """Do some work of this daemon; raises KilledError where the daemon is killed."""
        task = asyncio.create_task(work, context=self._context())
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)
        try:
            return await task
        except asyncio.CancelledError:
            raise KilledError from None

    def applies(self) -> None:
        """Follow a change of the config."""
        self._context().run(self.apply)

    def _context(self) -> Context:
        context = copy_context()
        context.run(_AT_WORK.set, self)
        return context

    async def _ask(self) -> None:
        """Ask the kubelet for holdings, as the daemon does while units are retired."""
        while True:
            await asyncio.sleep(2.0)
            self.offer.update_holdings(Confirmed.of(self.node.holdings(), self.node.clock()))
            self.apply()


_AT_WORK: ContextVar[SimulatedDaemon | None] = ContextVar("at work", default=None)
"""The daemon whose code runs."""


class Killer:
    """Kills a daemon before a line of the code that keeps claims; other daemons go on."""

    def __init__(self, daemon: SimulatedDaemon, line: int) -> None:
        """Kill `daemon` before the line of this number."""
        self._daemon = daemon
        self._left = line
        self._killed = asyncio.Event()

    @property
    def killed(self) -> bool:
        """Whether the daemon was killed."""
        return self._killed.is_set()

    async def follows(self, *work: Coroutine[Any, Any, object]) -> None:
        """Do some work until the daemon is killed, and end the daemon, which runs no line afterwards."""
        sys.settrace(self._call)
        try:
            async with alongside(self._end()):
                outcomes = await asyncio.gather(*work, return_exceptions=True)
        finally:
            await self._daemon.die()
            sys.settrace(None)
        for each in outcomes:
            if isinstance(each, BaseException) and not isinstance(each, KilledError):
                raise each

    async def _end(self) -> None:
        await self._killed.wait()
        await self._daemon.die()

    def _call(self, frame: FrameType, _event: str, _argument: Any) -> Callable[..., Any] | None:
        """Follow the functions that count."""
        name = frame.f_code.co_filename
        ours = "/gpushare_plugin/node/claims/" in name or name.endswith("/replacement.py")
        # The end of a process gives its locks up, which the end of this daemon cannot.
        ends = frame.f_code.co_name in {"exclusive", "still", "_locked", "_lock"}
        return self._line if ours and not ends and _AT_WORK.get() is self._daemon else None

    def _line(self, _frame: FrameType, event: str, _argument: Any) -> Callable[..., Any]:
        """Count a line."""
        if event == "line":
            self._left -= 1
            if self._left <= 0:  # no line follows
                self._killed.set()
                raise KilledError
        return self._line


async def _ended(tasks: Collection[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
