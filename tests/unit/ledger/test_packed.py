"""The policy `packing` in a cluster: rows that follow the account, what pods lose where, and scores.

`GPUSHARE_PACKED_STEPS` sets how many random steps the rows follow.
"""

import os
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import numpy as np
import pytest

from gpushare_plugin.base import structs
from gpushare_plugin.base.errors import PlacementError
from gpushare_plugin.ledger.cluster import ClusterAccount
from gpushare_plugin.ledger.cluster_rows import MIB, ClusterRows
from gpushare_plugin.ledger.constraints import Constraints, Requirement, Term, shared_needs
from gpushare_plugin.ledger.demand import Demand
from gpushare_plugin.ledger.node import Node, recorded_node
from gpushare_plugin.ledger.node_record import GpuRecord, NodeRecord, ResourceRecord
from gpushare_plugin.ledger.packed import PackedCluster, best, scores
from gpushare_plugin.ledger.pod import Pod
from gpushare_plugin.ledger.product_label import PRODUCT
from gpushare_plugin.ledger.request import PodRequest
from gpushare_plugin.ledger.verdicts import Fit
from gpushare_plugin.packing.pod_kind import PodKind
from gpushare_plugin.packing.policy import Packing, learned
from gpushare_plugin.packing.rows import NodeKind, NodeRows
from gpushare_plugin.packing.seen import Lesson
from tests.unit.ledger.objects import container, gpu_record, memory, memory_node, pod, request, uuid

STEPS = int(os.environ.get("GPUSHARE_PACKED_STEPS", "1500"))

KINDS = (ResourceRecord(name="aliyun.com/gpu-mem", kind="memory"),)
ROOM = {"cpu": 64_000, "memory": 256 * 1024 * MIB}
NOTHING = request(container("main"))
WHOLE = request(container("main", gpu=1))


def needing(cpu: int, memory_mib: int = 1024) -> Any:
    """Return the needs of a pod for CPU in thousandths, and memory."""
    return shared_needs(Constraints(), Demand({"cpu": cpu, "memory": memory_mib * MIB}))


def asking(asked: PodRequest, cpu: int = 1_000, uid: str = "asked", **fields: Any) -> Pod:
    """Return a pod that asks for GPUs and CPU."""
    return pod(asked, uid=uid, **{"needs": needing(cpu), **fields})


def roomy(node: Node, amounts: Mapping[str, int] = ROOM) -> Node:
    """Return a node with CPU and memory."""
    return structs.replace(node, allocatable={**node.allocatable, **amounts})


def mixed_node(name: str = "mixed") -> Node:
    """Return a node with a GPU shared by memory, two whole ones, a MIG instance, slices, and a faulty GPU."""
    whole = {"resource": "nvidia.com/gpu", "mode": None, "unit_mib": 0}
    gpus: tuple[GpuRecord, ...] = (
        gpu_record(0, 16, uuid=uuid(0, name)),
        gpu_record(1, 1, uuid=uuid(1, name), **whole),
        gpu_record(2, 1, uuid=uuid(2, name), **whole),
        gpu_record(3, 1, uuid="MIG-3", profile="1g.5gb", **whole),
        gpu_record(4, 4, uuid=uuid(4, name), **{**whole, "resource": "nvidia.com/gpu-10gb"}),
        gpu_record(5, 16, uuid=uuid(5, name), healthy=False),
    )
    kinds = (
        ResourceRecord(name="aliyun.com/gpu-mem", kind="memory"),
        ResourceRecord(name="nvidia.com/gpu", kind="gpus"),
        ResourceRecord(name="nvidia.com/gpu-10gb", kind="slices"),
    )
    return roomy(recorded_node(name, NodeRecord(gpus=gpus, resources=kinds)))


def cluster(*nodes: Node, pods: tuple[Pod, ...] = ()) -> tuple[ClusterAccount, PackedCluster]:
    """Return an account and the policy that follows it."""
    account = ClusterAccount("packing")
    packed = PackedCluster(account)
    for node in nodes:
        account.put_node(node)
    for each in pods:
        account.put_pod(each)
    return account, packed


