"""Tests of `gpushare_plugin.observe.node`: what a node shares and who holds what, as data and as tables."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from rich.console import Console

from gpushare_plugin.base.structs import replace
from gpushare_plugin.core.effect import IN_EFFECT, Effect, not_in_effect, unknown
from gpushare_plugin.core.gpu import FailedGpu, Inventory
from gpushare_plugin.core.holding import Holding, Unknown
from gpushare_plugin.core.resource import Resource, Standing, Units
from gpushare_plugin.core.snapshot import Snapshot
from gpushare_plugin.core.usage import ContainerUsage, GpuUsage, Process, Stowaway, Usage
from gpushare_plugin.observe.node.report import NodeReport, ReportError, Use, decode, report
from gpushare_plugin.observe.node.tables import bar, show, usage_tables
from gpushare_plugin.observe.parts import encode
from tests.nodes import a_gpu, a_mig_node
from tests.snapshots import snapshot
from tests.unit.core.claimed import claim, device, shown, with_claims
from tests.unit.sharing.settings import GPU_MEM, memory, planned, time_slicing

SHARED_GPU = "nvidia.com/gpu.shared"

NODE = Inventory(
    cards=(a_gpu(0), a_gpu(1, 15360, numa_node=1), a_gpu(2), a_gpu(3), a_gpu(4, mig_enabled=True)),
    failed=(FailedGpu(5, "GPU is lost", "GPU-lost"), FailedGpu(6, "Unknown Error")),
    driver_version="570.86.15",
    cuda_version=(12, 8),
)
SHARING = memory(devices=[0, 1]) | time_slicing(
    {"name": "nvidia.com/gpu", "rename": SHARED_GPU, "devices": [2], "replicas": 4}
)


@pytest.fixture
def resources() -> tuple[Resource, ...]:
    """Share the node's GPUs in every way there is."""
    return planned(NODE, sharing=SHARING).resources


def ids(resources: tuple[Resource, ...], name: str, gpu: int, count: int, first: int = 0) -> frozenset[str]:
    """Return so many unit IDs of a GPU."""
    (resource,) = [each for each in resources if each.name == name]
    units = sorted((unit for unit in resource.units.values() if unit.gpu == a_gpu(gpu).uuid), key=lambda u: u.number)
    return frozenset(unit.id for unit in units[first : first + count])


def reported(inventory: Inventory, resources: tuple[Resource, ...], holdings: Sequence[Holding] | None) -> NodeReport:
    """Report on a node with these resources, of which containers hold these units; None where that is not known."""
    return report(Snapshot(inventory, resources, holdings=Unknown() if holdings is None else tuple(holdings)))


@pytest.fixture
def node(resources: tuple[Resource, ...]) -> NodeReport:
    """Report on a node where some pods run."""
    holdings = [
        Holding("team", "a", "main", GPU_MEM, ids(resources, GPU_MEM, 0, 5)),
        Holding("team", "a", "side", GPU_MEM, ids(resources, GPU_MEM, 0, 1, first=5)),
        Holding("default", "b", "main", GPU_MEM, ids(resources, GPU_MEM, 1, 15)),
        Holding("default", "c", "main", SHARED_GPU, ids(resources, SHARED_GPU, 2, 2)),
        Holding("default", "d", "main", "example.com/other", frozenset({"another plugin's"})),
    ]
    return reported(NODE, resources, holdings)


def text(node: NodeReport, width: int = 200, *, wide: bool = False) -> list[str]:
    """Print a node and return the lines."""
    console = Console(width=width)
    with console.capture() as capture:
        show(console, node, wide=wide)
    return [line.rstrip() for line in capture.get().splitlines()]


def gpu_lines(node: NodeReport, width: int = 200, *, wide: bool = False) -> list[str]:
    """Return the lines of the table of GPUs."""
    lines = text(node, width, wide=wide)
    return lines[: lines.index("")] if "" in lines else lines


def use(namespace: str, pod: str, container: str, units: int) -> Use:
    """Return what a container holds."""
    return Use(namespace=namespace, pod=pod, container=container, units=units)


def data_of(node: NodeReport) -> Any:
    """Return a report as anyone reads it."""
    return json.loads(encode(node))


