"""Why a pod gets no slice: node by node and GPU by GPU, with the missing numbers; found on demand."""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial

from gpushare_plugin.ledger.pod import Pod
from gpushare_plugin.ledger.refusal import Refusal, Shortage
from gpushare_plugin.partition.nodes import PartitionGpu
from gpushare_plugin.partition.pods import problem as never
from gpushare_plugin.partition.state import GpuState, NodeState
from gpushare_plugin.partition.taking_back import RoundRules
from gpushare_plugin.slices.memory import MemoryRoom
from gpushare_plugin.slices.slice import Slice


class NoSlice:
    """Why a pod gets no slice now: a problem that no node can ever solve, or else the refusals of the nodes."""

    def __init__(
        self,
        pod: Pod,
        problem: str | None,
        nodes: Callable[[], Mapping[str, Refusal]] = dict,
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
    def nodes(self) -> Mapping[str, Refusal]:
        """The refusals of all nodes, by name."""
        return self._nodes()


class Refusals:
    """The refusals of one round; the refusals of pods that are alike are found once."""

    def __init__(self, states: Sequence[NodeState], now: datetime, rules: RoundRules) -> None:
        """Refuse slices that `states` do not give; a refusal judges the states when the refusal is first read."""
        self._states = states
        self._now = now
        self._rules = rules
        self._too_large: dict[Slice, str | None] = {}
        self._failed = {uid for state in states for uid in state.failed}
        self._found: dict[Hashable, Mapping[str, Refusal]] = {}

    def at_once(self, pod: Pod) -> NoSlice | None:
        """Return the refusal of a pod that no node can ever serve, None for any other pod."""
        if (problem := never(pod)) is not None:
            return NoSlice(pod, problem)
        for wanted in pod.slices:
            if wanted not in self._too_large:
                self._too_large[wanted] = self._larger_than_any(wanted)
            if (problem := self._too_large[wanted]) is not None:
                return NoSlice(pod, problem)
        return None

    def _larger_than_any(self, wanted: Slice) -> str | None:
        """Return why even an empty GPU has no room for a slice, naming possible slices; None if a GPU may have room."""
        gpus = [gpu for state in self._states for gpu in state.node.gpus if gpu.room.kind == wanted.kind]
        # A GPU of unknown memory is not partitioned under MPS, and its room has no part.
        rooms = {gpu.room: gpu for gpu in gpus if gpu.room.parts or wanted.kind == "mig"}
        if any(room.parts_needed(wanted) is not None for room in rooms):
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
        largest = max(rooms, key=lambda room: room.parts)
        product = rooms[largest].product
        what = f", {product}," if product else ""
        return (
            f"{wanted.resource} is larger than any partitioned GPU: {wanted.gib} GiB requested, the largest one{what} "
            f"has {largest.parts}, {wanted.gib - largest.parts} missing; request {largest.parts}gb or less"
        )

    def refusal(self, pod: Pod) -> NoSlice:
        """Return the refusal of a pod that no node serves now."""
        alike = pod.uid if pod.uid in self._failed else pod.alike
        return NoSlice(pod, None, lambda: self._nodes(pod, alike), alike)

    def _nodes(self, pod: Pod, alike: Hashable) -> Mapping[str, Refusal]:
        if alike not in self._found:
            self._found[alike] = {state.node.name: self._node(state, pod) for state in self._states}
        return self._found[alike]

    def _node(self, state: NodeState, pod: Pod) -> Refusal:
        if (summary := self._no_room_aside(state, pod)) is not None:
            return Refusal("slices", summary)
        gpus: tuple[Shortage, ...] = ()
        for wanted in pod.slices:
            gpus = tuple(self._gpus(state, pod, wanted))
            if not any(each.reason is None and not each.missing for each in gpus):
                return Refusal("slices", f"no GPU has room for {wanted.resource}", gpus)
        return Refusal("slices", f"the GPUs have no room for all {len(pod.slices)} slices of the pod together", gpus)

    def _no_room_aside(self, state: NodeState, pod: Pod) -> str | None:
        """Return why a node gives a pod no slice, whatever room its GPUs have; None if room decides."""
        node = state.node
        if node.problem is not None:
            return f"left out: {node.problem}"
        if (reason := self._rules.runs_on(pod, node.name, state.assigned_pods)) is not None:
            return reason
        if (failure := state.failed.get(pod.uid)) is not None and self._now < self._rules.retry_at(failure):
            return "the pod did not take its slices there in time; the node is tried again later"
        if (overdrawn := next(filter(state.overdrawn, pod.slices), None)) is not None:
            return (
                f"pods hold {overdrawn.resource} on GPUs that are not known or cannot be used, which kube-scheduler "
                "counts against the other GPUs"
            )
        return None

    def _gpus(self, state: NodeState, pod: Pod, wanted: Slice) -> Iterator[Shortage]:
        states = {each.gpu.uuid: each for each in state.gpus}
        for gpu in state.node.gpus:
            yield _gpu(gpu, states.get(gpu.uuid), pod, wanted, scarce=state.no_idle_left(wanted))


def _gpu(gpu: PartitionGpu, state: GpuState | None, pod: Pod, wanted: Slice, *, scarce: bool) -> Shortage:
    """Return why a GPU gives no slice; parts of a GPU are GiB under MPS, and memory slices under MIG."""
    if state is None:
        return _unusable(gpu, 0, gpu.reason)
    if (reason := _unfit(gpu, pod, wanted)) is not None:
        return _unusable(gpu, state.left, reason)
    missing, served = 0, None
    if options := state.options(wanted):
        if scarce and all(option.how == "idle" for option in options):
            return _unusable(gpu, state.left, "its idle slices may not be free")
    else:
        missing = gpu.room.missing(state.layout, wanted)
        if isinstance(gpu.room, MemoryRoom) and wanted.gib <= state.left:
            served = gpu.room.most
    return Shortage(gpu.uuid, state.left, missing, partial(_has, gpu, state.left, missing, served))


def _has(gpu: PartitionGpu, left: int, missing: int, served: int | None) -> str:
    """Return what a GPU has left; `served` is the most slices that MPS serves, if only their number is in the way."""
    has = f"{gpu.label} has {max(0, left)} of {gpu.room.parts} {gpu.room.part_name} left"
    if served is not None:
        return f"{has}, and pods have or get all {served} slices that MPS serves"
    return f"{has}, {missing} missing"


def _unusable(gpu: PartitionGpu, left: int, reason: str | None) -> Shortage:
    return Shortage(gpu.uuid, left, 0, f"{gpu.label}: {reason}", reason)


def _unfit(gpu: PartitionGpu, pod: Pod, wanted: Slice) -> str | None:
    """Return why a GPU can never give a slice to a pod, whatever is left; None also for a size that is too large."""
    if gpu.room.kind != wanted.kind:
        return "partitioned by MIG" if gpu.room.kind == "mig" else "partitioned by MPS"
    if gpu.room.parts_needed(wanted) is None and gpu.room.kind == "mig":
        return f"has no MIG profile {wanted.name}"
    return pod.request.wishes.refusal(gpu.uuid, gpu.product)
