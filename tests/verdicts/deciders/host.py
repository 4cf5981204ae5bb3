"""Cards and configs, as inputs have them, as the code has them; and unit IDs as verdicts have them."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

from gpushare_plugin.config.effective import EffectiveConfig
from gpushare_plugin.config.schema.sections import Config
from gpushare_plugin.core.gpu import Gpu, Inventory, MigInstance
from gpushare_plugin.slices.slice import SliceKind

Json = dict[str, Any]


def inventory(cards: Sequence[Json], closeness: Sequence[Sequence[int]] = ()) -> Inventory:
    """Return the GPUs of a host."""
    found = [_card(card) for card in cards]
    instances = [
        _instance(card, each) for card, described in zip(found, cards, strict=True) for each in described["instances"]
    ]
    close = {
        frozenset((found[one].uuid, found[other].uuid)): score
        for one, row in enumerate(closeness)
        for other, score in enumerate(row)
        if score
    }
    return Inventory(tuple(found), closeness=close, instances=tuple(instances))


def _card(card: Json) -> Gpu:
    major, minor = card["compute"]
    return Gpu(
        index=card["index"],
        uuid=card["uuid"],
        minor=card["index"],
        name=card["name"],
        compute_capability=(major, minor),
        memory_mib=card["memoryMiB"],
        pci_bus_id=f"00000000:{card['index'] + 1:02X}:00.0",
        numa_node=card["numa"],
        mig_enabled=card["mig"],
        mig_capable=card["migCapable"],
        total_mib=card["memoryMiB"],
    )


def _instance(card: Gpu, each: Json) -> Gpu:
    first = 3 + 2 * each["number"]
    mig = MigInstance(
        card.uuid, each["number"], each["profile"], each["number"] + 1, 0, (first, first + 1), start=each["start"]
    )
    return Gpu(
        index=card.index,
        uuid=each["uuid"],
        minor=card.minor,
        name=card.name,
        compute_capability=card.compute_capability,
        memory_mib=each["memoryMiB"],
        pci_bus_id=card.pci_bus_id,
        numa_node=card.numa_node,
        mig_enabled=True,
        mig_capable=True,
        mig=mig,
    )


def effective(sections: Json, partitioning: SliceKind | None = None) -> EffectiveConfig:
    """Return a config that a node has in effect."""
    config = Config.model_validate(sections, context={"declared": ()}, by_alias=True)
    return EffectiveConfig(config, partitioning=partitioning)


_NUMBERED = re.compile(r"(.*::|(?!GPU-|MIG-).*-)([0-9]{1,9})", re.DOTALL)
"""The IDs of units of which a GPU has several: what they begin with, and a number."""


def in_ranges(ids: Iterable[str]) -> list[str]:
    """Return unit IDs sorted, with those of consecutive numbers as one: `000000a0-1Gi-0..3`."""
    told, numbered = list[str](), dict[str, list[int]]()
    for id_ in ids:
        if match := _NUMBERED.fullmatch(id_):
            numbered.setdefault(match[1], []).append(int(match[2]))
        else:
            told.append(id_)
    for start, numbers in numbered.items():
        numbers.sort()
        first = numbers[0]
        for last, following in zip(numbers, [*numbers[1:], -1], strict=True):
            if following != last + 1:
                told.append(f"{start}{first}" if first == last else f"{start}{first}..{last}")
                first = following
    return sorted(told)
