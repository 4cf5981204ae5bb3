"""A kind of pod, as placement sees one."""

from gpushare_plugin.base.structs import Struct

WHOLE = 100
"""A whole GPU, in percent."""


def percent_of_units(size: int, units: int) -> int:
    """Return how many percent of a GPU a share of `size` units has, where the GPU has `units`, at least as many.

    The part is rounded up, but as many shares fit on a GPU by percent as by units: 1 of 8 units is 12 percent, so that
    eight such shares fit. A part is at least 1 percent.
    """
    return min(-(-WHOLE * size // units), max(1, WHOLE // (units // size)))


class PodKind(Struct, frozen=True):
    """What a pod asks of its node. Pods of one kind are alike for every policy."""

    cpu: int
    """CPU in thousandths of a core."""
    memory: int
    """Memory of the node in MiB."""
    gpus: int
    """The number of GPUs, 0 or more."""
    percent: int = WHOLE
    """The part of each GPU in percent, 1 to 100."""
    models: frozenset[str] = frozenset()
    """The models of GPUs that the pod accepts; empty for any."""

    @property
    def is_share(self) -> bool:
        """Whether the pod asks for parts of GPUs."""
        return self.gpus > 0 and self.percent < WHOLE

    @property
    def gpu_percent(self) -> int:
        """All that the pod asks of GPUs, in percent of one GPU."""
        return self.gpus * self.percent
