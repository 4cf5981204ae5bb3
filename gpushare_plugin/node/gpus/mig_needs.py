"""The MIG instances of a partitioned node: the wanted division of the cards, and the orders to `gpushare mig`."""

import asyncio
from collections.abc import Callable, Iterator, Mapping

from gpushare_plugin.base.structs import Struct, field
from gpushare_plugin.core.gpu import Gpu, Inventory
from gpushare_plugin.core.unit import Unit
from gpushare_plugin.mig.exchange import CardStatus, MigRoot, WantedCard
from gpushare_plugin.mig.link import MigLink, MigView
from gpushare_plugin.node.gpus.looks import Looks
from gpushare_plugin.sharing.cut import PresentUnits
from gpushare_plugin.sharing.instances import Division, divided
from gpushare_plugin.sharing.transition import MINIMUM_RETIRED_SECONDS
from gpushare_plugin.sharing.ways.way import SliceNumbers
from gpushare_plugin.slices.mig import MigProfile, MigRoom
from gpushare_plugin.slices.slice import Slice, is_profile
from gpushare_plugin.slices.wanted import SliceCounts

LOOK_EVERY = 0.25
"""Seconds between looks at the status of `gpushare mig`, while `gpushare mig` may have work."""


def _gpus(units: Mapping[str, Unit]) -> frozenset[str]:
    """Return the UUIDs of the GPUs of units."""
    return frozenset(unit.gpu for unit in units.values())


class _Idle(Struct):
    """The GPUs without offered units, which cannot be allocated.

    Whether pods hold a GPU is certain once the kubelet was asked MINIMUM_RETIRED_SECONDS after the last offer.
    """

    since: dict[str, float] = field(default_factory=dict)
    """The time of the first update that found a GPU without offered units, by UUID."""
    free: frozenset[str] = frozenset()
    """The UUIDs of the GPUs without offered units that are certainly not held."""

    def update(self, inventory: Inventory, units: PresentUnits, now: float) -> None:
        """Update both fields from the offered, retired and held units; `now` is on the clock of `units.asked_at`."""
        offered = _gpus(units.offered)
        idle = [gpu.uuid for gpu in inventory.gpus if gpu.uuid not in offered]
        self.since = {uuid: self.since.get(uuid, now) for uuid in idle}
        busy = _gpus(units.held) | _gpus(units.retired)
        asked_at = units.asked_at
        self.free = frozenset(
            uuid
            for uuid, since in self.since.items()
            if uuid not in busy and asked_at is not None and asked_at >= since + MINIMUM_RETIRED_SECONDS
        )


