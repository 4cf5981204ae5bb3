"""A cluster in which anything happens in any order, and what must hold in it whatever happens.

Its daemons, scheduler and kubelets are written here, by the rules in docs/partitioning.md, and so is the arithmetic
of what fits: nothing of what is tested is used but `decide`, the values that it takes, and the annotation.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from random import Random

from gpushare_plugin.ledger.constraints import Constraints, shared_needs
from gpushare_plugin.ledger.demand import NOTHING
from gpushare_plugin.ledger.pod import Pod as AskingPod
from gpushare_plugin.partition.decide import Decisions, decide
from gpushare_plugin.partition.nodes import PartitionGpu, PartitionNode
from gpushare_plugin.partition.taking_back import RoundRules
from gpushare_plugin.slices.memory import MemoryRoom
from gpushare_plugin.slices.mig import MigProfile, MigRoom
from gpushare_plugin.slices.slice import Slice
from gpushare_plugin.slices.wanted import Wanted, decode, encode
from tests.unit.partition.objects import slice_request

START = datetime(2026, 11, 22, 12, tzinfo=UTC)
PATIENCE = 60
RETIRED_SECONDS = 2
OLDEST = 100
"""Steps by which a view is late at most."""

MOST_PODS, MOST_NODES = (6, 20, 60), 8
"""What there is at most, of pods until things have settled once more: in a full cluster most pods only wait."""

PLACES = {
    "1g.5gb": (range(7), 1, 1),
    "1g.10gb": (range(0, 8, 2), 2, 1),
    "2g.10gb": (range(0, 6, 2), 2, 2),
    "3g.20gb": (range(0, 8, 4), 4, 3),
    "4g.20gb": (range(1), 4, 4),
    "7g.40gb": (range(1), 8, 7),
}
"""An A100 of 40 GB: where instances of each profile can begin, their memory slices and their compute slices."""

A100 = MigRoom(
    8, 7, tuple(MigProfile(name, tuple(starts), size, compute, 7) for name, (starts, size, compute) in PLACES.items())
)
SIZES = {"mps": [f"{size}gb" for size in (2, 3, 5, 8, 10, 16, 20, 24, 41)], "mig": [*PLACES, "1g.80gb"]}

Unit = tuple[str, str]
"""A slice of a GPU: the UUID of the GPU, and the name of the slice in annotations."""


@dataclass(frozen=True)
class Pod:
    """A pod: `closed` are nodes where it cannot run, and `secretly` those where only the scheduler knows that."""

    uid: str
    slices: tuple[Slice, ...]
    created: datetime
    priority: int
    closed: frozenset[str]
    secretly: frozenset[str]
    node: str | None = None
    units: tuple[Unit, ...] | None = None
    published: bool = False

    @property
    def shown(self) -> tuple[Unit, ...] | None:
        """Where its annotation says that its slices are, None where it does not say so yet."""
        return self.units if self.published else None

    def waiting(self) -> AskingPod:
        """Return it as the decision takes it."""
        required = shared_needs(Constraints(tuple((name, "closed") for name in sorted(self.closed))), NOTHING)
        return AskingPod(
            uid=self.uid,
            namespace="ns",
            name=self.uid,
            request=slice_request(self.slices),
            priority=self.priority,
            created=self.created,
            needs=required,
        )


@dataclass
class Gpu:
    """A GPU: its size (GiB; 0 for MIG), its slices that are listed and idle, and those that are retired, until when."""

    uuid: str
    size: int
    idle: Counter[str] = field(default_factory=Counter)
    retired: list[tuple[str, datetime]] = field(default_factory=list)
    sick: str | None = None

    def fits(self, names: Sequence[str]) -> bool:
        """Return whether slices fit on it together."""
        if self.size:
            return sum(int(name.removesuffix("gb")) for name in names) <= self.size
        taken: set[int] = set()
        for name in names:
            profile, _, start = name.partition("@")
            memory = set(range(int(start), int(start) + PLACES[profile][1]))
            if taken & memory:
                return False
            taken |= memory
        return sum(PLACES[name.partition("@")[0]][2] for name in names) <= 7

    def names(self, wanted: Slice) -> list[str]:
        """Return the names that a slice can have here."""
        if self.size:
            return [wanted.name] if wanted.kind == "mps" else []
        return [f"{wanted.name}@{start}" for start in PLACES.get(wanted.name, ((), 0, 0))[0]]


@dataclass
class Node:
    """A node: its annotation, and what its daemon published last of each GPU."""

    name: str
    gpus: list[Gpu]
    annotation: str = ""
    record: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class NodeSeen:
    """What of a node can be seen: its annotation, its record, and what is wrong with its GPUs."""

    name: str
    gpus: tuple[tuple[str, int, str | None], ...]
    annotation: str
    record: Mapping[str, Mapping[str, int]]
    allocatable: Mapping[str, int]


@dataclass
class Controller:
    """One that decides: how far its views of nodes and pods have come, and what it has still to write."""

    nodes_seen: int = 0
    pods_seen: int = 0
    writes: list[tuple[str, str, str]] = field(default_factory=list)


class Cluster:
    """A cluster of GPUs of one kind; `seed` decides everything that happens."""

    def __init__(self, seed: int, kind: str, nodes: int = 4) -> None:
        """Begin with some empty nodes and two that decide."""
        self.random = Random(seed)  # noqa: S311 - a test must happen again
        self.kind = kind
        self.now = START
        self.nodes: dict[str, Node] = {}
        self.pods: dict[str, Pod] = {}
        self.number = 0
        self.most_pods = MOST_PODS[-1]
        self.controllers = [Controller(), Controller()]
        self.nodes_shown: list[dict[str, NodeSeen]] = []
        self.pods_shown: list[dict[str, Pod]] = []
        self.happened: Counter[str] = Counter()
        for _ in range(nodes):
            self.node_comes()
        self.show()

    # What happens to nodes and pods.

    def node_comes(self) -> None:
        """Add an empty node, unless there are many."""
        if len(self.nodes) >= MOST_NODES:
            return
        self.number += 1
        name = f"node-{self.number}"
        gpus = [
            Gpu(f"GPU-{name}-{index}", self.random.choice((24, 40)) if self.kind == "mps" else 0)
            for index in range(self.random.randint(1, 3))
        ]
        self.nodes[name] = Node(name, gpus, record={gpu.uuid: {} for gpu in gpus})

    def node_goes(self) -> None:
        """Remove a node with its pods."""
        if len(self.nodes) > 2:
            name = self.random.choice(sorted(self.nodes))
            del self.nodes[name]
            self.pods = {uid: pod for uid, pod in self.pods.items() if pod.node != name}

    def gpu_falls_ill_or_recovers(self) -> None:
        """Let a GPU be faulty, or no longer."""
        gpu = self.random.choice([gpu for node in self.nodes.values() for gpu in node.gpus])
        gpu.sick = None if gpu.sick else "XID 79"

    def pod_comes(self) -> None:
        """Create a pod of any size, unless there are many."""
        if len(self.pods) >= self.most_pods:
            return
        self.number += 1
        count = self.random.choice((1, 1, 1, 2, 3))
        slices = sorted(
            (Slice("mps" if self.kind == "mps" else "mig", self.random.choice(SIZES[self.kind])) for _ in range(count)),
            key=lambda each: each.rank,
        )
        names = sorted(self.nodes)
        closed = frozenset(name for name in names if self.random.random() < 0.15)
        secretly = frozenset(name for name in names if self.random.random() < 0.08)
        uid = f"pod-{self.number}"
        self.pods[uid] = Pod(uid, tuple(slices), self.now, self.random.choice((0, 0, 0, 10)), closed, secretly)

    def pod_goes(self) -> None:
        """End a pod, whether it waits or runs; its slices stay listed until the daemon has looked."""
        if self.pods:
            pod = self.pods.pop(self.random.choice(sorted(self.pods)))
            for uuid, name in pod.units or ():
                self.gpu(uuid).idle[name] += 1

    def gpu(self, uuid: str) -> Gpu:
        """Return a GPU."""
        return next(gpu for node in self.nodes.values() for gpu in node.gpus if gpu.uuid == uuid)

    def held(self, gpu: Gpu) -> list[str]:
        """Return the slices of a GPU that pods really hold."""
        return [name for pod in self.pods.values() for uuid, name in pod.units or () if uuid == gpu.uuid]

    # What daemons, kubelets and the scheduler do.

    def daemon_follows(self, node: Node) -> None:
        """Let a daemon follow the annotation: held slices first, and room for new ones once retired ones are gone."""
        wanted = decode(node.annotation).gpus if node.annotation else {}
        for gpu in node.gpus:
            held = self.held(gpu)
            gpu.retired = [(name, until) for name, until in gpu.retired if until > self.now]
            if gpu.uuid in wanted:
                more = Counter(wanted[gpu.uuid])
                more.subtract(Counter(held))
                target: list[str] = []
                for name in sorted((+more).elements(), key=lambda name: (not gpu.idle[name], name)):
                    if gpu.fits([*held, *target, name]):
                        target.append(name)
                gone = gpu.idle - Counter(target)
                gpu.idle -= gone
                gpu.retired += [(name, self.now + timedelta(seconds=RETIRED_SECONDS)) for name in gone.elements()]
                for name in (Counter(target) - gpu.idle).elements():
                    if gpu.fits([*held, *gpu.idle.elements(), *(name for name, _ in gpu.retired), name]):
                        gpu.idle[name] += 1

    def daemon_publishes(self, node: Node) -> None:
        """Let a daemon publish what it lists, and where pods have their slices."""
        node.record = {gpu.uuid: dict(+(gpu.idle + Counter(self.held(gpu)))) for gpu in node.gpus}
        for uid, pod in self.pods.items():
            if pod.node == node.name and pod.units is not None:
                self.pods[uid] = replace(pod, published=True)

    def scheduler_binds(self, uid: str, seen: Mapping[str, NodeSeen]) -> None:
        """Bind a pod to any node that, as far as is seen, offers what it asks for."""
        pod = self.pods[uid]
        asked = Counter(each.name for each in pod.slices)
        fitting = []
        for name in sorted(seen.keys() & self.nodes.keys() - pod.closed - pod.secretly):
            free = Counter(seen[name].allocatable)
            for other in self.pods.values():
                if other.node == name:
                    free.subtract(each.name for each in other.slices)
            if all(free[size] >= count for size, count in asked.items()):
                fitting.append(name)
        if fitting:
            self.pods[uid] = replace(pod, node=self.random.choice(fitting))
            self.happened["bound"] += 1

    def kubelet_admits(self, uid: str) -> None:
        """Give a bound pod any slices that are listed; without them it fails, and its controller makes a new one."""
        pod = self.pods[uid]
        node = self.nodes[pod.node or ""]
        units: list[Unit] = []
        for wanted in pod.slices:
            listed = [
                (gpu.uuid, name)
                for gpu in node.gpus
                if gpu.sick is None
                for name in gpu.names(wanted)
                if gpu.idle[name] > 0
            ]
            if not listed:
                for uuid, name in units:
                    self.gpu(uuid).idle[name] += 1
                del self.pods[uid]
                self.number += 1
                again = f"pod-{self.number}"
                self.pods[again] = replace(pod, uid=again, node=None)
                self.happened["failed admission"] += 1
                return
            uuid, name = self.random.choice(listed)
            self.gpu(uuid).idle[name] -= 1
            units.append((uuid, name))
        self.pods[uid] = replace(pod, units=tuple(units))

    def show(self) -> None:
        """Let what is published now be seen, by some sooner and by others later."""
        self.nodes_shown.append(
            {
                name: NodeSeen(
                    name,
                    tuple((gpu.uuid, gpu.size, gpu.sick) for gpu in node.gpus),
                    node.annotation,
                    node.record,
                    self._allocatable(node),
                )
                for name, node in self.nodes.items()
            }
        )
        self.pods_shown.append(dict(self.pods))
        if len(self.pods_shown) > OLDEST + 1:
            # Nobody sees anything older.
            self.nodes_shown[-OLDEST - 2] = {}
            self.pods_shown[-OLDEST - 2] = {}

    def _allocatable(self, node: Node) -> Mapping[str, int]:
        names = [name for gpu in node.gpus if not gpu.sick for name in (*gpu.idle.elements(), *self.held(gpu))]
        return Counter(name.partition("@")[0] for name in names)

    # What those do that decide.

    def decided(self, controller: Controller) -> Decisions:
        """Let one decide by its views, and check what it decides."""
        shown, pods = self.nodes_shown[controller.nodes_seen], self.pods_shown[controller.pods_seen]
        nodes = [_partition_node(seen, pods.values()) for _, seen in sorted(shown.items())]
        waiting = [pod.waiting() for pod in pods.values() if pod.node is None]
        closed = {pod.uid: pod.closed for pod in pods.values()}

        def runs_on(pod: AskingPod, node: str, _beside: Sequence[AskingPod]) -> str | None:
            return "not allowed there" if node in closed[pod.uid] else None

        rules = RoundRules(runs_on, pods, PATIENCE)
        decisions = decide(nodes, waiting, self.now, rules)
        self._check(nodes, waiting, decisions)
        after = [
            PartitionNode(node.name, node.gpus, decisions.changes.get(node.name, node.wanted), node.unplaced)
            for node in nodes
        ]
        again = decide(after, waiting, self.now, rules)
        assert not again.changes, f"decided again, without anything new: {again.changes} after {decisions.changes}"
        assert again.refused.keys() == decisions.refused.keys()
        for each in decisions.assigned.values():
            self.happened.update(f"made: {how}" for how in each.how)
        self.happened.update(f"taken back: {_cause(each.reason)}" for each in decisions.taken_back)
        controller.writes = [
            (name, shown[name].annotation, encode(wanted)) for name, wanted in decisions.changes.items()
        ]
        self.random.shuffle(controller.writes)
        return decisions

    def _check(self, nodes: Sequence[PartitionNode], waiting: Sequence[AskingPod], decisions: Decisions) -> None:
        """Check what was decided against what was seen: nothing that pods hold, or may hold, is changed."""
        uids = {pod.uid for pod in waiting}
        assert decisions.assigned.keys() | decisions.refused.keys() == uids
        assert not decisions.assigned.keys() & decisions.refused.keys()
        kept_on = Counter(
            uid for node in nodes for uid in decisions.changes.get(node.name, node.wanted).pods if uid in uids
        )
        assert not kept_on or max(kept_on.values()) == 1, f"slices are kept on several nodes: {kept_on}"
        told = {(each.uid, each.node) for each in decisions.taken_back}
        assert all(each.reason for each in decisions.taken_back)
        for node in nodes:
            after = decisions.changes.get(node.name, node.wanted)
            for gpu in node.gpus:
                slices = after.gpus.get(gpu.uuid, gpu.listed)
                before = node.wanted.gpus.get(gpu.uuid, gpu.listed)
                truth = Gpu(gpu.uuid, gpu.room.parts if self.kind == "mps" else 0)
                assert Counter(gpu.held) <= Counter(slices), f"{gpu.uuid}: {gpu.held} held, {slices} wanted"
                if truth.fits(list(Counter(gpu.held).elements())) and not gpu.reason:
                    assert truth.fits(list(Counter(slices).elements())), f"{gpu.uuid} cannot have {slices}"
                if not gpu.reason and truth.fits(list((Counter(before) | Counter(gpu.held)).elements())):
                    for name, count in before.items():
                        unplaced = node.unplaced.get(name.partition("@")[0], 0)
                        assert slices.get(name, 0) >= min(count, gpu.held.get(name, 0) + unplaced), f"{name} was cut"
            for uid in node.wanted.pods.keys() - after.pods.keys() & uids:
                assert (uid, node.name) in told, f"{uid} lost its slices on {node.name} without a reason"
        for uid, each in decisions.assigned.items():
            kept = decisions.changes.get(each.node, next(n.wanted for n in nodes if n.name == each.node)).pods[uid]
            assert kept == each.kept
        for refusal in decisions.refused.values():
            assert refusal.problem or len(refusal.nodes) == len(nodes)

    def writes(self, controller: Controller) -> None:
        """Let one write the next of its decisions, which is refused where the annotation is another by now."""
        if controller.writes:
            name, before, after = controller.writes.pop()
            if name in self.nodes and self.nodes[name].annotation == before:
                self.nodes[name].annotation = after
                self.happened["written"] += 1

    # What happens when, and what must hold in the end.

    def step(self) -> None:
        """Let anything happen."""
        self.now += timedelta(seconds=self.random.choice((0, 0.1, 0.5, 1, 3)))
        (happens,) = self.random.choices(list(_EVENTS), list(_EVENTS.values()))
        happens(self)
        self.show()
        self.holds()

    def time_passes(self) -> None:
        """Let more time pass than usual."""
        self.now += timedelta(seconds=self.random.choice((20, 70)))

    def one_decides(self) -> None:
        """Let one decide by what it sees by now."""
        controller = self.random.choice(self.controllers)
        controller.nodes_seen = self._later(controller.nodes_seen)
        controller.pods_seen = self._later(controller.pods_seen)
        self.decided(controller)

    def one_writes(self) -> None:
        """Let one write one of its decisions."""
        self.writes(self.random.choice(self.controllers))

    def one_is_killed(self) -> None:
        """Kill one that decides, which may have written a part; the next one lists what there is."""
        newest = len(self.nodes_shown) - 1
        self.controllers[self.random.randrange(2)] = Controller(newest, newest)

    def one_daemon_follows(self) -> None:
        """Let the daemon of one node follow its annotation."""
        self.daemon_follows(self.nodes[self.random.choice(sorted(self.nodes))])

    def one_daemon_publishes(self) -> None:
        """Let the daemon of one node publish its record."""
        self.daemon_publishes(self.nodes[self.random.choice(sorted(self.nodes))])

    def scheduler_sees_pods(self) -> None:
        """Let the scheduler bind what fits, by a view of the nodes that may be old."""
        for uid in [pod.uid for pod in self.pods.values() if pod.node is None]:
            self.scheduler_binds(uid, self.nodes_shown[self._later(0)])

    def one_kubelet_admits(self) -> None:
        """Let a kubelet admit a pod."""
        if bound := [pod.uid for pod in self.pods.values() if pod.node and pod.units is None]:
            self.kubelet_admits(self.random.choice(bound))

    def _later(self, seen: int) -> int:
        """Return a view that is not older than `seen`, and mostly new."""
        newest = len(self.nodes_shown) - 1
        return max(seen, newest - min(OLDEST, int(self.random.expovariate(0.15))), 0)

    def holds(self) -> None:
        """Check that no GPU has more than it has room for."""
        for node in self.nodes.values():
            for gpu in node.gpus:
                names = [*self.held(gpu), *gpu.idle.elements(), *(name for name, _ in gpu.retired)]
                assert gpu.fits(names), f"{gpu.uuid} of {gpu.size} has {names}"

    def settle(self) -> None:
        """Let everybody do their part in turns, with one that decides, until nothing comes of it for half an hour."""
        self.controllers = [Controller()]
        quiet_since = self.now
        while self.now - quiet_since < timedelta(minutes=30) and any(p.node is None for p in self.pods.values()):
            before = self.happened["bound"]
            decisions = self._turn()
            if self.happened["bound"] > before:
                quiet_since = self.now
            elif not decisions.changes:
                self.now = max(self.now, decisions.next_at or self.now + timedelta(minutes=10))
        self.controllers.append(Controller())
        self.most_pods = self.random.choice(MOST_PODS)

    def _turn(self) -> Decisions:
        """Let everybody do everything once."""
        (controller,) = self.controllers
        controller.nodes_seen = controller.pods_seen = len(self.nodes_shown) - 1
        decisions = self.decided(controller)
        while controller.writes:
            self.writes(controller)
        for _ in range(2):
            self._daemons()
            self.now += timedelta(seconds=RETIRED_SECONDS)
        for uid in [pod.uid for pod in self.pods.values() if pod.node is None]:
            self.scheduler_binds(uid, self.nodes_shown[-1])
        for uid in [pod.uid for pod in self.pods.values() if pod.node and pod.units is None]:
            self.kubelet_admits(uid)
        self._daemons()
        return decisions

    def _daemons(self) -> None:
        for node in self.nodes.values():
            self.daemon_follows(node)
            self.daemon_publishes(node)
        self.show()
        self.holds()

    def could_run(self) -> Iterator[str]:
        """Yield the pods that wait although a node could have their slices beside those that pods hold."""
        for pod in self.pods.values():
            if pod.node is None:
                for name, node in self.nodes.items():
                    if name in pod.closed | pod.secretly or self._overdrawn(node, pod.slices):
                        continue
                    if self._possible(node, pod.slices):
                        yield f"{pod.uid} ({', '.join(each.name for each in pod.slices)}) could run on {name}"

    def _overdrawn(self, node: Node, slices: Sequence[Slice]) -> bool:
        """Return whether pods hold such slices on a GPU that is ill: Kubernetes counts them against the others."""
        ill = {name.partition("@")[0] for gpu in node.gpus if gpu.sick for name in self.held(gpu)}
        return any(each.name in ill for each in slices)

    def _possible(self, node: Node, slices: Sequence[Slice], more: tuple[Unit, ...] = ()) -> bool:
        if not slices:
            return True
        for gpu in node.gpus:
            there = [*self.held(gpu), *(name for uuid, name in more if uuid == gpu.uuid)]
            for name in gpu.names(slices[0]) if not gpu.sick else ():
                if gpu.fits([*there, name]) and self._possible(node, slices[1:], (*more, (gpu.uuid, name))):
                    return True
        return False


_EVENTS = {
    Cluster.pod_comes: 100,
    Cluster.pod_goes: 60,
    Cluster.node_comes: 5,
    Cluster.node_goes: 5,
    Cluster.gpu_falls_ill_or_recovers: 5,
    Cluster.time_passes: 5,
    Cluster.one_decides: 120,
    Cluster.one_writes: 200,
    Cluster.one_is_killed: 20,
    Cluster.one_daemon_follows: 160,
    Cluster.one_daemon_publishes: 120,
    Cluster.scheduler_sees_pods: 100,
    Cluster.one_kubelet_admits: 100,
}
"""What may happen, and how often."""


def _cause(reason: str) -> str:
    return reason.partition("GPU")[0].partition("node-")[0].partition("pod-")[0]


def _partition_node(seen: NodeSeen, pods: Iterable[Pod]) -> PartitionNode:
    held: dict[str, Counter[str]] = {}
    unplaced: Counter[str] = Counter()
    for pod in pods:
        if pod.node == seen.name:
            for uuid, name in pod.shown or ():
                held.setdefault(uuid, Counter())[name] += 1
            if pod.shown is None:
                unplaced.update(each.name for each in pod.slices)
    gpus = tuple(
        PartitionGpu(
            uuid,
            index,
            MemoryRoom(size) if size else A100,
            listed=seen.record.get(uuid, {}),
            held=held.get(uuid, {}),
            reason=sick,
        )
        for index, (uuid, size, sick) in enumerate(seen.gpus)
    )
    return PartitionNode(seen.name, gpus, decode(seen.annotation) if seen.annotation else Wanted(), unplaced)