def test_every_gpu_has_its_units_and_its_users(node: NodeReport) -> None:
    """Units are counted to the GPU their ID names, and to the container that holds them."""
    assert [(gpu.resource, gpu.units, gpu.unit_mib, gpu.used) for gpu in node.gpus] == [
        (GPU_MEM, 40, 1024, 6),
        (GPU_MEM, 15, 1024, 15),
        (SHARED_GPU, 4, None, 2),
        ("nvidia.com/gpu", 1, None, 0),
        ("nvidia.com/gpu", 1, None, 0),
    ]
    assert node.gpus[0].uses == (use("team", "a", "main", 5), use("team", "a", "side", 1))
    assert node.gpus[2].uses == (use("default", "c", "main", 2),)


def test_a_container_can_hold_units_of_several_gpus(resources: tuple[Resource, ...]) -> None:
    """Time slices of one request may sit on more than one GPU; each GPU shows its own."""
    both = Holding("n", "p", "c", GPU_MEM, ids(resources, GPU_MEM, 0, 2) | ids(resources, GPU_MEM, 1, 3))
    seen = reported(NODE, resources, [both])
    assert [gpu.uses for gpu in seen.gpus[:2]] == [(use("n", "p", "c", 2),), (use("n", "p", "c", 3),)]


def test_a_gpu_of_several_resources_has_a_line_for_each() -> None:
    """Slices of each size are counted to their own resource."""
    slices = [{"size": "10gb", "count": 2}, {"size": "20gb"}]
    resources = planned(Inventory((a_gpu(0),)), sharing={"mps": {"sizes": [{"slices": slices}]}}).resources
    holding = Holding("n", "p", "c", "nvidia.com/gpu-10gb", ids(resources, "nvidia.com/gpu-10gb", 0, 1))
    seen = reported(Inventory((a_gpu(0),)), resources, [holding])
    assert [(gpu.resource, gpu.units, gpu.unit_mib, gpu.used) for gpu in seen.gpus] == [
        ("nvidia.com/gpu-10gb", 2, 10240, 1),
        ("nvidia.com/gpu-20gb", 1, 20480, 0),
    ]


def test_data_holds_everything_and_is_json(node: NodeReport) -> None:
    """The data names what cannot be misread: MiB, versions as text, nothing where nothing applies."""
    data = data_of(node)
    assert (data["driverVersion"], data["cudaVersion"]) == ("570.86.15", "12.8")
    assert data["failed"] == [
        {"index": 5, "reason": "GPU is lost", "uuid": "GPU-lost", "lost": False, "number": None},
        {"index": 6, "reason": "Unknown Error", "uuid": None, "lost": False, "number": None},
    ]
    assert data["gpus"][1] == {
        "index": 1,
        "uuid": a_gpu(1).uuid,
        "name": "NVIDIA A100-SXM4-40GB",
        "minor": 1,
        "computeCapability": "8.0",
        "memoryMiB": 15360,
        "pciBusId": "00000000:02:00.0",
        "numaNode": 1,
        "migEnabled": False,
        "mig": None,
        "resource": GPU_MEM,
        "mode": "memory",
        "isolation": "none",
        "isolationReasons": [],
        "isolationListed": False,
        "cdiDevice": None,
        "units": 15,
        "unitMiB": 1024,
        "retired": 0,
        "used": 15,
        "uses": [
            {
                "namespace": "default",
                "pod": "b",
                "container": "main",
                "units": 15,
                "memoryLimitMiB": None,
                "memoryUsedMiB": None,
                "utilization": None,
                "overLimit": False,
                "limitEffect": None,
            }
        ],
        "health": "unknown",
        "state": "planned",
        "reason": None,
        "cordon": None,
        "waiting": None,
        "memoryUsedMiB": None,
        "utilization": None,
        "processes": None,
        "foreignProcesses": [],
        "usageUnknown": None,
    }
    assert (data["gpus"][0]["numaNode"], data["gpus"][2]["unitMiB"], data["gpus"][3]["uses"]) == (None, None, [])


