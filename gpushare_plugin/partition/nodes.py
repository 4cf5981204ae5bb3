"""The partitioned nodes of a decision: GPUs, offered slices and held slices."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from gpushare_plugin.base.structs import Struct, field
from gpushare_plugin.core.gpu import gpu_label
from gpushare_plugin.slices.room import Room
from gpushare_plugin.slices.slice import named_slice
from gpushare_plugin.slices.wanted import KeptSlice, SliceCounts, Wanted


class PartitionGpu(Struct, frozen=True, gc=False):
    """A partitioned GPU; slices are counted by their names in annotations (`10gb`, `3g.20gb@4`)."""

    uuid: str
    """The UUID of the GPU."""
    index: int
    """The index of the GPU on the node."""
    room: Room
    """The room of the GPU: the memory under MPS, or the places of MIG instances."""
    product: str = ""
    """The product name of the GPU, empty if unknown."""
    listed: SliceCounts = field(default_factory=dict)
    """The slices that the daemon of the node offers now."""
    held: SliceCounts = field(default_factory=dict)
    """The slices held by pods."""
    reason: str | None = None
    """Why the GPU cannot be used, None for a usable GPU."""

    @property
    def label(self) -> str:
        """The name of the GPU in messages."""
        return f"GPU {gpu_label(self.index)}"


class PartitionNode(Struct, frozen=True, gc=False):
    """A partitioned node at the beginning of a round, made once for every account of the node."""

    name: str
    """The name of the node."""
    gpus: tuple[PartitionGpu, ...]
    """The partitioned GPUs of the node."""
    wanted: Wanted = field(default_factory=Wanted)
    """The slices wanted by the annotation of the node."""
    unplaced: Mapping[str, int] = field(default_factory=dict)
    """The slices that pods of the node hold on unknown GPUs, by size (`10gb`) or profile (`3g.20gb`)."""
    policy: str | None = None
    """The policy in the label or the config of the node, None if both name no policy."""
    replicas: Mapping[str, Mapping[str, Sequence[str]]] = field(default_factory=dict)
    """The UUIDs of the known GPUs of pods on the node, by the UIDs of owner and pod."""
    problem: str | None = None
    """Why the node is left out, with no GPUs known and no slices decided; None for a node that takes part."""

    def offers_kept(self, kept: Iterable[KeptSlice]) -> bool:
        """Return whether the node offers the slices `kept` for a pod, and no pod holds the slices."""
        counts = Counter((each.gpu, each.slice) for each in kept)
        gpus = {gpu.uuid: gpu for gpu in self.gpus}
        return all(
            (gpu := gpus.get(uuid)) is not None and gpu.listed.get(name, 0) - gpu.held.get(name, 0) >= count
            for (uuid, name), count in counts.items()
        )

    def free(self, name: str) -> int:
        """Return the free slices of a size or profile by the count of kube-scheduler, which knows no GPUs."""
        listed = sum(_count(gpu.listed, name) for gpu in self.gpus if gpu.reason is None)
        return listed - sum(_count(gpu.held, name) for gpu in self.gpus) - self.unplaced.get(name, 0)


def _count(slices: SliceCounts, name: str) -> int:
    return sum(count for each, count in slices.items() if named_slice(each).name == name)


def left_out(name: str, problem: str) -> PartitionNode:
    """Return a node that is left out because of `problem`, without GPUs."""
    return PartitionNode(name, (), problem=problem)
