"""Tests of `gpushare_plugin.ledger.annotations`: what is written can be read, by others, too."""

import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare_plugin.core.effect import IN_EFFECT, Effect, not_in_effect
from gpushare_plugin.ledger.annotations import (
    ACK_ALLOCATION,
    ALIYUN_INDEX,
    ALIYUN_POD,
    ALLOCATION,
    PROMISE,
    AnnotationError,
    annotated_shares,
    promise_annotations,
    read_allocation,
    read_limits,
    read_promise,
    write_allocation,
    write_limits,
)
from gpushare_plugin.ledger.node import GPU_MEMORY
from gpushare_plugin.ledger.pod import Share
from gpushare_plugin.ledger.request import MOST_WISHES
from tests.unit.ledger.objects import (
    account,
    container,
    free,
    kind_node,
    memory,
    memory_node,
    pod,
    request,
    uuid,
)

NOW = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
TWO = request(container("warm-up", "init", memory=4), container("main", memory=4), container("side", memory=2))


def test_a_promise_has_the_form_that_our_aliyuns_and_acks_tools_read() -> None:
    """Ours names GPUs by UUID; Aliyun's and ACK's tools find the names and the form that they read."""
    node = memory_node(10, 8)
    placed = account(node).place(TWO, "node")
    written = promise_annotations(placed, TWO, node, NOW)
    assert json.loads(written.pop(PROMISE)) == {
        "version": 1,
        "node": "node",
        "time": "2026-01-02T03:04:05+00:00",
        "containers": {
            "warm-up": {GPU_MEMORY: {uuid(1): 4}},
            "main": {GPU_MEMORY: {uuid(1): 4}},
            "side": {GPU_MEMORY: {uuid(1): 2}},
        },
    }
    assert written == {
        "ALIYUN_COM_GPU_MEM_IDX": "1",
        "ALIYUN_COM_GPU_MEM_POD": "6",
        "ALIYUN_COM_GPU_MEM_DEV": "8",
        "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "1767323045678901000",
        "ALIYUN_COM_GPU_MEM_ASSIGNED": "false",
        "scheduler.framework.gpushare.allocation": '{"0":{"1":4},"1":{"1":2}}',
    }


def test_aliyuns_annotation_has_the_units_of_one_of_several_gpus() -> None:
    """As the variable of this name has them: of GPUs that differ, those of the largest."""
    node, asked = memory_node(8, 10), memory(4, gpus="2")
    written = promise_annotations(account(node).place(asked, "node"), asked, node, NOW)
    assert (written["ALIYUN_COM_GPU_MEM_IDX"], written["ALIYUN_COM_GPU_MEM_DEV"]) == ("0,1", "10")


def test_promises_of_other_resources_have_only_our_annotation() -> None:
    """Aliyun's annotations are about memory."""
    node = kind_node("nvidia.com/gpu", "gpus", 1)
    asked = request(container("main", gpu=1))
    assert promise_annotations(account(node).place(asked, "node"), asked, node, NOW).keys() == {PROMISE}


@pytest.mark.parametrize("gpus", [None, "2"])
@pytest.mark.parametrize("left_out", [set[str](), {PROMISE}, {PROMISE, ACK_ALLOCATION}, {ACK_ALLOCATION, ALIYUN_INDEX}])
def test_any_of_the_annotations_says_where_the_pod_is(gpus: str | None, left_out: set[str]) -> None:
    """A bound pod is where the promise was, whichever of the annotations an API server or a tool has kept."""
    node = memory_node(10, 8, 2)
    asked = request(*TWO.containers, gpus=gpus)
    made = account(node)
    placed = made.place(asked, "node")
    written = promise_annotations(placed, asked, node, NOW)
    made.put_pod(pod(asked, "node", annotations={key: text for key, text in written.items() if key not in left_out}))
    assert free(made) == ([10, 2, 2] if gpus is None else [7, 5, 2])


shares = st.builds(Share, st.text(), st.text(), st.text(), st.integers(1, 2**63 - 1))


@given(st.lists(shares, unique_by=lambda share: share[:3]))
def test_a_written_promise_can_be_read(written: list[Share]) -> None:
    """An allocation comes back as it was."""
    assert sorted(read_allocation(write_allocation(tuple(written)))) == sorted(written)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.sampled_from(["version", "containers", "main", "0", "1"]), inner)
    ),
)
KEYS = (ALLOCATION, PROMISE, ACK_ALLOCATION, ALIYUN_INDEX, ALIYUN_POD)


