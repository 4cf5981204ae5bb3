"""How often the order of the devices may change, which follows what claims have of each GPU."""

import math
from collections.abc import Sequence

from gpushare_plugin.claims.device import Device

BETWEEN_ORDERS = 1.0
"""The fewest seconds between two orders of the same devices: every scheduler and kubelet reads each of these writes."""

Devices = Sequence[Device] | None
"""Devices in an order; None where there are to be no ResourceSlices."""


class OrderPauses:
    """Lets the first of many new orders through at once, and the last one after a pause; anything else at once."""

    def __init__(self) -> None:
        """Let the next order through."""
        self._ordered_at = -math.inf

    def wait(self, before: Devices, wanted: Devices, now: float) -> float:
        """Return the seconds for which the devices that are `wanted` have to wait, 0 where they may come now.

        `before` are the devices that were let through last, and `now` is a time in seconds of any clock.
        """
        if before is None or wanted is None or _by_name(before) != _by_name(wanted):
            return 0.0
        if (wait := self._ordered_at + BETWEEN_ORDERS - now) > 0:
            return wait
        self._ordered_at = now
        return 0.0


def _by_name(devices: Sequence[Device]) -> list[Device]:
    return sorted(devices, key=lambda each: each.name)
