"""Tests of `gpushare_plugin.observe.cluster`: the tables of a cluster, line by line, and its JSON."""

import json
from collections.abc import Callable, Iterator
from textwrap import dedent

import pytest

from gpushare_plugin.core.effect import IN_EFFECT, Effect, not_in_effect, unknown
from gpushare_plugin.ledger.annotations import ALIYUN_INDEX, LIMITS, write_limits
from gpushare_plugin.ledger.node_record import ResourceRecord
from gpushare_plugin.ledger.pod import Pairs
from gpushare_plugin.observe.cluster.columns import Style, Table
from gpushare_plugin.observe.cluster.report import CORDONS_NOT_READ, ClusterReport
from gpushare_plugin.observe.cluster.tables import bar, details, summary, wide
from gpushare_plugin.observe.parts import encode
from tests.unit.ledger.objects import memory, pod, uuid
from tests.unit.observe.cluster.clusters import Cluster, gpu, recorded

Show = Callable[[ClusterReport, Style], Iterator[str]]


def shown(cluster: Cluster, show: Show = summary, style: Style | None = None) -> str:
    """Return what is printed."""
    style = style or Style()
    return "\n".join(map(style.shown, show(cluster.report, style))) + "\n"


def two_nodes() -> Cluster:
    """Return a cluster of two nodes that share memory, where all is well."""
    cluster = Cluster()
    cluster.node("gpu-1", recorded(gpu("gpu-1", 0), gpu("gpu-1", 1)))
    cluster.node("gpu-2", recorded(gpu("gpu-2", 0)))
    cluster.pod("a", 6, "gpu-1", on=0)
    cluster.pod("b", 3, "gpu-1", on=1)
    return cluster


def test_the_summary_has_the_columns_of_the_original() -> None:
    """A cluster where all is well looks as `kubectl inspect gpushare` shows it, totals and percentage included."""
    assert shown(two_nodes()) == dedent("""\
        NAME   IPADDRESS  GPU0(Allocated/Total)  GPU1(Allocated/Total)  GPU Memory(GiB)
        gpu-1  10.0.0.1   6/15                   3/15                   9/30
        gpu-2  10.0.0.2   0/15                   -                      0/15
        --------------------------------------------------------------------
        Allocated/Total GPU Memory In Cluster:
        9/45 (20%)
        """)


def test_details_have_a_block_for_each_node_and_a_row_for_each_pod() -> None:
    """With -d; below is what is allocated of the node in all."""
    assert shown(two_nodes(), details) == dedent("""\
        NAME:       gpu-1
        IPADDRESS:  10.0.0.1

        NAME  NAMESPACE  GPU0(Allocated)  GPU1(Allocated)
        a     default    6                0
        b     default    0                3
        Allocated(GiB) :  9 (30%)
        Total(GiB) :      30
        -------------------------------------------------

        NAME:       gpu-2
        IPADDRESS:  10.0.0.2

        NAME  NAMESPACE  GPU0(Allocated)
        Allocated(GiB) :  0 (0%)
        Total(GiB) :      15
        --------------------------------

        Allocated/Total GPU Memory(GiB) In Cluster:  9/45 (20%)
        """)


def limited(**effects: Effect) -> Pairs:
    """Return what the daemon of gpu-1 writes into a pod on GPU 0 whose containers have limits."""
    gpu_0 = uuid(0, "gpu-1")
    return ((LIMITS, write_limits({container: {gpu_0: effect} for container, effect in effects.items()})),)


def with_limits() -> Cluster:
    """Return a node that writes whether limits are in effect into all pods but one."""
    cluster = Cluster()
    cluster.node("gpu-1", recorded(gpu("gpu-1", 0), gpu("gpu-1", 1)))
    cluster.pod("held", 1, "gpu-1", on=0, written=limited(main=IN_EFFECT))
    cluster.pod("late", 1, "gpu-1", on=0, written=limited(main=Effect("in effect since", seconds=4)))
    cluster.pod("dark", 1, "gpu-1", on=0, written=limited(main=IN_EFFECT, side=unknown("no answer")))
    cluster.pod("loose", 1, "gpu-1", on=0, written=limited(side=unknown("no"), main=not_in_effect("it escaped")))
    cluster.pod("silent", 1, "gpu-1", on=0)
    cluster.pod("broken", 1, "gpu-1", on=0, written=((LIMITS, "no"),))
    cluster.pod("elsewhere", 1, "gpu-1", on=1, written=limited(main=not_in_effect("it is of another GPU")))
    return cluster


