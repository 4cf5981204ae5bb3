"""Cutting the GPUs of a partitioned node under MPS into held slices and, as room allows, wanted slices.

This module does no input or output. The wanted slices can change at any time and are not trusted. A held slice keeps
its number and therefore its ID. A GPU gets no wanted slice beyond its room.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import chain, count, islice
from operator import attrgetter

from gpushare_plugin.base.structs import Struct, field
from gpushare_plugin.base.text import some_of
from gpushare_plugin.core.gpu import Gpu
from gpushare_plugin.core.unit import Unit
from gpushare_plugin.sharing.isolation.mps import room_of, why_not
from gpushare_plugin.sharing.ways.way import SliceNumbers
from gpushare_plugin.slices.memory import MOST_MPS_CLIENTS, MemoryRoom
from gpushare_plugin.slices.room import fitting
from gpushare_plugin.slices.slice import Slice, named_slice
from gpushare_plugin.slices.wanted import SliceCounts

_MOST_SIZES = 5
"""The most sizes that a warning about one GPU names."""


class PresentUnits(Struct, frozen=True):
    """The units of a node, by ID."""

    offered: Mapping[str, Unit] = field(default_factory=dict)
    """The allocatable units."""
    retired: Mapping[str, Unit] = field(default_factory=dict)
    """The retired units, which cannot be allocated."""
    held: Mapping[str, Unit] = field(default_factory=dict)
    """The units held by pods; if `certain` is false, all units that pods may hold."""
    asked_at: float | None = None
    """The time when the kubelet was asked for the held units, None while they are unknown; seconds."""

    @property
    def certain(self) -> bool:
        """Whether the units held by pods are known."""
        return self.asked_at is not None

    def gpu_of(self, id_: str) -> str:
        """Return the GPU UUID of an offered unit, or `id_`: the UUID of a MIG instance offered by an earlier daemon."""
        unit = self.offered.get(id_)
        return id_ if unit is None else unit.gpu


class Cut(Struct, frozen=True):
    """The slices into which GPUs are cut."""

    numbers: Mapping[str, SliceNumbers] = field(default_factory=dict)
    """The slices of each GPU, by GPU UUID."""
    notices: tuple[str, ...] = ()
    """Warnings for people about wanted slices without room; none while the units held by pods are uncertain."""
    surplus: frozenset[str] = frozenset()
    """The IDs of held slices, for each size with more held than wanted slices; other slices may replace them later."""


def cut(wanted: Mapping[str, SliceCounts], gpus: Sequence[Gpu], units: PresentUnits) -> Cut:
    """Return the cut of `gpus` for the `wanted` slices by GPU UUID; a GPU without an entry keeps its slices.

    GPUs that MPS cannot share are left out.
    """
    offered, retired, held = (_by_gpu(each.values()) for each in (units.offered, units.retired, units.held))
    numbers: dict[str, SliceNumbers] = {}
    notices: list[str] = []
    surplus: set[str] = set()
    for gpu in gpus:
        if why_not(gpu):
            continue  # the plan warns about the GPU
        card = _Card(gpu, room_of(gpu), offered[gpu.uuid], retired[gpu.uuid], held[gpu.uuid])
        counts = wanted.get(gpu.uuid)
        desired = card.as_it_is if counts is None else {named_slice(name): n for name, n in counts.items()}
        numbers[gpu.uuid] = card.cut(desired)
        if units.certain and (missing := card.missing(desired, numbers[gpu.uuid])):
            notices.append(missing)
        surplus.update(card.surplus(desired))
    return Cut(numbers, tuple(notices), frozenset(surplus))


def few_slices(gpus: Iterable[Gpu]) -> dict[str, int]:
    """Return the largest number of slices under MPS, by UUID, for `gpus` with fewer than MOST_MPS_CLIENTS."""
    return {gpu.uuid: most for gpu in gpus if (most := room_of(gpu).most) < MOST_MPS_CLIENTS}


def unsuitable(gpus: Iterable[Gpu]) -> Mapping[str, str]:
    """Return the reasons why MPS cannot share some GPUs of a partitioned node, by UUID."""
    return {gpu.uuid: f"MPS cannot share it: it {reason}" for gpu in gpus if (reason := why_not(gpu))}


def unwanted(numbers: Mapping[str, SliceNumbers], units: PresentUnits) -> frozenset[str]:
    """Return the IDs of the offered slices outside of `numbers`, the slices of each GPU by UUID.

    GPUs without an entry in `numbers` are skipped.
    """
    offered = _by_gpu(units.offered.values())
    return frozenset(
        id_
        for uuid, found in numbers.items()
        for size, ids in offered[uuid].items()
        for number, id_ in ids.items()
        if number not in found.get(size, ())
    )


def keeping(
    numbers: Mapping[str, SliceNumbers], gpus: Sequence[Gpu], units: PresentUnits, withdrawn: AbstractSet[str]
) -> Mapping[str, SliceNumbers]:
    """Return `numbers` plus the `withdrawn` slices, without new slices that lack room beside the withdrawn slices."""
    present = {**units.held, **units.offered}
    going = _by_gpu(unit for id_, unit in present.items() if id_ in withdrawn)
    there = _by_gpu(present.values())
    beside = {
        gpu.uuid: _beside(gpu, numbers[gpu.uuid], there[gpu.uuid], going[gpu.uuid])
        for gpu in gpus
        if gpu.uuid in going and gpu.uuid in numbers
    }
    return {**numbers, **beside}


def _beside(gpu: Gpu, numbers: SliceNumbers, there: "_Ids", going: "_Ids") -> SliceNumbers:
    wanted = set(_each(numbers))
    stay = set(_each(going)) | (wanted & set(_each(there)))
    # Small slices come first: where a slice has no room, no larger slice has room. So the first slices of `new` fit.
    new = sorted(wanted - stay, key=_by_size)
    come = fitting(room_of(gpu), [size.name for size, _ in stay], [size.name for size, _ in new])
    found: dict[Slice, tuple[int, ...]] = {}
    for size, number in sorted([*stay, *new[: len(come)]], key=_by_size):
        found[size] = (*found.get(size, ()), number)
    return found


def _each(slices: Mapping[Slice, Iterable[int]]) -> Iterator[tuple[Slice, int]]:
    return ((size, number) for size, numbers in slices.items() for number in numbers)


def _by_size(numbered: tuple[Slice, int]) -> tuple[int, int]:
    return numbered[0].gib, numbered[1]


_Ids = Mapping[Slice, Mapping[int, str]]
"""The IDs of the slices of one GPU, by size and number."""


class _Card(Struct, frozen=True):
    """One GPU with its room and its slices, which are named as in PresentUnits."""

    gpu: Gpu
    room: MemoryRoom
    offered: _Ids
    retired: _Ids
    held: _Ids

    @property
    def as_it_is(self) -> dict[Slice, int]:
        """The number of slices of each size on the GPU, offered or held."""
        sizes = self.offered.keys() | self.held.keys()
        return {size: len(self.offered.get(size, {}).keys() | self.held.get(size, {}).keys()) for size in sizes}

    def cut(self, desired: Mapping[Slice, int]) -> SliceNumbers:
        """Return the held slices, and the desired slices with room beside the held slices, small slices first.

        Offered slices come before new slices, so that no idle slice is removed needlessly.
        """
        numbers = {size: set(ids) for size, ids in self.held.items()}
        room = self.room.left_by({size: len(found) for size, found in numbers.items()})
        for candidates in (self._offered, self._others):
            for size in sorted(desired, key=attrgetter("gib")):
                there = numbers.setdefault(size, set())
                fits = max(0, min(desired[size] - len(there), room.count(size)))
                more = list(islice((each for each in candidates(size) if each not in there), fits))
                there.update(more)
                room = room.left_by({size: len(more)})
        return {size: tuple(sorted(found)) for size, found in numbers.items() if found}

    def _offered(self, size: Slice) -> Iterable[int]:
        """Return the numbers of the offered slices of a size."""
        return sorted(self.offered.get(size, {}))

    def _others(self, size: Slice) -> Iterable[int]:
        """Return all possible numbers of slices of a size, without an end; numbers of retired slices come first."""
        retired = self.retired.get(size, {})
        return chain(sorted(retired), (each for each in count() if each not in retired))

    def missing(self, desired: Mapping[Slice, int], numbers: SliceNumbers) -> str | None:
        """Return a warning about the desired slices without room, for people; None if all slices have room."""
        lacking = [
            f"{wanted:,} slices of {size.name} wanted, {found} fit"
            for size, wanted in sorted(desired.items(), key=lambda each: each[0].gib)
            if (found := len(numbers.get(size, ()))) < wanted
        ]
        if not lacking:
            return None
        more = " sizes" if len(lacking) > _MOST_SIZES else ""
        return (
            f"{self.gpu.identity}: {some_of(lacking, _MOST_SIZES)}{more}: it has {self.room.parts}gb, of which pods "
            f"hold {sum(size.gib * len(ids) for size, ids in self.held.items())}gb, and MPS serves {self.room.most} "
            "slices at most"
        )

    def surplus(self, desired: Mapping[Slice, int]) -> Iterator[str]:
        """Yield the IDs of held slices, for each size with more held than desired slices."""
        for size, ids in self.held.items():
            if len(ids) > desired.get(size, 0):
                yield from ids.values()


def _by_gpu(units: Iterable[Unit]) -> Mapping[str, _Ids]:
    """Return the IDs of the slices among `units`, by GPU UUID, size and number."""
    found: defaultdict[str, defaultdict[Slice, dict[int, str]]] = defaultdict(lambda: defaultdict(dict))
    for unit in units:
        if (size := unit.form.slice) is not None and size.gib:
            found[unit.gpu][size][unit.number] = unit.id
    return found
