"""What this node shares, kept in step with the settings, the GPUs and the pods.

Everything that can change (settings, cards, faults, what pods hold) is kept here as it is now; after any change the
whole offer is computed anew and handed to the sessions, which send what differs.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple
from weakref import WeakValueDictionary

import structlog

from gpushare_plugin.adapters.host.mps.exchange import MpsGpu, MpsRoot, MpsSettings
from gpushare_plugin.adapters.host.mps.link import MpsLink
from gpushare_plugin.adapters.host.source import GpuSource, read_inventory
from gpushare_plugin.adapters.kubelet.allocations.reader import ONLY_RECORDED, AllocationReader
from gpushare_plugin.adapters.kubelet.device_plugin.directory import PluginDirectory
from gpushare_plugin.adapters.kubelet.device_plugin.session import Session
from gpushare_plugin.config.difference import difference
from gpushare_plugin.config.loading.load import Loaded
from gpushare_plugin.config.schema.sections import Config
from gpushare_plugin.foundation.errors import ConfigError, DriverChangedError, GpushareError
from gpushare_plugin.foundation.published import Published
from gpushare_plugin.foundation.repeats import Repeats
from gpushare_plugin.model.gpu import FailedGpu, Gpu, Inventory
from gpushare_plugin.model.health import CardHealth, Cordon, Fault, GpuEvent, Probe, Verdict
from gpushare_plugin.model.resource import Resource, Units
from gpushare_plugin.model.snapshot import Snapshot
from gpushare_plugin.sharing.injection import CONTROL_DEVICES
from gpushare_plugin.sharing.isolation.layer import Mode
from gpushare_plugin.sharing.isolation.mps import UnderMps
from gpushare_plugin.sharing.plan import Plan, plan
from gpushare_plugin.sharing.snapshot import planned_snapshot
from gpushare_plugin.sharing.transition import Allocations, Offer, Waiting, Wanted, advance, resumed

_log = structlog.get_logger()

ASK_KUBELET_EVERY = 2.0
"""Seconds between looks at what pods hold, while units are on their way out; otherwise nobody asks."""

RESUME_EVERY = 1.0
"""Seconds between attempts to learn what pods hold from before."""

DRIVER_TIMEOUT = 30.0
"""Seconds after which a driver that has not answered counts as one that does not."""

Spawn = Callable[[str, Callable[[], Awaitable[None]]], asyncio.Task[None]]
"""Runs work under a name, in the background, and starts it again should it break."""

MEMORY_DRIFT = 0.01
"""Share of a card's memory by which what the driver reserves may change without the card being another."""

_MOST_PODS = 5
"""Pods that are named where a GPU waits for some."""

MOST_ABSENT = 256
"""GPUs that are remembered though they are not there: more than come and go, and not all that a driver makes up."""

REPEAT_EVENT = 60.0
"""Seconds before an event is logged again that goes on and on, as a program's XIDs can."""

_MOST_EVENT_KINDS = 256
"""Kinds of events that are told apart for that: every card's usual ones, not every number a broken driver tells."""


class _Refused(NamedTuple):
    """Settings that were read and cannot be served, and what is wrong with them."""

    loaded: Loaded
    lines: tuple[str, ...]