def test_details_say_whether_limits_are_in_effect() -> None:
    """The worst state of the containers of a pod on its GPUs; nothing is said of a pod of which nothing is written."""
    said = shown(with_limits(), details).splitlines()
    rows = [line.split(maxsplit=4) for line in said[said.index("") + 1 :][:8]]
    assert [(row[0], row[-1]) for row in rows] == [
        ("NAME", "LIMITS"),
        ("held", "in effect"),
        ("late", "in effect since"),
        ("dark", "unknown"),
        ("loose", "not in effect"),
        ("silent", "-"),
        ("broken", "-"),
        ("elsewhere", "-"),
    ]


@pytest.mark.parametrize("show", [summary, wide, details])
def test_a_limit_that_is_not_in_effect_is_a_problem_of_its_gpu(show: Show) -> None:
    """Each view has it as a state of the GPU, and says below which container it is, and why."""
    said = shown(with_limits(), show)
    assert "limit not in effect" in said
    last = "gpu-1: GPU0: the limit of container main of default/loose is not in effect: it escaped"
    assert [line for line in said.splitlines() if line.startswith("gpu-1: ")] == [last]


def test_limits_of_all_containers_together_are_said_to_be_theirs() -> None:
    """Where the containers of a pod cannot be told apart, none of them is named."""
    cluster = Cluster()
    cluster.node("gpu-1", recorded(gpu("gpu-1", 0)))
    cluster.pod("a", 1, "gpu-1", on=0, written=limited(**{"": not_in_effect("it escaped")}))
    assert "GPU0: the limit of the containers of default/a is not in effect: it escaped\n" in shown(cluster)


def test_json_has_the_limits_of_each_pod_on_each_gpu() -> None:
    """The state for programs, and words for people."""
    pods = json.loads(encode(with_limits().report))["nodes"][0]["resources"][0]["gpus"][0]["pods"]
    limits = {each["pod"]: each["limits"] for each in pods}
    late = {"container": "main", "gpu": uuid(0, "gpu-1"), "state": "in effect since"}
    assert limits["late"] == [{**late, "effect": "in effect since 4 s after the start of the container"}]
    assert limits["silent"] == limits["broken"] == []


def troubled() -> Cluster:
    """Return a cluster where everything that can be wrong is wrong with some GPU."""
    cluster = Cluster()
    gpus = (
        gpu("gpu-1", 0),
        gpu("gpu-1", 1, healthy=False, reason="XID 79: GPU has fallen off the bus"),
        gpu("gpu-1", 2, healthy=False, reason="cordoned by annotation gpushare/unhealthy-gpus"),
        gpu("gpu-1", 3, units=0, resource=None, reason="changes its mode when its pods end: default/old"),
    )
    cluster.node("gpu-1", recorded(*gpus, notices=("memory is shared without isolation",)), ready=False)
    cluster.node("gpu-2", recorded(gpu("gpu-2", 0), gpu("gpu-2", 1)), unschedulable=True)
    cluster.pod("starting", 4, "gpu-1", promise=0)
    cluster.pod("moved", 5, "gpu-2", on=1, promise=0)
    cluster.pod("large", 12, "gpu-2", on=1)
    cluster.pod("nowhere", 2, "gpu-2")
    return cluster


def test_problems_are_shown_in_a_word_each_with_the_reason() -> None:
    """Promises, units on unknown GPUs, health, cordons of GPUs and nodes, drift and excess."""
    assert shown(troubled()) == dedent("""\
        NAME   IPADDRESS  GPU0(Allocated/Total)  GPU1(Allocated/Total)  GPU2(Allocated/Total)  PENDING(Allocated)  GPU Memory(GiB)  PROMISED  STATE
        gpu-1  10.0.0.1   4/15                   0/15                   0/15                   0                   4/45             4         not ready, GPU1 unhealthy, GPU2 cordoned
        gpu-2  10.0.0.2   0/15                   17/15                  -                      2                   19/30            0         cordoned, GPU1 over capacity, GPU1 drift, 2 on unknown GPUs
        ------------------------------------------------------------------------------------------------------------------------
        Allocated/Total GPU Memory In Cluster:
        23/75 (30%)

        gpu-1: the node is not ready: no new pod gets its GPUs
        gpu-1: GPU1: unhealthy: XID 79: GPU has fallen off the bus
        gpu-1: GPU2: unhealthy: cordoned by annotation gpushare/unhealthy-gpus
        gpu-1: GPU3: not offered: changes its mode when its pods end: default/old
        gpu-1: memory is shared without isolation
        gpu-2: the node is cordoned: no new pod gets its GPUs
        gpu-2: GPU1: over capacity: pods have 2 GiB of aliyun.com/gpu-mem more than it has
        gpu-2: GPU1: drift: default/moved was promised other units of aliyun.com/gpu-mem
        gpu-2: default/nowhere has 2 GiB of aliyun.com/gpu-mem on an unknown GPU: they count against each
        """)  # noqa: E501 - lines as long as they are printed