@given(st.dictionaries(st.sampled_from(KEYS), st.text() | json_values.map(json.dumps)))
def test_no_text_in_an_annotation_does_harm(texts: dict[str, str]) -> None:
    """Whatever people write, it says something of the pod's own units or nothing; the sum held is what it asked for."""
    made = account(memory_node(10, 10), pods=(pod(memory(4), "node", annotations=texts),))
    resource = made.account_of("node").resources[GPU_MEMORY]
    held = sum(each.units for each in resource.holdings) + sum(each.units for each in resource.unplaced)
    assert held == 4


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[", "Expected `object`, got `array`"),
        ("[" * 50_000, "Expected `object`, got `array`"),
        ('{"version":1,"more":' + "[" * 50_000, "maximum recursion depth exceeded"),
        ("1", "'1' found: Expected `object`, got `int`"),
        ('{"version":2,"containers":{}}', "Invalid enum value 2"),
        ('{"version":1}', "missing required field `containers`"),
        ('{"version":1,"containers":{"main":{"r":{"g":0}}}}', "Expected `int` >= 1"),
        ('{"version":1,"containers":{"main":{"r":{"g":true}}}}', "Expected `int`, got `bool`"),
    ],
)
def test_an_unreadable_annotation_is_an_error(text: str, problem: str) -> None:
    """The error names the annotation, what was found and what was expected; `annotated_shares` takes it for nothing."""
    with pytest.raises(AnnotationError, match=f"annotation {ALLOCATION}: .*{problem}"):
        read_allocation(text)
    with pytest.raises(AnnotationError, match=f"annotation {PROMISE}: .*{problem}"):
        read_promise(text)
    assert annotated_shares({ALLOCATION: text, PROMISE: text}, memory(4), "node") == (None, None, None)


def test_effects_of_limits_that_are_written_can_be_read() -> None:
    """Each container has what was found on each GPU; a long reason is cut, since a tenant has a part in it."""
    late, broken = Effect("in effect since", seconds=3.4), not_in_effect("x" * 1000)
    written = write_limits({"main": {"GPU-a": IN_EFFECT, "GPU-b": late}, "": {"GPU-a": broken}})
    assert read_limits(written) == {
        "main": {"GPU-a": IN_EFFECT, "GPU-b": Effect("in effect since", seconds=3)},
        "": {"GPU-a": not_in_effect("x" * 256)},
    }
    assert json.loads(written)["containers"]["main"]["GPU-a"] == {"state": "in effect"}


@pytest.mark.parametrize(
    "text",
    [
        "[",
        '{"version":2,"containers":{}}',
        '{"version":1,"containers":{"main":{"GPU-a":{"state":"fine"}}}}',
        '{"version":1,"containers":{"main":{"GPU-a":7}}}',
        "x" * 70_000,
    ],
)
def test_effects_of_limits_that_cannot_be_read_are_an_error(text: str) -> None:
    """The error names the annotation."""
    with pytest.raises(AnnotationError, match="annotation gpushare/limits: "):
        read_limits(text)


def test_a_promise_for_another_node_says_nothing() -> None:
    """A promise that was copied with the pod, or written for a node where the binding failed."""
    text = '{"version":1,"node":"other","time":"","containers":{"main":{"aliyun.com/gpu-mem":{"GPU-node-0":4}}}}'
    assert read_promise(text).node == "other"
    assert annotated_shares({PROMISE: text}, memory(4), "node").promise is None
    assert annotated_shares({PROMISE: text}, memory(4), "other").promise is not None


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ({ALIYUN_INDEX: "1"}, {"1": 8}),
        ({ALIYUN_INDEX: "1", ALIYUN_POD: "6"}, {"1": 8}),
        ({ALIYUN_INDEX: "1", ALIYUN_POD: "8"}, {"1": 8}),
        ({ALIYUN_INDEX: "1", ALIYUN_POD: "7"}, None),
        ({ALIYUN_INDEX: "0,1"}, {"0": 4, "1": 4}),
        ({ALIYUN_INDEX: "0,1,2"}, None),
        ({ALIYUN_INDEX: "-1"}, None),
        ({ALIYUN_INDEX: ""}, None),
        ({ACK_ALLOCATION: '{"0":{"1":6}}', ALIYUN_INDEX: "0"}, {"1": 6}),
        ({ACK_ALLOCATION: '{"7":{"1":6}}', ALIYUN_INDEX: "0"}, {"0": 8}),
    ],
)
def test_annotations_of_other_schedulers_are_read(texts: dict[str, str], expected: dict[str, int] | None) -> None:
    """Aliyun's annotation, whose scheduler ignores init containers, and ACK's, which says more."""
    found = annotated_shares(
        texts, request(container("init", "init", memory=8), container("main", memory=6)), "node"
    ).indexes
    most: dict[str, int] = {}
    for share in found or ():
        most[share.gpu] = max(most.get(share.gpu, 0), share.units)
    assert (most or None) == expected
    assert annotated_shares(texts, request(container("main", gpu=1)), "node").indexes is None


def test_wishes_that_are_not_understood_are_named() -> None:
    """An unknown policy is ignored, and HAMi's annotation counts where ours says nothing; a long list is refused."""
    asked = memory(1, annotations={"gpushare/placement": "tetris", "hami.io/gpu-scheduler-policy": "spread"})
    assert (asked.policy, asked.problem) == ("spread", None)
    assert asked.ignored == ("annotation gpushare/placement: 'tetris' found, binpack or spread or packing expected",)
    many = ",".join(map(str, range(MOST_WISHES + 1)))
    assert memory(1, annotations={"nvidia.com/use-gpuuuid": many}).problem == (
        "annotation nvidia.com/use-gpuuuid: 65 names found, at most 64 allowed"
    )
