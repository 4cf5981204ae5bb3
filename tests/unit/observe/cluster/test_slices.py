"""Tests of `gpushare_plugin.observe.cluster`: slices of partitioned nodes, and the pods that wait for them."""

import json
from datetime import UTC, datetime, timedelta
from textwrap import dedent
from typing import Any

import pytest

from gpushare_plugin.ledger.node_record import NodeRecord, ResourceRecord
from gpushare_plugin.ledger.pod import Pod
from gpushare_plugin.observe.cluster.columns import Style
from gpushare_plugin.observe.cluster.report import ClusterReport
from gpushare_plugin.observe.cluster.slices import age, slices
from gpushare_plugin.observe.parts import encode
from gpushare_plugin.slices.slice import Slice
from gpushare_plugin.slices.wanted import KeptSlice, Wanted, WantedError, decode
from gpushare_plugin.slices.wanted import encode as encode_wanted
from tests.unit.ledger.objects import container, pod, request, uuid
from tests.unit.observe.cluster.clusters import Cluster, gpu
from tests.unit.partition.objects import slice_request

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
TEN = "nvidia.com/gpu-10gb"


def waiting(name: str, size: str, seconds: float) -> Pod:
    """Return a pod that waits for a slice since some seconds."""
    asked = slice_request((Slice("mps", size),))
    return Pod(name, "team", name, asked, created=NOW - timedelta(seconds=seconds))


def reported(*pods: Pod, wanted: str | None = None) -> ClusterReport:
    """Return the report on a node of two GPUs, the first with two slices of which a pod has one, and on a plain one."""
    cluster = Cluster()
    kinds = (ResourceRecord(name=TEN, kind="slices"),)
    gpus = (
        gpu("n0", 0, 2, resource=TEN, unit_mib=10240, mode="mps"),
        gpu("n0", 1, 0, resource=None),
    )
    since = NOW - timedelta(seconds=70)
    kept = {
        "p": (KeptSlice(uuid(0, "n0"), "10gb", since, "team/p"),),
        "q": (KeptSlice(uuid(1, "n0"), "20gb", NOW, "team/q"),),
    }
    text = encode_wanted(Wanted({uuid(0, "n0"): {"10gb": 2}, uuid(1, "n0"): {"20gb": 1}}, kept))
    record = NodeRecord(gpus=gpus, resources=kinds, partitioning="mps")
    try:
        known: dict[str, Any] = {"wanted": decode(wanted or text)}
    except WantedError as error:
        known = {"wanted_unreadable": str(error)}
    cluster.node("n0", record, **known)
    cluster.plain("plain", 30, 2)
    cluster.account.put_pod(pod(request(container("main", slice=1)), "n0", "holder", on=uuid(0, "n0")))
    return cluster.reported(*pods)


def shown(report: ClusterReport, *, detailed: bool = False) -> str:
    """Return what is printed."""
    return "\n".join(slices(report, Style(), NOW, detailed=detailed)) + "\n"


PODS = (waiting("q", "20gb", 5), waiting("p", "10gb", 80), waiting("large", "40gb", 3700))


def test_the_table_has_a_row_for_each_size_on_a_node() -> None:
    """Rows have what pods hold, what is idle and what is wanted, GPU by GPU; then comes who waits."""
    assert shown(reported(*PODS)) == dedent("""\

        Slices of partitioned nodes:
        NAME  SLICE  GPU0(Held/Idle/Wanted)  GPU1(Held/Idle/Wanted)  KEPT
        n0    10gb   1/1/2                   -                       1
        n0    20gb   -                       0/0/1                   1

        Pods that wait for slices:
        NAME   NAMESPACE  SLICES               WAITS  WHERE
        large  team       nvidia.com/gpu-40gb  1h1m   nowhere; gpushare explain says why
        p      team       nvidia.com/gpu-10gb  1m20s  n0 GPU0: offered to it, kept for 1m10s
        q      team       nvidia.com/gpu-20gb  5s     n0 GPU1: being made, kept for 0s
        """)


