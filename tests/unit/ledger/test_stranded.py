"""Tests of `gpushare_plugin.ledger.stranded` and `moving`: which few pods, if moved, free cards or room for a pod."""

from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import combinations
from random import Random

import pytest

from gpushare_plugin.base.structs import replace
from gpushare_plugin.ledger.cluster import ClusterAccount
from gpushare_plugin.ledger.constraints import NOT_READ, Constraints, Needs
from gpushare_plugin.ledger.demand import Demand
from gpushare_plugin.ledger.moving import Move, Moving, used_gpus
from gpushare_plugin.ledger.node import GPU_MEMORY, Node, plain_node, recorded_node
from gpushare_plugin.ledger.node_record import NodeRecord, ResourceRecord
from gpushare_plugin.ledger.pod import Pod
from gpushare_plugin.ledger.stranded import MOST_MOVED, Relief, free_cards, room_for
from gpushare_plugin.ledger.verdicts import Fit
from gpushare_plugin.slices.wanted import KeptSlice, Wanted
from tests.unit.ledger.objects import account, container, gpu_record, memory, memory_node, pod, request, uuid

UNITS = 8
WHOLE = "nvidia.com/gpu"


def node(name: str, cards: int = 2, **fields: object) -> Node:
    """Return a node whose cards have 8 units each."""
    made: Node = replace(memory_node(*[UNITS] * cards, name=name), **fields)
    return made


def whole_node(name: str) -> Node:
    """Return a node with two whole GPUs."""
    gpus = tuple(gpu_record(index, 1, uuid=uuid(index, name), resource=WHOLE, unit_mib=0) for index in range(2))
    return recorded_node(name, NodeRecord(gpus=gpus, resources=(ResourceRecord(name=WHOLE, kind="gpus"),)))


def held(name: str, units: int, there: str, index: int, needs: Needs = NOT_READ) -> Pod:
    """Return a pod with units of a card."""
    return pod(memory(units), there, name, on=uuid(index, there), needs=needs)


def told(reliefs: tuple[Relief, ...]) -> list[tuple[str, int | None, list[tuple[str, str]]]]:
    """Return the node and the card of each relief, with the pods and where they go."""
    return [
        (
            each.node,
            each.index,
            [(move.pod.name, f"{move.place.node}:{move.place.shares[0].gpu}") for move in each.moves],
        )
        for each in reliefs
    ]


def test_the_card_with_least_in_the_way_comes_first_and_later_ones_count_on_it() -> None:
    """A pod goes to the tightest used card, never to an idle card, and a card that got a pod is not freed."""
    pods = (held("a", 3, "n1", 0), held("b", 5, "n1", 1), held("c", 2, "n2", 0), held("d", 2, "n2", 0))
    found = free_cards(Moving(account(node("n1"), node("n2"), pods=pods), {}))
    assert told(found.reliefs) == [("n1", 0, [("a", f"n1:{uuid(1, 'n1')}")])]
    assert found.candidates == 3


def test_cards_of_nodes_with_other_plugins_have_the_same_names() -> None:
    """Nodes of Aliyun's plugin name their cards by index, so a card that got a pod is told by its node, too."""
    placed = (("a", 2, "n1", 0), ("b", 3, "n1", 1), ("c", 2, "n2", 1), ("d", 3, "n2", 0))
    pods = tuple(
        pod(memory(units), there, name, annotations={"ALIYUN_COM_GPU_MEM_IDX": str(index)})
        for name, units, there, index in placed
    )
    cluster = account(plain_node("n1", 16, 2), plain_node("n2", 16, 2), pods=pods)
    assert [(each.node, each.index) for each in free_cards(Moving(cluster, {})).reliefs] == [("n1", 0), ("n2", 1)]