class RandomLife:
    """Nodes and pods that come, change and go by chance."""

    def __init__(self, account: ClusterAccount, chance: Random) -> None:
        """Begin with nothing."""
        self.account, self.chance = account, chance
        self.born = 0

    def step(self) -> None:
        """Have one thing happen."""
        pods = list(self.account.pods.values())
        done = self.chance.choice((self.node, self.node_goes, *[self.pod] * 4, *[self.bind] * 4, *[self.end] * 3))
        done(self.chance.choice(pods) if pods else None)

    def node(self, _pod: Pod | None) -> None:
        """Have a node come or change: its GPUs, its CPU, its policy, a fault."""
        name, chance = f"node-{self.chance.randrange(6)}", self.chance
        if chance.random() < 0.2:
            made = mixed_node(name)
        else:
            units = [chance.choice((8, 21))] * chance.choice((1, 2, 4))
            made = memory_node(*units, name=name, policy=chance.choice((None, None, "spread")))
            if chance.random() < 0.3:
                made = memory_node(*units, name=name, sick={0: "XID 79"})
            made = structs.replace(made, unschedulable=chance.random() < 0.1)
        self.account.put_node(roomy(made, {**ROOM, "cpu": chance.choice((16_000, 64_000))}))

    def node_goes(self, _pod: Pod | None) -> None:
        """Remove a node, whose pods stay."""
        self.account.remove_node(f"node-{self.chance.randrange(6)}")

    def pod(self, _pod: Pod | None) -> None:
        """Have a pod come that waits."""
        self.born += 1
        asked = self.chance.choice((NOTHING, WHOLE, memory(2), memory(5), memory(8), memory(8, gpus="2")))
        self.account.put_pod(asking(asked, self.chance.choice((0, 500, 4_000)), f"pod-{self.born}"))

    def bind(self, pod: Pod | None) -> None:
        """Promise a pod units, bind a pod as others do, or end a promise."""
        if pod is None or pod.node is not None or not self.account.nodes:
            return
        node = self.chance.choice(list(self.account.nodes))
        match self.chance.randrange(3):
            case 0:
                self.account.put_pod(structs.replace(pod, node=node))
            case 1:
                with suppress(PlacementError):
                    self.account.reserve(structs.replace(pod, needs=needing(0)), node)
            case _:
                self.account.release(pod.uid)

    def end(self, pod: Pod | None) -> None:
        """End a pod by steps: it is being deleted, its phase is final, its containers have ended, it is gone."""
        if pod is None:
            return
        if pod.node is None or pod.ended:
            self.account.remove_pod(pod.uid)
        else:
            changes = [{"ending": True}, {"phase_final": True}, {"phase_final": True, "ended": True}]
            self.account.put_pod(structs.replace(pod, **self.chance.choice(changes)))


def contents(rows: ClusterRows, names: list[str]) -> list[object]:
    """Return all that rows say of nodes, whichever rows they have."""
    rows.refresh()
    of, policy = rows.rows, rows.policy
    found: list[object] = []
    for row in rows.rows_of(names).tolist():
        numbers = [of.gpus, of.cpu, of.memory, of.free_cpu, of.free_memory, of.free_percent, of.free_whole]
        state = [policy.room, policy.balanced, policy.idle]
        cards = rows.layouts[rows.layout[row]]
        free = of.free[row, : len(cards)].tolist(), rows.free[row, : len(cards)].tolist()
        assert not of.free[row, len(cards) :].any()
        assert not rows.free[row, len(cards) :].any()
        found.append((cards, free, of.models[of.model[row]], *[each[row] for each in (*numbers, *state)]))
    return found


@pytest.mark.parametrize("seed", range(2))
def test_rows_that_follow_the_account_equal_rows_made_anew(seed: int) -> None:
    """After each of some random steps, the row of each node, its room and its losses are those of a new start."""
    chance = Random(seed)  # noqa: S311 - no secret
    account, packed = cluster()
    life, lesson = RandomLife(account, chance), Lesson({25: 3, 38: 5}, {frozenset(): 100.0}, several=True)
    packed.recall(lesson)
    followed = packed.rows
    for number in range(STEPS):
        life.step()
        if number % 10:
            continue
        names = list(account.nodes)
        anew = PackedCluster(account)
        anew.recall(lesson)
        account.follow(followed)
        assert contents(followed, names) == contents(anew.rows, names)
        for asked in (memory(3), memory(6, gpus="2"), WHOLE, NOTHING):
            one, other = packed.losses(asking(asked), names), anew.losses(asking(asked), names)
            assert np.array_equal(one, other, equal_nan=True)


def test_a_cluster_loses_what_a_simulation_loses() -> None:
    """The same nodes and pods: shares in units lose what shares in percent lose in the rows of a simulation."""
    held = tuple(pod(memory(units), "one", f"held-{gpu}", on=uuid(gpu, "one")) for gpu, units in enumerate((8, 4, 12)))
    nodes = (roomy(memory_node(16, 16, 16, 16, name="one")), roomy(memory_node(16, 16, name="two")))
    _, packed = cluster(*nodes, pods=tuple(structs.replace(each, needs=needing(10_000)) for each in held))
    kinds = [NodeKind(64_000, 256 * 1024, gpus, "NVIDIA A100-SXM4-40GB") for gpus in (4, 2)]
    rows = NodeRows(kinds)
    rows.put(0, kinds[0], [50, 75, 25, 100], 34_000, 256 * 1024 - 3 * 1024)
    simulated = Packing(rows)
    lesson = Lesson({25: 3, 50: 5}, {frozenset(): 100.0}, several=True)
    simulated.recall(lesson)
    packed.recall(lesson)
    for asked, gpus, percent in (
        (memory(4), 1, 25),
        (memory(8), 1, 50),
        (memory(8, gpus="2"), 2, 25),
        (NOTHING, 0, 100),
    ):
        _, expected = simulated.losses(PodKind(1_000, 1024, gpus, percent), np.arange(2))
        assert packed.losses(asking(asked), ["one", "two"]).tolist() == expected.tolist()


