"""FGD, Fragmentation Gradient Descent: a pod goes where the unusable GPU for typical pods grows least.

Q. Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent", USENIX
ATC 2023. The score is that of the authors' simulator (hkust-adsl/kubernetes-scheduler-simulator).
"""

from collections.abc import Sequence

import numpy as np

from gpushare_plugin.packing.pod_kind import WHOLE, PodKind
from gpushare_plugin.packing.rows import Integers, NodeRows, Numbers, Spot
from gpushare_plugin.simulator.policies.policy import ComparedPolicy
from gpushare_plugin.simulator.policies.unusable import Unusable


class Fgd(ComparedPolicy):
    """Places pods by FGD, which knows the mix of pods beforehand."""

    def __init__(self, rows: NodeRows, pods: Sequence[PodKind]) -> None:
        """Follow `rows`; the typical pods are those of `pods`."""
        self._rows = rows
        self._unusable = Unusable(rows, pods)

    def choose(self, kind: PodKind) -> Spot | None:
        """Return where the unusable GPU grows least, the first such node in order; None if the pod fits nowhere."""
        fitting = self._rows.fitting(kind)
        if not fitting.size:
            return None
        gpus, after = self._after(kind, fitting)
        shrunk = self._unusable.of(fitting) - after
        best = int(np.floor(100 / (1 + np.exp(-shrunk))).argmax())
        return self._rows.spot(int(fitting[best]), kind, int(gpus[best]))

    def _after(self, kind: PodKind, fitting: Integers) -> tuple[Integers, Numbers]:
        """Return the best GPU for a share, and the unusable GPUs on each node afterwards."""
        rows = self._rows
        cpu, free, whole = rows.free_cpu[fitting] - kind.cpu, rows.free[fitting], rows.free_whole[fitting][:, None]
        if not kind.is_share:
            parts = self._unusable.of_gpus(fitting, cpu, whole - kind.gpus, free)
            one = self._unusable.of_gpus(fitting, cpu, whole - kind.gpus, np.full_like(whole, WHOLE))
            return np.zeros_like(fitting), parts.sum(axis=1) - kind.gpus * one[:, 0]
        # A share on a GPU that is wholly free leaves one such GPU less, which counts for pods with several GPUs.
        opened = free == WHOLE
        same = self._unusable.of_gpus(fitting, cpu, whole, free)
        fewer = self._unusable.of_gpus(fitting, cpu, np.maximum(0, whole - 1), free)
        others = np.where(opened, fewer.sum(axis=1, keepdims=True) - fewer, same.sum(axis=1, keepdims=True) - same)
        after = others + self._unusable.of_gpus(fitting, cpu, whole - opened, np.maximum(0, free - kind.percent))
        after[free < kind.percent] = np.inf
        gpus = after.argmin(axis=1)
        return gpus, after[np.arange(len(fitting)), gpus]
