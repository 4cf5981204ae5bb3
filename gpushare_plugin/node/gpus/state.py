"""The present GPUs, and the GPUs closed to allocations by faults and cordons."""

from collections.abc import Callable, Iterable, Mapping

from gpushare_plugin.base.structs import replace
from gpushare_plugin.config.schema.sections import Health
from gpushare_plugin.core.gpu import FailedGpu, Gpu, Inventory
from gpushare_plugin.core.health import CardHealth, Cordon, Fault, GpuEvent, Probe, XidVerdict
from gpushare_plugin.node.news.news import (
    GpuCordoned,
    GpuEventReported,
    GpuLeftOut,
    GpuRecovered,
    GpuUncordoned,
    GpuUnhealthy,
    News,
)

MEMORY_DRIFT = 0.01
"""Fraction of a GPU's memory: the driver's reserve may change by this fraction without a change of units."""

MOST_ABSENT = 256
"""The most absent GPUs to remember: more than usually come and go, and a bound for a faulty driver."""


class Gpus:
    """The GPUs of a node, with health and cordons, by the reports of looks, events and people."""

    def __init__(self, inventory: Inventory, health: Health, news: News) -> None:
        """Start with the result of the first look; `health` decides on the begin and the end of faults."""
        self.inventory = inventory
        """The GPUs present now, including unresponsive GPUs."""
        self._health = health
        self._news = news
        self._missing: dict[str, FailedGpu] = {}
        self._left_out = inventory.failed
        self._cards: dict[str, CardHealth] = {}
        self._cordon = Cordon()
        self._known_faults: Mapping[str, Fault] = {}
        self._known_cordoned: frozenset[str] = frozenset()
        self.may_vanish: Callable[[str], bool] = lambda _uuid: False
        """Whether the MIG instance with a UUID may be destroyed: the absence of such an instance is no fault."""
        for gpu in inventory.gpus:
            self._card(gpu.uuid).probed(self._probe(inventory, gpu))
        self._publish()

    # ------------------------------------------------------------------ what changes

    def follow(self, health: Health) -> None:
        """Use other settings for the begin and the end of faults."""
        self._health = health
        for card in self._cards.values():
            card.good_probes = health.good_probes

    def event(self, event: GpuEvent) -> XidVerdict:
        """Record an event of the driver; return the consequence for the GPU."""
        verdict = self._verdict(event)
        self._news.publish(GpuEventReported(event, verdict))
        if verdict != "ignore":
            concerned = self._cards if event.uuid is None else self.inventory.concerned(event)
            for uuid in concerned:
                self._card(uuid).report(Fault(event.detail, until_reset=verdict == "until reset"))
            self._publish()
        return verdict

    def _verdict(self, event: GpuEvent) -> XidVerdict:
        policy = self._health.policy()
        if event.xid is not None:
            return policy.verdict(event.xid)
        return "ignore" if policy.watches_nothing else "until recovery"  # no XID: events cannot be watched

    def cordon(self, cordon: Cordon) -> bool:
        """Cordon exactly these GPUs; return whether the cordon changed."""
        if cordon == self._cordon:
            return False
        self._news.warn(notice for notice in cordon.notices if notice not in self._cordon.notices)
        self._cordon = cordon
        self._publish()
        return True

    def doubt(self, probe: Probe) -> None:
        """Record a probe, the result of a failed look, for all GPUs."""
        for gpu in self.inventory.gpus:
            self._card(gpu.uuid).probed(probe)
        self._publish()

    def merge(self, fresh: Inventory) -> None:
        """Take over the result of a look: unresponsive GPUs stay in the inventory, absent GPUs leave the inventory."""
        for gpu in fresh.gpus:
            self._card(gpu.uuid).probed(self._probe(fresh, gpu))
            self._missing.pop(gpu.uuid, None)
        answering = {gpu.uuid for gpu in fresh.gpus}
        unresponsive, explained = [], []
        for gpu in self.inventory.gpus:
            if gpu.uuid in answering:
                continue
            trouble = _trouble(gpu, fresh.failed)
            if gpu.mig and trouble not in fresh.failed and self.may_vanish(gpu.uuid):
                self._cards.pop(gpu.uuid, None)
                continue
            self._card(gpu.uuid).probed(Probe(trouble.reason, lost=trouble.lost))
            if trouble in fresh.failed:
                unresponsive.append(gpu)
                explained.append(trouble)
            else:
                self._missing[gpu.uuid] = trouble
        self.inventory = replace(
            fresh,
            cards=_in_order(*map(self._steady, fresh.cards), *(gpu for gpu in unresponsive if not gpu.mig)),
            instances=_in_order(*fresh.instances, *(gpu for gpu in unresponsive if gpu.mig)),
            failed=(*fresh.failed, *self._missing.values()),
        )
        self._leave_out(card for card in fresh.failed if card not in explained)
        self._publish()

    def _leave_out(self, cards: Iterable[FailedGpu]) -> None:
        """Record failing GPUs without any offer so far, and publish the new ones; no other news reports such GPUs."""
        known = {_named(card) for card in self._left_out}
        self._left_out = tuple(cards)
        for card in self._left_out:
            if _named(card) not in known:
                self._news.publish(GpuLeftOut(card))

    def _steady(self, gpu: Gpu) -> Gpu:
        """Return a GPU with its previous memory, so that the units stay the same.

        The memory is the present one where the difference is large. A card that has reported its memory before, and now
        does not, has no other memory.
        """
        for known in self.inventory.cards:
            if known.uuid == gpu.uuid and (not gpu.memory_mib or within_drift(known.memory_mib, gpu.memory_mib)):
                return replace(gpu, memory_mib=known.memory_mib, total_mib=gpu.total_mib or known.total_mib)
        return gpu

    def _probe(self, look: Inventory, gpu: Gpu) -> Probe:
        found = look.probe(gpu)
        return replace(found, trouble=None) if self._health.policy().watches_nothing else found

    def _card(self, uuid: str) -> CardHealth:
        if uuid not in self._cards:
            self._forget_absent()
            self._cards[uuid] = CardHealth(self._health.good_probes)
        return self._cards[uuid]

    def _forget_absent(self) -> None:
        """Make room for another GPU: with too many absent GPUs, forget the absent GPU known longest."""
        absent = self._cards.keys() - self._present()
        if len(absent) >= MOST_ABSENT:
            first = next(uuid for uuid in self._cards if uuid in absent)
            del self._cards[first]
            self._missing.pop(first, None)

    # ------------------------------------------------------------------ what is known

    @property
    def seconds_between_looks(self) -> float:
        """The seconds between looks: fewer while a GPU is at fault or left out."""
        return self._health.probe_seconds if self._at_fault() or self._left_out else self._health.rescan_seconds

    @property
    def faulty(self) -> frozenset[str]:
        """The UUIDs of faulty GPUs: a fault of a card counts for the instances of the card, and vice versa."""
        return self.inventory.affected(self._at_fault())

    @property
    def faults(self) -> dict[str, str]:
        """The reasons of faulty GPUs, by UUID."""
        return self._with_affected({uuid: fault.reason for uuid, fault in sorted(self._at_fault().items())})

    @property
    def cordons(self) -> dict[str, str]:
        """The reasons of cordoned GPUs, by UUID; the cordon of a card covers the instances, and vice versa."""
        return self._with_affected({uuid: self._cordon.gpus[uuid] for uuid in sorted(self._cordoned())})

    def _with_affected(self, reasons: Mapping[str, str]) -> dict[str, str]:
        """Return reasons by UUID, extended to the instances of a card and to the card of an instance."""
        names = {gpu.uuid: gpu for gpu in self.inventory.gpus}
        affected = dict(reasons)
        for instance, card in self.inventory.parts.items():
            for uuid, cause in ((instance, card), (card, instance)):
                if cause in reasons and cause in names:
                    affected.setdefault(uuid, f"affected by {names[cause].identity}: {reasons[cause]}")
        return affected

    @property
    def notices(self) -> tuple[str, ...]:
        """Warnings about the cordon, and about left-out GPUs."""
        return (*self._cordon.notices, *(f"{_named(card)} is left out: {card.reason}" for card in self._left_out))

    def _present(self) -> frozenset[str]:
        return frozenset(gpu.uuid for gpu in self.inventory.gpus)

    def _at_fault(self) -> dict[str, Fault]:
        present = self._present()
        return {uuid: card.fault for uuid, card in self._cards.items() if card.fault and uuid in present}

    def _cordoned(self) -> frozenset[str]:
        return self._present() & self._cordon.gpus.keys()

    def _publish(self) -> None:
        """Publish the GPUs with a new or worse fault or a new cordon, and the GPUs without a fault or cordon any more.

        A fault is worse when it needs a reset from now on. Another reason alone is no news: each look can change it.
        """
        present, faults, cordoned = self._present(), self._at_fault(), self._cordoned()
        for uuid, fault in faults.items():
            known = self._known_faults.get(uuid)
            if known is None or (fault.until_reset and not known.until_reset):
                self._news.publish(GpuUnhealthy(uuid, fault.reason, fault.until_reset))
        for uuid in present & (self._known_faults.keys() - faults.keys()):
            self._news.publish(GpuRecovered(uuid))
        for uuid in cordoned - self._known_cordoned:
            self._news.publish(GpuCordoned(uuid, self._cordon.gpus[uuid]))
        for uuid in present & (self._known_cordoned - cordoned):
            self._news.publish(GpuUncordoned(uuid))
        self._known_faults, self._known_cordoned = faults, cordoned


def within_drift(before: int, now: int) -> bool:
    """Return whether two amounts of memory differ by at most the usual change of the driver's reserve."""
    return abs(before - now) <= MEMORY_DRIFT * before


def _named(card: FailedGpu) -> str:
    return f"GPU {card.label}" + (f" ({card.uuid})" if card.uuid else "")


def _trouble(gpu: Gpu, failed: Iterable[FailedGpu]) -> FailedGpu:
    """Return the reason why a known GPU is missing from a look."""
    number = gpu.mig.number if gpu.mig else None
    for each in failed:
        if each.uuid in {gpu.uuid, gpu.card}:
            return each
        if each.uuid is None and each.index == gpu.index and each.number in {None, number}:
            return each
    return FailedGpu(gpu.index, "no longer present", gpu.uuid, lost=True, number=number)


def _in_order(*gpus: Gpu) -> tuple[Gpu, ...]:
    return tuple(sorted(gpus, key=lambda gpu: gpu.place))
