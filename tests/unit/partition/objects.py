"""Nodes and pods for tests of the decision."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta

from gpushare_plugin.ledger.pod import Pod
from gpushare_plugin.ledger.request import ANY_GPU, ContainerRequest, PodRequest, Wishes, shared_request
from gpushare_plugin.partition.decide import Decisions, decide
from gpushare_plugin.partition.nodes import PartitionGpu, PartitionNode
from gpushare_plugin.partition.taking_back import RoundRules, RunsOn
from gpushare_plugin.slices.memory import MemoryRoom
from gpushare_plugin.slices.room import Room
from gpushare_plugin.slices.slice import Slice, slice_of
from gpushare_plugin.slices.wanted import KeptSlice, Wanted

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
ROOM = MemoryRoom(40)


def gpu(  # noqa: PLR0913 - each test names what differs
    index: int = 0,
    listed: str = "",
    held: str = "",
    *,
    room: Room = ROOM,
    node: str = "a",
    reason: str | None = None,
) -> PartitionGpu:
    """Return a GPU; slices are names separated by blanks."""
    return PartitionGpu(f"GPU-{node}-{index}", index, room, "A100", counts(listed), counts(held), reason)


def counts(names: str) -> dict[str, int]:
    """Return how often each name is in a text."""
    return {name: names.split().count(name) for name in names.split()}


def node(
    *gpus: PartitionGpu,
    name: str = "a",
    unplaced: str = "",
    policy: str | None = None,
    replicas: Mapping[str, Mapping[str, Sequence[str]]] | None = None,
) -> PartitionNode:
    """Return a node whose annotation names what it lists."""
    wanted = Wanted({each.uuid: each.listed for each in gpus})
    return PartitionNode(name, gpus, wanted, counts(unplaced), policy, replicas or {})


def pod(  # noqa: PLR0913 - each test names what differs
    uid: str,
    *asked: str,
    priority: int = 0,
    age: float = 0,
    wishes: Wishes = ANY_GPU,
    policy: str | None = None,
    owner: str | None = None,
) -> Pod:
    """Return a pod that waits since `age` seconds for slices: `10gb`, or a MIG profile."""
    slices = [slice_of(f"nvidia.com/gpu-{name}") or slice_of(f"nvidia.com/mig-{name}") for name in asked]
    created = NOW - timedelta(seconds=age)
    request = slice_request((each for each in slices if each is not None), wishes, policy)
    return Pod(uid, "ns", uid, request, owner=owner, priority=priority, created=created)


def slice_request(slices: Iterable[Slice], wishes: Wishes = ANY_GPU, policy: str | None = None) -> PodRequest:
    """Return a request for slices, one a container."""
    containers = tuple(ContainerRequest(str(n), "app", ((each.resource, 1),)) for n, each in enumerate(slices))
    return shared_request(containers, 1, wishes, policy, None, ())


def anywhere(_pod: Pod, _node: str, _beside: Sequence[Pod]) -> None:
    """Let every pod run on every node."""


def decided(
    nodes: Sequence[PartitionNode],
    *pods: Pod,
    seconds: float = 0,
    runs_on: RunsOn = anywhere,
    known: Sequence[str] = (),
) -> Decisions:
    """Return what is decided some seconds from now; `known` are UIDs of pods that do not wait."""
    rules = RoundRules(runs_on, {*known, *(each.uid for each in pods)})
    return decide(nodes, pods, NOW + timedelta(seconds=seconds), rules)


def after(nodes: Sequence[PartitionNode], decisions: Decisions) -> list[PartitionNode]:
    """Return nodes as they are once what was decided is written and listed."""
    return [
        PartitionNode(
            each.name,
            tuple(
                PartitionGpu(g.uuid, g.index, g.room, g.product, wanted.gpus.get(g.uuid, g.listed), g.held, g.reason)
                for g in each.gpus
            ),
            wanted,
            each.unplaced,
            each.policy,
        )
        for each in nodes
        for wanted in [decisions.changes.get(each.name, each.wanted)]
    ]


def where(decisions: Decisions, uid: str = "p") -> list[str]:
    """Return the slices that are kept for a pod, each with its GPU and how it comes to be."""
    assigned = decisions.assigned[uid]
    hows = assigned.how or ("kept",) * len(assigned.kept)
    return [f"{kept.slice} {kept.gpu} {how}" for kept, how in zip(assigned.kept, hows, strict=True)]


def wanted(decisions: Decisions, index: int = 0, name: str = "a") -> Mapping[str, int]:
    """Return what is wanted of a GPU."""
    return decisions.changes[name].gpus[f"GPU-{name}-{index}"]


def kept(slice_: str, index: int = 0, name: str = "a", seconds: float = 0) -> KeptSlice:
    """Return a slice that is kept since some seconds from now."""
    return KeptSlice(f"GPU-{name}-{index}", slice_, NOW + timedelta(seconds=seconds), "ns/p")