class TestUsage:
    """What GPUs and containers use."""

    @pytest.fixture
    def node(self, resources: tuple[Resource, ...]) -> NodeReport:
        """Report on a GPU that a container uses too much of, and a process that should not be there."""
        uuid, gib = a_gpu(0).uuid, 1 << 30
        holding = Holding("team", "a", "main", GPU_MEM, ids(resources, GPU_MEM, 0, 5))
        processes, stowaway = (Process(5), Process(6), Process(7)), Stowaway(uuid, 7, "miner", memory=gib)
        usage = Usage(
            (GpuUsage(uuid, 40 * gib, 9 * gib, 0.75, processes, stowaways=(stowaway,)),),
            (ContainerUsage("team", "a", "main", "uid", uuid, GPU_MEM, 5, 5 * gib, 8 * gib, 0.5, 2),),
        )
        return report(Snapshot(NODE, resources, holdings=(holding,), usage=usage))

    def test_data_has_what_gpus_and_containers_use(self, node: NodeReport) -> None:
        """A GPU has its sums, each container its own part, and processes out of place are listed."""
        gpu = data_of(node)["gpus"][0]
        assert (gpu["memoryUsedMiB"], gpu["utilization"], gpu["processes"]) == (9216, 0.75, 3)
        assert gpu["foreignProcesses"] == [{"pid": 7, "program": "miner", "whose": "the host", "memoryUsedMiB": 1024}]
        (container,) = gpu["uses"]
        assert (container["memoryLimitMiB"], container["memoryUsedMiB"]) == (5120, 8192)
        assert (container["utilization"], container["overLimit"]) == (0.5, True)

    def test_wide_tables_show_what_is_in_use(self, node: NodeReport) -> None:
        """Columns have the numbers; who uses too much, and who should not be there, is a sentence in any table."""
        lines = text(node, wide=True)
        assert "9216 MiB 75%" in " ".join(lines[1].split())
        for sentence in (
            "GPU 0: team/a (main) uses 8192 MiB, and may use 5120 MiB",
            "GPU 0: process 7 (miner) of the host holds no units and no claim of it, and uses 1024 MiB",
        ):
            assert sentence in text(node)
        (row,) = (line for line in lines if " team " in line)
        assert row.split() == ["0", "team", "a", "main", GPU_MEM, "5", "5120", "MiB", "8192", "MiB", "50%"]


@pytest.mark.parametrize(
    ("effect", "cell", "sentence"),
    [
        (IN_EFFECT, "in effect", None),
        (Effect("in effect since", seconds=12.4), "in effect since 12 s after the start", None),
        (unknown("nobody knows"), "unknown", None),
        (
            not_in_effect("it escaped"),
            "not in effect",
            "GPU 0: the limit of team/a (main) is not in effect: it escaped",
        ),
    ],
)
def test_a_limit_that_is_not_in_effect_is_said(
    resources: tuple[Resource, ...], effect: Effect, cell: str, sentence: str | None
) -> None:
    """The wide table and the data have the state of each limit; one not in effect is a sentence in any table."""
    uuid = a_gpu(0).uuid
    holding = Holding("team", "a", "main", GPU_MEM, ids(resources, GPU_MEM, 0, 5))
    used = ContainerUsage("team", "a", "main", "uid", uuid, GPU_MEM, 5, 5 << 30, effect=effect)
    node = report(Snapshot(NODE, resources, holdings=(holding,), usage=Usage(containers=(used,))))
    (use,) = data_of(node)["gpus"][0]["uses"]
    assert use["limitEffect"] == {"state": effect.state, "reason": effect.reason or None, "seconds": effect.seconds}
    (row,) = (line for line in text(node, wide=True) if " team " in line)
    assert row.rstrip().endswith(f"  {cell}")
    assert [line for line in text(node) if "limit of" in line] == ([sentence] if sentence else [])


