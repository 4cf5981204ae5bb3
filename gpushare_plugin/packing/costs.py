"""What shares cost on the free pieces of many GPUs, by the values of free pieces."""

import numpy as np

from gpushare_plugin.packing.pod_kind import WHOLE
from gpushare_plugin.packing.rows import Integers, Numbers
from gpushare_plugin.packing.values import LINEAR, Values, share_cost

NO_ROOM = WHOLE + 1
"""Stands for the size of a share on a GPU without room for the share: the cost is infinite."""


class ShareCosts:
    """The cost of a share of each size on each free piece."""

    def __init__(self, values: Values = LINEAR) -> None:
        """Use the values of free pieces."""
        self.values: Numbers = np.array(values)
        """The values in GPUs of free pieces from 0 to 100 percent."""
        table = np.full((NO_ROOM + 1, WHOLE + 1), np.inf)
        for percent in range(WHOLE + 1):
            table[percent, percent:] = [share_cost(values, free, percent) for free in range(percent, WHOLE + 1)]
        self._table: Numbers = table

    def on(self, percents: int | Integers, free: Integers) -> Numbers:
        """Return the costs of shares on free pieces, all in percent; infinite for NO_ROOM and too small pieces."""
        # One row is read faster than pairs of places.
        costs: Numbers = self._table[percents][free] if isinstance(percents, int) else self._table[percents, free]
        return costs

    def of_units(self, size: int, free: Integers, units: Integers) -> Numbers:
        """Return the costs of shares of `size` units on GPUs with so many free units of `units`."""
        return self.on(sizes_in_percent(size, free, units), free_percent(free, units))


def free_percent(free: Integers, units: Integers) -> Integers:
    """Return free units of GPUs in percent, rounded down; 0 for GPUs without units."""
    return WHOLE * free // np.maximum(1, units)


def sizes_in_percent(sizes: int | Integers, free: Integers, units: Integers) -> Integers:
    """Return shares, given in units, in percent of GPUs; NO_ROOM for 0 units, and where too few units are free.

    A share is rounded as `percent_of_units` does, and takes no more than is free, rounded down.
    """
    known = np.maximum(1, sizes)
    fitting = np.maximum(1, units // known)
    percent = np.minimum(-(-WHOLE * known // np.maximum(1, units)), np.maximum(1, WHOLE // fitting))
    # Rounding may leave a piece a little smaller than the last share that fits.
    percent = np.minimum(percent, free_percent(free, units))
    return np.where((free >= sizes) & (known == sizes), percent, NO_ROOM)
