"""Tests of `gpushare_plugin.ledger.fitting` and `verdicts`: where a pod goes, or why not."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare_plugin.base import structs
from gpushare_plugin.base.errors import PlacementError
from gpushare_plugin.ledger.ask import Ask, Rules
from gpushare_plugin.ledger.cluster import ClusterAccount
from gpushare_plugin.ledger.fitting import fit, place
from gpushare_plugin.ledger.node import GPU_CORES, GPU_MEMORY, Node
from gpushare_plugin.ledger.occupancy import Reservation, node_account
from gpushare_plugin.ledger.request import ContainerKind, ContainerRequest, PodRequest
from gpushare_plugin.ledger.verdicts import Fit, Misfit, NodeMisfit
from tests.unit.ledger.objects import (
    account,
    container,
    cores_node,
    free,
    kind_node,
    memory,
    memory_node,
    pod,
    request,
    uuid,
)

GPU = "nvidia.com/gpu"
SLICE = "nvidia.com/gpu-10gb"


def reason(made: ClusterAccount, asked: PodRequest) -> str:
    """Return why a request does not fit, which is also what `place` says."""
    verdict = made.fit(asked, "node")
    assert isinstance(verdict, Misfit)
    with pytest.raises(PlacementError) as refusal:
        made.place(asked, "node")
    assert str(refusal.value) == f"node node: {verdict.reason}"
    return verdict.reason


def test_a_misfit_names_the_numbers() -> None:
    """What is asked for, what is missing, and what each GPU has, sick ones and those of unknown pods included."""
    made = account(memory_node(15, 15, sick={1: "XID 79"}), pods=(pod(memory(8), "node", "held", on=uuid(0)),))
    assert reason(made, memory(10)) == (
        "needs 10 units of aliyun.com/gpu-mem on one GPU, 3 missing: GPU 0 has 7 free of 15, "
        "GPU 1 (unhealthy: XID 79) has 0 free of 15"
    )
    made.put_pod(pod(memory(2), "node", "somewhere"))
    assert reason(made, memory(10)).endswith("; 2 units are held on unknown GPUs and count against each")
    verdict = made.fit(memory(10), "node")
    assert isinstance(verdict, NodeMisfit)
    assert verdict.summary == "no GPU has 10 units of aliyun.com/gpu-mem free"
    assert [(gpu.free, gpu.missing) for gpu in verdict.gpu_shortages] == [(5, 5), (0, 10)]


def test_a_gpu_that_changes_its_mode_has_no_room() -> None:
    """Though it is healthy, nothing on it is free."""
    node = memory_node(15)
    waiting = structs.replace(node.offers[GPU_MEMORY].gpus[0], reason="waiting: changes its mode soon")
    made = account(structs.replace(node, offers={GPU_MEMORY: replace(node.offers[GPU_MEMORY], gpus=(waiting,))}))
    assert "GPU 0 (waiting: changes its mode soon) has 0 free of 15" in reason(made, memory(1))


def test_memory_is_split_evenly_over_several_gpus() -> None:
    """Each container has the same part of each of as many different GPUs as the label of the pod says."""
    made = account(memory_node(8, 2, 8, 6))
    asked = request(container("main", memory=6), container("side", memory=3), gpus="3")
    assert made.place(asked, "node").containers == {
        "main": {GPU_MEMORY: {uuid(3): 2, uuid(0): 2, uuid(2): 2}},
        "side": {GPU_MEMORY: {uuid(3): 1, uuid(0): 1, uuid(2): 1}},
    }
    assert reason(made, request(container("main", memory=7), gpus="3")) == (
        "container main asks for 7 units of aliyun.com/gpu-mem, which cannot be split evenly over 3 GPUs: "
        "1 are left over, 2 more could be split"
    )
    assert "needs 7 units of aliyun.com/gpu-mem on each of 3 GPUs, 1 missing" in reason(made, memory(21, gpus="3"))
    assert "needs 1 units of aliyun.com/gpu-mem on each of 5 GPUs, 1 missing" in reason(made, memory(5, gpus="5"))
    assert "label aliyun.com/gpu-count of the pod: 'some' found" in reason(made, memory(5, gpus="some"))


def test_a_share_on_several_gpus_is_refused_where_its_limits_would_not_hold() -> None:
    """The record of such a node says so; a pod without the label has its memory there, and with it goes elsewhere."""
    made = account(memory_node(8, 8, single_gpu=True), memory_node(8, 8, name="other"))
    assert reason(made, memory(4, gpus="2")).startswith(
        "the pod asks for aliyun.com/gpu-mem of 2 GPUs, but the node gives units of one only: MPS does not limit"
    )
    assert isinstance(made.fit(memory(4, gpus="1"), "node"), Fit)
    assert isinstance(made.fit(memory(4, gpus="2"), "other"), Fit)


def test_compute_is_on_the_gpu_of_the_memory() -> None:
    """Units of compute and of memory are found on one GPU, and refused in words where each is on another."""
    asked = request(container("main", memory=5, cores=60))
    made = account(cores_node(8, 8), pods=(pod(request(container("main", cores=50)), "node", "busy", on=uuid(0)),))
    assert made.place(asked, "node").containers == {"main": {GPU_MEMORY: {uuid(1): 5}, GPU_CORES: {uuid(1): 60}}}
    made.put_pod(pod(memory(4), "node", "large", on=uuid(1)))
    assert reason(made, asked) == (
        "needs 5 units of aliyun.com/gpu-mem on one GPU, 1 missing: "
        "GPU 0 (lacks another resource of the pod) has 0 free of 8, GPU 1 has 4 free of 8"
    )
    cores = reason(made, request(container("main", memory=1, cores=101)))
    assert cores.startswith("needs 101 units of aliyun.com/gpu-core.percentage on one GPU, 1 missing: GPU 0 has 50")
    assert reason(account(memory_node(8)), asked) == "the node does not offer aliyun.com/gpu-core.percentage"


def test_compute_is_split_evenly_over_the_gpus_of_the_memory() -> None:
    """Over as many GPUs as the label of the pod says, both resources of a container have the same parts of the same."""
    made = account(cores_node(8, 2, 8))
    asked = request(container("main", memory=6, cores=40), gpus="2")
    assert made.place(asked, "node").containers == {
        "main": {GPU_MEMORY: {uuid(0): 3, uuid(2): 3}, GPU_CORES: {uuid(0): 20, uuid(2): 20}}
    }


def test_compute_without_memory_is_refused() -> None:
    """Compute is a limit and no GPU: each container that requests it needs memory too, or it could not use any GPU."""
    made = account(cores_node(8, 8))
    alone = request(container("first", memory=5, cores=20), container("second", cores=60))
    assert reason(made, alone) == (
        "container second requests aliyun.com/gpu-core.percentage but no memory of a GPU, and so has no GPU: request "
        "memory in the same container as well, such as aliyun.com/gpu-mem"
    )


def test_whole_gpus_are_close_to_each_other() -> None:
    """As the node would choose, from its record; two containers get different GPUs, init containers' are used again."""
    node = kind_node(GPU, "gpus", 1, 1, 1, 1)
    close = replace(
        node.offers[GPU], cards=tuple(uuid(index) for index in range(4)), closeness=((1,), (9, 1), (1, 9, 1))
    )
    made = account(structs.replace(node, offers={GPU: close}))
    assert made.place(request(container("main", gpu=2)), "node").containers == {"main": {GPU: {uuid(0): 1, uuid(2): 1}}}
    both = made.place(request(container("one", gpu=1), container("other", gpu=2)), "node").containers
    assert len({gpu for gpus in both.values() for gpu in gpus[GPU]}) == 3
    again = request(container("init", "init", gpu=2), container("one", gpu=1), container("other", gpu=1))
    gpus = made.place(again, "node").containers
    assert {**gpus["one"][GPU], **gpus["other"][GPU]} == gpus["init"][GPU]
    made.reserve(pod(again), "node")
    assert sum(free(made, resource=GPU)) == 2
    assert reason(made, request(container("one", gpu=1), container("other", gpu=2))) == (
        "needs 2 units of nvidia.com/gpu, 1 missing: "
        + ", ".join(
            f"GPU {index}{why} has {left} free of 1"
            for index, (why, left) in enumerate(
                [("", 0), (" (other containers of the pod take 1)", 0), ("", 0), ("", 1)]
            )
        )
    )