def test_a_reason_why_limits_are_unknown_is_said_once(resources: tuple[Resource, ...]) -> None:
    """Below the wide table, one sentence for each reason, with the containers."""
    uuid = a_gpu(0).uuid
    names = {"a": "no IDs", "b": "no IDs", "c": "no tree"}
    holdings = tuple(
        Holding("team", pod, "main", GPU_MEM, frozenset({unit}))
        for pod, unit in zip(names, sorted(ids(resources, GPU_MEM, 0, 3)), strict=True)
    )
    used = tuple(
        ContainerUsage("team", pod, "main", "uid", uuid, GPU_MEM, 1, 1 << 30, effect=unknown(reason))
        for pod, reason in names.items()
    )
    node = report(Snapshot(NODE, resources, holdings=holdings, usage=Usage(containers=used)))
    assert text(node, wide=True)[-2:] == [
        "It is unknown whether the limit is in effect for team/a (main), team/b (main): no IDs",
        "It is unknown whether the limit is in effect for team/c (main): no tree",
    ]
    assert not any("unknown whether" in line for line in text(node))


class TestClaims:
    """What prepared claims have of GPUs."""

    def seen(self, effect: Effect | None = None, trouble: str = "") -> NodeReport:
        """Return the report of a node with a share under MPS that is in use, and a whole GPU that is not done yet."""
        made = snapshot(memory(isolation="mps"), 8192, 8192, dra={})
        share, whole = device(made, 2048), device(made, 8192, way="whole", gpu=1)
        made = with_claims(made, claim("mine", share, users=("a",)), claim("other", whole, done=False))
        used = ContainerUsage(
            *("default", "a", "main", "uid-a", share.gpu, "claim:mine", 1, 2 << 30, 1 << 30),
            claimed=(share,),
            effect=effect,
        )
        assert made.claims is not None
        return report(
            replace(
                made,
                claims=replace(made.claims, trouble=trouble),
                holdings=(shown(made, "a", "mine"),),
                usage=Usage(containers=(used,)),
            ),
            "daemon",
        )

    def test_a_row_says_who_has_what_by_a_claim(self) -> None:
        """GPU, claim, request, pods, memory, and what keeps the limit; a claim that is not done is said to be so."""
        lines = text(self.seen(Effect("in effect")))
        (headers,) = (line.split() for line in lines if "CLAIM" in line)
        assert headers[:6] == ["GPU", "NAMESPACE", "CLAIM", "REQUEST", "PODS", "MEMORY"]
        rows = [" ".join(line.split()) for line in lines if " default " in line]
        assert rows == [
            "0 default mine gpu a 2048 MiB - - mps prepared in effect",
            "1 default other gpu - 8192 MiB - - none not done yet -",
        ]

    def test_a_wide_row_says_what_is_in_use(self) -> None:
        """The memory in use is that of the containers of the claim."""
        (row,) = (line for line in text(self.seen(), wide=True) if " mine " in line)
        assert "1024 MiB" in row
        assert a_gpu(0).uuid in row

    def test_trouble_is_said_in_sentences(self) -> None:
        """A limit that is not in effect, and ResourceSlices that are not as they should be."""
        node = self.seen(not_in_effect("a process escaped"), "the gate is off")
        assert "GPU 0: the limit of default/a (main) is not in effect: a process escaped" in text(node)
        assert "Claims: the gate is off" in text(node)

    def test_a_node_without_claims_has_none(self, node: NodeReport) -> None:
        """Where no GPU is given by claim, the data says that there are no claims to show."""
        assert data_of(node)["claims"] is None


def test_unknown_holdings_are_not_shown_as_zero(resources: tuple[Resource, ...]) -> None:
    """Without the kubelet it is unknown who holds what, which is not the same as nothing being held."""
    unknown = reported(NODE, resources, None)
    assert [gpu["used"] for gpu in data_of(unknown)["gpus"]] == [None] * 5
    assert "?/40" in text(unknown)[1]
    assert [gpu["used"] for gpu in data_of(reported(NODE, resources, []))["gpus"]] == [0] * 5


def test_the_table_shows_every_gpu(node: NodeReport) -> None:
    """One line for each GPU and unresponsive ones at the end; below are the reasons."""
    lines = gpu_lines(node)
    assert lines[0].split() == ["GPU", "NAME", "MEMORY", "UNIT", "RESOURCE", "USED", "HEALTH", "STATE"]
    assert len(lines) == 8
    assert lines[1].split()[-8:] == ["40960", "MiB", "1024", "MiB", GPU_MEM, "6/40", "unknown", "planned"]
    assert lines[3].split()[-6:] == ["MiB", "-", SHARED_GPU, "2/4", "unknown", "planned"]
    assert lines[6].split() == ["5", "-", "-", "-", "-", "-", "unhealthy", "unresponsive"]
    assert "GPU 5: unresponsive: GPU is lost" in text(node)
    assert "GPU 6: unresponsive: Unknown Error" in text(node)


