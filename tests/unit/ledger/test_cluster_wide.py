"""Tests of `gpushare_plugin.ledger.cluster_wide`: many nodes are answered as each alone would be."""

import gc
import weakref
from collections.abc import Iterable
from dataclasses import replace
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare_plugin.base import structs
from gpushare_plugin.core.policies import POLICIES, Policy
from gpushare_plugin.ledger import fitting
from gpushare_plugin.ledger.ask import Ask, Rules
from gpushare_plugin.ledger.cluster_wide import MOST_GROUPINGS
from gpushare_plugin.ledger.node import GPU_CORES, GPU_MEMORY, Node, OfferedResource, unreadable_node
from gpushare_plugin.ledger.request import ContainerKind, ContainerRequest, PodRequest, essence
from gpushare_plugin.ledger.verdicts import Fit, Misfit, Verdict
from tests.unit.ledger.objects import account, container, cores_node, kind_node, memory, memory_node, pod, uuid
from tests.unit.ledger.objects import request as request_of

GPU = "nvidia.com/gpu"
SLICE = "nvidia.com/gpu-10gb"
FOREIGN = "rdma/hca"
MODELS = ("NVIDIA A100-SXM4-40GB", "NVIDIA H100 80GB HBM3")
SIZES = st.lists(st.integers(0, 5), min_size=1, max_size=4)


@st.composite
def nodes(draw: st.DrawFn, name: str) -> Node:
    """Return a node that offers one resource, or memory and compute; GPUs can be sick, or of another model."""
    sizes = draw(SIZES)
    kind = draw(st.sampled_from(["memory", "memory", "cores", "cores", "replicas", "slices", "gpus", "network cards"]))
    if kind == "memory":
        sick = dict.fromkeys(draw(st.sets(st.integers(0, 3), max_size=1)), "sick")
        node = memory_node(*sizes, name=name, sick=sick, single_gpu=draw(st.booleans()))
    elif kind == "cores":
        node = _with_compute(
            memory_node(*sizes, name=name, single_gpu=draw(st.booleans())), draw(st.permutations(range(len(sizes))))
        )
    elif kind == "network cards":
        node = kind_node(FOREIGN, "replicas", *sizes)
    else:
        units = [min(1, size) for size in sizes] if kind == "gpus" else sizes
        node = kind_node(SLICE if kind == "slices" else GPU, kind, *units)
    products = draw(st.lists(st.sampled_from(MODELS), min_size=1, max_size=2))
    offers = {resource: _with_products(offer, products) for resource, offer in node.offers.items()}
    policy = draw(st.sampled_from([None, "binpack", "spread"]))
    allocatable = draw(st.sampled_from([{}, {FOREIGN: 2, GPU: 0}, {GPU: 2, GPU_CORES: 3}, {SLICE: 1}]))
    if draw(st.integers(0, 9)) == 0:
        return structs.replace(unreadable_node(name, "version 2 found"), allocatable=allocatable)
    return structs.replace(node, name=name, offers=offers, policy=policy, allocatable=allocatable)


def _with_compute(node: Node, order: list[int]) -> Node:
    """Offer the compute of the GPUs of a node, too, in some order."""
    gpus = node.offers[GPU_MEMORY].gpus
    cores = OfferedResource(GPU_CORES, "cores", tuple(structs.replace(gpus[number], units=6) for number in order))
    return structs.replace(node, offers={**node.offers, GPU_CORES: cores})


def _with_products(offer: OfferedResource, products: list[str]) -> OfferedResource:
    models = [products[number % len(products)] for number in range(len(offer.gpus))]
    gpus = tuple(structs.replace(gpu, product=model) for gpu, model in zip(offer.gpus, models, strict=True))
    return replace(offer, gpus=gpus)


KINDS: list[tuple[ContainerKind, ...]] = [("app",), ("init", "app"), ("app", "app"), ("sidecar", "app")]


@st.composite
def requests(draw: st.DrawFn) -> PodRequest:
    """Return what some pod asks for: one resource or several, in one container or several, perhaps with wishes."""
    resources = draw(
        st.sampled_from(
            [
                *((GPU_MEMORY,), (GPU_MEMORY,), (GPU,), (SLICE,), (GPU_CORES,)),
                *(
                    (GPU_MEMORY, GPU_CORES),
                    (GPU_MEMORY, GPU_CORES),
                    (GPU_MEMORY, FOREIGN),
                    (GPU_MEMORY, GPU),
                    (FOREIGN,),
                ),
                *((GPU, SLICE), (GPU_MEMORY, GPU_CORES, GPU)),
            ]
        )
    )
    of_each = [
        tuple(sorted((each, draw(st.integers(1, 4))) for each in resources if draw(st.integers(0, 9))))
        for _ in draw(st.sampled_from(KINDS))
    ]
    kinds = draw(st.sampled_from([each for each in KINDS if len(each) == len(of_each)]))
    containers = [
        ContainerRequest(f"container-{number}", kind, amounts)
        for number, (kind, amounts) in enumerate(zip(kinds, of_each, strict=True))
    ]
    annotations = draw(
        st.sampled_from(
            [
                {},
                {"gpushare/placement": "spread"},
                {"nvidia.com/use-gputype": "H100"},
                {"nvidia.com/nouse-gputype": "a100"},
                {"nvidia.com/use-gpuuuid": uuid(1, "one")},
                {"nvidia.com/nouse-gpuuuid": f"{uuid(0, 'one')},{uuid(0)}"},
            ]
        )
    )
    return request_of(*containers, gpus=draw(st.sampled_from([None, None, "2", "some"])), annotations=annotations)


