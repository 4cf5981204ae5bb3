"""Tests of the decision beside a node whose annotations say anything: it is left out, and every other one is served."""

import json
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare_plugin.core.policies import DEFAULT_POLICY
from gpushare_plugin.kube.nodes import judged_node
from gpushare_plugin.kube.objects import ApiNode, ApiPod
from gpushare_plugin.ledger.node_record import GPUS_ANNOTATION
from gpushare_plugin.observe.cluster.columns import Style
from gpushare_plugin.observe.cluster.report import cluster_report
from gpushare_plugin.observe.cluster.slices import slices
from gpushare_plugin.observe.cluster.tables import details
from gpushare_plugin.observe.parts import encode
from gpushare_plugin.partition import words
from gpushare_plugin.partition.decide import Decisions, decide
from gpushare_plugin.partition.taking_back import DEFAULT_PATIENCE
from gpushare_plugin.partitioner.outlook import JudgedOverview, Partitioners, outlook
from gpushare_plugin.slices.wanted import WANTED_SLICES
from tests.unit.partitioner.partitioners import ROOM, record

Json = dict[str, Any]

NOW = datetime(2026, 11, 22, 12, 0, 30, tzinfo=UTC)
CARD: Json = {"index": 0, "uuid": "GPU-x", "memoryMiB": 40960}
PROFILE: Json = {"name": "1g.5gb", "starts": [0], "size": 1, "compute": 1, "most": 7}
INSTANCE: Json = {
    "index": 0,
    "uuid": "MIG-x",
    "memoryMiB": 4864,
    "profile": "1g.5gb",
    "start": 0,
    "resource": "nvidia.com/mig-1g.5gb",
    "units": 1,
}


def mig(*profiles: Json, instance: Json | None = None) -> Json:
    """Return a record of one card in MIG mode."""
    gpus = [{**CARD, "profiles": profiles}, *([instance] if instance else [])]
    names = [{"name": each["resource"], "kind": "gpus"} for each in gpus if "resource" in each]
    return {"version": 1, "partitioning": "mig", "gpus": gpus, "resources": names}


def mps(**card: Any) -> Json:
    """Return a record of one card under MPS."""
    names = [{"name": "nvidia.com/gpu-1gb", "kind": "slices"}]
    gpu = {**CARD, "mode": "mps", "resource": "nvidia.com/gpu-1gb", **card}
    return {"version": 1, "partitioning": "mps", "gpus": [gpu], "resources": names}


def pod(name: str, resource: str, on: str = "", **metadata: Any) -> ApiPod:
    """Return a pod that asks for a slice, which waits if it is on no node."""
    container = {"name": "main", "resources": {"limits": {resource: "1"}}}
    return msgspec.convert(
        {
            "metadata": {
                "name": name,
                "namespace": "ns",
                "uid": name,
                "creationTimestamp": "2026-11-22T12:00:00Z",
                **metadata,
            },
            "spec": {"nodeName": on, "containers": [container]},
        },
        ApiPod,
    )


def overview(gpus: str, wanted: str | None) -> JudgedOverview:
    """Return a cluster of a node with these annotations, which takes no new pods, and one that is as it should be.

    Pods wait for a slice: one that fits, one that does not fit beside it, and two that only a node with MIG could have.
    """
    found = JudgedOverview()
    strange = {GPUS_ANNOTATION: gpus, **({} if wanted is None else {WANTED_SLICES: wanted})}
    annotations = {"strange": strange, "sound": {GPUS_ANNOTATION: record("sound", (40,))}}
    for name, each in annotations.items():
        metadata = {"name": name, "uid": name, "resourceVersion": "1", "annotations": each}
        spec = {"unschedulable": name == "strange"}
        made = msgspec.convert({"metadata": metadata, "spec": spec, "status": {"allocatable": ROOM}}, ApiNode)
        found.put_node(judged_node(made))
    for waiting in (
        pod("first", "nvidia.com/gpu-30gb"),
        pod("second", "nvidia.com/gpu-20gb"),
        pod("third", "nvidia.com/mig-1g.5gb"),
        pod("fourth", "nvidia.com/mig-1g.5gb", on="strange"),
        pod("fifth", "nvidia.com/gpu-1gb", on="strange"),
    ):
        found.put_pod(waiting)
    return found


def answers(found: JudgedOverview) -> tuple[Decisions, str]:
    """Return what a round decides, and all that people see: the text of Events, of `explain` and of `inspect`."""
    known = found.known
    decisions = decide(known.nodes, known.waiting, NOW, known.rules(NOW, DEFAULT_PATIENCE, DEFAULT_POLICY))
    texts = [words.refusal(each) for each in decisions.refused.values()]
    for each in known.waiting:
        texts += outlook(known, each.uid, Partitioners(runs=True), decisions)
    accounts = map(found.account.account_of, found.account.nodes)
    report = cluster_report(accounts, found.waiting.values(), everything=True)
    texts += [encode(report), *details(report, Style()), *slices(report, Style(), NOW, detailed=True)]
    return decisions, "\n".join(texts)


def check(gpus: str, wanted: str | None = None) -> tuple[Decisions, str]:
    """Check that a pod gets its slice on the sound node; return what was decided, and what people see."""
    decisions, text = answers(overview(gpus, wanted))
    assert decisions.assigned["first"].node == "sound"
    assert "first" in decisions.changes["sound"].pods
    assert "second" in decisions.refused
    assert decisions.broken == ()
    return decisions, text


