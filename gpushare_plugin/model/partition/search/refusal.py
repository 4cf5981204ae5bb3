"""Why a pod gets no slice: node by node and GPU by GPU, with the missing numbers; found on demand."""

from collections.abc import Callable, Hashable, Iterator, Sequence
from datetime import datetime
from typing import NamedTuple

from gpushare_plugin.foundation.structs import Struct
from gpushare_plugin.model.account.pod import Pod
from gpushare_plugin.model.partition.nodes import PartitionGpu
from gpushare_plugin.model.partition.pods import problem as never
from gpushare_plugin.model.partition.search.state import GpuState, NodeState
from gpushare_plugin.model.partition.taking_back import RoundRules
from gpushare_plugin.model.slices.memory import MemoryRoom
from gpushare_plugin.model.slices.slice import Slice


class GpuRefusal(NamedTuple):
    """Why a GPU gives no slice; parts of a GPU are GiB under MPS, and memory slices under MIG."""

    gpu: PartitionGpu
    """The GPU."""
    left: int
    """The parts neither held by pods nor kept for pods."""
    missing: int
    """The parts missing for the slice; 0 if the GPU has room, or gives no slice because of `reason`."""
    reason: str | None = None
    """Why the GPU cannot give a slice, whatever is left; None if room decides."""
    served: int | None = None
    """The most slices that MPS serves on the GPU, if the GPU has this number and enough memory left; None otherwise."""

    @property
    def text(self) -> str:
        """The refusal in words."""
        if self.reason is not None:
            return f"{self.gpu.label}: {self.reason}"
        room = self.gpu.room
        has = f"{self.gpu.label} has {max(0, self.left)} of {room.units} {room.part} left"
        if self.served is not None:
            return f"{has}, and pods have or get all {self.served} slices that MPS serves"
        return f"{has}, {self.missing} missing"


class NodeRefusal(Struct, frozen=True):
    """Why a node gives a pod no slice."""

    node: str
    """The name of the node."""
    summary: str
    """The cause, without numbers of the node: nodes with the same cause have the same summary."""
    gpus: tuple[GpuRefusal, ...] = ()
    """The refusals of the GPUs if room is missing, empty for any other cause."""

    @property
    def missing(self) -> int | None:
        """The fewest parts missing on a GPU, None if no GPU is refused for lack of room."""
        return min((each.missing for each in self.gpus if each.reason is None), default=None)

    @property
    def text(self) -> str:
        """The refusal in words, GPU by GPU."""
        return ": ".join(filter(None, (self.summary, ", ".join(each.text for each in self.gpus))))


class Refusal:
    """Why a pod gets no slice now: a problem that no node can ever solve, or else the refusals of the nodes."""

    def __init__(
        self,
        pod: Pod,
        problem: str | None,
        nodes: Callable[[], Sequence[NodeRefusal]] = tuple,
        alike: Hashable = None,
    ) -> None:
        """Keep the pod, and the function that finds the refusals of the nodes."""
        self.pod = pod
        """The pod."""
        self.problem = problem
        """Why no node can ever serve the pod, None if a node could."""
        self.alike = pod.uid if alike is None else alike
        """A value that is equal for refusals of one round with the same refusals of all nodes."""
        self._nodes = nodes

    @property
    def nodes(self) -> Sequence[NodeRefusal]:
        """The refusals of all nodes."""
        return self._nodes()


