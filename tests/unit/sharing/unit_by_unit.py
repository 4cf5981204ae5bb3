"""What `gpushare_plugin.sharing.transition` does, literally: every unit is looked at by itself, each time."""

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from gpushare_plugin.core.gpu import Gpu
from gpushare_plugin.core.holding import Confirmed
from gpushare_plugin.core.unit import Form, Unit, is_slice, parse_unit
from gpushare_plugin.sharing.isolation.layer import Mode
from gpushare_plugin.sharing.transition import MINIMUM_RETIRED_SECONDS, WantedOffer

Kind = tuple[str, Form, Mode]


@dataclass(frozen=True)
class One:
    """One unit, offered or on its way out."""

    resource: str
    unit: Unit
    since: float
    mode: Mode
    listed: bool = True

    @property
    def name(self) -> tuple[str, str, Mode]:
        """What makes it the same unit as another."""
        return self.resource, self.unit.id, self.mode

    @property
    def kind(self) -> Kind:
        """What makes it cut as another unit is."""
        return self.resource, self.unit.form, self.mode

    def is_free(self, account: Confirmed | None) -> bool:
        """Tell whether the kubelet has said that nobody holds it."""
        settled = account is not None and account.asked_at >= self.since + MINIMUM_RETIRED_SECONDS
        return settled and account is not None and self.unit.id not in account.ids


@dataclass(frozen=True)
class Listed:
    """What a node lists: units to allocate, retired units, and for what each GPU waits."""

    offered: tuple[One, ...] = ()
    retired: tuple[One, ...] = ()
    waiting: dict[str, set[str]] = field(default_factory=dict)

    def ids(self) -> dict[str, tuple[list[str], list[str]]]:
        """Return, by resource, the units to allocate and those retired, in order."""
        lists: dict[str, tuple[list[str], list[str]]] = {}
        for place, units in enumerate((self.offered, self.retired)):
            for each in units:
                if each.listed:
                    lists.setdefault(each.resource, ([], []))[place].append(each.unit.id)
        return lists


def begun(held: Iterable[tuple[str, str]], gpus: Sequence[Gpu], now: float) -> Listed:
    """Begin where pods hold these units from an earlier life."""
    known = {gpu.uuid: gpu.numa_node for gpu in gpus}
    units = [(resource, parse_unit(id_, known)) for resource, id_ in sorted(held)]
    return Listed(retired=tuple(One(resource, unit, now, None, listed=False) for resource, unit in units if unit))


def gone_on(before: Listed, wanted: WantedOffer, account: Confirmed | None, now: float) -> Listed:
    """Go on towards `wanted`."""
    new = [
        One(resource.name, unit, now, wanted.modes.get(unit.gpu))
        for resource in wanted.resources
        for unit in resource.units.values()
    ]
    names = {resource.name for resource in wanted.resources}
    there = [
        *(replace(each, since=now) for each in before.offered),
        *(replace(each, listed=each.listed or each.resource in names) for each in before.retired),
    ]
    stay = {each.name for each in there} & {each.name for each in new}
    retired = tuple(each for each in there if each.name not in stay and not each.is_free(account))
    waiting: dict[str, set[str]] = {}
    for each in retired:
        for gpu in _concerned(each, wanted):
            kinds = {other.kind for other in new if other.unit.gpu == gpu}
            if kinds and each.kind not in kinds and not _are_slices(each, new, gpu):
                waiting.setdefault(gpu, set()).add(each.unit.id)
    offered = [each for each in new if each.name in stay or each.unit.gpu not in waiting]
    for gpu in {each.unit.gpu for each in offered if is_slice(each.unit.id)}:
        old = {each.unit.id for each in retired if is_slice(each.unit.id) and gpu in _concerned(each, wanted)}
        if old and gpu not in waiting:
            without = _without_room([each for each in offered if each.unit.gpu == gpu], stay, old)
            offered = [each for each in offered if each not in without]
            if without:
                waiting[gpu] = old
    return Listed(tuple(offered), retired, waiting)


def _are_slices(each: One, new: Iterable[One], gpu: str) -> bool:
    """Tell whether it is a slice, and all that is new of its GPU are slices in the same mode."""
    others = [other for other in new if other.unit.gpu == gpu]
    return all(is_slice(other.unit.id) and other.mode == each.mode for other in [each, *others])


def _without_room(offered: Sequence[One], stay: AbstractSet[object], retired: AbstractSet[str]) -> list[One]:
    """Return the new slices of a GPU of 8 GiB that have no room beside what is listed."""
    sizes = [_gib(id_) for id_ in retired] + [_gib(each.unit.id) for each in offered if each.name in stay]
    without = []
    for each in sorted((each for each in offered if each.name not in stay), key=lambda each: _gib(each.unit.id)):
        if sum(sizes) + _gib(each.unit.id) <= 8 and len(sizes) < 48:
            sizes.append(_gib(each.unit.id))
        else:
            without.append(each)
    return without


def _gib(id_: str) -> int:
    return int(id_.split("-")[1].removesuffix("gb"))


def _concerned(each: One, wanted: WantedOffer) -> list[str]:
    gpus, gpu = wanted.gpus, each.unit.gpu
    if gpu not in gpus and (unit := parse_unit(each.unit.id, gpus)):
        gpu = unit.gpu
    return [gpu, *(part for part, card in wanted.parts.items() if card == gpu), *[wanted.parts.get(gpu, "")]]