@pytest.mark.parametrize("kind", ["DaemonSet", "Node"])
def test_pods_of_a_node_alone_stay(kind: str) -> None:
    """Pods of DaemonSets and static pods are not moved, and neither are pods that are ending."""
    pods = (held("a", 3, "n1", 0), held("b", 5, "n1", 1))
    assert free_cards(Moving(account(node("n1"), pods=pods), {"a": kind, "b": kind})).reliefs == ()
    ending = tuple(replace(each, ending=True) for each in pods)
    assert free_cards(Moving(account(node("n1"), pods=ending), {})).reliefs == ()


def test_pods_that_nobody_makes_again_come_last() -> None:
    """Of cards with as many pods, the one whose pods have controllers is freed first."""
    pods = (held("bare", 1, "n1", 0), held("owned", 2, "n1", 1), held("other", 3, "n2", 0))
    found = free_cards(Moving(account(node("n1"), node("n2"), pods=pods), {"owned": "Job", "other": "Job"}))
    assert [each.moves[0].pod.name for each in found.reliefs] == ["owned", "bare"]


def test_a_moved_pod_fits_its_node_by_cpu_too() -> None:
    """A node without CPU, or cordoned, takes no pod; a pod without GPUs takes CPU."""
    needs = Needs(Constraints(), Demand({"cpu": 1000}))
    pods = (held("a", 3, "n1", 0, needs=needs), held("b", 5, "n2", 0, needs=needs))

    def freed(cpu: int, **fields: object) -> tuple[Relief, ...]:
        there = node("n2", 1, allocatable={"cpu": cpu}, **fields)
        beside = replace(pod(memory(1), "n2", "beside", needs=needs), request=memory(0))
        cluster = account(node("n1", 1, allocatable={"cpu": 1000}), there, pods=(*pods, beside))
        return free_cards(Moving(cluster, {})).reliefs

    assert told(freed(3000)) == [("n1", 0, [("a", f"n2:{uuid(0, 'n2')}")])]
    assert freed(2999) == ()
    assert freed(3000, unschedulable=True) == ()


def test_a_pod_with_a_whole_gpu_makes_room_on_its_node_but_frees_no_card() -> None:
    """The pod would take another whole GPU; for a pod that asks for two GPUs of a node, it can go elsewhere."""
    pods = tuple(pod(request(container("main", gpu=1)), name, name, on=uuid(0, name)) for name in ("n1", "n2"))
    nodes = [whole_node(name) for name in ("n1", "n2")]
    assert free_cards(Moving(account(*nodes, pods=pods), {})).candidates == 0
    found = room_for(Moving(account(*nodes, pods=pods), {}), pod(request(container("main", gpu=2)), uid="two"))
    assert told(found.reliefs) == [
        ("n1", None, [("n1", f"n2:{uuid(1, 'n2')}")]),
        ("n2", None, [("n2", f"n1:{uuid(1, 'n1')}")]),
    ]


def random_pods(chance: Random, nodes: list[Node]) -> list[Pod]:
    """Return pods that fill cards of nodes in part."""
    pods: list[Pod] = []
    for each in nodes:
        for index in range(len(each.gpus)):
            left = UNITS
            while left and chance.random() < 0.6:
                units = chance.randint(1, left)
                left -= units
                pods.append(held(f"pod-{len(pods)}", units, each.name, index))
    return pods


def moved(cluster: ClusterAccount, moves: tuple[Move, ...]) -> None:
    """Move pods as was advised; each card must have room for what comes."""
    for move in moves:
        cluster.remove_pod(move.pod.uid)
    for move in moves:
        to = move.place.node
        cluster.put_pod(replace(move.pod, node=to, allocation=move.place.shares))
        assert set(cluster.account_of(to).resources[GPU_MEMORY].over.values()) == {0}