def test_wide_has_every_column(node: NodeReport) -> None:
    """`-o wide` adds how GPUs are shared, and their UUIDs."""
    lines = gpu_lines(node, wide=True)
    assert lines[0].split()[-2:] == ["MODE", "UUID"]
    assert [line.split()[-2:] for line in lines[1:4]] == [
        ["memory", a_gpu(0).uuid],
        ["memory", a_gpu(1).uuid],
        ["time-slicing", a_gpu(2).uuid],
    ]
    assert lines[6].split()[-1] == "GPU-lost"


def test_a_gpu_in_no_resource_is_not_offered() -> None:
    """The table says so of a GPU that is in no resource, and that is as configured."""
    lines = gpu_lines(reported(replace(NODE, failed=()), (), []))
    assert lines[1].split()[-5:] == ["-", "-", "unknown", "not", "offered"]
    assert reported(replace(NODE, failed=()), (), []).as_configured


def test_a_narrow_terminal_gets_fewer_columns(resources: tuple[Resource, ...]) -> None:
    """What has no room is left out, memory before names; with too little room each value has its line."""
    node = reported(replace(NODE, failed=()), resources, [])
    for width, columns in ((110, 8), (90, 7), (80, 6), (60, 5)):
        lines = gpu_lines(node, width)
        assert len(lines[0].split()) == columns
        assert len(lines) == 1 + len(NODE.cards)
        assert max(map(len, lines)) <= width
    assert text(node, 80)[-1] == "The terminal is too narrow for MEMORY, UNIT: widen the terminal, or use -o json."
    assert "too narrow" not in "".join(text(node, 110) + text(node, 40))
    narrow = text(node, 40)
    assert narrow[:3] == ["GPU       0", "NAME      NVIDIA A100-SXM4-40GB", "MEMORY    40960 MiB"]


def test_no_name_is_broken_or_cut(node: NodeReport) -> None:
    """Whatever the width, each name stands in one line, though a name alone may be longer than that."""
    for width in (10, 20, 40, 80, 120):
        for wide in (False, True):
            lines = text(node, width, wide=wide)
            words = {word for line in lines for word in line.split()}
            assert {GPU_MEM, SHARED_GPU, "nvidia.com/gpu", "team", "default"} <= words
            assert not any("…" in line for line in lines)


def test_the_users_are_listed_gpu_by_gpu(node: NodeReport) -> None:
    """One line a container and GPU, at the end."""
    assert [line.split() for line in text(node)[-5:]] == [
        ["GPU", "NAMESPACE", "POD", "CONTAINER", "RESOURCE", "UNITS"],
        ["0", "team", "a", "main", GPU_MEM, "5"],
        ["0", "team", "a", "side", GPU_MEM, "1"],
        ["1", "default", "b", "main", GPU_MEM, "15"],
        ["2", "default", "c", "main", SHARED_GPU, "2"],
    ]


def test_the_demonstration_shows_a_bar_for_each_gpu(node: NodeReport) -> None:
    """The bars are how full the GPUs are."""
    console = Console(width=80)
    with console.capture() as capture:
        console.print(next(usage_tables(node)))
    lines = capture.get().splitlines()
    assert [lines[number].split()[-1] for number in (1, 2)] == ["█░░░░░░░░░", "██████████"]


