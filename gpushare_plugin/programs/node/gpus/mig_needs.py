"""The MIG instances of a partitioned node: what is wanted of its cards, and what `gpushare mig` is asked to do."""

import asyncio
from collections.abc import Iterator, Mapping

from gpushare_plugin.adapters.host.mig.exchange import CardStatus, MigRoot, WantedCard
from gpushare_plugin.adapters.host.mig.link import MigLink, MigView
from gpushare_plugin.foundation.structs import Struct, field
from gpushare_plugin.model.gpu import Gpu, Inventory
from gpushare_plugin.model.slices.mig import MigProfile, MigRoom
from gpushare_plugin.model.slices.slice import Slice, is_profile
from gpushare_plugin.model.unit import Unit
from gpushare_plugin.programs.node.gpus.looks import Looks
from gpushare_plugin.programs.node.gpus.requested_slices import RequestedSlices
from gpushare_plugin.programs.node.news.news import News
from gpushare_plugin.sharing.cut import PresentUnits
from gpushare_plugin.sharing.instances import Division, divided
from gpushare_plugin.sharing.transition import MINIMUM_RETIRED_SECONDS
from gpushare_plugin.sharing.ways.way import Numbers

LOOK_EVERY = 0.25
"""Seconds between looks at what `gpushare mig` has done, while there is anything that it could do."""


class PresentNode(Struct, frozen=True):
    """What is known of a node whenever it is divided."""

    inventory: Inventory
    """Its GPUs."""
    units: PresentUnits
    """Its units."""
    asked_at: float | None
    """When the kubelet said last what pods hold (seconds, any clock), None where it has not."""
    now: float
    """The time on the same clock."""

    def gpu_of(self, id_: str) -> str:
        """Return the UUID of the GPU of an offered unit, or of a MIG instance that an earlier daemon offered."""
        unit = self.units.offered.get(id_)
        return id_ if unit is None else unit.gpu


def _gpus(units: Mapping[str, Unit]) -> frozenset[str]:
    """Return the UUIDs of the GPUs that units are of."""
    return frozenset(unit.gpu for unit in units.values())


class _Idle(Struct):
    """Since when GPUs cannot be allocated, by UUID: only what was asked a while later shows who holds them."""

    since: dict[str, float] = field(default_factory=dict)
    free: frozenset[str] = frozenset()
    """GPUs that cannot be allocated, and that no pod holds."""

    def update(self, known: PresentNode) -> None:
        """Take note of what is offered and held now."""
        offered = _gpus(known.units.offered)
        idle = [gpu.uuid for gpu in known.inventory.gpus if gpu.uuid not in offered]
        self.since = {uuid: self.since.get(uuid, known.now) for uuid in idle}
        busy = _gpus(known.units.held) | _gpus(known.units.retired)
        asked_at = known.asked_at
        self.free = frozenset(
            uuid
            for uuid, since in self.since.items()
            if uuid not in busy and asked_at is not None and asked_at >= since + MINIMUM_RETIRED_SECONDS
        )


