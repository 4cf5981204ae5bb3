"""How the GPUs of a partitioned node are cut: the slices that pods hold, and the wanted ones that fit beside them.

Pure: what is wanted changes at any time and is not trusted. A slice that a pod holds keeps its number, so that its ID
stays, and no GPU is cut into more than it has.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import chain, count, islice
from operator import attrgetter

from gpushare_plugin.foundation.structs import Struct, field
from gpushare_plugin.foundation.text import some_of
from gpushare_plugin.model.gpu import Gpu
from gpushare_plugin.model.slices.memory import MOST_MPS_CLIENTS, MemoryRoom
from gpushare_plugin.model.slices.room import fitting
from gpushare_plugin.model.slices.slice import Slice, named_slice
from gpushare_plugin.model.slices.wanted import Counts
from gpushare_plugin.model.unit import Unit
from gpushare_plugin.sharing.isolation.mps import room_of, why_not
from gpushare_plugin.sharing.ways.way import Numbers

_MOST_SIZES = 5
"""Sizes of a GPU that a warning repeats."""


class PresentUnits(Struct, frozen=True):
    """The units that a node has, by ID."""

    offered: Mapping[str, Unit] = field(default_factory=dict)
    """Units that can be allocated."""
    retired: Mapping[str, Unit] = field(default_factory=dict)
    """Units that are listed and cannot be allocated."""
    held: Mapping[str, Unit] = field(default_factory=dict)
    """Units that pods hold, or may hold where that is not `certain`."""
    certain: bool = True
    """Whether it is known what pods hold."""


class Cut(Struct, frozen=True):
    """How GPUs are cut."""

    numbers: Mapping[str, Numbers] = field(default_factory=dict)
    """The slices of each GPU, by its UUID."""
    notices: tuple[str, ...] = ()
    """What is wanted and does not fit, where it is certain what pods hold; for people."""
    surplus: frozenset[str] = frozenset()
    """The IDs of slices that are there only because pods hold slices of their size: other slices may follow them."""


def cut(wanted: Mapping[str, Counts], gpus: Sequence[Gpu], units: PresentUnits) -> Cut:
    """Return how `gpus` are cut where `wanted` is by the UUID of a GPU; a GPU that is not named stays as it is."""
    offered, retired, held = (_by_gpu(each.values()) for each in (units.offered, units.retired, units.held))
    numbers: dict[str, Numbers] = {}
    notices: list[str] = []
    surplus: set[str] = set()
    for gpu in gpus:
        if why_not(gpu):
            continue  # the plan says so
        card = _Card(gpu, room_of(gpu), offered[gpu.uuid], retired[gpu.uuid], held[gpu.uuid])
        counts = wanted.get(gpu.uuid)
        desired = card.as_it_is if counts is None else {named_slice(name): n for name, n in counts.items()}
        numbers[gpu.uuid] = card.cut(desired)
        if units.certain and (missing := card.missing(desired, numbers[gpu.uuid])):
            notices.append(missing)
        surplus.update(card.surplus(desired))
    return Cut(numbers, tuple(notices), frozenset(surplus))


def few_slices(gpus: Iterable[Gpu]) -> dict[str, int]:
    """Return how many slices MPS serves at most on those of `gpus` where that is fewer than usual, by UUID."""
    return {gpu.uuid: most for gpu in gpus if (most := room_of(gpu).most) < MOST_MPS_CLIENTS}


def unsuitable(gpus: Iterable[Gpu]) -> Mapping[str, str]:
    """Return why GPUs of a partitioned node are not cut, by UUID."""
    return {gpu.uuid: f"MPS cannot share it: it {reason}" for gpu in gpus if (reason := why_not(gpu))}


def unwanted(numbers: Mapping[str, Numbers], units: PresentUnits) -> frozenset[str]:
    """Return the IDs of the slices that are offered and are not among `numbers`, which are by the UUID of the GPU."""
    offered = _by_gpu(units.offered.values())
    return frozenset(
        id_
        for uuid, found in numbers.items()
        for size, ids in offered[uuid].items()
        for number, id_ in ids.items()
        if number not in found.get(size, ())
    )


def keeping(
    numbers: Mapping[str, Numbers], gpus: Sequence[Gpu], units: PresentUnits, withdrawn: AbstractSet[str]
) -> Mapping[str, Numbers]:
    """Return `numbers` with those that are `withdrawn`, and of the new ones as many as fit beside these."""
    present = {**units.held, **units.offered}
    going = _by_gpu(unit for id_, unit in present.items() if id_ in withdrawn)
    there = _by_gpu(present.values())
    beside = {
        gpu.uuid: _beside(gpu, numbers[gpu.uuid], there[gpu.uuid], going[gpu.uuid])
        for gpu in gpus
        if gpu.uuid in going and gpu.uuid in numbers
    }
    return {**numbers, **beside}


def _beside(gpu: Gpu, numbers: Numbers, there: "_Ids", going: "_Ids") -> Numbers:
    wanted = set(_each(numbers))
    stay = set(_each(going)) | (wanted & set(_each(there)))
    # Small slices come first, and where one does not fit, no larger one does.
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
"""Slices of one GPU: their IDs by size and number."""


class _Card(Struct, frozen=True):
    """One GPU and the slices that are there."""

    gpu: Gpu
    room: MemoryRoom
    offered: _Ids
    retired: _Ids
    held: _Ids

    @property
    def as_it_is(self) -> dict[Slice, int]:
        """How many slices of each size it has."""
        sizes = self.offered.keys() | self.held.keys()
        return {size: len(self.offered.get(size, {}).keys() | self.held.get(size, {}).keys()) for size in sizes}

    def cut(self, desired: Mapping[Slice, int]) -> Numbers:
        """Return the slices that are held, and of those that are desired as many as fit, small ones first.

        Those that are offered go before others, so that no idle slice goes for nothing.
        """
        numbers = {size: set(ids) for size, ids in self.held.items()}
        room = self.room.beside({size: len(found) for size, found in numbers.items()})
        for candidates in (self._offered, self._others):
            for size in sorted(desired, key=attrgetter("gib")):
                there = numbers.setdefault(size, set())
                fits = max(0, min(desired[size] - len(there), room.count(size)))
                more = list(islice((each for each in candidates(size) if each not in there), fits))
                there.update(more)
                room = room.beside({size: len(more)})
        return {size: tuple(sorted(found)) for size, found in numbers.items() if found}

    def _offered(self, size: Slice) -> Iterable[int]:
        """Return the numbers of the slices of a size that are offered."""
        return sorted(self.offered.get(size, {}))

    def _others(self, size: Slice) -> Iterable[int]:
        """Return all numbers that slices of a size can have, those of retired ones first: there are ever more."""
        retired = self.retired.get(size, {})
        return chain(sorted(retired), (each for each in count() if each not in retired))

    def missing(self, desired: Mapping[Slice, int], numbers: Numbers) -> str | None:
        """Return what is desired and does not fit, for people; None where all fits."""
        lacking = [
            f"{wanted:,} slices of {size.name} wanted, {found} fit"
            for size, wanted in sorted(desired.items(), key=lambda each: each[0].gib)
            if (found := len(numbers.get(size, ()))) < wanted
        ]
        if not lacking:
            return None
        more = " sizes" if len(lacking) > _MOST_SIZES else ""
        return (
            f"{self.gpu.identity}: {some_of(lacking, _MOST_SIZES)}{more}: it has {self.room.units}gb, of which pods "
            f"hold {sum(size.gib * len(ids) for size, ids in self.held.items())}gb, and MPS serves {self.room.most} "
            "slices at most"
        )

    def surplus(self, desired: Mapping[Slice, int]) -> Iterator[str]:
        """Yield the IDs of held slices of sizes of which more are held than desired."""
        for size, ids in self.held.items():
            if len(ids) > desired.get(size, 0):
                yield from ids.values()


def _by_gpu(units: Iterable[Unit]) -> Mapping[str, _Ids]:
    """Return the IDs of the slices among `units` by the UUID of their GPU, size and number."""
    found: defaultdict[str, defaultdict[Slice, dict[int, str]]] = defaultdict(lambda: defaultdict(dict))
    for unit in units:
        if (size := unit.form.slice) is not None and size.gib:
            found[unit.gpu][size][unit.number] = unit.id
    return found