@pytest.mark.parametrize("seed", range(20))
def test_who_follows_the_advice_frees_the_cards_in_order(seed: int) -> None:
    """After all moves, each card of the list is idle, and no card that was idle is used."""
    chance = Random(seed)  # noqa: S311 - no secret
    nodes = [node(f"n{number}", 3) for number in range(3)]
    pods = random_pods(chance, nodes)
    found = free_cards(Moving(account(*nodes, pods=tuple(pods)), {}))
    cluster = account(*nodes, pods=tuple(pods))
    used = {name: used_gpus(cluster.account_of(name)) for name in cluster.nodes}
    for relief in found.reliefs:
        assert 1 <= len(relief.moves) <= MOST_MOVED
        moved(cluster, relief.moves)
    now = {name: used_gpus(cluster.account_of(name)) for name in cluster.nodes}
    freed = {(each.node, uuid(each.index or 0, each.node)) for each in found.reliefs}
    assert {(name, gpu) for name, gpus in used.items() for gpu in gpus - now[name]} == freed
    assert all(now[name] <= used[name] for name in now)
    counts = [len(each.moves) for each in found.reliefs]
    assert counts == sorted(counts)


@pytest.mark.parametrize("seed", range(20))
def test_the_fewest_pods_make_room_for_a_waiting_pod(seed: int) -> None:
    """Without the pods that are to be moved, the waiting pod fits, without fewer of the node it does not."""
    chance = Random(seed)  # noqa: S311 - no secret
    nodes = [node(f"n{number}", 2) for number in range(3)]
    pods = random_pods(chance, nodes)
    cluster = account(*nodes, pods=tuple(pods))
    waiting = pod(memory(UNITS), uid="waiting")
    if any(isinstance(cluster.fit_pod(waiting, each.name), Fit) for each in nodes):
        return
    before = standing(cluster)
    for relief in room_for(Moving(cluster, {}), waiting).reliefs:
        made = account(*nodes, pods=tuple(pods))
        for count in range(len(relief.moves)):
            for fewer in combinations(made.account_of(relief.node).pods, count):
                assert not fits(pods, nodes, waiting, relief.node, fewer)
        assert fits(pods, nodes, waiting, relief.node, [move.pod for move in relief.moves])
        reserved = account(*nodes, pods=tuple(each for each in pods if each not in {move.pod for move in relief.moves}))
        reserved.reserve(waiting, relief.node)
        moved(reserved, relief.moves)
    assert standing(cluster) == before


def standing(cluster: ClusterAccount) -> dict[str, tuple[tuple[int, ...], set[str]]]:
    """Return the free units and the pods of each node."""
    accounts = [cluster.account_of(name) for name in cluster.nodes]
    return {each.node.name: (each.resources[GPU_MEMORY].free, {one.uid for one in each.pods}) for each in accounts}


def fits(pods: list[Pod], nodes: list[Node], waiting: Pod, there: str, without: Iterable[Pod]) -> bool:
    """Return whether a pod fits on a node without some pods."""
    gone = {each.uid for each in without}
    left = account(*nodes, pods=tuple(each for each in pods if each.uid not in gone))
    return isinstance(left.fit_pod(waiting, there), Fit)


def test_a_card_that_is_only_cut_is_free_without_a_move() -> None:
    """Idle slices keep a card from being whole; a pod with a slice goes to an idle slice of its size on a used card.

    Slices that are kept for a waiting pod are not idle.
    """
    name = "nvidia.com/gpu-10gb"
    gpus = tuple(gpu_record(index, units, resource=name, unit_mib=0) for index, units in enumerate((2, 3, 2)))
    record = NodeRecord(gpus=gpus, resources=(ResourceRecord(name=name, kind="slices"),))
    there = recorded_node("node", record)
    asked = request(container("main", slice=1))
    pods = tuple(pod(asked, "node", each, on=uuid(index)) for each, index in (("a", 1), ("b", 1), ("c", 2)))
    found = free_cards(Moving(account(there, pods=pods), {}))
    assert told(found.reliefs) == [("node", 0, []), ("node", 2, [("c", f"node:{uuid(1)}")])]
    assert [each.idle for each in found.reliefs] == [(name, name), (name,)]
    kept = Wanted(pods={"waiting": (KeptSlice(uuid(0), "10gb", datetime(2026, 1, 1, tzinfo=UTC)),)})
    found = free_cards(Moving(account(replace(there, record=record, wanted=kept), pods=pods), {}))
    assert [each.index for each in found.reliefs] == [2]