ABSURD: dict[str, tuple[Json, str]] = {
    "a profile with a name that is none": (
        mig({**PROFILE, "name": "foo"}, instance={**INSTANCE, "profile": "foo", "resource": "nvidia.com/mig-foo"}),
        "",
    ),
    "a profile twice, once without a place": (mig({**PROFILE, "starts": []}, PROFILE, instance=INSTANCE), ""),
    "more slices than a GPU can have": (mps(units=200_000), "GPU 0 has 200000 slices"),
    "more slices than a kubelet can list": (mps(units=2**31 - 1), "2,147,483,647 units of"),
    "a profile that is too large": (mig({**PROFILE, "size": 2**31 - 1}), "gpus.0.profiles.0.size"),
    "a profile that begins too late": (mig({**PROFILE, "starts": [2**31 - 1]}), "gpus.0.profiles.0.starts.0"),
    "a profile at too many places": (mig({**PROFILE, "starts": [*range(100)]}), "gpus.0.profiles.0.starts"),
    "too many profiles": (mig(*({**PROFILE, "name": f"1g.{gib}gb"} for gib in range(1, 200))), "gpus.0.profiles"),
    "too many GPUs": (
        {"version": 1, "partitioning": "mps", "gpus": [{**CARD, "uuid": f"GPU-{n}"} for n in range(300)]},
        "300 GPUs",
    ),
}


@pytest.mark.parametrize("name", ABSURD)
def test_a_record_that_cannot_be_true_keeps_no_other_node_from_its_pods(name: str) -> None:
    """The node is left out, or what makes no sense of it, and `inspect` says why; every other node is served."""
    absurd, reason = ABSURD[name]
    decisions, text = check(json.dumps(absurd))
    assert decisions.changes.keys() == {"sound"}
    assert reason in text


def test_a_node_that_is_left_out_is_named_with_the_reason() -> None:
    """By the decision, for the log; by refusals, for Events and `explain`; and by `inspect`."""
    decisions, text = check(json.dumps(mps(units=200_000)))
    (left_out,) = decisions.left_out
    assert left_out.node == "strange"
    assert left_out.reason == ("annotation gpushare/gpus: GPU 0 has 200000 slices, and 1024 at most are possible")
    assert f"1 node: left out: {left_out.reason} (strange)" in words.refusal(decisions.refused["second"])
    assert f"no slices are made here: {left_out.reason}" in text


# Values that JSON can have where records and requests have theirs, and some that are as they should be.
LEAVES = st.sampled_from(
    [
        *(None, True, 0, 1, 4, 7, 8, 48, 255, 1024, 2**31 - 1, 2**31, 10**30, -1, 1.5, 1e300, "", "x", "@", "a@b"),
        *("mps", "mig", "memory", "slices", "gpus", "GPU-x", "MIG-x", "1g.5gb", "1c.3g.20gb", "3g.20gb", "7g.40gb"),
        *(
            "1g.5gb@0",
            "3g.20gb@4",
            "1g.5gb@999",
            "10gb",
            "9999gb",
            "0gb",
            "nvidia.com/gpu-1gb",
            "nvidia.com/mig-1g.5gb",
        ),
        *("2026-11-22T12:00:00Z", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "first", "sound"),
    ]
)
ANYTHING = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(LEAVES.map(str), inner, max_size=3),
    max_leaves=6,
)


def like(value: Any) -> st.SearchStrategy[Any]:
    """Draw values that are like one: in each place as it is, or anything else."""
    same: st.SearchStrategy[Any]
    if isinstance(value, dict):
        same = st.fixed_dictionaries({key: like(each) for key, each in value.items()})
    elif isinstance(value, (list, tuple)):
        same = st.tuples(*map(like, value)).map(list)
    else:
        same = st.just(value)
    return st.integers(0, 30).flatmap(lambda number: same if number else ANYTHING)


KEPT: Json = {"gpu": "GPU-x", "slice": "1gb", "since": "2026-11-22T12:00:00Z", "pod": "ns/first"}
RECORDS = [
    mps(units=2),
    mig(
        PROFILE,
        {"name": "3g.20gb", "starts": [0, 4], "size": 4, "compute": 3, "most": 2},
        instance={**INSTANCE, "profile": "1c.3g.20gb", "start": 4, "resource": "nvidia.com/mig-1c.3g.20gb"},
    ),
    mig(PROFILE, instance=INSTANCE),
]
WANTED: Json = {
    "version": 1,
    "gpus": {"GPU-x": {"1gb": 2, "1g.5gb@0": 1}},
    "pods": {"first": KEPT, "other": [KEPT, KEPT]},
    "failed": {"first": {"at": "2026-11-22T12:00:00Z", "times": 3}},
}


RECORD_TEXTS = st.sampled_from([*RECORDS, {**RECORDS[0], "version": 2}]).flatmap(like).map(json.dumps)


@settings(max_examples=60)
@given(
    RECORD_TEXTS | st.builds(lambda text, end: text[:end], RECORD_TEXTS, st.integers(0, 300)),
    st.none() | like(WANTED).map(json.dumps) | st.text(max_size=5),
)
def test_annotations_of_a_node_never_end_a_round(gpus: str, wanted: str | None) -> None:
    """Whatever they are, no pod is kept from its slice on another node; people see the whole cluster."""
    check(gpus, wanted)