def test_a_container_gets_one_slice() -> None:
    """The policy of the cluster chooses the GPU of a slice; two slices for one container are refused in words."""
    made = account(kind_node(SLICE, "slices", 3, 2))
    asked = request(container("main", slice=1))
    assert made.place(asked, "node").containers == {"main": {SLICE: {uuid(1): 1}}}
    spread = request(container("main", slice=1), annotations={"gpushare/placement": "spread"})
    assert made.place(spread, "node").containers == {"main": {SLICE: {uuid(0): 1}}}
    assert "slices cannot be combined" in reason(made, request(container("main", slice=2)))
    for number in range(5):
        made.reserve(pod(asked, uid=f"pod-{number}"), "node")
    assert "needs 1 units of nvidia.com/gpu-10gb, 1 missing" in reason(made, asked)


def test_replicas_come_from_the_gpus_of_the_policy() -> None:
    """As the node's record says; a policy of a later version counts as the default."""
    one, two = request(container("main", gpu=1)), request(container("main", gpu=2))
    for policy, of_one, of_two in (
        ("distributed", {uuid(1): 1}, {uuid(1): 2}),
        ("packed", {uuid(0): 1}, {uuid(0): 2}),
        ("spread", {uuid(1): 1}, {uuid(0): 1, uuid(1): 1}),
        ("later", {uuid(1): 1}, {uuid(1): 2}),
    ):
        made = account(kind_node(GPU, "replicas", 4, 4, policy=policy))
        made.put_pod(pod(two, "node", "held", on=uuid(0)))
        assert made.place(one, "node").containers == {"main": {GPU: of_one}}
        assert made.place(two, "node").containers == {"main": {GPU: of_two}}
        assert "needs 9 units of nvidia.com/gpu, 3 missing" in reason(made, request(container("main", gpu=9)))


