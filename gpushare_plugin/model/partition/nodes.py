"""The nodes whose GPUs are partitioned, as the decision knows them: what they have, offer, and what pods hold there."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from gpushare_plugin.foundation.structs import Struct, field
from gpushare_plugin.model.gpu import gpu_label
from gpushare_plugin.model.slices.room import Room
from gpushare_plugin.model.slices.slice import named_slice
from gpushare_plugin.model.slices.wanted import Counts, KeptSlice, Wanted


class PartitionGpu(Struct, frozen=True, gc=False):
    """A GPU that is partitioned; slices are counted by their names in annotations (`10gb`, `3g.20gb@4`).

    `listed` are those that the node's daemon offers now, `held` those that pods have. `reason` says why it cannot be
    used, None where it can.
    """

    uuid: str
    index: int
    room: Room
    product: str = ""
    listed: Counts = field(default_factory=dict)
    held: Counts = field(default_factory=dict)
    reason: str | None = None

    @property
    def label(self) -> str:
        """Its name in messages."""
        return f"GPU {gpu_label(self.index)}"


class PartitionNode(Struct, frozen=True, gc=False):
    """A node that is partitioned, as a round begins with it; made once for each account of the node."""

    name: str
    """The name of the node."""
    gpus: tuple[PartitionGpu, ...]
    """The GPUs that are partitioned."""
    wanted: Wanted = field(default_factory=Wanted)
    """The slices that the annotation of the node wants."""
    unplaced: Mapping[str, int] = field(default_factory=dict)
    """Slices, by the name of size or profile, that pods on the node have on a GPU that is not known yet."""
    policy: str | None = None
    """The placement policy of the node, None where neither its label nor its config names one."""
    replicas: Mapping[str, Mapping[str, Sequence[str]]] = field(default_factory=dict)
    """The pods on the node, by the UID of their owner and their own: the UUIDs of the GPUs of each, as far as known."""
    problem: str | None = None
    """Why the node is left out: then nothing is known of the node, and nothing is decided for it."""

    def offers(self, kept: Iterable[KeptSlice]) -> bool:
        """Return whether slices that are kept for a pod are offered, and no pod has them."""
        counts = Counter((each.gpu, each.slice) for each in kept)
        gpus = {gpu.uuid: gpu for gpu in self.gpus}
        return all(
            (gpu := gpus.get(uuid)) is not None and gpu.listed.get(name, 0) - gpu.held.get(name, 0) >= count
            for (uuid, name), count in counts.items()
        )

    def free(self, name: str) -> int:
        """Return how many slices of a size or profile are free by the count of kube-scheduler, which knows no GPUs."""
        listed = sum(_count(gpu.listed, name) for gpu in self.gpus if gpu.reason is None)
        return listed - sum(_count(gpu.held, name) for gpu in self.gpus) - self.unplaced.get(name, 0)


def _count(slices: Counts, name: str) -> int:
    return sum(count for each, count in slices.items() if named_slice(each).name == name)


def left_out(name: str, problem: str) -> PartitionNode:
    """Return a node that is left out, and so has nothing."""
    return PartitionNode(name, (), problem=problem)
