"""What is left of a cluster: free GPU by the size of the free pieces, and the CPU and memory beside."""

import numpy as np

from gpushare_plugin.observe.parts import Part
from gpushare_plugin.packing.pod_kind import WHOLE
from gpushare_plugin.packing.rows import NodeRows

STEP = 10
"""The width of a size class of free pieces, in percent."""


class Leftover(Part, frozen=True, kw_only=True):
    """What is free of GPUs, and of the nodes with free GPU."""

    gpus_by_size: tuple[float, ...]
    """The free GPU in free pieces of 1 to 10 percent, of 11 to 20, and so on up to 91 to 100, in GPUs."""
    cpu: float
    """The free CPU of the nodes with free GPU, in cores."""
    memory: float
    """The free memory of the nodes with free GPU, in GiB."""


def leftover(rows: NodeRows) -> Leftover:
    """Return what is left."""
    parts = rows.free[rows.free > 0]
    by_size = np.bincount((parts - 1) // STEP, parts / WHOLE, WHOLE // STEP)
    beside = rows.free_percent > 0
    return Leftover(
        gpus_by_size=tuple(by_size.round(2).tolist()),
        cpu=int(rows.free_cpu[beside].sum()) / 1_000,
        memory=int(rows.free_memory[beside].sum()) / 1_024,
    )