class TestStates:
    """What a running daemon knows of its GPUs."""

    node = replace(NODE, failed=(FailedGpu(0, "GPU is lost", a_gpu(0).uuid, lost=True),))

    def snapshot(self, resources: tuple[Resource, ...]) -> Snapshot:
        """Return a node where all is registered."""
        standings = {resource.name: Standing(True, 0, {}) for resource in resources}  # noqa: FBT003 - as it is named
        return Snapshot(self.node, resources, standings=standings, holdings=())

    def test_a_gpu_that_is_given_by_claim_is_as_configured(self) -> None:
        """It has no units, and is told from a GPU that the config leaves out."""
        decided = planned(self.node, dra={"devices": [0]})
        snapshot = replace(self.snapshot(decided.resources), by_claim=decided.by_claim)
        seen = report(snapshot, "daemon")
        assert [gpu.state for gpu in seen.gpus] == ["by claim", *["available"] * (len(seen.gpus) - 1)]
        assert seen.as_configured

    def test_every_gpu_has_a_state_of_its_own(self, resources: tuple[Resource, ...]) -> None:
        """Faults, cordons and waiting are told apart, and a fault wins where there is one reason to name."""
        snapshot = replace(
            self.snapshot(resources),
            unhealthy={a_gpu(0).uuid: "GPU is lost", a_gpu(2).uuid: "XID 79"},
            cordoned={a_gpu(1).uuid: "cordoned by annotation", a_gpu(2).uuid: "cordoned by annotation"},
            waiting={a_gpu(3).uuid: "changes its mode soon"},
        )
        seen = report(snapshot, "daemon")
        assert [(gpu.health, gpu.state, gpu.reason) for gpu in seen.gpus] == [
            ("unhealthy", "unavailable", "GPU is lost"),
            ("healthy", "cordoned", "cordoned by annotation"),
            ("unhealthy", "cordoned", "XID 79"),
            ("healthy", "waiting", "changes its mode soon"),
            ("healthy", "available", None),
        ]
        assert (seen.failed, seen.as_configured) == ((), False)
        lines = text(seen)
        assert "GPU 0: unhealthy: GPU is lost" in lines
        assert lines.index("GPU 2: unhealthy: XID 79") + 1 == lines.index("GPU 2: cordoned by annotation")

    def test_a_gpu_that_waits_has_that_for_its_mode(self) -> None:
        """While pods hold units of the mode before, the GPU has no units in any mode; one that is left out has none."""
        snapshot = Snapshot(self.node, (), waiting={a_gpu(1).uuid: "waits for pods"})
        rows = [line.split() for line in text(report(snapshot, "daemon"), wide=True)]
        mode = {row[0]: "waiting" in row[-2:] for row in rows if row and row[0] in {"0", "1"}}
        assert mode == {"0": False, "1": True}

    def test_a_node_without_trouble_is_as_configured(self, resources: tuple[Resource, ...]) -> None:
        """Nothing is said, for there is nothing to say; what is not registered is not available."""
        snapshot = self.snapshot(resources)
        seen = report(snapshot, "daemon")
        assert ({gpu.state for gpu in seen.gpus}, seen.as_configured) == ({"available"}, True)
        assert len(text(seen)) == 1 + len(NODE.cards)
        alone = report(replace(snapshot, standings={}), "daemon")
        assert ({gpu.state for gpu in alone.gpus}, alone.as_configured) == ({"unregistered"}, False)

    def test_retired_units_stay_with_their_resource(self, resources: tuple[Resource, ...]) -> None:
        """What a resource lists for pods that hold it is counted apart from what it offers."""
        (shared,) = [each for each in resources if each.name == GPU_MEM]
        old = Units({gpu: units[:3] for gpu, units in shared.units.by_gpu.items() if gpu.index == 1})
        kept = Units({gpu: units for gpu, units in shared.units.by_gpu.items() if gpu.index == 0})
        held = Holding("n", "p", "c", GPU_MEM, frozenset(list(old.by_id)[:2]))
        snapshot = self.snapshot((replace(shared, units=kept, retired=old.by_id),))
        seen = report(replace(snapshot, holdings=(held,)), "daemon")
        assert [(gpu.units, gpu.retired, gpu.used, gpu.state) for gpu in seen.gpus[:2]] == [
            (40, 0, 0, "available"),
            (0, 3, 2, "retired"),
        ]
        assert f"GPU 1: 3 units of {GPU_MEM} retired: no new pod gets them" in text(seen)

    def test_a_daemon_that_is_not_ready_says_why(self, resources: tuple[Resource, ...]) -> None:
        """What the readiness probe says is shown, too, and it counts."""
        seen = report(self.snapshot(resources), "daemon", problems=["it is not known yet which units pods hold"])
        assert "Not ready: it is not known yet which units pods hold" in text(seen)
        assert not seen.as_configured

    def test_warnings_are_shown_as_on_the_node(self, resources: tuple[Resource, ...]) -> None:
        """As they are in the annotation of the Node."""
        seen = report(replace(self.snapshot(resources), notices=("configuration rejected: x",)), "daemon")
        assert "Warning: configuration rejected: x" in text(seen)


