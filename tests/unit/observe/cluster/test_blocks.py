"""Tests of `gpushare_plugin.observe.cluster.blocks` and `totals`: totals first, a line for each node."""

from textwrap import dedent

from hypothesis import given
from hypothesis import strategies as st

from gpushare_plugin.observe.cluster.blocks import blocks, level
from gpushare_plugin.observe.cluster.columns import Style
from gpushare_plugin.observe.cluster.report import ClusterReport
from gpushare_plugin.observe.cluster.totals import by_model
from tests.unit.observe.cluster.clusters import Cluster, gpu, recorded
from tests.unit.observe.cluster.test_by_claim import held, of, reported, shared
from tests.unit.observe.cluster.test_filters import mixed


def shown(report: ClusterReport, style: Style | None = None, waiting: int | None = None) -> str:
    """Return what is printed."""
    style = style or Style()
    return "\n".join(map(style.shown, blocks(report, style, waiting))) + "\n"


def larger() -> Cluster:
    """Return the mixed cluster with a node that is not ready and one of GPUs at each level."""
    cluster = mixed()
    unoffered = gpu("e", 8, 0, resource=None, product="NVIDIA A10")
    cluster.node("e", recorded(*(gpu("e", index, 15, product="NVIDIA A10") for index in range(8)), unoffered))
    for index in range(8):
        cluster.pod(f"p{index}", 2 * index, "e", on=index)
    cordoned = gpu("f", 1, healthy=False, reason="cordoned by annotation")
    cluster.node("f", recorded(gpu("f", 0), cordoned))
    cluster.node("g", recorded(gpu("g", 0)), ready=False)
    cluster.pod("unplaced", 3, "g")
    return cluster


def test_totals_stand_first_and_each_node_has_a_line() -> None:
    """By resource and model, with what is out; then a character for each GPU, and a sentence for each problem."""
    assert shown(larger().report, waiting=3) == dedent("""\
        Nodes: 7 (1 not ready, 1 cordoned); GPUs: 18 (1 faulty, 1 cordoned); Pods that wait for a node: 3

        RESOURCE               MODEL                  GPUS  ALLOCATED/TOTAL    LARGEST FREE
        aliyun.com/gpu-mem     NVIDIA A10             11    80/165 GiB (48%)   15 GiB
        aliyun.com/gpu-mem     NVIDIA A100-SXM4-40GB  4     10/85 GiB (11%)    30 GiB
        aliyun.com/gpu-mem     NVIDIA H100            1     0/80 GiB (0%)      0 GiB
        aliyun.com/gpu-mem     on unknown GPUs        0     3/0 GiB            0 GiB
        aliyun.com/gpu-mem     all                    16    93/330 GiB (28%)   30 GiB
        nvidia.com/gpu.shared  NVIDIA A10             1     0/4 replicas (0%)  4 replicas

        NAME  GPUS       GPU Memory(GiB)  nvidia.com/gpu.shared(replicas)  STATE
        a     x          0/80             -                                cordoned
        b     █          15/15            -                                ok
        c     ▃▁         10/40            0/4                              ok
        d     !▅         9/30             -                                GPU0 unhealthy
        e     ▁▂▃▄▅▆▆▇-  56/120           -                                ok
        f     ▁x         0/30             -                                GPU1 cordoned
        g     !          3/15             -                                not ready, 3 on unknown GPUs
        ▁ nothing of the GPU is allocated … █ all; ! faulty, or its node is not ready; x cordoned; - in no resource

        a: the node is cordoned: no new pod gets its GPUs
        d: GPU0: unhealthy: XID 79
        f: GPU1: unhealthy: cordoned by annotation
        g: the node is not ready: no new pod gets its GPUs
        g: default/unplaced has 3 GiB of aliyun.com/gpu-mem on an unknown GPU: they count against each
        """)


def test_a_narrow_terminal_has_names_and_blocks() -> None:
    """Amounts are left out where they do not fit, and no name is broken."""
    narrow = shown(larger().report, Style(30))
    assert "e     ▁▂▃▄▅▆▆▇-\nf" in narrow
    assert "NAME  GPUS\n" in narrow
    assert "Pods that wait" not in narrow
    assert "e     ▁▂▃▄▅▆▆▇-\nf" in shown(larger().report, Style(10)), "also where names do not fit"


def test_a_terminal_without_utf8_has_ascii() -> None:
    """Levels are digits between a point and a hash."""
    said = shown(larger().report, Style(utf8=False))
    assert "e     .1234556-  56/120" in said
    assert "b     #          15/15" in said


@given(st.integers(0, 400), st.integers(1, 400))
def test_a_level_is_empty_only_for_nothing_and_full_only_for_all(held: int, units: int) -> None:
    """More is never a lower level."""
    found = level(held / units, "01234567")
    assert (found == "0") == (held == 0)
    assert (found == "7") == (held >= units)
    assert found <= level((held + 1) / units, "01234567")


def test_the_totals_are_those_of_the_table() -> None:
    """Each unit that the nodes have, and that pods have, is in one row."""
    report = larger().report
    uses = [use for node in report.nodes for use in node.resources]
    for resource in {use.resource for use in uses}:
        rows = [each for each in by_model(report) if each.resource == resource]
        assert sum(each.units for each in rows) == sum(use.units for use in uses if use.resource == resource)
        assert sum(each.allocated for each in rows) == sum(use.allocated for use in uses if use.resource == resource)


def test_gpus_that_claims_have_are_blocks_too() -> None:
    """A GPU is one character, whatever gives it."""
    node, (first,) = shared("10Gi")
    said = shown(reported(node, of(node, held(first))))
    assert "node  ▃▁    10240/81920" in said
    assert "LARGEST FREE\ngpu.gpushare.io  NVIDIA A100-SXM4-40GB  2     10,240/81,920 MiB (12%)  40,960 MiB\n" in said


def test_a_row_of_totals_is_shown_for_few_models_alone() -> None:
    """Whoever can write a Node's record writes no page of the terminal full."""
    cluster = Cluster()
    cluster.node("a", recorded(*(gpu("a", number, product=f"model {number:02}") for number in range(30))))
    said = shown(cluster.report)
    assert "model 19" in said
    assert "model 20" not in said
    assert "… and 11 more; --resource and --model choose among them\n" in said
