"""The policy `random`: any node and any GPU with room."""

import numpy as np
from numpy.random import Generator

from gpushare_plugin.packing.pod_kind import PodKind
from gpushare_plugin.packing.rows import NodeRows, Spot
from gpushare_plugin.simulator.policies.policy import ComparedPolicy


class RandomSpot(ComparedPolicy):
    """Places pods by chance."""

    def __init__(self, rows: NodeRows, chance: Generator) -> None:
        """Follow `rows`."""
        self._rows = rows
        self._chance = chance

    def choose(self, kind: PodKind) -> Spot | None:
        """Return any spot with room; None if the pod fits nowhere."""
        fitting = self._rows.fitting(kind)
        if not fitting.size:
            return None
        row = int(self._chance.choice(fitting))
        fits = np.flatnonzero(self._rows.free[row] >= kind.percent)
        return self._rows.spot(row, kind, int(self._chance.choice(fits)) if kind.is_share else 0)
