"""The account of a cluster against a plain oracle, over random steps.

`GPUSHARE_ACCOUNT_RUNS` sets how many runs of how many steps: `500x200`, for one.
"""

import os
from dataclasses import dataclass

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gpushare_plugin.base import structs
from gpushare_plugin.base.errors import PlacementError
from gpushare_plugin.ledger import fitting
from gpushare_plugin.ledger.ask import Ask, Rules
from gpushare_plugin.ledger.cluster import ClusterAccount
from gpushare_plugin.ledger.node import GPU_MEMORY, Node, plain_node
from gpushare_plugin.ledger.occupancy import node_account
from gpushare_plugin.ledger.pod import Pod, Share
from gpushare_plugin.ledger.request import PodRequest
from gpushare_plugin.ledger.verdicts import Fit
from tests.unit.ledger.objects import container, memory, memory_node, request, uuid

RUNS, STEPS = map(int, os.environ.get("GPUSHARE_ACCOUNT_RUNS", "40x60").split("x"))

NODES = ("one", "two", "three")
GPUS = 3
REQUESTS: tuple[PodRequest, ...] = (
    memory(1),
    memory(4),
    memory(9),
    memory(4, annotations={"gpushare/placement": "spread"}),
    memory(6, gpus="2"),
    request(container("warm-up", "init", memory=7), container("main", memory=3), container("side", memory=1)),
    request(container("helper", "sidecar", memory=2), container("init", "init", memory=3), container("main", memory=1)),
    memory(3, annotations={"nvidia.com/use-gpuuuid": uuid(1, "one")}),
)

nodes = st.sampled_from(NODES)
numbers = st.integers(0, GPUS - 1)


@dataclass
class Truth:
    """What the oracle knows of one pod: where its units are counted."""

    pod: Pod
    reserved: tuple[str, dict[str, int]] | None = None  # node, units by GPU
    claims: tuple[tuple[str, dict[str, int]], ...] = ()  # in order of trust: who says it, units by GPU


@dataclass(frozen=True)
class Gpu:
    """What the oracle knows of one GPU."""

    name: str
    units: int
    well: bool = True
    offered: bool = True


