"""Tests of `gpushare_plugin.model.account.search.many`: what it finds is what the search of each node finds."""

from dataclasses import replace
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare_plugin.foundation import structs
from gpushare_plugin.model.account.node import GPU_CORES, GPU_MEMORY, Node, OfferedResource, unreadable_node
from gpushare_plugin.model.account.request import ContainerKind, ContainerRequest, PodRequest, essence
from gpushare_plugin.model.account.search import fitting
from gpushare_plugin.model.account.search.fitting import Ask, Rules
from gpushare_plugin.model.account.search.verdicts import Fit, Misfit
from gpushare_plugin.model.choice.policies import DEFAULT_POLICY, POLICIES, Policy
from tests.unit.model.account.objects import account, kind_node, memory, memory_node, pod, uuid
from tests.unit.model.account.objects import request as request_of

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


@given(st.tuples(*map(nodes, NAMES)), st.lists(st.tuples(requests(), st.sampled_from(NAMES)), max_size=5), requests())
def test_many_nodes_answer_as_each_would(
    there: tuple[Node, ...], bound: list[tuple[PodRequest, str]], asked: PodRequest
) -> None:
    """Score, words and numbers are those of the search of the node alone, whatever it has in common with others."""
    pods = tuple(pod(each, name, f"pod-{number}", on=uuid(0, name)) for number, (each, name) in enumerate(bound))
    made = account(*there, pods=pods)
    rules = Rules(ours=frozenset({GPU_MEMORY, GPU_CORES, *(name for node in there for name in node.offers)}))
    for name, verdict in made.fits(asked, NAMES).items():
        alone = fitting.fit(made.node(name), Ask(essence(asked), None, rules))
        assert verdict == alone
        if isinstance(verdict, Misfit) and isinstance(alone, Misfit):
            assert (verdict.reason, verdict.gpus) == (alone.reason, alone.gpus)
            named = fitting.fit(made.node(name), Ask(asked, None, rules))
            assert isinstance(named, Misfit)
            assert verdict.reason == named.reason


@given(st.tuples(*map(nodes, NAMES)), st.tuples(requests(), st.sampled_from(NAMES)), requests())
@settings(max_examples=50)
def test_scores_are_found_when_they_are_asked_for(
    there: tuple[Node, ...], later: tuple[PodRequest, str], asked: PodRequest
) -> None:
    """Whether a pod fits is known without its scores; scores asked for later are those of the nodes as they are."""
    made, waiting = account(*there), pod(asked)
    for name, verdict in made.fits_pod(waiting, NAMES, scored=False).items():
        alone = account(*there).fit(asked, name)
        assert isinstance(verdict, Fit) if isinstance(alone, Fit) else verdict == alone
    request, changed = later
    made.put_pod(pod(request, changed, "later", on=uuid(0, changed)))
    made.fits_pod(waiting, NAMES[:1], scored=False)
    fresh = account(*there, pods=(pod(request, changed, "later", on=uuid(0, changed)),))
    assert made.fits_pod(waiting, NAMES) == fresh.fits(asked, NAMES)
    assert made.fits_pod(waiting, NAMES, scored=False) == fresh.fits(asked, NAMES)


def test_a_policy_may_prefer_any_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A policy that does not say which GPU is cheapest is asked about each that has room."""
    half = Policy(POLICIES[DEFAULT_POLICY].order, lambda gpu, _node, *_replicas: (abs(gpu - 0.5),))
    monkeypatch.setitem(cast("dict[str, Policy]", POLICIES), "half", half)
    made = account(memory_node(10, 10, 10), policy="half")
    for index, held in enumerate((4, 8)):
        made.put_pod(pod(memory(held), "node", f"held-{index}", on=uuid(index)))
    assert made.place(memory(1), "node").containers["main"][GPU_MEMORY] == {uuid(0): 1}
    assert made.fit(memory(1), "node") == Fit(10)
    assert made.fit(memory(2, gpus="2"), "node") == Fit(8)
