"""What a partitioned node is divided into: slices under MPS, or MIG instances."""

from collections.abc import Set as AbstractSet

from gpushare_plugin.model.partition.request import SliceRequest
from gpushare_plugin.model.partition.slices import Kind
from gpushare_plugin.programs.node.gpus.mig_needs import NodeMig
from gpushare_plugin.programs.node.gpus.partition import Partition


class NodeSlices:
    """Both ways to divide GPUs; a node is divided in one of them, or not at all."""

    def __init__(self, mps: Partition, mig: NodeMig) -> None:
        """Pass on what is requested to either."""
        self._mps = mps
        self._mig = mig

    def is_new(self, request: SliceRequest) -> bool:
        """Return whether other slices are requested than before."""
        return not (self._mig if request.kind == "mig" else self._mps).follows(request)

    def follow(self, request: SliceRequest) -> None:
        """Have what is requested from now on."""
        if request.kind == "mig":
            self._mig.follow(request)
        else:
            self._mps.follow(request)

    def surplus(self, partitioning: Kind | None) -> AbstractSet[str]:
        """Return the slices that are there only because pods hold them."""
        return self._mps.surplus if partitioning == "mps" else self._mig.surplus

    def notices(self, partitioning: Kind | None) -> tuple[str, ...]:
        """Return what cannot be followed, and what does not fit."""
        return {None: (), "mps": self._mps.notices, "mig": self._mig.notices}[partitioning]