def test_a_pod_that_fits_by_units_fits_by_percent() -> None:
    """Of 21 units 9 are free, 42 percent; a pod with 9 units, 43 percent of a GPU, has room there and fills the GPU."""
    held = pod(memory(12), "node", "held", on=uuid(0))
    _, packed = cluster(roomy(memory_node(21, 21)), pods=(held,))
    fitting, larger = (packed.losses(asking(memory(units)), ["node"])[0] for units in (9, 10))
    assert 0 < fitting < larger < 1


def test_only_cards_that_can_be_used_have_free_pieces() -> None:
    """A MIG instance is no whole GPU, and slices and faulty GPUs are no cards: no room is lost there."""
    assert np.isnan(cluster()[1].losses(asking(WHOLE), ["unknown"])).all()
    account, packed = cluster(mixed_node())
    assert (packed.gpus().gpus, packed.gpus().allocated) == (3, 0)
    ((whole,), (share,)) = packed.losses(asking(WHOLE), ["mixed"]), packed.losses(asking(memory(4)), ["mixed"])
    assert whole > share > 0
    slices = request(container("main", slice=1))
    assert np.isnan(packed.losses(asking(slices), ["mixed", "unknown"])).all()
    account.put_pod(pod(slices, "mixed", "slices", needs=needing(64_000)))
    assert packed.gpus().stranded == 3  # the CPU beside the cards is used up


def test_a_pod_that_gets_a_mig_instance_is_not_refused() -> None:
    """On a node whose cards are taken, a pod gets an instance: there the policy has no say, and the node stays."""
    held = tuple(pod(WHOLE, "mixed", f"held-{gpu}", on=uuid(gpu, "mixed")) for gpu in (1, 2))
    account, packed = cluster(mixed_node(), pods=held)
    assert isinstance(account.fit_pod(asking(WHOLE), "mixed"), Fit)
    assert np.isnan(packed.losses(asking(WHOLE), ["mixed"])).all()
    assert packed.best(asking(WHOLE), ["mixed"]) == ["mixed"]


def test_gpus_of_a_cordoned_node_cannot_be_used() -> None:
    """They are neither among the GPUs of the cluster nor idle."""
    _, packed = cluster(structs.replace(roomy(memory_node(16, 16)), unschedulable=True))
    assert packed.gpus().gpus == 0
    assert not packed.rows.policy.idle.any()


def test_the_policy_of_a_node_is_about_gpus() -> None:
    """A pod without GPUs has the same loss on nodes of each policy."""
    _, packed = cluster(roomy(memory_node(16, name="own", policy="spread")), roomy(memory_node(16, name="plain")))
    own, plain = packed.losses(asking(NOTHING), ["own", "plain"])
    assert own == plain


@pytest.mark.parametrize(
    ("change", "taken"),
    [
        ({}, 4_000),
        ({"ending": True}, 4_000),
        ({"phase_final": True}, 0),
        ({"phase_final": True, "ended": True}, 0),
        ({"node": None}, 0),
    ],
)
def test_cpu_is_taken_by_every_pod_until_its_phase_is_final(change: dict[str, Any], taken: int) -> None:
    """A pod without GPUs takes CPU of its node, as kube-scheduler counts; a pod that waits takes none."""
    bound = structs.replace(asking(NOTHING, 4_000, "beside", node="node"), **change)
    _, packed = cluster(roomy(memory_node(16)), pods=(bound,))
    packed.refresh()
    assert packed.rows.rows.free_cpu.max() == 64_000 - taken


def test_a_promise_takes_cpu_before_the_pod_is_bound() -> None:
    """The next pod is placed by what is left after the promise, and again by what is left after the binding."""
    account, packed = cluster(roomy(memory_node(16)), pods=(asking(memory(4), 4_000, "promised"),))
    free = []
    account.reserve(account.pods["promised"], "node")
    for step in (None, structs.replace(account.pods["promised"], node="node")):
        if step is not None:
            account.put_pod(step)
        packed.refresh()
        free.append(int(packed.rows.rows.free_cpu.max()))
    assert free == [60_000, 60_000]