def test_a_report_is_read_as_it_was_written(node: NodeReport) -> None:
    """What is written is what is read."""
    assert decode(encode(node).encode()) == node


@pytest.mark.parametrize(
    ("wrong", "found"),
    [
        (b"", "it is not JSON, or not all of it"),
        (b"\xff", "it is not JSON, or not all of it"),
        (b"[]", "it is no mapping"),
        (b'{"version": 2, "gpus": []}', "it is a report of version 2"),
        (b'{"version": "2"}', "it is a report of version '2'"),
        (b"{}", "it has no gpus"),
        (b'{"gpus": [{"index": "x"}]}', "its gpus.0.index is 'x'"),
    ],
    ids=["nothing", "bytes", "list", "newer", "text", "empty", "index"],
)
def test_an_unreadable_report_is_told_in_our_words(wrong: bytes, found: str) -> None:
    """The first mistake and its place, without the words of the library that found it."""
    with pytest.raises(ReportError) as raised:
        decode(wrong)
    assert str(raised.value) == f"{found}, expected a report of version 1"


@pytest.mark.parametrize(
    ("used", "total", "filled"), [(0, 40, 0), (1, 400, 1), (20, 40, 5), (39, 40, 9), (40, 40, 10), (0, 0, 0)]
)
def test_a_bar_shows_any_use_at_all(used: int, total: int, filled: int) -> None:
    """Tenths, never nothing for something, and full only where nothing is left."""
    assert bar(used, total).plain == "█" * filled + "░" * (10 - filled)


class TestMig:
    """How cards in MIG mode and their instances are shown."""

    node = replace(a_mig_node(("3g.20gb", "1g.5gb"), (), None), failed=(FailedGpu(0, "Unknown Error", number=2),))

    def shown(self, strategy: str) -> NodeReport:
        """Report on the node under a strategy, without any pod."""
        return reported(self.node, planned(self.node, flags={"migStrategy": strategy}).resources, [])

    def test_instances_follow_their_card(self) -> None:
        """A card whose instances are offered is shown as MIG instances; an instance is named by profile and number."""
        lines = [line.split() for line in gpu_lines(self.shown("mixed"))]
        assert [line[0] for line in lines] == ["GPU", "0", "0:0", "0:1", "1", "2", "0:2"]
        assert lines[1][6:8] == ["MIG", "instances"]
        assert lines[2][1:7] == ["NVIDIA", "A100-SXM4-40GB", "MIG", "3g.20gb", "4864", "MiB"]
        assert lines[2][7:9] == ["-", "nvidia.com/mig-3g.20gb"]
        assert lines[4][-2:] == ["not", "offered"]
        assert lines[6][-1] == "unresponsive"

    def test_instances_of_a_card_that_is_offered_whole_are_not_shown(self) -> None:
        """A container gets them with the card."""
        assert [gpu.label for gpu in self.shown("none").gpus] == ["0", "1", "2"]

    def test_the_user_of_an_instance_is_shown_with_the_instance(self) -> None:
        """A unit is counted to the instance its ID names."""
        resources = planned(self.node, flags={"migStrategy": "mixed"}).resources
        uuid = self.node.instances[1].uuid
        seen = reported(self.node, resources, [Holding("n", "p", "c", "nvidia.com/mig-1g.5gb", frozenset({uuid}))])
        assert [gpu.label for gpu in seen.gpus if gpu.used] == ["0:1"]
        assert text(seen)[-1].split()[0] == "0:1"

    def test_the_data_describes_an_instance(self) -> None:
        """Where it is on which card, beside what every GPU has."""
        data = data_of(self.shown("mixed"))
        assert data["gpus"][0]["mig"] is None
        assert data["gpus"][2]["mig"] == {
            "parent": a_gpu(0).uuid,
            "number": 1,
            "profile": "1g.5gb",
            "gpuInstance": 8,
            "computeInstance": 0,
        }