def test_an_unknown_kind_of_resource_is_refused() -> None:
    """A later node may share in ways that this version cannot count."""
    made = account(kind_node(GPU, "quantum", 4))
    assert "is of kind 'quantum', which this version does not know" in reason(made, request(container("main", gpu=1)))


def test_pods_choose_models_and_gpus() -> None:
    """HAMi's annotations: a GPU that the pod does not want has nothing for it."""
    node = memory_node(8, 8)
    h100 = structs.replace(node.offers[GPU_MEMORY].gpus[1], product="NVIDIA H100 80GB HBM3")
    gpus = (node.offers[GPU_MEMORY].gpus[0], h100)
    made = account(structs.replace(node, offers={GPU_MEMORY: replace(node.offers[GPU_MEMORY], gpus=gpus)}))
    wants = memory(4, annotations={"nvidia.com/use-gputype": "h100,L40"})
    assert made.place(wants, "node").containers["main"][GPU_MEMORY] == {uuid(1): 4}
    avoids = memory(4, annotations={"nvidia.com/nouse-gpuuuid": uuid(0)})
    assert made.place(avoids, "node").containers["main"][GPU_MEMORY] == {uuid(1): 4}
    made.put_pod(pod(memory(6), "node", "held", on=uuid(1)))
    assert reason(made, wants) == (
        "needs 4 units of aliyun.com/gpu-mem on one GPU, 2 missing: GPU 0 (NVIDIA A100-SXM4-40GB, the pod wants h100 "
        "or l40) has 0 free of 8, GPU 1 has 2 free of 8"
    )


def test_binpack_fills_gpus_and_nodes() -> None:
    """The fullest GPU that has room is chosen, and of nodes the fullest has the highest score."""
    made = account(memory_node(10, 10), memory_node(10, 10, name="empty"))
    made.put_pod(pod(memory(5), "node", "held", on=uuid(1)))
    assert made.place(memory(4), "node").containers["main"][GPU_MEMORY] == {uuid(1): 4}
    assert score(made, memory(4), "node") > score(made, memory(4), "empty")


def test_spread_keeps_replicas_apart() -> None:
    """The emptiest GPU without a pod of the same owner, on a node without one, is best, however full it is."""
    made = account(memory_node(10, 10, 4, policy="spread"), memory_node(10, name="full", policy="spread"))
    made.put_pod(pod(memory(6), "full", "other", on=uuid(0, "full")))
    placed: list[str] = []
    for number in range(3):
        assert number == 0 or score(made, memory(2), "full", "set") > score(made, memory(2), "node", "set")
        replica = pod(memory(2), uid=f"replica-{number}", owner="set")
        placed += made.reserve(replica, "node").containers["main"][GPU_MEMORY]
    assert placed == [uuid(0), uuid(1), uuid(2)]
    assert made.place(memory(2), "node", "set").containers["main"][GPU_MEMORY] == {uuid(0): 2}
    assert score(made, memory(2), "node") >= 5