class Node:
    """The GPUs of this node and the sessions that offer them."""

    def __init__(  # noqa: PLR0913, PLR0917 - a node is made in one place, from all it touches
        self,
        loaded: Loaded,
        source: GpuSource,
        directory: PluginDirectory,
        reader: AllocationReader,
        mps_root: MpsRoot,
        spawn: Spawn,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Offer what `loaded` says of the GPUs of `source`, on sockets in `directory`; `spawn` runs the sessions.

        `reader` knows what pods hold, `clock` (seconds) how long units have been on their way out. `mps_root` is where
        `gpushare mps` is told what to serve.
        """
        self.sessions: dict[str, Session] = {}
        self.snapshot = Published(Snapshot())
        self.resumed = False
        self._loaded = loaded
        self._refused: _Refused | None = None
        self._source = source
        self._directory = directory
        self._reader = reader
        self._spawn = spawn
        self._clock = clock
        self._inventory = Inventory(())
        self._missing: dict[str, FailedGpu] = {}
        self._left_out: tuple[FailedGpu, ...] = ()
        self._cards: dict[str, CardHealth] = {}
        self._cordon = Cordon()
        self._told_unhealthy: frozenset[str] = frozenset()
        self._told_cordoned: frozenset[str] = frozenset()
        self._told_events = Repeats(REPEAT_EVENT, _MOST_EVENT_KINDS)
        self._decided = Plan()
        self._offer = Offer()
        self.mps = MpsLink(mps_root, self.apply)
        self._told_mps: MpsSettings | None = None
        self._told_unserved: frozenset[tuple[str, str]] = frozenset()
        self._allocations: Allocations | None = None
        self._waiting: Mapping[str, str] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._running: dict[str, asyncio.Task[None]] = {}
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._look_soon = asyncio.Event()
        self._retiring = asyncio.Event()

    @property
    def config(self) -> Config:
        """The settings in force."""
        assert self._loaded.config is not None  # noqa: S101 - settings with problems never get here
        return self._loaded.config

    @property
    def tasks(self) -> tuple[asyncio.Task[None], ...]:
        """The tasks of the sessions, those that are ending included."""
        return tuple(self._tasks)

    # ------------------------------------------------------------------ what changes

    async def begin(self, inventory: Inventory, decided: Plan) -> None:
        """Offer what was decided for the GPUs of a first look, except what pods hold in another way from before."""
        _tell_notices((*self._loaded.notices, *decided.notices))
        self._inventory, self._left_out = inventory, inventory.failed
        for gpu in inventory.devices:
            self._card(gpu.uuid).probed(self._probe(inventory, gpu))
        self._decided = decided
        await self._resume()

    async def _resume(self) -> None:
        """Begin to offer, once it is known what pods hold from before."""
        held = await self._reader.held_at_start()
        if held is None:
            return
        self._offer = resumed(held, self._inventory.devices, self._modes_before(), self._clock())
        self.resumed = True
        self.apply()

    def _modes_before(self) -> dict[str, Mode]:
        """Return how GPUs were shared before this life: only MPS leaves a trace, all else is taken to be as it is."""
        under_mps = self._decided.mps.gpus
        modes: dict[str, Mode] = {uuid: mode for uuid, mode in self._decided.modes.items() if uuid not in under_mps}
        for gpu in self.mps.wanted_before().gpus:
            before, now = UnderMps(gpu.memory_limit_mib), under_mps.get(gpu.uuid)
            modes[gpu.uuid] = now if now is not None and _much_the_same(before, now) else before
        return modes

    def reload(self, loaded: Loaded) -> None:
        """Put other settings in force, or, when anything is wrong with them, say so and keep those that are."""
        loaded = self._with_first_mps_root(loaded)
        if _same(loaded, self._loaded) and not loaded.problems:
            # The same settings may come with other notices, and end the trouble with others.
            _tell_notices(notice for notice in loaded.notices if notice not in self._loaded.notices)
            self._loaded, self._refused = loaded, None
            self._publish()
            return
        try:
            decided = decide(loaded, self._inventory)
        except ConfigError as error:
            for line in error.lines:
                _log.error("settings refused, the old ones stay in force", problem=line)
            self._refused = _Refused(loaded, error.lines)
            self._publish()
            return
        assert loaded.config is not None  # noqa: S101 - nothing could be decided without
        for line in difference(self.config, loaded.config):
            _log.info("setting changed", change=line)
        _tell_notices((*loaded.notices, *decided.notices))
        self._loaded, self._refused = loaded, None
        for card in self._cards.values():
            card.good_probes = loaded.config.health.good_probes
        self._decided = decided
        self._look_soon.set()  # the time between looks may be another
        self.apply()

    def _with_first_mps_root(self, loaded: Loaded) -> Loaded:
        # Containers hold mounts of it, and `gpushare mps` has it for life.
        if loaded.config is None or loaded.config.flags.mps_root == (first := self.config.flags.mps_root):
            return loaded
        _log.warning("flags.mpsRoot counts at start only", found=loaded.config.flags.mps_root, in_force=first)
        flags = loaded.config.flags.model_copy(update={"mps_root": first})
        return replace(loaded, config=loaded.config.model_copy(update={"flags": flags}))

    def event(self, event: GpuEvent) -> None:
        """Take note of what the driver told."""
        verdict = self._verdict(event)
        self._tell_event(event, verdict)
        if verdict == "ignore":
            return
        before = self._unhealthy()
        concerned = self._cards if event.uuid is None else self._inventory.concerned(event)
        for uuid in concerned:
            self._card(uuid).report(Fault(event.detail, until_reset=verdict == "until reset"))
        self._look_soon.set()
        # Events can come by the thousand; only the first of a GPU changes what is offered.
        if self._unhealthy() != before:
            self.apply()

    def _verdict(self, event: GpuEvent) -> Verdict:
        policy = self.config.health.policy()
        if event.xid is not None:
            return policy.verdict(event.xid)
        return "ignore" if policy.watches_nothing else "until recovery"  # nobody hears of events

    def cordon(self, cordon: Cordon) -> None:
        """Hand out nothing of the GPUs that people took out by hand, until another `cordon` names them no more."""
        if cordon != self._cordon:
            _tell_notices(notice for notice in cordon.notices if notice not in self._cordon.notices)
            self._cordon = cordon
            self.apply()

    async def rescan(self) -> None:
        """Look at the GPUs again and again: more often while one of them is at fault."""
        clock = asyncio.get_running_loop().time
        looked_at = clock()
        while True:
            self._look_soon.clear()
            health = self.config.health
            pause = health.probe_seconds if self._at_fault() or self._left_out else health.rescan_seconds
            try:
                async with asyncio.timeout_at(looked_at + pause):
                    await self._look_soon.wait()
            except TimeoutError:
                await self.look()
                looked_at = clock()

    async def look(self) -> None:
        """Look at the GPUs once: what answers, what does not, what came and what went.

        Raises DriverChangedError when this process can look no more.
        """

        def overdue() -> None:
            self._doubt(Probe(f"the driver has not answered for {DRIVER_TIMEOUT:g} s"))
            self.apply()

        try:
            self._merge(await read_inventory(self._source, patience=DRIVER_TIMEOUT, overdue=overdue))
        except DriverChangedError:
            raise
        except GpushareError as error:
            self._doubt(Probe(str(error)))
        except Exception as error:
            # A defect, but nobody has seen the cards meanwhile.
            self._doubt(Probe(f"looking at the GPUs failed: {error!r}"))
            self.apply()
            raise
        self.apply()

    async def settle(self) -> None:
        """Ask the kubelet what pods hold: at first, and for as long as units are on their way out."""
        while not self.resumed:
            await asyncio.sleep(RESUME_EVERY)
            await self._resume()
        while True:
            await self._retiring.wait()
            await self.ask_kubelet()
            await asyncio.sleep(ASK_KUBELET_EVERY)

    async def ask_kubelet(self) -> None:
        """Ask the kubelet once what pods hold, and give up what nobody does."""
        self._allocations = allocations = await self._reader.read(self._clock())
        self.apply()
        held = allocations.held if allocations is not None else {}
        if self._reader.awaits_record or any(
            ONLY_RECORDED in map(held.get, each.units) for each in self._offer.retired
        ):
            self._refresh_record()

    def _refresh_record(self) -> None:
        """Have the kubelet write its record anew, which it does for a device list: pods that are over leave it then."""
        for session in self.sessions.values():
            if session.streaming:
                session.resend()
                return

    # ------------------------------------------------------------------ what follows from it

    def apply(self) -> None:
        """Offer what follows from everything known now; sessions send what differs from before."""
        if not self.resumed:
            return
        wanted = Wanted(self._decided.resources, self._decided.modes, self._inventory.parts)
        self._offer, waiting = advance(self._offer, wanted, self._allocations, self._clock())
        self._tell_waiting(waiting)
        self._want_mps()
        unserved = self._unserved()
        self._tell_unserved(unserved)
        unhealthy = self._unhealthy() | unserved.keys()
        self._tell_health()
        for name, resource in self._offer.resources.items():
            current = replace(resource, unhealthy=unhealthy)
            if name in self.sessions:
                self.sessions[name].replace(current)
            else:
                self._start(Session(current, self._directory))
        for name in set(self.sessions) - set(self._offer.resources):
            _log.info("resource retired", resource=name)
            del self.sessions[name]
            self._running.pop(name).cancel()
        if waiting or any(each.listed for each in self._offer.retired):
            self._retiring.set()
        else:
            self._retiring.clear()
        self._publish()

    def _publish(self) -> None:
        self.snapshot.publish(
            replace(
                planned_snapshot(self.config, self._inventory, self._decided),
                resources=tuple(self._offer.resources.values()),
                unhealthy={uuid: self._reason(uuid).reason for uuid in sorted(self._unhealthy())} | self._unserved(),
                waiting=self._waiting,
                notices=(
                    *self._loaded.notices,
                    *self._decided.notices,
                    *(f"settings refused: {line}" for line in (self._refused.lines if self._refused else ())),
                    *self._cordon.notices,
                    *(f"{_named(card)} is left out: {card.reason}" for card in self._left_out),
                ),
            )
        )

    def _start(self, session: Session) -> None:
        name = session.resource.name
        turn = self._turns.setdefault(session.socket_name, asyncio.Lock())
        task = self._spawn(f"session {name}", partial(self._in_turn, turn, session))
        self.sessions[name], self._running[name] = session, task
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @staticmethod
    async def _in_turn(turn: asyncio.Lock, session: Session) -> None:
        # Two servers must never share a path, so the former session of this name has to be gone first.
        async with turn:
            await session.run()

    def _want_mps(self) -> None:
        """Say what is wanted under MPS: GPUs with a unit listed that is, so also those whose pods have yet to end."""
        modes = {uuid: mode for uuid, mode in self._offer.modes_in_use.items() if isinstance(mode, UnderMps)}
        percentage = self._decided.mps.active_thread_percentage
        present = [gpu.uuid for gpu in self._inventory.gpus if gpu.uuid in modes]
        order = [*present, *sorted(modes.keys() - present)]  # one that does not answer keeps what its pods hold
        settings = MpsSettings(
            gpus=tuple(MpsGpu(uuid=uuid, memory_limit_mib=modes[uuid].memory_limit_mib) for uuid in order),
            active_thread_percentage=percentage if modes else None,
        )
        if settings != self._told_mps:
            self._told_mps = settings
            self.mps.want(settings)

    def _unserved(self) -> dict[str, str]:
        """Return the GPUs that cannot be handed out because of MPS, by UUID, each with the reason."""
        view = self.mps.view
        return dict(view.unserved) | dict.fromkeys(view.lingering, "the MPS control daemon has not let go of it yet")

    # ------------------------------------------------------------------ GPUs

    def _probe(self, look: Inventory, gpu: Gpu) -> Probe:
        found = look.probe(gpu)
        return replace(found, trouble=None) if self.config.health.policy().watches_nothing else found

    def _doubt(self, probe: Probe) -> None:
        """Take note of what a look found that concerns all cards."""
        for gpu in self._inventory.devices:
            self._card(gpu.uuid).probed(probe)

    def _merge(self, fresh: Inventory) -> None:
        """Take over what a look found: a card that does not answer stays known, one that is not there any more goes."""
        for gpu in fresh.devices:
            self._card(gpu.uuid).probed(self._probe(fresh, gpu))
            self._missing.pop(gpu.uuid, None)
        answering = {gpu.uuid for gpu in fresh.devices}
        silent, explained = [], []
        for gpu in self._inventory.devices:
            if gpu.uuid in answering:
                continue
            trouble = _trouble(gpu, fresh.failed)
            self._card(gpu.uuid).probed(Probe(trouble.reason, lost=trouble.lost))
            if trouble in fresh.failed:
                silent.append(gpu)
                explained.append(trouble)
            else:
                self._missing[gpu.uuid] = trouble
        before = self._inventory.devices
        self._inventory = replace(
            fresh,
            gpus=_in_order(*map(self._steady, fresh.gpus), *(gpu for gpu in silent if not gpu.mig)),
            instances=_in_order(*fresh.instances, *(gpu for gpu in silent if gpu.mig)),
            failed=(*fresh.failed, *self._missing.values()),
        )
        self._leave_out(card for card in fresh.failed if card not in explained)
        if self._inventory.devices != before:
            self._gpus_changed()

    def _leave_out(self, cards: Iterable[FailedGpu]) -> None:
        """Take note of GPUs that fail and were never offered, so that nothing else tells of them."""
        known = {_named(card) for card in self._left_out}
        self._left_out = tuple(cards)
        tell_left_out(card for card in self._left_out if _named(card) not in known)

    def _steady(self, gpu: Gpu) -> Gpu:
        """Return a GPU with the memory it had before where that is much the same, so that no unit comes and goes."""
        for known in self._inventory.gpus:
            if known.uuid == gpu.uuid and _drifted(known.memory_mib, gpu.memory_mib):
                return replace(gpu, memory_mib=known.memory_mib)
        return gpu

    def _gpus_changed(self) -> None:
        _log.warning("the GPUs of this node changed", gpus=[gpu.uuid for gpu in self._inventory.devices])
        try:
            decided = decide(self._loaded, self._inventory)
        except ConfigError as error:
            # The settings were right for the GPUs there were; those that are left go on as they are.
            for line in error.lines:
                _log.error("the settings do not suit the GPUs that are there now", problem=line)
            present = {gpu.uuid: gpu for gpu in self._inventory.devices}
            resources = tuple(
                replace(resource, units=_units_of(present, resource)) for resource in self._decided.resources
            )
            self._decided = replace(self._decided, resources=resources)
        else:
            self._decided = decided
            _tell_notices(decided.notices)
        if self._refused is not None:
            self.reload(self._refused.loaded)  # it may suit the GPUs there are now

    def _card(self, uuid: str) -> CardHealth:
        if uuid not in self._cards:
            self._forget_absent()
            self._cards[uuid] = CardHealth(self.config.health.good_probes)
        return self._cards[uuid]

    def _forget_absent(self) -> None:
        """Make room for one more GPU: of too many that are not there, the one known first is forgotten."""
        absent = self._cards.keys() - {gpu.uuid for gpu in self._inventory.devices}
        if len(absent) >= MOST_ABSENT:
            first = next(uuid for uuid in self._cards if uuid in absent)
            del self._cards[first]
            self._missing.pop(first, None)

    def _at_fault(self) -> frozenset[str]:
        present = {gpu.uuid for gpu in self._inventory.devices}
        return frozenset(uuid for uuid, card in self._cards.items() if card.fault and uuid in present)

    def _taken_out(self) -> frozenset[str]:
        """Return the cards and instances that a fault or somebody's hand takes out."""
        present = frozenset(gpu.uuid for gpu in self._inventory.devices)
        return self._at_fault() | (present & self._cordon.gpus.keys())

    def _unhealthy(self) -> frozenset[str]:
        """Return those that must not be handed out: a card's fault is its instances', theirs is the card's."""
        return self._inventory.affected(self._taken_out())

    def _reason(self, uuid: str) -> Fault:
        """Return why a GPU is unhealthy."""
        return self._card(uuid).fault or Fault(
            self._cordon.gpus.get(uuid, "a part of its card, or its card, is unhealthy")
        )

    # ------------------------------------------------------------------ what people are told

    def _tell_event(self, event: GpuEvent, verdict: Verdict) -> None:
        untold = self._told_events.untold(replace(event, detail=""), self._clock())
        if untold is not None:
            _log.warning(
                "gpu event", uuid=event.uuid, xid=event.xid, detail=event.detail, verdict=verdict, repeated=untold
            )

    def _tell_health(self) -> None:
        present = frozenset(gpu.uuid for gpu in self._inventory.devices)
        unhealthy, cordoned = self._at_fault(), present & self._cordon.gpus.keys()
        for uuid in unhealthy - self._told_unhealthy:
            fault = self._reason(uuid)
            _log.error("gpu unhealthy", uuid=uuid, reason=fault.reason, until_reset=fault.until_reset)
        for uuid in present & (self._told_unhealthy - unhealthy):
            _log.info("gpu healthy again", uuid=uuid)
        for uuid in cordoned - self._told_cordoned:
            _log.warning("gpu taken out by hand", uuid=uuid, reason=self._cordon.gpus[uuid])
        for uuid in present & (self._told_cordoned - cordoned):
            _log.info("gpu no longer taken out by hand", uuid=uuid)
        self._told_unhealthy, self._told_cordoned = unhealthy, cordoned

    def _tell_unserved(self, unserved: Mapping[str, str]) -> None:
        told = frozenset(unserved.items())
        for uuid, reason in sorted(told - self._told_unserved):
            _log.warning("gpu not served by MPS", uuid=uuid, reason=reason)
        for uuid in sorted({uuid for uuid, _ in self._told_unserved} - unserved.keys()):
            _log.info("gpu no longer waits for MPS", uuid=uuid)
        self._told_unserved = told

    def _tell_waiting(self, waiting: tuple[Waiting, ...]) -> None:
        before, self._waiting = self._waiting, {each.gpu: _why(each, self._allocations) for each in waiting}
        for gpu, reason in self._waiting.items() - before.items():
            _log.info("a GPU is not shared as the settings say yet", gpu=gpu, reason=reason)


def decide(loaded: Loaded, inventory: Inventory) -> Plan:
    """Return what the node should share; raises ConfigError with every problem of settings and GPUs together."""
    if loaded.config is None:
        raise ConfigError(loaded.lines(loaded.problems))
    present = tuple(path for path in CONTROL_DEVICES if Path(path).exists())
    decided = plan(loaded.config, inventory, present, loaded.places.describe, cgpu_disabled=loaded.cgpu_disabled)
    if problems := (*loaded.problems, *decided.problems):
        raise ConfigError(loaded.lines(problems))
    return decided


def tell_left_out(cards: Iterable[FailedGpu]) -> None:
    """Log which GPUs are not offered, and why."""
    for card in cards:
        _log.error("GPU left out", index=card.index, instance=card.number, uuid=card.uuid, reason=card.reason)


def _named(card: FailedGpu) -> str:
    return f"GPU {card.label}" + (f" ({card.uuid})" if card.uuid else "")


def _why(waiting: Waiting, allocations: Allocations | None) -> str:
    """Tell what a GPU waits for."""
    if allocations is None:
        return "it is not known yet what pods hold"
    pods = sorted(waiting.holders(allocations))
    more = f" and {len(pods) - _MOST_PODS} more" if len(pods) > _MOST_PODS else ""
    # Without a pod, all that is missing is that the kubelet says so once more.
    return f"changes over when its pods end: {', '.join(pods[:_MOST_PODS])}{more}" if pods else "changes over soon"


def _much_the_same(before: UnderMps, now: UnderMps) -> bool:
    old, new = before.memory_limit_mib, now.memory_limit_mib
    return old == new or (old is not None and new is not None and _drifted(old, new))


def _drifted(before: int, now: int) -> bool:
    """Tell whether two amounts of memory differ by no more than what the driver reserves may drift."""
    return abs(before - now) <= MEMORY_DRIFT * before


def _tell_notices(notices: Iterable[str]) -> None:
    for notice in notices:
        _log.warning("notice", notice=notice)


def _same(loaded: Loaded, other: Loaded) -> bool:
    return (loaded.config, loaded.cgpu_disabled) == (other.config, other.cgpu_disabled)


def _trouble(gpu: Gpu, failed: Iterable[FailedGpu]) -> FailedGpu:
    """Return why a known card is not among those that answer."""
    number = gpu.mig.number if gpu.mig else None
    for each in failed:
        if each.uuid in {gpu.uuid, gpu.card}:
            return each
        if each.uuid is None and each.index == gpu.index and each.number in {None, number}:
            return each
    return FailedGpu(gpu.index, "no longer there", gpu.uuid, lost=True, number=number)


def _units_of(present: Mapping[str, Gpu], resource: Resource) -> Units:
    """Return the units of a resource on the GPUs that are present, by UUID."""
    by_gpu = resource.units.by_gpu.items()
    return Units({present[gpu.uuid]: units for gpu, units in by_gpu if gpu.uuid in present})


def _in_order(*gpus: Gpu) -> tuple[Gpu, ...]:
    return tuple(sorted(gpus, key=lambda gpu: gpu.place))
