"""The opening of a round on one node: the slices kept further for pods, and the idle slices."""

from collections import Counter
from collections.abc import Mapping, Sequence

from gpushare_plugin.base.structs import Struct
from gpushare_plugin.ledger.pod import Pod
from gpushare_plugin.partition.nodes import PartitionGpu, PartitionNode
from gpushare_plugin.partition.state import GpuState, NodeState
from gpushare_plugin.slices.room import Layout, fitting
from gpushare_plugin.slices.slice import named_slice
from gpushare_plugin.slices.wanted import Failure, KeptSlice


class Lost(Struct, frozen=True):
    """The reason why slices cannot be kept further for a pod."""

    reason: str
    """The reason, for messages."""
    to_others: bool = False
    """Whether other pods have the slices, or the room of the slices."""


class Opening:
    """The slices of a node at the beginning of a round, while the review decides which slices are kept further."""

    def __init__(self, number: int, node: PartitionNode) -> None:
        """Begin with the slices held by pods; all other wanted slices are idle."""
        self.number = number
        self.node = node
        self.kept: dict[str, tuple[KeptSlice, ...]] = {}
        self._assigned_pods: list[Pod] = []
        self._gpus = {gpu.uuid: gpu for gpu in node.gpus}
        self._fixed = {gpu.uuid: _expanded(gpu.held) for gpu in node.gpus}
        self._idle = {gpu.uuid: _idle(gpu, node.wanted.gpus.get(gpu.uuid, gpu.listed)) for gpu in node.gpus}

    def lost(self, kept: Sequence[KeptSlice]) -> Lost | None:
        """Return why slices cannot be kept further, None if the slices can be kept."""
        before: dict[str, list[str]] = {}
        for each in kept:
            gpu = self._gpus.get(each.gpu)
            if gpu is None:
                return Lost(f"the node does not have {each.gpu} any more")
            if gpu.reason is not None:
                return Lost(f"{gpu.label} cannot be used: {gpu.reason}")
            if not gpu.room.parts_taken(each.slice):
                return Lost(f"{gpu.label} cannot have {each.slice}")
            names = before.setdefault(each.gpu, [])
            names.append(each.slice)
            if self._idle[each.gpu].get(each.slice, 0) < names.count(each.slice):
                return Lost(f"another pod has the slice {each.slice} of {gpu.label}", to_others=True)
            if not gpu.room.fits((*self._fixed[each.gpu], *names)):
                return Lost(f"other pods have the room of the slice {each.slice} on {gpu.label}", to_others=True)
        return None

    def keep(self, uid: str, kept: Sequence[KeptSlice], pod: Pod | None = None) -> None:
        """Keep slices that are not `lost` for a pod; `pod` is None for an unseen pod."""
        for each in kept:
            self._fixed[each.gpu].append(each.slice)
            self._idle[each.gpu][each.slice] -= 1
        self.kept[uid] = tuple(kept)
        if pod is not None:
            self._assigned_pods.append(pod)

    def state(self, failed: dict[str, Failure]) -> NodeState:
        """Return the node with the kept slices and the slices that are idle now.

        Only this function drops wanted slices that do not fit beside held and kept slices, or beside each other. On a
        GPU that the annotation names, the next value of the annotation no longer wants the dropped slices.
        """
        unplaced = self.node.unplaced
        gpus = [self._gpu(gpu, unplaced) for gpu in self.node.gpus if gpu.reason is None]
        usable = [each for state in gpus for each in (*state.layout.pinned, *state.layout.idle)]
        scarce = {
            name: sum(named_slice(each).name == name for each in usable) - count
            for name, count in self._counted_elsewhere().items()
        }
        offered_to = {uid for uid, kept in self.kept.items() if self.node.offers_kept(kept)}
        return NodeState(self.number, self.node, gpus, scarce, self.kept, failed, self._assigned_pods, offered_to)

    def _counted_elsewhere(self) -> Mapping[str, int]:
        """Return the slices, by size or profile, that kube-scheduler counts against the idle slices of usable GPUs.

        Pods hold the slices on an unknown GPU, or on a GPU that cannot be used and therefore offers no slices.
        kube-scheduler does not know on which GPU a slice is.
        """
        counts = Counter(self.node.unplaced)
        for gpu in self.node.gpus:
            if gpu.reason is not None:
                counts.update(named_slice(name).name for name in _expanded(gpu.held))
        return counts

    def _gpu(self, gpu: PartitionGpu, unplaced: Mapping[str, int]) -> GpuState:
        fixed, idle = self._fixed[gpu.uuid], self._idle[gpu.uuid]
        left = _expanded(idle)
        if not gpu.room.fits((*fixed, *left)):
            left = fitting(gpu.room, fixed, sorted(left, key=lambda name: (name not in gpu.listed, name)))
        pinned: list[str] = []
        if unplaced:
            kept = Counter(left)
            pinned = _expanded({name: min(kept[name], unplaced.get(named_slice(name).name, 0)) for name in kept})
            left = _expanded(kept - Counter(pinned))
        return GpuState(gpu, Layout(tuple(sorted(fixed)), tuple(sorted(pinned)), tuple(sorted(left))))


def _expanded(counts: Mapping[str, int]) -> list[str]:
    return [name for name, count in counts.items() for _ in range(count)]


def _idle(gpu: PartitionGpu, wanted: Mapping[str, int]) -> dict[str, int]:
    """Return the wanted slices not held by pods."""
    held = gpu.held
    if not held:
        return dict(wanted)
    return {name: left for name, count in wanted.items() if (left := count - held.get(name, 0)) > 0}