class Refusals:
    """The refusals of one round; the refusals of like pods are found once."""

    def __init__(self, states: Sequence[NodeState], now: datetime, rules: RoundRules) -> None:
        """Refuse slices that `states` do not give; a refusal judges the states when the refusal is first read."""
        self._states = states
        self._now = now
        self._rules = rules
        self._too_large: dict[Slice, str | None] = {}
        self._failed = {uid for state in states for uid in state.failed}
        self._found: dict[Hashable, Sequence[NodeRefusal]] = {}

    def at_once(self, pod: Pod) -> Refusal | None:
        """Return the refusal of a pod that no node can ever serve, None for any other pod."""
        if (problem := never(pod)) is not None:
            return Refusal(pod, problem)
        for wanted in pod.slices:
            if wanted not in self._too_large:
                self._too_large[wanted] = self._larger_than_any(wanted)
            if (problem := self._too_large[wanted]) is not None:
                return Refusal(pod, problem)
        return None

    def _larger_than_any(self, wanted: Slice) -> str | None:
        """Return why even an empty GPU has no room for a slice, naming possible slices; None if a GPU may have room."""
        rooms = {gpu.room: gpu for state in self._states for gpu in state.node.gpus if gpu.room.kind == wanted.kind}
        if any(room.parts(wanted) is not None for room in rooms):
            return None
        if not rooms and any(state.node.problem for state in self._states):
            return None  # the GPUs of nodes that are left out are unknown
        if not rooms:
            how = {"mps": "MPS", "mig": "MIG"}[wanted.kind]
            return (
                f"no GPU of the cluster is partitioned by {how}, so {wanted.resource} cannot be made; gpushare inspect "
                "shows the warnings of each node"
            )
        if wanted.kind == "mig":
            names = sorted(
                {name for room in rooms for name in room.names}, key=lambda each: (Slice("mig", each).gib, each)
            )
            return f"no partitioned GPU has the MIG profile {wanted.name}; there are {', '.join(names) or 'none'}"
        largest = max(rooms, key=lambda room: room.units)
        product = rooms[largest].product
        what = f", {product}," if product else ""
        return (
            f"{wanted.resource} is larger than any partitioned GPU: {wanted.gib} GiB requested, the largest one{what} "
            f"has {largest.units}, {wanted.gib - largest.units} missing; request {largest.units}gb or less"
        )

    def refusal(self, pod: Pod) -> Refusal:
        """Return the refusal of a pod that no node serves now."""
        alike = pod.uid if pod.uid in self._failed else pod.alike
        return Refusal(pod, None, lambda: self._nodes(pod, alike), alike)

    def _nodes(self, pod: Pod, alike: Hashable) -> Sequence[NodeRefusal]:
        if alike not in self._found:
            self._found[alike] = [self._node(state, pod) for state in self._states]
        return self._found[alike]

    def _node(self, state: NodeState, pod: Pod) -> NodeRefusal:
        name = state.node.name
        if state.node.problem is not None:
            return NodeRefusal(name, f"left out: {state.node.problem}")
        if (reason := self._rules.runs_on(pod, name, state.beside)) is not None:
            return NodeRefusal(name, reason)
        if (failure := state.failed.get(pod.uid)) is not None and self._now < self._rules.retry_at(failure):
            return NodeRefusal(name, "the pod did not take its slices there in time; the node is tried again later")
        if (overdrawn := next(filter(state.overdrawn, pod.slices), None)) is not None:
            return NodeRefusal(
                name,
                f"pods hold {overdrawn.resource} on GPUs that are not known or cannot be used, which kube-scheduler "
                "counts against the other GPUs",
            )
        gpus: tuple[GpuRefusal, ...] = ()
        for wanted in pod.slices:
            gpus = tuple(self._gpus(state, pod, wanted))
            if not any(each.reason is None and not each.missing for each in gpus):
                return NodeRefusal(name, f"no GPU has room for {wanted.resource}", gpus)
        return NodeRefusal(name, f"the GPUs have no room for all {len(pod.slices)} slices of the pod together", gpus)

    def _gpus(self, state: NodeState, pod: Pod, wanted: Slice) -> Iterator[GpuRefusal]:
        states = {each.gpu.uuid: each for each in state.gpus}
        for gpu in state.node.gpus:
            yield _gpu(gpu, states.get(gpu.uuid), pod, wanted, scarce=state.lacks(wanted))


def _gpu(gpu: PartitionGpu, state: GpuState | None, pod: Pod, wanted: Slice, *, scarce: bool) -> GpuRefusal:
    if state is None:
        return GpuRefusal(gpu, 0, 0, gpu.reason)
    if (reason := _unfit(gpu, pod, wanted)) is not None:
        return GpuRefusal(gpu, state.left, 0, reason)
    if options := state.options(wanted):
        if scarce and all(option.how == "idle" for option in options):
            return GpuRefusal(gpu, state.left, 0, "its idle slices may not be free")
        return GpuRefusal(gpu, state.left, 0)
    served = gpu.room.most if isinstance(gpu.room, MemoryRoom) and wanted.gib <= state.left else None
    return GpuRefusal(gpu, state.left, gpu.room.missing(state.layout, wanted), served=served)


def _unfit(gpu: PartitionGpu, pod: Pod, wanted: Slice) -> str | None:
    """Return why a GPU can never give a slice to a pod, whatever is left; None also for a size that is too large."""
    if gpu.room.kind != wanted.kind:
        return "partitioned by MIG" if gpu.room.kind == "mig" else "partitioned by MPS"
    if gpu.room.parts(wanted) is None and gpu.room.kind == "mig":
        return f"has no MIG profile {wanted.name}"
    return pod.request.wishes.refusal(gpu.uuid, gpu.product)