class Life(RuleBasedStateMachine):
    """Nodes and pods come, change and go; the account follows, and the oracle counts by hand."""

    def __init__(self) -> None:
        """Start with an empty cluster."""
        super().__init__()
        self.account = ClusterAccount()
        self.nodes: dict[str, tuple[Node, tuple[Gpu, ...]]] = {}
        self.pods: dict[str, Truth] = {}
        self.born = 0
        self.past: list[Pod] = []

    # The cluster

    @initialize(sizes=st.lists(st.lists(st.integers(4, 12), min_size=1, max_size=GPUS), min_size=2, max_size=2))
    def first_nodes(self, sizes: list[list[int]]) -> None:
        """Have two nodes and some pods: an empty cluster teaches little."""
        for name, each in zip(NODES, sizes, strict=False):
            self.have_node(name, each, set())
        for asked in REQUESTS:
            self.have_pod(asked, "a")

    @rule(
        name=nodes,
        form=st.sampled_from(["recorded", "recorded", "partly offered", "plain", "gone"]),
        sizes=st.lists(st.integers(0, 12), max_size=GPUS),
        sick=st.sets(numbers, max_size=1),
        policy=st.sampled_from([None, "binpack", "spread"]),
    )
    def change_node(self, name: str, form: str, sizes: list[int], sick: set[int], policy: str | None) -> None:
        """Add a node, change its GPUs, their sizes and their health, or delete it; its pods are deleted later."""
        if form == "recorded":
            self.have_node(name, sizes, sick)
        elif form == "plain":
            node = plain_node(name, 8 * len(sizes), len(sizes), cordoned={str(index): "cordoned" for index in sick})
            self.put_node(node, tuple(Gpu(str(index), 8, index not in sick) for index, _ in enumerate(sizes)))
        elif form == "partly offered":
            one, other = uuid(0, name), uuid(1, name)
            node = structs.replace(memory_node(9, name=name, policy=policy), gpus=frozenset({one, other}))
            self.put_node(node, (Gpu(one, 9), Gpu(other, 0, offered=False)))
        else:
            self.nodes.pop(name, None)
            self.account.remove_node(name)

    def have_node(self, name: str, sizes: list[int], sick: set[int]) -> None:
        """Have a node that shares the memory of some GPUs."""
        gpus = tuple(Gpu(uuid(index, name), size, index not in sick) for index, size in enumerate(sizes))
        self.put_node(memory_node(*sizes, name=name, sick=dict.fromkeys(sick, "XID 79")), gpus)

    def put_node(self, node: Node, gpus: tuple[Gpu, ...]) -> None:
        """Show a node, and note its GPUs."""
        self.nodes[node.name] = node, gpus
        self.account.put_node(node)

    @rule(asked=st.sampled_from(REQUESTS), owner=st.sampled_from([None, "a", "b"]))
    def have_pod(self, asked: PodRequest, owner: str | None) -> None:
        """Create a pod."""
        self.born += 1
        pod = Pod(f"pod-{self.born}", "default", f"pod-{self.born}", asked, owner=owner)
        self.pods[pod.uid] = Truth(pod)
        self.tell(pod)

    # Pods

    def tell(self, pod: Pod) -> None:
        """Show a pod, perhaps once more later."""
        self.account.put_pod(pod)
        self.past.append(pod)

    def choose(self, number: int, *, bound: bool) -> Truth | None:
        """Return one of the pods that are bound, or not, None where there is none."""
        those = [truth for truth in self.pods.values() if (truth.pod.node is not None) == bound]
        return those[number % len(those)] if those else None

    @rule(number=st.integers(0, 99), asked=st.sampled_from(REQUESTS), best=st.booleans())
    def schedule(self, number: int, asked: PodRequest, best: bool) -> None:  # noqa: FBT001 # by name
        """Create a pod and reserve units for it, on the best node or on any."""
        self.have_pod(asked, "a")
        scores = {name: fit.score for name, fit in self.account.fits(asked, NODES, "a").items() if isinstance(fit, Fit)}
        name = max(scores, key=scores.__getitem__) if best and scores else NODES[number % len(NODES)]
        self.try_to_reserve(self.pods[f"pod-{self.born}"], name)

    @rule(number=st.integers(0, 99), name=nodes)
    def reserve(self, number: int, name: str) -> None:
        """Reserve units for a pod that may be reserved already."""
        if truth := self.choose(number, bound=False):
            self.try_to_reserve(truth, name)

    def try_to_reserve(self, truth: Truth, name: str) -> None:
        """Reserve units for a pod, as for its binding: exactly where the oracle finds room."""
        before = self.free(name)
        try:
            placed = self.account.reserve(truth.pod, name)
        except PlacementError:
            elsewhere = truth.reserved is not None and truth.reserved[0] != name
            assert truth.pod.ended or elsewhere or not self.has_room(truth.pod.request, name, before)
            return
        promised: dict[str, int] = {}
        for gpus in [each[GPU_MEMORY] for each in placed.containers.values()]:
            promised |= dict.fromkeys(gpus, 0)
        count = truth.pod.request.gpu_count
        each = truth.pod.request.amounts[GPU_MEMORY] // count
        assert len(promised) == count
        if truth.reserved is None:
            assert all(before[gpu] >= each for gpu in promised)
            truth.reserved = name, dict.fromkeys(promised, each)
        else:
            assert truth.reserved == (name, dict.fromkeys(promised, each))

    @rule(number=st.integers(0, 99))
    def release(self, number: int) -> None:
        """Release what was reserved for a pod, as after a failed binding."""
        if truth := self.choose(number, bound=False):
            self.account.release(truth.pod.uid)
            truth.reserved = None

    @rule(number=st.integers(0, 99))
    def bind_as_promised(self, number: int) -> None:
        """Show a pod bound, with the annotations that the extender wrote."""
        reserved = [truth for truth in self.pods.values() if truth.reserved]
        if reserved:
            truth = reserved[number % len(reserved)]
            name, by_gpu = truth.reserved or ("", {})
            self.bind(truth, name, self.shares(truth.pod.request, tuple(by_gpu)), by_gpu)

    @rule(number=st.integers(0, 99), name=nodes, gpu=numbers, lie=st.sampled_from([None, "", "gpu", "name", "units"]))
    def bind_by_others(self, number: int, name: str, gpu: int, lie: str | None) -> None:
        """Show a pod bound with a forged promise, which may say which GPU and nothing else; or with none (None)."""
        if (truth := self.choose(number, bound=False)) is None:
            return
        target = "GPU-forged" if lie == "gpu" else uuid(gpu, name)
        shares = [] if lie is None else self.shares(truth.pod.request, (target,))
        forged = {"name": Share("forged", GPU_MEMORY, target, 1), "units": Share("main", GPU_MEMORY, target, 1)}
        total = truth.pod.request.amounts[GPU_MEMORY]
        self.bind(truth, name, (*shares, forged[lie]) if lie in forged else (*shares,), {} if lie else {target: total})

    def bind(self, truth: Truth, name: str, shares: tuple[Share, ...], by_gpu: dict[str, int]) -> None:
        """Show a pod bound, with what one of its annotations says; `by_gpu` is empty where it is no good."""
        pod = structs.replace(truth.pod, node=name, promise=shares or None)
        truth.pod, truth.reserved = pod, None
        truth.claims = (("promise", by_gpu),) if shares and by_gpu else ()
        self.tell(pod)

    @rule(number=st.integers(0, 99), gpu=numbers)
    def allocate(self, number: int, gpu: int) -> None:
        """Write, as the node's daemon, where the pod really is."""
        truth = self.choose(number, bound=True)
        if truth is None or truth.pod.request.gpu_count > 1:
            return
        target = uuid(gpu, truth.pod.node or "")
        # pod-resources shows no init containers.
        inits = {each.name for each in truth.pod.request.containers if each.kind == "init"}
        shares = tuple(share for share in self.shares(truth.pod.request, (target,)) if share.container not in inits)
        total = truth.pod.request.amounts[GPU_MEMORY]
        truth.pod = structs.replace(truth.pod, allocation=shares)
        truth.claims = (("allocation", {target: total}), *[each for each in truth.claims if each[0] != "allocation"])
        self.tell(truth.pod)

    @rule(number=st.integers(0, 99))
    def end(self, number: int) -> None:
        """Let all containers of a pod stop."""
        if truth := self.choose(number, bound=True):
            truth.pod = structs.replace(truth.pod, ended=True)
            self.tell(truth.pod)

    @rule(number=st.integers(0, 99), bound=st.booleans())
    def vanish(self, number: int, bound: bool) -> None:  # noqa: FBT001 # hypothesis passes it by name
        """Delete a pod, and say so twice."""
        if truth := self.choose(number, bound=bound):
            del self.pods[truth.pod.uid]
            # A watch tells nothing of a pod after it is gone.
            self.past = [pod for pod in self.past if pod.uid != truth.pod.uid]
            self.account.remove_pod(truth.pod.uid)
            self.account.remove_pod(truth.pod.uid)

    @precondition(lambda self: self.past)
    @rule(number=st.integers(0, 999))
    def tell_again(self, number: int) -> None:
        """Deliver an older event once more; only annotations may be older for a moment, until the newest comes."""
        pod = self.past[number % len(self.past)]
        self.account.put_pod(pod)
        newest = self.pods[pod.uid].pod
        if (pod.node, pod.ended) == (newest.node, newest.ended):
            self.account.put_pod(newest)

    # What must hold

    @invariant()
    def counts_as_the_oracle(self) -> None:
        """Each GPU has as many free units as the oracle counts, and never fewer than none."""
        for name in self.nodes:
            found = self.account.account_of(name).resources.get(GPU_MEMORY)
            counted = dict(zip([gpu.name for gpu in found.offer.gpus], found.free, strict=True)) if found else {}
            assert counted == self.free(name)
            assert all(count >= 0 for count in counted.values())

    @invariant()
    def counts_each_pod_once(self) -> None:
        """Find each pod on one node, bound or reserved, or on none."""
        found = [
            each.uid
            for name in self.nodes
            for each in (
                *self.account.account_of(name).pods,
                *(reservation.pod for reservation in self.account.account_of(name).reservations),
            )
        ]
        expected = [uid for uid, truth in self.pods.items() if self.place_of(truth) in self.nodes]
        assert sorted(found) == sorted(expected)

    @invariant()
    def keeps_nothing_stale(self) -> None:
        """Each verdict that is kept is what a fresh account of the node gives, and says yes only where place agrees."""
        for name, (node, _) in self.nodes.items():
            account = self.account.account_of(name)
            fresh = node_account(node, account.pods[::-1], account.reservations)
            for asked in REQUESTS:
                for owner in (None, "a"):
                    ask = Ask(asked, owner, Rules())
                    verdict = self.account.fit(asked, name, owner)
                    again = fitting.fit(fresh, ask)
                    assert isinstance(verdict, Fit) == isinstance(again, Fit)
                    assert verdict == again if isinstance(verdict, Fit) else True
                    assert isinstance(verdict, Fit) == self.has_room(asked, name, self.free(name))

    # The oracle

    @staticmethod
    def place_of(truth: Truth) -> str | None:
        """Return the node where a pod has units or is promised some."""
        if truth.pod.node is not None:
            return None if truth.pod.ended else truth.pod.node
        return truth.reserved[0] if truth.reserved else None

    def free(self, name: str) -> dict[str, int]:
        """Count the free units of each GPU of a node by hand."""
        if name not in self.nodes:
            return {}
        gpus = {gpu.name: gpu for gpu in self.nodes[name][1]}
        left = {gpu.name: gpu.units for gpu in gpus.values() if gpu.offered}
        for truth in self.pods.values():
            if self.place_of(truth) != name:
                continue
            amount = truth.pod.request.amounts[GPU_MEMORY] // truth.pod.request.gpu_count
            if truth.reserved:
                found = truth.reserved[1]
            else:
                credible = [
                    by_gpu
                    for source, by_gpu in truth.claims
                    if all(gpu in gpus and (source == "allocation" or gpus[gpu].offered) for gpu in by_gpu)
                ]
                found = credible[0] if credible else dict.fromkeys(left, amount)
            for gpu, count in found.items():
                if gpu in left:
                    left[gpu] -= count
        return {gpu: max(0, count) if gpus[gpu].well else 0 for gpu, count in left.items()}

    @staticmethod
    def has_room(asked: PodRequest, name: str, free: dict[str, int]) -> bool:
        """Whether enough GPUs that the pod wants have room for its part."""
        del name
        size = asked.amounts[GPU_MEMORY] // asked.gpu_count
        wanted = asked.wishes.uuids
        return sum(count >= size for gpu, count in free.items() if not wanted or gpu in wanted) >= asked.gpu_count

    @staticmethod
    def shares(asked: PodRequest, gpus: tuple[str, ...]) -> tuple[Share, ...]:
        """Return the shares of containers that all have the same part of each of some GPUs."""
        return tuple(
            Share(each.name, resource, gpu, amount // len(gpus))
            for each in asked.containers
            for resource, amount in each.amounts
            for gpu in gpus
        )


TestLife = Life.TestCase
TestLife.settings = settings(
    max_examples=RUNS, stateful_step_count=STEPS, deadline=None, suppress_health_check=list(HealthCheck)
)
