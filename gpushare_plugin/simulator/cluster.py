"""A simulated cluster: nodes, a policy, and what came of the pods."""

import numpy as np

from gpushare_plugin.packing.pod_kind import PodKind
from gpushare_plugin.packing.rows import NodeRows, Spot
from gpushare_plugin.simulator.policies.table import COMPARED, Setting
from gpushare_plugin.simulator.policies.unusable import Unusable
from gpushare_plugin.simulator.trace import Trace


class SimulatedCluster:
    """The nodes of a trace in an order by chance, on which a policy places pods."""

    def __init__(self, trace: Trace, policy: str, seed: int) -> None:
        """Start with empty nodes; their order depends on the seed alone."""
        order = np.random.default_rng((seed, 1)).permutation(len(trace.nodes))
        self.rows = NodeRows([trace.nodes[number] for number in order])
        self._policy = COMPARED[policy](Setting(self.rows, trace.pods, np.random.default_rng((seed, 2))))
        self._unusable = Unusable(self.rows, trace.pods)
        self._free_at_first = int(self.rows.free_percent.sum())

    def place(self, kind: PodKind) -> Spot | None:
        """Place a pod that arrives; return its spot, None if the pod is refused."""
        self._policy.see(kind)
        spot = self._policy.choose(kind)
        if spot is not None:
            self.rows.take(kind, spot)
            self._policy.changed(spot.row)
        return spot

    def end(self, kind: PodKind, spot: Spot) -> None:
        """Remove a pod."""
        self.rows.give_back(kind, spot)
        self._policy.changed(spot.row)

    @property
    def allocated(self) -> float:
        """The allocated part of all GPUs, in percent."""
        return 100 - 100 * float(self.rows.free_percent.sum()) / self._free_at_first

    @property
    def unusable(self) -> float:
        """The part of free GPU that typical pods cannot use, in percent."""
        return 100 * self._unusable.part()