def test_spread_keeps_replicas_apart_whatever_their_kind() -> None:
    """Time-sliced replicas, too, go where the owner has none, as long as there is room."""
    made = account(kind_node(GPU, "replicas", 4, 4, 1, policy="packed"), policy="spread")
    asked = request(container("main", gpu=1))
    placed = [
        gpu
        for number in range(4)
        for gpu in made.reserve(pod(asked, uid=f"pod-{number}", owner="set"), "node").containers["main"][GPU]
    ]
    assert set(placed[:3]) == {uuid(0), uuid(1), uuid(2)}


def score(made: ClusterAccount, asked: PodRequest, node: str, owner: str | None = None) -> int:
    """Return the score of a node where the request fits."""
    verdict = made.fit(asked, node, owner)
    assert isinstance(verdict, Fit)
    return verdict.score


KINDS: list[ContainerKind] = ["init", "sidecar", "app"]
RESOURCES = (GPU_MEMORY, GPU_CORES, GPU, SLICE)


@st.composite
def nodes(draw: st.DrawFn) -> Node:
    """Return a node whose GPUs are in some resources."""
    made = kind_node(GPU, draw(st.sampled_from(["gpus", "replicas"])), *draw(st.lists(st.integers(0, 3), max_size=3)))
    offers = dict(made.offers)
    cores = cores_node(*draw(st.lists(st.integers(0, 8), max_size=3)))
    offers.update(cores.offers)
    offers.update(kind_node(SLICE, "slices", *draw(st.lists(st.integers(0, 2), max_size=2))).offers)
    if GPU in offers and offers[GPU].kind == "gpus":
        whole = tuple(structs.replace(gpu, units=min(1, gpu.units)) for gpu in offers[GPU].gpus)
        offers[GPU] = replace(offers[GPU], gpus=whole)
    return structs.replace(made, offers=offers, gpus=frozenset({*made.gpus, *cores.gpus}))


@st.composite
def requests(draw: st.DrawFn) -> PodRequest:
    """Return what some pod asks for."""
    kinds = sorted(draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=4)), key=lambda kind: kind == "app")
    containers = [
        ContainerRequest(
            f"{kind}-{number}",
            kind,
            tuple((name, draw(st.integers(1, 4))) for name in sorted(draw(st.sets(st.sampled_from(RESOURCES))))),
        )
        for number, kind in enumerate(kinds)
    ]
    policy = draw(st.sampled_from(["binpack", "spread", "else"]))
    count = draw(st.sampled_from([None, "1", "2"]))
    return request(*containers, gpus=count, annotations={"gpushare/placement": policy})


@given(nodes(), st.lists(requests(), max_size=4), requests())
def test_every_place_fits_what_the_pod_asks_for(node: Node, earlier: list[PodRequest], asked: PodRequest) -> None:
    """The place of a pod gives each container what it asks for, of GPUs that have it; `fit` agrees with it."""
    reservations: list[Reservation] = []
    for number, each in enumerate([*earlier, asked]):
        before = node_account(node, (), reservations)
        ask = Ask(each, None, Rules())
        placed = place(before, ask)
        assert isinstance(fit(before, ask), Misfit) == isinstance(placed, Misfit)
        if isinstance(placed, Misfit):
            assert placed.reason
            assert not isinstance(placed, NodeMisfit) or placed.missing > 0
            continue
        for container_ in each.containers:
            got = placed.containers.get(container_.name, {})
            assert {name: sum(gpus.values()) for name, gpus in got.items()} == {
                name: amount for name, amount in container_.amounts if name in node.offers
            }
        reservations.append(Reservation(pod(each, uid=str(number)), "node", placed.shares))
        after = node_account(node, (), reservations)
        for name, resource in after.resources.items():
            assert not any(resource.over.values())
            assert sum(before.resources[name].free) - sum(resource.free) == each.amounts.get(name, 0)
