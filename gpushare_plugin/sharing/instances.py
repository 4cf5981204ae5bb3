"""Dividing the cards of a partitioned node into MIG instances: the wanted places, and the offered instances.

This module does no input or output. The wanted slices can change at any time and are not trusted. An instance held by
a pod stays, whatever slices are wanted.
"""

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet

from gpushare_plugin.base.structs import Struct, field
from gpushare_plugin.core.gpu import Gpu, Inventory
from gpushare_plugin.slices.mig import MigRoom
from gpushare_plugin.slices.room import Layout
from gpushare_plugin.slices.slice import MigPlace, Slice, is_profile, mig_place
from gpushare_plugin.slices.wanted import SliceCounts

Rooms = Mapping[str, MigRoom]
"""The room for MIG instances on each card, by card UUID."""


class Division(Struct, frozen=True):
    """The division of cards: the wanted places of MIG instances, and the offered GPUs."""

    places: Mapping[str, tuple[MigPlace, ...]] = field(default_factory=dict)
    """The wanted places of MIG instances, by card UUID; a card without an entry stays unchanged."""
    offered: frozenset[str] = frozenset()
    """The UUIDs of the offered GPUs.

    A held GPU is offered, wanted or not: the kubelet records the end of a pod only while the resource is served.
    """
    lasting: frozenset[str] = frozenset()
    """The UUIDs of MIG instances with shapes that pods cannot request here; the instances are left alone."""
    notices: tuple[str, ...] = ()
    """Warnings for people about cards offered whole, and about wanted instances without a place."""


def divided(
    wanted: Mapping[str, SliceCounts], inventory: Inventory, rooms: Rooms, held: AbstractSet[str], *, manage: bool
) -> Division:
    """Return the division of the cards for the `wanted` slices by card UUID, while pods hold the GPUs `held`.

    With `manage`, cards outside of MIG mode are brought into MIG mode if possible. All other cards outside of MIG mode
    are offered whole.
    """
    places: dict[str, tuple[MigPlace, ...]] = {}
    offered: set[str] = set()
    lasting: set[str] = set()
    notices: list[str] = []
    for card in inventory.cards:
        instances = inventory.instances_of(card)
        if not card.mig_enabled:
            if not (manage and card.mig_capable):
                offered.add(card.uuid)
                notices.append(_whole(card))
            elif card.uuid in held:
                offered.add(card.uuid)
        elif (counts := wanted.get(card.uuid)) is None:
            offered.update(each.uuid for each in instances)
        else:
            room = rooms.get(card.uuid)
            others = [each for each in instances if _is_other(each, room)]
            found = _PlaceChoice(
                card, [each for each in instances if each not in others], _blocked_by(room, others), held
            )
            places[card.uuid] = found.of(counts)
            notices += found.notices
            lasting.update(each.uuid for each in others)
            offered.update(each.uuid for each in instances if each.uuid in held or each.mig_place in places[card.uuid])
    return Division(places, frozenset(offered | lasting), frozenset(lasting), tuple(notices))


def _is_other(instance: Gpu, room: MigRoom | None) -> bool:
    """Return whether pods cannot request an instance, such as one of several compute instances of a GPU instance."""
    place = instance.mig_place
    return place is None or not is_profile(place.profile) or (room is not None and not room.has(str(place)))


def _blocked_by(room: MigRoom | None, others: Iterable[Gpu]) -> MigRoom | None:
    """Return the room that `others` leave, None if the room is unknown."""
    return room and room.blocked_by((each.mig.profile, each.mig.start) for each in others if each.mig is not None)


def _whole(card: Gpu) -> str:
    if card.mig_capable:
        return (
            f"{card.description} is not in MIG mode, so it is offered whole: to have it divided, set "
            "partitioning.migMode to manage in the config, or switch it on with nvidia-smi --multi-instance-gpu=1"
        )
    return f"{card.description} has no MIG mode, so it is offered whole"


class _PlaceChoice:
    """The choice of places on one card for the wanted slices."""

    def __init__(self, card: Gpu, instances: Iterable[Gpu], room: MigRoom | None, held: AbstractSet[str]) -> None:
        there = [(each.uuid not in held, place) for each in instances if (place := each.mig_place) is not None]
        self._card = card
        self._there = [place for _, place in sorted(there)]
        self._held = [place for free, place in there if not free]
        self._room = room
        self.notices: list[str] = []

    def of(self, counts: SliceCounts) -> tuple[MigPlace, ...]:
        """Return the places for the wanted slices, in sorted order.

        A slice wanted by place gets the place. A slice wanted by profile gets the place of an existing instance, a held
        instance first, and else a free place. Missing places are added to `notices`.
        """
        places = [mig_place(name) for name in counts if "@" in name]
        profiles = (Slice("mig", name) for name in counts if "@" not in name)
        for each in sorted(profiles, key=lambda each: each.rank):
            found: list[MigPlace] = []
            while len(found) < counts[each.name]:
                place = next(self._candidates(each, [*places, *found]), None)
                if place is None:
                    self.notices.append(self._missing(each, counts[each.name], len(found)))
                    break
                found.append(place)
            places += found
        return tuple(sorted(places))

    def _candidates(self, wanted: Slice, taken: list[MigPlace]) -> Iterator[MigPlace]:
        for place in self._there:
            fits = self._room is None or self._room.fits([*map(str, taken), str(place)])
            if fits and place.profile == wanted.name and place not in taken:
                yield place
        if self._room is not None:
            lasting = Layout(fixed=tuple(sorted(map(str, {*taken, *self._held}))))
            yield from (mig_place(option.name) for option in self._room.options(lasting, wanted))

    def _missing(self, wanted: Slice, count: int, found: int) -> str:
        if self._room is None:
            return (
                f"{self._card.identity}: {count} MIG instances {wanted.name} wanted, {found} found: gpushare mig has "
                "not said yet which profiles the GPU has"
            )
        known = ", ".join(self._room.names) or "none"
        return (
            f"{self._card.identity}: {count} MIG instances {wanted.name} wanted, {found} fit beside what pods hold and "
            f"what else is wanted; its profiles: {known}"
        )
