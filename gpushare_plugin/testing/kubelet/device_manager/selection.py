"""Choosing devices for one container: at random, except where the plugin or NUMA nodes decide."""

from collections.abc import Callable, Iterable, Mapping
from random import Random

from gpushare_plugin.testing.kubelet.device_manager.manager import Device


class DeviceSelection:
    """`size` devices to be chosen for a container, round by round.

    `mark` is called with each round's devices, which no other container may take from then on.
    """

    def __init__(self, size: int, rng: Random, mark: Callable[[Iterable[str]], None]) -> None:
        """Start with nothing chosen."""
        self.size = size
        self.chosen: set[str] = set()
        self._rng = rng
        self._mark = mark

    @property
    def needed(self) -> int:
        """How many are still missing."""
        return self.size - len(self.chosen)

    def take(self, devices: set[str]) -> bool:
        """Take from `devices` at random until there are enough; says whether there are."""
        left = sorted(devices - self.chosen)
        drawn = self._rng.sample(left, min(self.needed, len(left)))
        self._mark(drawn)
        self.chosen.update(drawn)
        return not self.needed


def by_affinity(
    available: set[str], devices: Mapping[str, Device], affinity: frozenset[int] | None
) -> tuple[set[str], set[str], set[str]]:
    """Part `available` into devices on a NUMA node of `affinity`, on other nodes only, and on none.

    Without an affinity, or where none of the resource's `devices` is on a node, all count as on none.
    """
    if affinity is None or not any(device.numa_nodes for device in devices.values()):
        return set(), set(), available
    aligned = {one for one in available if affinity.intersection(devices[one].numa_nodes)}
    elsewhere = {one for one in available if not any(node >= 0 for node in devices[one].numa_nodes)}
    return aligned, available - aligned - elsewhere, elsewhere
