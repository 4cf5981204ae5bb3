"""The state of nodes during a round: the room left, and the slices kept for pods.

Pods can hold slices on an unknown GPU. Any slice of the same size or profile may be a held slice. On every GPU, the
same number of these slices, if present, is `pinned` (`Layout`): a pinned slice can be given whole, and is never cut.

Pods can also hold slices on a GPU that cannot be used. kube-scheduler counts slices by node, and subtracts slices held
on unknown and unusable GPUs from the free slices of the node. Idle slices of the same size or profile therefore become
`scarce` (`NodeState`). If there is `no_idle_left` of a size, only new slices of the size can be given. If a size is
`overdrawn`, no slice of the size can be given.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from dataclasses import field as attribute

from gpushare_plugin.base.structs import Struct, field
from gpushare_plugin.ledger.pod import Pod
from gpushare_plugin.partition.nodes import PartitionGpu, PartitionNode
from gpushare_plugin.slices.room import Layout, Option
from gpushare_plugin.slices.slice import Slice, named_slice
from gpushare_plugin.slices.wanted import Failure, KeptSlice, Wanted


class NodeDefectError(Exception):
    """A defect that concerns one node: the round can decide without the node."""

    def __init__(self, number: int, error: Exception) -> None:
        """Keep the number of the node and the error."""
        super().__init__(number, error)
        self.number = number
        """The place of the node among the nodes of the round."""
        self.error = error
        """The defect."""


@contextmanager
def blaming(number: int) -> Iterator[None]:
    """Raise NodeDefectError with the number of a node for any error in the context."""
    try:
        yield
    except Exception as error:
        raise NodeDefectError(number, error) from error


class ReplicaCounts(Struct, frozen=True):
    """The pods of one owner on a node, together with waiting pods that have kept slices on the node."""

    node: int = 0
    """The number of pods on the node."""
    gpus: Mapping[str, int] = field(default_factory=dict)
    """The number of pods on a GPU, by the UUID of the GPU."""


NO_REPLICAS = ReplicaCounts()
"""The replicas of a node without pods of the owner."""


class NodeChoice(Struct, frozen=True, gc=False):
    """The slices that a node can give a pod."""

    order: int
    """The worst place of the picks in the order of choice."""
    price: float
    """The mean price of the picks by the policy, 0 to 1."""
    picks: tuple[tuple[int, Option], ...]
    """The GPUs, by their numbers in `NodeState.gpus`, with the best option on the GPU."""


@dataclass(slots=True)
class GpuState:
    """A usable GPU during a round."""

    gpu: PartitionGpu
    """The GPU at the beginning of the round."""
    layout: Layout
    """The slices of the GPU after the decisions so far."""
    left: int = 0
    """The parts left if all idle slices were cut."""
    _options: dict[Slice, tuple[Option, ...]] = attribute(default_factory=dict)

    def __post_init__(self) -> None:
        """Count the parts left."""
        self.left = self.gpu.room.left(self.layout)

    def options(self, wanted: Slice) -> tuple[Option, ...]:
        """Return the ways to give a slice on the GPU, the best first."""
        if (found := self._options.get(wanted)) is None:
            found = self._options[wanted] = self.gpu.room.options(self.layout, wanted)
        return found


@dataclass(slots=True)
class NodeState:
    """A node during a round."""

    number: int
    """The place of the node among the nodes of the round."""
    node: PartitionNode
    """The node at the beginning of the round."""
    gpus: list[GpuState]
    """The usable GPUs of the node."""
    scarce: dict[str, int]
    """The number of idle slices less those that kube-scheduler counts against them, by size or profile.

    Only sizes and profiles that pods hold on unknown or unusable GPUs have an entry. The number is negative if
    kube-scheduler counts more slices against the node than are idle.
    """
    kept: dict[str, tuple[KeptSlice, ...]]
    """The slices kept for pods, by the UID of the pod."""
    failed: dict[str, Failure]
    """The failures of pods to take slices on the node, by the UID of the pod."""
    assigned_pods: list[Pod] = attribute(default_factory=list)
    """The waiting pods assigned to the node: slices are kept for them."""
    offered_to: set[str] = attribute(default_factory=set)
    """The UIDs of pods whose kept slices the node offers already."""
    choices: dict[Hashable, NodeChoice | None] = attribute(default_factory=dict)
    """The choices for the present slices, by ask, or by ask and owner."""
    version: int = 0
    """A number that changes with the slices."""
    parts: int = 0
    """The parts of all usable GPUs together."""
    largest: int = 0
    """The parts of the largest usable GPU."""
    left: int = 0
    """The parts left on all usable GPUs together."""
    numbers: range = range(0)
    """The numbers of the usable GPUs in `gpus`."""

    def __post_init__(self) -> None:
        """Add up the parts of the GPUs."""
        self.numbers = range(len(self.gpus))
        self.parts = sum(each.gpu.room.parts for each in self.gpus)
        self.largest = max((each.gpu.room.parts for each in self.gpus), default=0)
        self._count()

    def _count(self) -> None:
        self.left = sum(each.left for each in self.gpus)

    def give(self, pod: Pod, picks: Iterable[tuple[int, Option]], kept: tuple[KeptSlice, ...]) -> None:
        """Give slices to a pod: `picks` are numbers in `gpus` with the chosen options."""
        for number, option in picks:
            self.place(number, option)
        self.kept[pod.uid] = kept
        self.assigned_pods.append(pod)
        self.changed()

    def place(self, number: int, option: Option) -> None:
        """Change a GPU, given by the number in `gpus`, to the layout after an option."""
        before = self.gpus[number]
        self.gpus[number] = after = GpuState(before.gpu, option.after)
        self.left += after.left - before.left
        if option.how == "idle" and self.scarce:
            meant = named_slice(option.name).name
            if meant in self.scarce:
                self.scarce[meant] -= 1

    def release(self, uid: str) -> None:
        """Stop keeping slices for a pod: the slices become idle."""
        for each in self.kept.pop(uid):
            for number, state in enumerate(self.gpus):
                if state.gpu.uuid == each.gpu:
                    fixed = list(state.layout.fixed)
                    fixed.remove(each.slice)
                    idle = tuple(sorted((*state.layout.idle, each.slice)))
                    self.gpus[number] = GpuState(state.gpu, Layout(tuple(fixed), state.layout.pinned, idle))
            meant = named_slice(each.slice).name
            if meant in self.scarce:
                self.scarce[meant] += 1
        self.assigned_pods = [pod for pod in self.assigned_pods if pod.uid != uid]
        self.changed()

    def changed(self) -> None:
        """Record a change of slices: raise the version, forget the choices, and count the parts left."""
        self.version += 1
        self.choices.clear()
        self._count()

    def copy(self) -> "NodeState":
        """Return a copy of the node for trials."""
        return NodeState(
            self.number,
            self.node,
            list(self.gpus),
            dict(self.scarce),
            dict(self.kept),
            self.failed,
            list(self.assigned_pods),
            self.offered_to,
        )

    def no_idle_left(self, wanted: Slice) -> bool:
        """Return whether no idle slice of a size or profile can be given, by the count of kube-scheduler.

        Idle slices of a size that is not scarce can all be given.
        """
        left = self.scarce.get(wanted.name)
        return left is not None and left < 1

    def overdrawn(self, wanted: Slice) -> bool:
        """Return whether not even a new slice of a size or profile can be given, by the count of kube-scheduler.

        kube-scheduler then counts more slices against the node than are idle, and would count the new one, too.
        """
        left = self.scarce.get(wanted.name)
        return left is not None and left < 0

    def replicas(self, owner: str) -> ReplicaCounts:
        """Return the pods of an owner on the node; a pod with kept slices counts on the GPUs of these slices."""
        pods = dict(self.node.replicas.get(owner, {}))
        pods |= {pod.uid: [each.gpu for each in self.kept[pod.uid]] for pod in self.assigned_pods if pod.owner == owner}
        return ReplicaCounts(len(pods), Counter(gpu for gpus in pods.values() for gpu in set(gpus)))

    def wanted(self) -> Wanted:
        """Return the slices wanted of the node from now on.

        A GPU that the annotation does not name stays unnamed, and keeps its slices, until a slice changes for a pod.
        On a usable GPU that the annotation names, exactly the slices of the layout are wanted, without the slices that
        `Opening.state` dropped.
        """
        named = self.node.wanted.gpus
        gpus = dict(named)
        given = {each.gpu for kept in self.kept.values() for each in kept}
        states = {each.gpu.uuid: each for each in self.gpus}
        for gpu in self.node.gpus:
            state = states.get(gpu.uuid)
            before = named.get(gpu.uuid, gpu.listed)
            after = Counter(state.layout.all) if state else Counter(before) | Counter(gpu.held)
            if gpu.uuid in named or (gpu.uuid in given and after != before):
                gpus[gpu.uuid] = dict(sorted(after.items()))
        return Wanted(gpus, self.kept, self.failed)