def test_details_name_the_pods_that_slices_are_kept_for() -> None:
    """With -d, there is a row for each size on a GPU."""
    assert shown(reported(), detailed=True) == dedent("""\

        Slices of partitioned nodes:
        NAME  GPU   SLICE  HELD  IDLE  WANTED  KEPT FOR
        n0    GPU0  10gb   1     1     2       team/p (1m10s)
        n0    GPU1  20gb   0     0     1       team/q (0s)
        """)


def test_a_pod_with_several_slices_of_one_size_is_named_once() -> None:
    """How many it has there is said by their number, with the GPU as with the pod."""
    several = tuple(KeptSlice(uuid(index, "n0"), "10gb", NOW, "team/p") for index in (0, 0, 1))
    other = (KeptSlice(uuid(1, "n0"), "10gb", NOW, "team/q"),)
    gpus = {uuid(0, "n0"): {"10gb": 2}, uuid(1, "n0"): {"10gb": 2}}
    text = encode_wanted(Wanted(gpus, {"p": several, "q": other}))
    found = shown(reported(waiting("p", "10gb", 5), wanted=text), detailed=True)
    assert "n0    GPU0  10gb   1     1     2       team/p (0s) x2\n" in found
    assert "team/p (0s), team/q (0s)\n" in found
    assert "n0 GPU0 x2, GPU1: being made, kept for 0s\n" in found


def test_json_has_slices_and_waiting_pods() -> None:
    """Times are those of the objects, so that a report changes only when the cluster does."""
    found = json.loads(encode(reported(*PODS)))
    (node, plain) = found["nodes"]
    assert (node["partitioning"], plain["partitioning"], plain["slices"]) == ("mps", None, [])
    kept = {"namespace": "team", "pod": "p", "since": "2026-11-22T11:58:50Z"}
    first = {"index": 0, "uuid": uuid(0, "n0"), "name": "10gb", "resource": TEN, "held": 1, "idle": 1, "wanted": 2}
    assert node["slices"][0] == first | {"kept": [kept]}
    assert [(each["pod"], each["node"], each["gpus"], each["offered"]) for each in found["waiting"]] == [
        ("large", None, [], False),
        ("p", "n0", [0], True),
        ("q", "n0", [1], False),
    ]


def test_an_annotation_that_cannot_be_read_is_a_notice() -> None:
    """The slices that are there are shown nevertheless."""
    report = reported(wanted="{}")
    assert "expected version 1" in report.nodes[0].notices[0]
    assert "n0    10gb   1/1/2" in shown(report)


def test_a_cluster_that_is_not_partitioned_shows_nothing() -> None:
    """Pods that ask for slices of the config are no matter of partitioning."""
    cluster = Cluster()
    cluster.plain("plain", 30, 2)
    report = cluster.reported(*PODS)
    assert report.waiting == ()
    assert list(slices(report, Style(), NOW)) == []


def test_many_waiting_pods_are_cut_and_counted() -> None:
    """Below a summary stand 20 pods at most; -d has all."""
    report = reported(*(waiting(f"p{number}", "40gb", number) for number in range(25)))
    assert shown(report).splitlines()[-1] == "… and 5 more; -d shows all"
    assert shown(report, detailed=True).count("nowhere") == 25


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "0s"),
        (0, "0s"),
        (59, "59s"),
        (60, "1m"),
        (3600, "1h"),
        (3659, "1h"),
        (61, "1m1s"),
        (90061, "1d1h"),
        (86400 * 400, "400d"),
    ],
)
def test_an_age_is_in_its_largest_unit_and_the_next(seconds: float, text: str) -> None:
    """Without a zero; a time that is ahead is no age."""
    assert age(NOW - timedelta(seconds=seconds), NOW) == text


def test_a_pod_that_the_annotation_does_not_name_is_known_by_its_uid() -> None:
    """Names are left out where the annotation has no room for them."""
    text = encode_wanted(Wanted({uuid(1, "n0"): {"20gb": 1}}, {"uid-q": (KeptSlice(uuid(1, "n0"), "20gb", NOW),)}))
    assert "  uid-q (0s)" in shown(reported(wanted=text), detailed=True)