NAMES = ("one", "two", "three")
OWNERS = (None, "owner", "other")


def told(verdict: Verdict) -> object:
    """Return what a verdict says without the numbers of its node."""
    return (verdict.summary, verdict.curable) if isinstance(verdict, Misfit) else verdict


@given(
    st.tuples(*map(nodes, NAMES)),
    st.lists(st.tuples(requests(), st.sampled_from(NAMES), st.sampled_from(OWNERS)), max_size=5),
    requests(),
    st.sampled_from(OWNERS),
)
def test_many_nodes_answer_as_each_node_alone_would(
    there: tuple[Node, ...], bound: list[tuple[PodRequest, str, str | None]], asked: PodRequest, owner: str | None
) -> None:
    """Score and words are those of the search of the node alone, whatever it has in common with others."""
    pods = tuple(
        pod(each, name, f"pod-{number}", owner=owns, on=uuid(0, name))
        for number, (each, name, owns) in enumerate(bound)
    )
    made = account(*there, pods=pods)
    rules = Rules(ours=frozenset({GPU_MEMORY, GPU_CORES, *(name for node in there for name in node.offers)}))
    for name, verdict in made.fits(asked, NAMES, owner).items():
        alone = fitting.fit(made.account_of(name), Ask(essence(asked), owner, rules))
        assert told(verdict) == told(alone)
        named = made.fit(asked, name, owner)
        assert told(named) == told(alone)
        if isinstance(alone, Misfit) and isinstance(named, Misfit):
            assert named.reason == alone.reason


MANY = tuple(f"node-{number}" for number in range(12))


@given(
    st.lists(st.tuples(st.sampled_from([1, 2]), st.sampled_from(MANY), st.integers(1, 8), st.sampled_from(OWNERS))),
    st.tuples(st.integers(1, 4), st.sampled_from([0, 30]), st.sampled_from([1, 2])),
    st.sampled_from(["binpack", "spread"]),
    st.sampled_from(OWNERS),
)
def test_a_plain_search_agrees_with_the_search_of_many_nodes(
    held: list[tuple[int, str, int, str | None]], asked: tuple[int, int, int], policy: str, owner: str | None
) -> None:
    """Of nodes that are alike, those fit that have enough GPUs with room; the price of the cheapest is the score."""
    there = [_named(cores_node(8, 8, 8) if number % 2 else cores_node(4, 8), name) for number, name in enumerate(MANY)]
    pods = tuple(
        pod(request_of(container("main", memory=units, cores=20)), name, f"pod-{number}", owner=owns, on=uuid(gpu - 1))
        for number, (gpu, name, units, owns) in enumerate(held)
    )
    made = account(*there, pods=pods)
    units, cores, count = asked
    compute = {"cores": cores * count} if cores else {}
    main = container("main", "app", memory=units * count, **compute)
    request = request_of(main, gpus=str(count), annotations={"gpushare/placement": policy})
    for name, verdict in made.fits(request, MANY, owner).items():
        node = made.account_of(name)
        of_memory, of_cores = node.resources[GPU_MEMORY], node.resources[GPU_CORES]
        shape = of_memory.offer.shape
        node_left = (sum(of_memory.free) - units * count) / shape.units
        on_node, on_gpu = node.replicas(owner)
        prices = sorted(
            POLICIES[policy].price((free - units) / shape.largest, node_left, on_gpu.get(gpu.name, 0), on_node)
            for gpu, free, percent in zip(of_memory.offer.gpus, of_memory.free, of_cores.free, strict=True)
            if free >= units and percent >= cores
        )[:count]
        score = round(10 * (1 - sum(price[0] for price in prices) / count))
        assert verdict == Fit(score) if len(prices) == count else isinstance(verdict, Misfit)


def _named(node: Node, name: str) -> Node:
    return structs.replace(node, name=name)


