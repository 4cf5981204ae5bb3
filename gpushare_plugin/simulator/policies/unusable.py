"""How much free GPU the typical pods of a trace cannot use, by the measure of FGD's authors.

Q. Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent", USENIX
ATC 2023, section 3. The frequencies of the typical pods add up to 1, as in the authors' simulator, pkg/utils/frag.go of
hkust-adsl/kubernetes-scheduler-simulator. For a typical pod, all free GPU of a node is unusable if the pod asks for
no GPU, or if the CPU, the model or the GPUs of the node do not suffice; otherwise, the free pieces that are smaller
than the pod asks for.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from gpushare_plugin.packing.pod_kind import WHOLE, PodKind
from gpushare_plugin.packing.rows import Integers, NodeRows, Numbers

TYPICAL = 0.95
"""Which part of all pods the typical kinds are, the commonest first."""


class Unusable:
    """The unusable part of nodes, read from one table.

    For each model, each amount of CPU that a typical kind asks for, and each number of wholly free GPUs, the table has
    the GPUs that are unusable on average for each free piece from 0 to 100 percent. A node has the sum over its GPUs.
    """

    def __init__(self, rows: NodeRows, pods: Sequence[PodKind]) -> None:
        """Find the typical kinds of `pods`."""
        typical = _typical(pods)
        self._rows = rows
        self._cpus: Integers = np.unique([kind.cpu for kind in typical])
        self._strides = (len(self._cpus) + 1, int(rows.gpus.max(initial=0)) + 1, WHOLE + 1)
        table = np.zeros((len(rows.models), *self._strides))
        part = np.arange(WHOLE + 1) / WHOLE
        for kind, frequency in typical.items():
            table += frequency * part  # all of each GPU, where the kind does not fit
            if kind.gpus:
                accepted = [place for place, model in enumerate(rows.models) if not kind.models or model in kind.models]
                cpu = int(np.searchsorted(self._cpus, kind.cpu)) + 1
                # A share fits if any part suffices; without any, all parts are too small for the share anyway.
                whole = kind.gpus if kind.gpus > 1 else 0
                table[accepted, cpu:, whole:, kind.percent :] -= frequency * part[kind.percent :]
        self._table: Numbers = table.ravel()

    def of_gpus(self, fitting: Integers | slice, free_cpu: Integers, whole: Integers, free: Integers) -> Numbers:
        """Return what would be unusable of GPUs, by node and column, in GPUs.

        Each node would have so much CPU free, in thousandths of a core. `whole` is the number of wholly free GPUs of
        the node, and `free` the free pieces in percent, both by node and column.
        """
        cpus, wholes, parts = self._strides
        place = self._rows.model[fitting] * cpus + np.searchsorted(self._cpus, free_cpu, side="right")
        unusable: Numbers = self._table.take((place[:, None] * wholes + whole) * parts + free)
        return unusable

    def of(self, rows: Integers | slice) -> Numbers:
        """Return the unusable GPUs of some nodes."""
        nodes = self._rows
        each = self.of_gpus(rows, nodes.free_cpu[rows], nodes.free_whole[rows][:, None], nodes.free[rows])
        unusable: Numbers = each.sum(axis=1)
        return unusable

    def part(self) -> float:
        """Return which part of all free GPU is unusable; 0 if no GPU is free."""
        free = float(self._rows.free_percent.sum()) / WHOLE
        return float(self.of(slice(None)).sum()) / free if free else 0.0


def _typical(pods: Sequence[PodKind]) -> dict[PodKind, float]:
    """Return the commonest kinds of pods with their frequencies among these, without the memory that they ask for."""
    kinds = Counter(PodKind(pod.cpu, 0, pod.gpus, pod.percent, pod.models) for pod in pods)
    typical, total = dict[PodKind, int](), 0
    for kind, number in kinds.most_common():
        typical[kind], total = number, total + number
        if total >= TYPICAL * len(pods):
            break
    return {kind: number / total for kind, number in typical.items()}