class NodeMig:
    """Keeps cards divided into MIG instances as is wanted, as far as what pods hold leaves room for it."""

    def __init__(self, root: MigRoot, looks: Looks, news: News) -> None:
        """Exchange files with `gpushare mig` in `root`; what it did counts once one of `looks` has seen it."""
        self._link = MigLink(root)
        self._looks = looks
        self.requested = RequestedSlices("mig", news)
        self._division = Division()
        self._idle = _Idle()
        self._view = self._link.look()
        self._coming: tuple[MigView, int] | None = None
        self._matters = asyncio.Event()
        self._active = False
        self.waits = False
        """Whether what can be destroyed, or brought into MIG mode, depends on what the kubelet says next."""
        self.surplus: frozenset[str] = frozenset()
        """Units that are there only because pods hold them."""
        self.rooms: Mapping[str, MigRoom] = {}
        """The places for MIG instances on cards in MIG mode, as `gpushare mig` said last."""
        self._take(self._view)

    # ------------------------------------------------------------------ what gpushare mig does

    async def watch(self) -> None:
        """Have the GPUs looked at whenever `gpushare mig` says something else, until cancelled."""
        while True:
            await self._matters.wait()
            await asyncio.sleep(LOOK_EVERY)
            latest = self._coming[0] if self._coming is not None else self._view
            view = self._link.look()
            if view != latest:
                self._coming = view, self._looks.begun
                self._looks.request()

    def looked(self) -> None:
        """Take over what `gpushare mig` said before the look that has ended began."""
        if self._coming is not None and self._looks.begun > self._coming[1]:
            self._view, self._coming = self._coming[0], None
            self._take(self._view)

    def _take(self, view: MigView) -> None:
        self._link.confirm(view)
        if view.status is not None:
            self.rooms = {card.uuid: _room(card) for card in view.status.gpus if card.mig_mode and card.profiles}

    # ------------------------------------------------------------------ what follows

    def cut(self, known: PresentNode, *, manage: bool) -> dict[str, Numbers]:
        """Return which GPUs are offered, by UUID; `manage` is as in `divided`."""
        held = _gpus(known.units.held)
        self._division = divided(self.requested.wanted, known.inventory, self.rooms, held, manage=manage)
        return {uuid: {} for uuid in sorted(self._division.offered)}

    def left_by_another(self, inventory: Inventory) -> dict[str, str]:
        """Return the MIG instances that an earlier daemon offered last, by UUID, each with its resource.

        Those that `gpushare mig` may destroy were not offered any more.
        """
        return {
            each.uuid: Slice("mig", each.mig.profile).resource
            for each in inventory.instances
            if each.mig is not None and is_profile(each.mig.profile) and not self._link.may_be_destroyed(each.uuid)
        }

    def order(self, known: PresentNode, *, manage: bool) -> None:
        """Have `gpushare mig` do what is possible now."""
        self._active = True
        self._idle.update(known)
        orders = [order for card in known.inventory.cards if (order := self._card(card, known, manage=manage))]
        self._link.order(orders)
        to_change = frozenset(self._to_change(known, manage=manage))
        self.waits = not to_change <= self._idle.free
        self.surplus = frozenset(id_ for id_, unit in known.units.held.items() if unit.gpu in to_change)
        self._matters.set()
        self.requested.warn(self.notices)

    def release(self) -> None:
        """Have nothing done on a node that is not divided as wanted; instances stay as they are."""
        self._active, self.waits, self.surplus = False, False, frozenset()
        self._division, self._idle = Division(), _Idle()
        if self._link.in_use:
            self._link.order(())
            self._matters.set()
        else:
            self._matters.clear()

    def _card(self, card: Gpu, known: PresentNode, *, manage: bool) -> WantedCard | None:
        """Return what is to be done to a card, None where it stays as it is."""
        free = self._idle.free
        if not card.mig_enabled:
            switch = manage and card.mig_capable and card.uuid in free
            return WantedCard(uuid=card.uuid, mig_mode=True) if switch else None
        places = self._division.places.get(card.uuid)
        if places is None:
            return None
        unwanted = self._unwanted(card, known)
        removable = tuple(uuid for uuid in unwanted if uuid in free and card.uuid in free)
        return WantedCard(uuid=card.uuid, instances=tuple(map(str, places)), removable=removable)

    def _unwanted(self, card: Gpu, known: PresentNode) -> list[str]:
        """Return the UUIDs of the MIG instances of a card that are not wanted."""
        if (places := self._division.places.get(card.uuid)) is None:
            return []
        instances = known.inventory.instances_of(card)
        lasting = self._division.lasting
        return [each.uuid for each in instances if each.mig_place not in places and each.uuid not in lasting]

    def _to_change(self, known: PresentNode, *, manage: bool) -> Iterator[str]:
        """Yield the UUIDs of the GPUs that are to be free before what is wanted can be done."""
        for card in known.inventory.cards:
            unwanted = self._unwanted(card, known)
            yield from unwanted
            if unwanted or (manage and card.mig_capable and not card.mig_enabled):
                yield card.uuid

    def unsafe(self, inventory: Inventory) -> dict[str, str]:
        """Return the MIG instances that may be destroyed at any moment, by UUID, each with the reason."""
        reason = "it may be destroyed, because it was not wanted a moment ago"
        return {gpu.uuid: reason for gpu in inventory.instances if self._link.may_be_destroyed(gpu.uuid)}

    def may_vanish(self, uuid: str) -> bool:
        """Return whether it is as wanted if a MIG instance is gone."""
        return self._link.may_be_destroyed(uuid)

    @property
    def reasons(self) -> dict[str, str]:
        """Why cards are not divided as wanted, by UUID."""
        status = self._view.status if self._active else None
        return {card.uuid: card.reason for card in (status.gpus if status else ()) if card.reason}

    @property
    def notices(self) -> tuple[str, ...]:
        """What cannot be followed, what does not fit, and what keeps `gpushare mig` from working."""
        trouble = [f"MIG instances are neither made nor destroyed: {self._view.trouble}"] if self._view.trouble else []
        return (*self.requested.request.notices, *self._division.notices, *trouble)


def _room(card: CardStatus) -> MigRoom:
    # Without its memory, which is not in the records of nodes, and which makes no difference to the room.
    return MigRoom.of(MigProfile(each.name, each.starts, each.size, each.compute, each.most) for each in card.profiles)