@given(st.tuples(*map(nodes, NAMES)), st.tuples(requests(), st.sampled_from(NAMES)), requests())
@settings(max_examples=50)
def test_kept_verdicts_are_those_of_the_nodes_as_they_are(
    there: tuple[Node, ...], later: tuple[PodRequest, str], asked: PodRequest
) -> None:
    """A pod that comes changes the verdicts on its node; a node that goes and comes again is no other one."""
    made = account(*there)
    made.fits(asked, NAMES)
    request, changed = later
    bound = pod(request, changed, "later", on=uuid(0, changed))
    made.put_pod(bound)
    assert made.fits(asked, NAMES) == account(*there, pods=(bound,)).fits(asked, NAMES)
    made.remove_node(changed)
    without = [node for node in there if node.name != changed]
    assert made.fits(asked, NAMES) == account(*without, pods=(bound,)).fits(asked, NAMES)
    made.put_node(next(node for node in there if node.name == changed))
    assert made.fits(asked, NAMES) == account(*there, pods=(bound,)).fits(asked, NAMES)


def test_an_offer_without_a_kind_is_none() -> None:
    """Nodes that differ in such an offer alone are alike: none of them offers the resource."""
    units = {"one": (1,), "two": (1, 1)}
    kindless = {name: kind_node(FOREIGN, "", *each).offers for name, each in units.items()}
    there = [structs.replace(node, offers={**node.offers, **kindless[name]}) for name, node in _replicas(units).items()]
    asked = request_of(ContainerRequest("main", "app", ((GPU, 1), (FOREIGN, 1))))
    found = account(*there).fits(asked, units)
    assert {told(each) for each in found.values()} == {(f"the node does not offer {FOREIGN}", False)}


def _replicas(names: Iterable[str]) -> dict[str, Node]:
    return {name: _named(kind_node(GPU, "replicas", 4, 4), name) for name in names}


def test_pods_that_go_leave_nothing() -> None:
    """What is kept of nodes that are alike has nothing of their pods."""
    asked = memory(7919)  # a request like no other: equal requests are one object, and other tests may still have it
    gone = weakref.ref(asked)
    made = account(memory_node(8000), pods=(pod(asked, "node", on=uuid(0)),))
    assert isinstance(made.fits(memory(1), ["node"])["node"], Fit)
    del asked
    assert gone() is not None
    made.remove_pod("pod")
    gc.collect()
    assert gone() is None


def test_nodes_that_go_leave_nothing() -> None:
    """However many nodes come, are searched and go, and whatever pods ask for, as much is kept as before."""
    made = account(memory_node(8))
    for number in range(40):
        made.put_node(memory_node(8, name=f"node-{number}"))
        made.put_node(kind_node(f"example.com/{number}", "replicas", 1))
        pair = request_of(ContainerRequest("main", "app", ((f"example.com/{number}", 1), (GPU_MEMORY, 2))))
        assert isinstance(made.fits(pair, [f"node-{number}"])[f"node-{number}"], Misfit)
        assert made.fits(memory(1), [f"node-{number}", "node"]).keys() == {f"node-{number}", "node"}
        made.remove_node(f"node-{number}")
    groups = made._search._groups  # noqa: SLF001 - memory has no other outside
    assert len(groups) <= MOST_GROUPINGS
    assert {name for each in groups.values() for name in each._places} <= {"node"}  # noqa: SLF001


@pytest.mark.parametrize("units", [2**63 - 1, 2**63, 2**70])
def test_no_amount_is_too_large(units: int) -> None:
    """A pod that asks for more than any number of the arrays fits nowhere."""
    made = account(memory_node(8), cores_node(8))
    for request in (memory(units), memory(2 * units, gpus="2")):
        assert isinstance(made.fits(request, ["node"])["node"], Misfit)
        assert isinstance(made.fit(request, "node"), Misfit)


def test_memory_is_named_where_units_of_several_gpus_are_refused() -> None:
    """A node alone and many nodes name the same resource, whose share MPS would not limit."""
    node = _with_compute(memory_node(8, 8, single_gpu=True), [0, 1])
    offers = {resource: replace(offer, single_gpu=True) for resource, offer in node.offers.items()}
    made = account(structs.replace(node, offers=offers))
    amounts = ((GPU_CORES, 2), (GPU_MEMORY, 2))
    verdict = made.fits(request_of(ContainerRequest("main", "app", amounts), gpus="2"), ["node"])["node"]
    assert isinstance(verdict, Misfit)
    assert verdict.summary.startswith("the pod asks for aliyun.com/gpu-mem of 2 GPUs")


def test_a_policy_may_prefer_any_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A policy that does not say which GPU is cheapest is asked about each that has room."""
    half = Policy(lambda gpu, _node, *_replicas: (abs(gpu - 0.5),))
    monkeypatch.setitem(cast("dict[str, Policy]", POLICIES), "half", half)
    made = account(memory_node(10, 10, 10), policy="half")
    for index, held in enumerate((4, 8)):
        made.put_pod(pod(memory(held), "node", f"held-{index}", on=uuid(index)))
    assert made.place(memory(1), "node").containers["main"][GPU_MEMORY] == {uuid(0): 1}
    assert made.fit(memory(1), "node") == Fit(10)
    assert made.fit(memory(2, gpus="2"), "node") == Fit(8)
