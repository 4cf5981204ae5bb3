"""Tests of `gpushare_plugin.inspect`: what a node shares and who holds what, as data and as tables."""

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest
from rich.console import Console
from rich.table import Table

from gpushare_plugin.inspect.report import NodeReport, Use, as_data, report
from gpushare_plugin.inspect.tables import bar, gpu_table, use_table
from gpushare_plugin.model.gpu import FailedGpu, Inventory
from gpushare_plugin.model.resource import Resource
from gpushare_plugin.model.snapshot import Snapshot
from gpushare_plugin.model.standing import Holding
from tests.nodes import a_gpu, a_mig_node
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
    return report(Snapshot(inventory, resources, holdings=None if holdings is None else tuple(holdings)))


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


def text(table: Table, width: int = 200) -> list[str]:
    """Print a table and return its lines."""
    console = Console(width=width)
    with console.capture() as capture:
        console.print(table)
    return [line.rstrip() for line in capture.get().splitlines()]


def test_each_gpu_has_its_units_and_its_users(node: NodeReport) -> None:
    """Units are counted to the GPU their ID names, and to the container that holds them."""
    assert [(gpu.resource, gpu.units, gpu.unit_mib, gpu.used) for gpu in node.gpus] == [
        (GPU_MEM, 40, 1024, 6),
        (GPU_MEM, 15, 1024, 15),
        (SHARED_GPU, 4, 0, 2),
        ("nvidia.com/gpu", 1, 0, 0),
        ("nvidia.com/gpu", 1, 0, 0),
    ]
    assert node.gpus[0].uses == (Use("team", "a", "main", 5), Use("team", "a", "side", 1))
    assert node.gpus[2].uses == (Use("default", "c", "main", 2),)


def test_one_container_can_hold_units_of_several_gpus(resources: tuple[Resource, ...]) -> None:
    """Time slices of one request may sit on more than one GPU; each GPU shows its own."""
    both = Holding("n", "p", "c", GPU_MEM, ids(resources, GPU_MEM, 0, 2) | ids(resources, GPU_MEM, 1, 3))
    seen = reported(NODE, resources, [both])
    assert [gpu.uses for gpu in seen.gpus[:2]] == [(Use("n", "p", "c", 2),), (Use("n", "p", "c", 3),)]


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
    data = json.loads(json.dumps(as_data(node)))
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
        "units": 15,
        "unitMiB": 1024,
        "used": 15,
        "uses": [{"namespace": "default", "pod": "b", "container": "main", "units": 15}],
    }
    assert (data["gpus"][0]["numaNode"], data["gpus"][2]["unitMiB"], data["gpus"][3]["uses"]) == (None, None, [])


def test_what_is_not_known_is_not_zero(resources: tuple[Resource, ...]) -> None:
    """Without the kubelet it is unknown who holds what, which is not the same as nothing being held."""
    unknown = reported(NODE, resources, None)
    assert [gpu["used"] for gpu in json.loads(json.dumps(as_data(unknown)))["gpus"]] == [None] * 5
    assert "?/40" in text(gpu_table(unknown))[1]
    assert not any("░" in line for line in text(gpu_table(unknown)))
    assert [gpu["used"] for gpu in json.loads(json.dumps(as_data(reported(NODE, resources, []))))["gpus"]] == [0] * 5


def test_the_table_shows_every_gpu(node: NodeReport) -> None:
    """One line for each GPU, a bar of its use, and unresponsive ones at the end with the reason."""
    lines = text(gpu_table(node))
    assert lines[0].split() == ["GPU", "NAME", "MEMORY", "RESOURCE", "USED", "UUID"]
    assert len(lines) == 8
    assert lines[1].split() == [
        *("0", "NVIDIA", "A100-SXM4-40GB", "40960", "MiB"),
        *(GPU_MEM, "6/40", "█░░░░░░░░░", a_gpu(0).uuid),
    ]
    assert "15/15" in lines[2]
    assert "██████████" in lines[2]
    assert lines[6].split() == ["5", "unresponsive:", "GPU", "is", "lost", "not", "offered", "GPU-lost"]
    assert "unresponsive: Unknown Error" in lines[7]


def test_a_gpu_in_no_resource_is_not_offered() -> None:
    """The table says so of a GPU that is in no resource."""
    lines = text(gpu_table(reported(NODE, (), [])))
    assert "not offered" in lines[1]
    assert "/" not in lines[1]


def test_without_uuids_the_table_fits_a_terminal(resources: tuple[Resource, ...]) -> None:
    """Eighty columns hold one line a GPU, with everything but the UUIDs."""
    lines = text(gpu_table(reported(replace(NODE, failed=()), resources, []), uuids=False), width=80)
    assert len(lines) == 1 + len(NODE.cards)
    assert not any(a_gpu(0).uuid in line for line in lines)


def test_the_users_are_listed_gpu_by_gpu(node: NodeReport) -> None:
    """One line a container and GPU."""
    assert [line.split() for line in text(use_table(node))] == [
        ["GPU", "NAMESPACE", "POD", "CONTAINER", "RESOURCE", "UNITS"],
        ["0", "team", "a", "main", GPU_MEM, "5"],
        ["0", "team", "a", "side", GPU_MEM, "1"],
        ["1", "default", "b", "main", GPU_MEM, "15"],
        ["2", "default", "c", "main", SHARED_GPU, "2"],
    ]


@pytest.mark.parametrize(
    ("used", "total", "filled"), [(0, 40, 0), (1, 400, 1), (20, 40, 5), (39, 40, 9), (40, 40, 10), (0, 0, 0)]
)
def test_the_picture_shows_any_use_at_all(used: int, total: int, filled: int) -> None:
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
        lines = [line.split() for line in text(gpu_table(self.shown("mixed"), uuids=False))]
        assert [line[0] for line in lines] == ["GPU", "0", "0:0", "0:1", "1", "2", "0:2"]
        assert lines[1][-2:] == ["MIG", "instances"]
        assert lines[2][1:8] == ["NVIDIA", "A100-SXM4-40GB", "MIG", "3g.20gb", "4864", "MiB", "nvidia.com/mig-3g.20gb"]
        assert lines[4][-2:] == ["not", "offered"]
        assert lines[6][1:4] == ["unresponsive:", "Unknown", "Error"]

    def test_instances_of_a_card_that_is_offered_whole_are_not_shown(self) -> None:
        """A container gets them with the card."""
        assert [gpu.gpu.label for gpu in self.shown("none").gpus] == ["0", "1", "2"]

    def test_an_instances_user_is_shown_with_it(self) -> None:
        """A unit is counted to the instance its ID names."""
        resources = planned(self.node, flags={"migStrategy": "mixed"}).resources
        uuid = self.node.instances[1].uuid
        seen = reported(self.node, resources, [Holding("n", "p", "c", "nvidia.com/mig-1g.5gb", frozenset({uuid}))])
        assert [gpu.gpu.label for gpu in seen.gpus if gpu.used] == ["0:1"]
        assert [line.split()[0] for line in text(use_table(seen))[1:]] == ["0:1"]

    def test_the_data_describes_an_instance(self) -> None:
        """Where it is on which card, beside what every GPU has."""
        data = json.loads(json.dumps(as_data(self.shown("mixed"))))
        assert data["gpus"][0]["mig"] is None
        assert data["gpus"][2]["mig"] == {
            "parent": a_gpu(0).uuid,
            "number": 1,
            "profile": "1g.5gb",
            "gpuInstance": 8,
            "computeInstance": 0,
        }
