"""Every name that others rely on has a level of stability, and none vanishes unnoticed."""

from collections import Counter

import pytest

from generators import interfaces
from generators.interfaces import INTERFACES, LEVELS, REMEDY


@pytest.mark.parametrize("interface", INTERFACES)
def test_every_name_has_one_level(interface: str) -> None:
    """Whoever adds an option, a metric or another name says how long it stays; whoever removes one says that, too."""
    given = interfaces.levels()[interface]
    levels = Counter(name for level in LEVELS for name in given.get(level, []))
    there = set(INTERFACES[interface]())
    assert sorted(there - levels.keys()) == [], f"without a level: {REMEDY}"
    assert sorted(levels.keys() - there) == [], "gone: is it served for as long as docs/upgrades.md says?"
    assert [name for name, times in levels.items() if times > 1] == [], f"with two levels: {REMEDY}"
    assert given.keys() <= set(LEVELS)


def test_every_interface_has_levels() -> None:
    """The file of the levels has the interfaces that are enumerated, in their order, and each has names."""
    assert list(interfaces.levels()) == list(INTERFACES)
    assert all(next(names(), None) is not None for names in INTERFACES.values())
