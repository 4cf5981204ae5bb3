"""What a round knows of each node while it decides: the room that is left, and for whom slices are kept.

Slices that pods hold on a GPU that is not known, or cannot be used, count in two ways. As any slice of their size may
be theirs, some of these are `pinned` (`Layout`): given as they are, and never cut. And as kube-scheduler counts by
node, idle ones become `scarce` (`NodeState`): of a size that it `lacks`, only new ones can be given, and of one that is
`overdrawn`, none.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from dataclasses import field as attribute

from gpushare_plugin.foundation.structs import Struct, field
from gpushare_plugin.model.account.pod import Pod
from gpushare_plugin.model.partition.nodes import PartitionGpu, PartitionNode
from gpushare_plugin.model.slices.layout import Layout, Option
from gpushare_plugin.model.slices.slice import Slice, named_slice
from gpushare_plugin.model.slices.wanted import Failure, KeptSlice, Wanted


class NodeDefectError(Exception):
    """A round met a defect that only one node has to do with: it can be decided without this node.

    `number` is the place of the node among those of the round, `error` what went wrong.
    """

    def __init__(self, number: int, error: Exception) -> None:
        """Keep both."""
        super().__init__(number, error)
        self.number = number
        self.error = error


@contextmanager
def blaming(number: int) -> Iterator[None]:
    """Raise NodeDefectError for whatever goes wrong with the node of this number."""
    try:
        yield
    except Exception as error:
        raise NodeDefectError(number, error) from error


class Replicas(Struct, frozen=True):
    """How many pods of the owner of a pod are on a node, or are to come there, and on each GPU, by its UUID."""

    node: int = 0
    gpus: Mapping[str, int] = field(default_factory=dict)


NO_REPLICAS = Replicas()


class Choice(Struct, frozen=True, gc=False):
    """What a node can give a pod: `picks` are numbers of its GPUs, each with the option that is best there.

    `order` is the last place in the order of choice among them, `price` what they cost by the policy, 0 to 1.
    """

    order: int
    price: float
    picks: tuple[tuple[int, Option], ...]


@dataclass(slots=True)
class GpuState:
    """A GPU that can be used: its slices as they are to be, and the parts that are `left` if idle ones are cut."""

    gpu: PartitionGpu
    layout: Layout
    left: int = 0
    _options: dict[Slice, tuple[Option, ...]] = attribute(default_factory=dict)

    def __post_init__(self) -> None:
        """Count what is left."""
        self.left = self.gpu.room.left(self.layout)

    def options(self, wanted: Slice) -> tuple[Option, ...]:
        """Return the ways to give a slice here, best first."""
        if (found := self._options.get(wanted)) is None:
            found = self._options[wanted] = self.gpu.room.options(self.layout, wanted)
        return found


@dataclass(slots=True)
class NodeState:
    """A node in a round.

    `gpus` are those that can be used. `scarce` is how many idle slices can be given of those sizes and profiles of
    which pods hold some on a GPU that is not known, or cannot be used. `beside` are waiting pods that are to come here,
    `kept` their slices, `offered` the UIDs of those whose slices the node lists. `choices` are those made of the slices
    as they are, by what is asked; `version` changes with the slices.
    """

    number: int
    node: PartitionNode
    gpus: list[GpuState]
    scarce: dict[str, int]
    kept: dict[str, tuple[KeptSlice, ...]]
    failed: dict[str, Failure]
    beside: list[Pod] = attribute(default_factory=list)
    offered: set[str] = attribute(default_factory=set)
    choices: dict[Hashable, Choice | None] = attribute(default_factory=dict)
    version: int = 0
    units: int = 0
    largest: int = 0
    left: int = 0
    numbers: range = range(0)

    def __post_init__(self) -> None:
        """Add up the GPUs."""
        self.numbers = range(len(self.gpus))
        self.units = sum(each.gpu.room.units for each in self.gpus)
        self.largest = max((each.gpu.room.units for each in self.gpus), default=0)
        self._count()

    def _count(self) -> None:
        self.left = sum(each.left for each in self.gpus)

    def give(self, pod: Pod, picks: Iterable[tuple[int, Option]], kept: tuple[KeptSlice, ...]) -> None:
        """Give slices to a pod: `picks` are numbers in `gpus`, each with the option that was chosen there."""
        for number, option in picks:
            self.place(number, option)
        self.kept[pod.uid] = kept
        self.beside.append(pod)
        self.changed()

    def place(self, number: int, option: Option) -> None:
        """Let a GPU, given its number in `gpus`, be as it is with an option."""
        before = self.gpus[number]
        self.gpus[number] = after = GpuState(before.gpu, option.after)
        self.left += after.left - before.left
        if option.how == "idle" and self.scarce:
            meant = named_slice(option.name).name
            if meant in self.scarce:
                self.scarce[meant] -= 1

    def release(self, uid: str) -> None:
        """Keep nothing for a pod any longer: its slices are idle."""
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
        self.beside = [pod for pod in self.beside if pod.uid != uid]
        self.changed()

    def changed(self) -> None:
        """Take note that slices changed."""
        self.version += 1
        self.choices.clear()
        self._count()

    def copy(self) -> "NodeState":
        """Return a node to try things with."""
        return NodeState(
            self.number,
            self.node,
            list(self.gpus),
            dict(self.scarce),
            dict(self.kept),
            self.failed,
            list(self.beside),
            self.offered,
        )

    def lacks(self, wanted: Slice) -> bool:
        """Return whether no idle slice of a size or profile is there to be taken, by what kube-scheduler counts."""
        return self.scarce.get(wanted.name, 1) < 1

    def overdrawn(self, wanted: Slice) -> bool:
        """Return whether even one slice more could not be taken, by what kube-scheduler counts."""
        return self.scarce.get(wanted.name, 0) < 0

    def replicas(self, owner: str) -> Replicas:
        """Return how many pods of an owner are here; slices that are kept for a pod count as its own."""
        pods = dict(self.node.replicas.get(owner, {}))
        pods |= {pod.uid: [each.gpu for each in self.kept[pod.uid]] for pod in self.beside if pod.owner == owner}
        return Replicas(len(pods), Counter(gpu for gpus in pods.values() for gpu in set(gpus)))

    def wanted(self) -> Wanted:
        """Return what is wanted of the node from now on.

        A GPU that the annotation does not name keeps the slices it has until some of them are to change for a pod. Of
        one that it names, all is wanted that `Opening.state` took to fit, and so nothing else.
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