def test_pods_and_nodes_with_another_policy_keep_it() -> None:
    """Where the pod or the node names another policy, `packing` has no say; a pod can ask for it on such nodes."""
    _, packed = cluster(roomy(memory_node(16, name="own", policy="spread")), roomy(memory_node(16, name="plain")))
    losses = {
        policy: np.isnan(packed.losses(asking(memory(4, annotations=wish)), ["own", "plain"])).tolist()
        for policy, wish in {
            None: {},
            "spread": {"gpushare/placement": "spread"},
            "packing": {"gpushare/placement": "packing"},
        }.items()
    }
    assert losses == {None: [True, False], "spread": [True, True], "packing": [False, False]}


def test_the_place_on_a_node_is_the_cheapest_gpu() -> None:
    """After only halves were seen, 4 of 16 units go where they break no half, and not to the fullest GPU."""
    held = (pod(memory(4), "node", "a", on=uuid(0)), pod(memory(6), "node", "b", on=uuid(1)))
    account, packed = cluster(roomy(memory_node(16, 16, 16)), pods=held)
    assert account.place(memory(4), "node").shares[0].gpu == uuid(1)
    packed.recall(Lesson({50: 10}))
    assert account.place(memory(4), "node").shares[0].gpu == uuid(0)
    packed.apply(learned(Lesson()))
    assert account.place(memory(2, annotations={"gpushare/placement": "binpack"}), "node").shares[0].gpu == uuid(1)


def test_pods_are_seen_once_and_in_the_order_of_their_creation() -> None:
    """A pod that is asked about again teaches nothing new; 100 pods make the first lesson, on the commonest card."""
    began = datetime(2026, 1, 1, tzinfo=UTC)
    pods = [
        asking(memory(7) if number % 2 else WHOLE, uid=f"pod-{number}", created=began + timedelta(number))
        for number in range(100)
    ]
    _, packed = cluster(roomy(memory_node(21, 21)), roomy(memory_node(80, name="large")), mixed_node())
    assert packed.remember(pods[:99]) is None
    assert not any(map(packed.see, pods[:99]))
    assert packed.see(pods[99])
    assert packed.lesson() == Lesson({33: 50.0}, {frozenset(): 50 * 133.0})


@pytest.mark.parametrize(
    ("wishes", "constraints", "accepted"),
    [
        ({}, Constraints(), set()),
        ({"nvidia.com/use-gputype": "T4"}, Constraints(), {"Tesla T4"}),
        ({"nvidia.com/nouse-gputype": "h100"}, Constraints(), {"Tesla T4"}),
        ({}, Constraints((("nvidia.com/gpu.product", "Tesla-T4"),)), {"Tesla T4"}),
        ({}, Constraints((("nvidia.com/gpu.product", "NVIDIA-L4"),)), {""}),
        ({}, Constraints(affinity=(Term((Requirement(PRODUCT, "NotIn", ("Tesla-T4",)),)),)), {"NVIDIA H100"}),
        ({}, Constraints(affinity=(Term((Requirement(PRODUCT, "In", ("NVIDIA-H100",)),)),)), {"NVIDIA H100"}),
    ],
)
def test_models_that_a_pod_accepts_are_learned(
    wishes: dict[str, str], constraints: Constraints, accepted: set[str]
) -> None:
    """By annotations and by the label with the model; a pod that accepts all models insists on none."""
    nodes = [
        recorded_node(model, NodeRecord(gpus=(gpu_record(0, 16, uuid=model, product=model),), resources=KINDS))
        for model in ("Tesla T4", "NVIDIA H100")
    ]
    _, packed = cluster(*nodes)
    packed.see(asking(memory(8, annotations=wishes), needs=shared_needs(constraints, Demand({}))))
    assert packed.lesson().demand == {frozenset(accepted): 50.0}


def test_of_constraints_those_on_one_label_count() -> None:
    """An alternative without the label leaves the label open."""
    product, zone = Requirement(PRODUCT, "In", ("A",)), Requirement("zone", "In", ("a",))
    assert Constraints((("zone", "a"), (PRODUCT, "A"))).about(PRODUCT) == Constraints(((PRODUCT, "A"),))
    both = Constraints(affinity=(Term((product, zone)), Term((product,))))
    assert both.about(PRODUCT) == Constraints(affinity=(Term((product,)), Term((product,))))
    assert Constraints(affinity=(Term((product,)), Term((zone,)))).about(PRODUCT) == Constraints()


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ([0.5, 0.501, 0.52, 1.6], [10, 10, 4, 0]),
        ([np.nan, 0.0, 2.0], [-1, 10, 0]),
        ([np.nan], [-1]),
        ([], []),
    ],
)
def test_only_the_best_get_the_highest_score(losses: list[float], expected: list[int]) -> None:
    """Others get half of it at most, less for each part of a GPU that is lost; a node without a loss gets none."""
    assert scores(np.array(losses)) == expected
    assert best(np.array(losses)).tolist() == [score == 10 for score in expected]