def test_pods_that_swapped_have_not_drifted() -> None:
    """As the node counts it: every GPU has what was promised there, though each pod has the units of the other."""
    cluster = Cluster()
    cluster.node("gpu-1", recorded(gpu("gpu-1", 0), gpu("gpu-1", 1)))
    for name, on in (("a", 0), ("b", 1)):
        cluster.pod(name, 3, "gpu-1", on=on, promise=1 - on)
    assert "drift" not in shown(cluster)
    cluster.pod("c", 4, "gpu-1", on=1, promise=0)
    gpus = cluster.report.nodes[0].resources[0].gpus
    assert [each.drifted for each in gpus] == [0, 4]
    # Nobody can say which of those that were not promised this GPU has too much of it.
    assert [(each.pod, each.drift) for each in gpus[1].pods] == [("b", True), ("c", True)]


def test_details_show_the_state_of_each_pod() -> None:
    """Where all pods are simply allocated, there is no such column."""
    block = shown(troubled(), details).split("NAME:       gpu-2")[1]
    assert [line.split() for line in block.splitlines()[5:9]] == [
        ["moved", "default", "0", "5", "0", "allocated,", "drift"],
        ["large", "default", "0", "12", "0", "allocated"],
        ["nowhere", "default", "0", "0", "2", "on", "an", "unknown", "GPU"],
        ["Allocated(GiB)", ":", "19", "(63%)"],
    ]


def test_wide_has_a_row_for_each_gpu() -> None:
    """Models, modes, units, what is free, states and UUIDs; GPUs that are not offered too."""
    lines = shown(troubled(), wide).splitlines()
    rows = [line.split("  ") for line in lines[: lines.index("")]]
    cells = [[cell.strip() for cell in row if cell] for row in rows]
    assert cells[0] == [
        *("NAME", "IPADDRESS", "GPU", "PRODUCT", "RESOURCE", "UNIT", "MODE"),
        *("ALLOCATED", "TOTAL", "FREE", "PROMISED", "PENDING", "STATE", "UUID"),
    ]
    assert cells[1] == [
        *("gpu-1", "10.0.0.1", "0", "NVIDIA A100-SXM4-40GB", "aliyun.com/gpu-mem", "GiB", "memory"),
        *("4", "15", "11", "4", "0", "not ready", "GPU-gpu-1-0"),
    ]
    assert cells[5][7:] == ["17", "15", "0", "0", "2", "cordoned, over capacity, drift", "GPU-gpu-2-1"]
    assert cells[6][-2:] == ["not offered", "GPU-gpu-1-3"]


def test_every_way_of_sharing_has_a_table() -> None:
    """Replicas, slices, whole GPUs and MIG instances stand below memory, each with what its units are."""
    cluster = Cluster()
    for name, kind, count in (("nvidia.com/gpu", "replicas", 4), ("nvidia.com/gpu-10gb", "slices", 2)):
        kinds = (ResourceRecord(name=name, kind=kind, policy="packed"),)
        cluster.node(kind, recorded(gpu(kind, 0, count, resource=name, unit_mib=0, mode="time-slicing"), kinds=kinds))
    mig = "nvidia.com/mig-1g.10gb"
    instances = [gpu("mig", 0, 1, uuid=f"MIG-{n}", resource=mig, unit_mib=0, profile="1g.10gb") for n in range(3)]
    cluster.node("mig", recorded(*instances, kinds=(ResourceRecord(name=mig, kind="gpus"),)))
    cluster.node("shared", recorded(gpu("shared", 0, 30720, unit_mib=1)))
    text = shown(cluster)
    headers = [line.split()[-1] for line in text.splitlines() if line.startswith("NAME")]
    assert headers == ["Memory(MiB)", "Units(replicas)", "Units(slices)", "Units(GPUs)"]
    assert [line for line in text.splitlines() if line.startswith("nvidia.com/")] == [
        "nvidia.com/gpu: replicas",
        "nvidia.com/gpu-10gb: slices",
        "nvidia.com/mig-1g.10gb: whole GPUs",
    ]
    assert "mig   10.0.0.3   0/3                    0/3" in text
    assert "MIG 1g.10gb" in shown(cluster, wide)


