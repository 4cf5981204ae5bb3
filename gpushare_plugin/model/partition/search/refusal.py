"""Why a pod gets no slice: node by node and GPU by GPU, with the number that is missing; found when it is asked for."""

from collections.abc import Callable, Hashable, Iterator, Sequence
from datetime import datetime
from typing import NamedTuple

from gpushare_plugin.foundation.structs import Struct
from gpushare_plugin.model.account.pod import Pod
from gpushare_plugin.model.partition.nodes import PartitionGpu
from gpushare_plugin.model.partition.pods import problem as never
from gpushare_plugin.model.partition.search.state import GpuState, NodeState
from gpushare_plugin.model.partition.taking_back import Rules
from gpushare_plugin.model.slices.memory import MemoryRoom
from gpushare_plugin.model.slices.slice import Slice


class GpuRefusal(NamedTuple):
    """Why a GPU gives no slice: `missing` more of `part` (GiB, or memory slices) are needed than are left.

    `left` are those that no pod holds, and that are kept for none. `reason` says why the GPU cannot give any, whatever
    is left. `served` is how many slices MPS serves, where it is not room but one more of these that is missing.
    """

    gpu: PartitionGpu
    left: int
    missing: int
    reason: str | None = None
    served: int | None = None

    @property
    def text(self) -> str:
        """It in words."""
        if self.reason is not None:
            return f"{self.gpu.label}: {self.reason}"
        room = self.gpu.room
        has = f"{self.gpu.label} has {max(0, self.left)} of {room.units} {room.part} left"
        if self.served is not None:
            return f"{has}, and pods have or get all {self.served} slices that MPS serves"
        return f"{has}, {self.missing} missing"


class NodeRefusal(Struct, frozen=True):
    """Why a node gives a pod no slice; `summary` has no number of this node, so it is the same for the same cause.

    `gpus` are there where room is what is missing.
    """

    node: str
    summary: str
    gpus: tuple[GpuRefusal, ...] = ()

    @property
    def missing(self) -> int | None:
        """The fewest parts that are missing on a GPU, None where room is not what is missing."""
        return min((each.missing for each in self.gpus if each.reason is None), default=None)

    @property
    def text(self) -> str:
        """It in words, GPU by GPU."""
        return ": ".join(filter(None, (self.summary, ", ".join(each.text for each in self.gpus))))


class Refusal:
    """Why a pod gets no slice now: `problem` where no node can ever give it, or else what each node says.

    `alike` is equal for refusals of one round for which all nodes say the same.
    """

    def __init__(
        self,
        pod: Pod,
        problem: str | None,
        nodes: Callable[[], Sequence[NodeRefusal]] = tuple,
        alike: Hashable = None,
    ) -> None:
        """Keep the pod, and how to find what each node says."""
        self.pod = pod
        self.problem = problem
        self.alike = pod.uid if alike is None else alike
        self._nodes = nodes

    @property
    def nodes(self) -> Sequence[NodeRefusal]:
        """What each node says."""
        return self._nodes()


class Refusals:
    """Refusals of one round; those of pods that are alike are found once."""

    def __init__(self, states: Sequence[NodeState], now: datetime, rules: Rules) -> None:
        """Refuse what `states`, as they are when it is asked for, do not give."""
        self._states = states
        self._now = now
        self._rules = rules
        self._too_large: dict[Slice, str | None] = {}
        self._failed = {uid for state in states for uid in state.failed}
        self._found: dict[Hashable, Sequence[NodeRefusal]] = {}

    def at_once(self, pod: Pod) -> Refusal | None:
        """Return why no node can ever serve a pod, None where one could."""
        if (problem := never(pod)) is not None:
            return Refusal(pod, problem)
        for wanted in pod.slices:
            if wanted not in self._too_large:
                self._too_large[wanted] = self._larger_than_any(wanted)
            if (problem := self._too_large[wanted]) is not None:
                return Refusal(pod, problem)
        return None

    def _larger_than_any(self, wanted: Slice) -> str | None:
        """Return that no GPU could have a slice even if it were empty, with the largest that there is."""
        rooms = {gpu.room: gpu for state in self._states for gpu in state.node.gpus if gpu.room.kind == wanted.kind}
        if any(room.parts(wanted) is not None for room in rooms):
            return None
        if not rooms and any(state.node.problem for state in self._states):
            return None  # nobody knows what these have
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
        """Return why a pod is served by no node now."""
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
    """Return why a GPU can never give a slice to a pod, whatever is left of it; None for a size that is too large."""
    if gpu.room.kind != wanted.kind:
        return "partitioned by MIG" if gpu.room.kind == "mig" else "partitioned by MPS"
    if gpu.room.parts(wanted) is None and gpu.room.kind == "mig":
        return f"has no MIG profile {wanted.name}"
    return pod.request.wishes.refusal(gpu.uuid, gpu.product)