class NodeMig:
    """Keeps cards divided into the wanted MIG instances, as far as GPUs held by pods leave room."""

    def __init__(self, root: MigRoot, looks: Looks, clock: Callable[[], float]) -> None:
        """Exchange files with `gpushare mig` in `root`; a new status counts after one of `looks` at the GPUs.

        `clock` (seconds) measures how long GPUs have been without offered units.
        """
        self._link = MigLink(root)
        self._looks = looks
        self._clock = clock
        self._division = Division()
        self._idle = _Idle()
        self._view = self._link.look()
        self._coming: tuple[MigView, int] | None = None
        self._matters = asyncio.Event()
        self._active = False
        self.waits = False
        """Whether a change of a GPU waits until an answer of the kubelet shows that no pod holds the GPU."""
        self.surplus: frozenset[str] = frozenset()
        """The IDs of units present only because pods hold the units."""
        self.rooms: Mapping[str, MigRoom] = {}
        """The room for MIG instances on cards in MIG mode, by card UUID, by the last status of `gpushare mig`."""
        self._take(self._view)

    # ------------------------------------------------------------------ status of gpushare mig

    async def watch(self) -> None:
        """Request a look at the GPUs after each change of the status of `gpushare mig`, until cancelled."""
        while True:
            await self._matters.wait()
            await asyncio.sleep(LOOK_EVERY)
            latest = self._coming[0] if self._coming is not None else self._view
            view = self._link.look()
            if view != latest:
                self._coming = view, self._looks.begun
                self._looks.request()

    def looked(self) -> None:
        """Use the newest status of `gpushare mig` if the look just finished began after the status was read."""
        if self._coming is not None and self._looks.begun > self._coming[1]:
            self._view, self._coming = self._coming[0], None
            self._take(self._view)

    def _take(self, view: MigView) -> None:
        self._link.confirm(view)
        if view.status is not None:
            self.rooms = {card.uuid: _room(card) for card in view.status.gpus if card.mig_mode and card.profiles}

    # ------------------------------------------------------------------ offers and orders

    def cut(
        self, wanted: Mapping[str, SliceCounts], inventory: Inventory, units: PresentUnits, *, manage: bool
    ) -> dict[str, SliceNumbers]:
        """Return the offered GPUs by UUID, each without slices; `wanted` and `manage` are as in `divided`."""
        held = _gpus(units.held)
        self._division = divided(wanted, inventory, self.rooms, held, manage=manage)
        return {uuid: {} for uuid in sorted(self._division.offered)}

    def left_by_another(self, inventory: Inventory) -> dict[str, str]:
        """Return the MIG instances offered last by an earlier daemon: resource names by instance UUID.

        Instances that `gpushare mig` may destroy are left out: the earlier daemon no longer offered the instances.
        """
        return {
            each.uuid: Slice("mig", each.mig.profile).resource
            for each in inventory.instances
            if each.mig is not None and is_profile(each.mig.profile) and not self._link.may_be_destroyed(each.uuid)
        }

    def order(self, inventory: Inventory, units: PresentUnits, *, manage: bool) -> None:
        """Order all changes possible now from `gpushare mig`."""
        self._active = True
        self._idle.update(inventory, units, self._clock())
        orders = [order for card in inventory.cards if (order := self._card(card, inventory, manage=manage))]
        self._link.order(orders)
        to_change = frozenset(self._to_change(inventory, manage=manage))
        self.waits = not to_change <= self._idle.free
        self.surplus = frozenset(id_ for id_, unit in units.held.items() if unit.gpu in to_change)
        self._matters.set()

    def release(self) -> None:
        """Order nothing from `gpushare mig`, on a node not partitioned by MIG; instances stay unchanged."""
        self._active, self.waits, self.surplus = False, False, frozenset()
        self._division, self._idle = Division(), _Idle()
        if self._link.in_use:
            self._link.order(())
            self._matters.set()
        else:
            self._matters.clear()

    def _card(self, card: Gpu, inventory: Inventory, *, manage: bool) -> WantedCard | None:
        """Return the order for a card, None if nothing is to be ordered."""
        free = self._idle.free
        if not card.mig_enabled:
            switch = manage and card.mig_capable and card.uuid in free
            return WantedCard(uuid=card.uuid, mig_mode=True) if switch else None
        places = self._division.places.get(card.uuid)
        if places is None:
            return None
        unwanted = self._unwanted(card, inventory)
        removable = tuple(uuid for uuid in unwanted if uuid in free and card.uuid in free)
        return WantedCard(uuid=card.uuid, instances=tuple(map(str, places)), removable=removable)

    def _unwanted(self, card: Gpu, inventory: Inventory) -> list[str]:
        """Return the UUIDs of the unwanted MIG instances of a card."""
        if (places := self._division.places.get(card.uuid)) is None:
            return []
        instances = inventory.instances_of(card)
        lasting = self._division.lasting
        return [each.uuid for each in instances if each.mig_place not in places and each.uuid not in lasting]

    def _to_change(self, inventory: Inventory, *, manage: bool) -> Iterator[str]:
        """Yield the UUIDs of the GPUs that must be free before the division can change."""
        for card in inventory.cards:
            unwanted = self._unwanted(card, inventory)
            yield from unwanted
            if unwanted or (manage and card.mig_capable and not card.mig_enabled):
                yield card.uuid

    def unsafe(self, inventory: Inventory) -> dict[str, str]:
        """Return the MIG instances that `gpushare mig` may destroy at any moment: reasons by instance UUID."""
        reason = "it may be destroyed, because it was not wanted a moment ago"
        return {gpu.uuid: reason for gpu in inventory.instances if self._link.may_be_destroyed(gpu.uuid)}

    def may_vanish(self, uuid: str) -> bool:
        """Return whether the absence of a MIG instance is no fault, because `gpushare mig` may destroy the instance."""
        return self._link.may_be_destroyed(uuid)

    @property
    def reasons(self) -> dict[str, str]:
        """The reasons why cards are not divided as wanted, by UUID."""
        status = self._view.status if self._active else None
        return {card.uuid: card.reason for card in (status.gpus if status else ()) if card.reason}

    @property
    def notices(self) -> tuple[str, ...]:
        """Warnings about wanted instances without a place, and trouble of `gpushare mig`."""
        trouble = [f"MIG instances are neither made nor destroyed: {self._view.trouble}"] if self._view.trouble else []
        return (*self._division.notices, *trouble)


def _room(card: CardStatus) -> MigRoom:
    # The memory of profiles is left out: the room does not depend on memory, and records of nodes have no memory.
    return MigRoom.of(MigProfile(each.name, each.starts, each.size, each.compute, each.most) for each in card.profiles)