def test_nodes_of_aliyuns_plugin_are_shown_by_their_indices() -> None:
    """The node has plain capacity; the annotations of Aliyun's tools place its pods.

    ConfigMaps that cordon GPUs there are not read, which is said once.
    """
    cluster = Cluster()
    cluster.plain("old", 30, 2)
    cluster.account.put_pod(pod(memory(6), "old", annotations={ALIYUN_INDEX: "1"}))
    assert shown(cluster).splitlines()[:2] == [
        "NAME  IPADDRESS  GPU0(Allocated/Total)  GPU1(Allocated/Total)  GPU Memory(GiB)",
        "old   10.0.0.1   0/15                   6/15                   6/30",
    ]
    assert shown(cluster).splitlines()[-1] == CORDONS_NOT_READ
    cluster.plain("older", 30, 2)
    assert shown(cluster, wide).count(CORDONS_NOT_READ) == 1


def test_nodes_without_gpus_are_left_out() -> None:
    """Only nodes that have to do with GPUs are shown; one whose record cannot be read is, with the reason."""
    cluster = Cluster()
    cluster.plain("cpu", 0, 0)
    assert shown(cluster) == "\n"


def test_many_remarks_are_cut_and_counted() -> None:
    """Below a summary stand 20 sentences at most; wide has all."""
    cluster = Cluster()
    for number in range(25):
        cluster.node(f"n{number:02}", recorded(gpu(f"n{number:02}", 0, healthy=False, reason="XID 79")))
    assert shown(cluster).splitlines()[-1] == "… and 5 more; -o wide shows all"
    assert shown(cluster).count("unhealthy: XID 79") == 20
    assert shown(cluster, wide).count("unhealthy: XID 79") == 25


@pytest.mark.parametrize(
    ("width", "first"),
    [
        (200, "NAME   IPADDRESS  GPU0(Allocated/Total)  GPU1(Allocated/Total)  GPU Memory(GiB)"),
        (60, "NAME   IPADDRESS  GPU0  GPU1  GPU Memory(GiB)"),
        (45, "NAME   IPADDRESS  GPU0  GPU1  GPU Memory(GiB)"),
        (40, "NAME   GPU0  GPU1  GPU Memory(GiB)"),
        (20, "NAME             gpu-1"),
    ],
)
def test_a_narrow_terminal_breaks_no_name(width: int, first: str) -> None:
    """Headers get shorter, then columns are left out, then each value has a line; nothing is cut."""
    text = shown(two_nodes(), style=Style(width))
    assert text.splitlines()[0] == first
    assert "gpu-1" in text
    assert "9/45 (20%)" in text


def test_a_terminal_shows_bars_and_bold_headers() -> None:
    """Bars are left out first where there is no room."""
    lines = shown(two_nodes(), style=Style(200, bold=True, bars=True)).splitlines()
    assert lines[0].startswith("\x1b[1mNAME")
    assert lines[1].endswith("9/30             ███░░░░░░░")
    assert "█" not in shown(two_nodes(), style=Style(50, bars=True))
    assert shown(two_nodes(), wide, Style(10, bars=True)).count("░") == 6 + 8 + 10


def test_a_bar_is_empty_only_at_nothing_and_full_only_at_everything() -> None:
    """One unit of many is seen, one that is left as well; a GPU over its capacity has no longer bar."""
    assert [bar(0, 100), bar(1, 100), bar(99, 100), bar(100, 100), bar(120, 100), bar(3, 0)] == [
        "░░░░░░░░░░",
        "█░░░░░░░░░",
        "█████████░",
        "██████████",
        "██████████",
        "█░░░░░░░░░",
    ]


def test_json_has_all_that_the_tables_have() -> None:
    """The same as data: each node, resource, GPU and pod, with keys as in the annotation."""
    data = json.loads(encode(troubled().report))
    assert data["version"] == 1
    first, second = data["nodes"]
    assert (first["ready"], first["cordoned"], first["notOffered"][0]["index"]) == (False, False, 3)
    assert second["resources"][0]["unplaced"] == [
        {"namespace": "default", "pod": "nowhere", "units": 2, "state": "unplaced", "drift": False, "limits": []}
    ]
    over = second["resources"][0]["gpus"][1]
    assert (over["allocated"], over["units"], over["over"], over["free"]) == (17, 15, 2, 0)
    moved = {"namespace": "default", "pod": "moved", "units": 5, "state": "allocated", "drift": True, "limits": []}
    assert over["pods"][0] == moved


def test_a_table_without_rows_shows_its_headers() -> None:
    """Nothing needs a row."""
    assert list(Table(("A", "B"), []).lines(Style(80))) == ["A  B"]
