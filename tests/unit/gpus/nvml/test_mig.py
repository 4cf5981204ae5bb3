"""Tests of `gpushare_plugin.gpus.nvml.mig`, with the real `pynvml` and a stand-in for NVIDIA's library."""

from pathlib import Path

import pytest

from gpushare_plugin.base.structs import replace
from gpushare_plugin.core.gpu import MOST_MEMORY_MIB, Inventory, MigAttributes, MigInstance
from gpushare_plugin.gpus.nvml.gpus import NvmlSource
from gpushare_plugin.testing.nvml import ErrorCode, FakeGpu, FakeMigInstance
from tests.unit.gpus.conftest import Node

MINORS = """\
config 1
monitor 2
gpu0/gi0/access 3
gpu0/gi0/ci0/access 4
gpu5/gi7/access 741
gpu5/gi7/ci0/access 742
gpu5/gi7/ci1/access 743
gpu5/gi17/access 831
something else 9
"""
HANDLE = "nvmlDeviceGetMigDeviceHandleByIndex"


@pytest.fixture
def source(tmp_path: Path) -> NvmlSource:
    """Make a source whose files of the kernel are below the test's own directory."""
    return NvmlSource(tmp_path / "driver-root", tmp_path / "sys", tmp_path / "proc")


def driver_tells(tmp_path: Path, minors: str) -> None:
    """Let the driver tell its capability device nodes."""
    folder = tmp_path / "proc/driver/nvidia-caps"
    folder.mkdir(parents=True)
    (folder / "mig-minors").write_text(minors)


def a_card(*instances: FakeMigInstance, memory_mib: int = 40960, minor: int | None = None) -> FakeGpu:
    """Describe a card in MIG mode with these instances."""
    return FakeGpu(memory_mib=memory_mib, minor=minor, mig_enabled=True, mig_instances=instances)


def profiles(inventory: Inventory) -> list[str]:
    """Return the profiles of all instances."""
    return [gpu.mig.profile for gpu in inventory.instances if gpu.mig]


def test_an_instance_is_its_card_but_for_what_is_its_own(describe: Node, source: NvmlSource, tmp_path: Path) -> None:
    """UUID, memory and profile are the instance's; index, minor, name, PCI and NUMA node its card's."""
    instance = FakeMigInstance(
        "1g.5gb", gpu_instance=7, compute_instance=0, copy_engines=1, decoders=2, encoders=3, jpegs=4, ofas=5
    )
    node = describe([FakeGpu(), a_card(instance, minor=5)])
    driver_tells(tmp_path, MINORS)
    folder = tmp_path / "sys/bus/pci/devices/0000:17:00.0"
    folder.mkdir(parents=True)
    (folder / "numa_node").write_text("1\n")
    inventory = source.read()
    (found,) = inventory.instances
    card = inventory.cards[1]
    attributes = MigAttributes(
        gpu_slices=1,
        compute_slices=1,
        multiprocessors=14,
        copy_engines=1,
        decoders=2,
        encoders=3,
        jpeg_decoders=4,
        optical_flow_accelerators=5,
    )
    mig = MigInstance(card.uuid, 0, "1g.5gb", 7, 0, (741, 742), attributes, start=0)
    assert found == replace(card, uuid=node.gpus[1].mig_instances[0].uuid, memory_mib=4864, mig=mig)
    assert (found.index, found.minor, found.numa_node, found.mig_enabled) == (1, 5, 1, True)
    assert (found.label, found.product) == ("1:0", "NVIDIA A100-SXM4-40GB MIG 1g.5gb")
    assert inventory.failed == ()


@pytest.mark.parametrize(
    ("memory_mib", "names"),
    [
        (40536, {"1g.5gb": 4864, "1g.5gb+me": 4864, "1g.10gb": 9856, "2g.10gb": 9856}),
        (40536, {"3g.20gb": 19968, "4g.20gb": 19968, "7g.40gb": 40192, "1c.3g.20gb": 19968, "2c.7g.40gb": 40192}),
        (81251, {"1g.10gb": 9728, "1g.20gb": 19968, "2g.20gb": 19968, "3g.40gb": 40192, "7g.80gb": 80384}),
        (81559, {"1g.10gb": 9984, "1g.10gb+me": 9984, "1g.20gb": 20096, "2g.20gb": 20096}),
        (81559, {"3g.40gb": 40448, "4g.40gb": 40448, "7g.80gb": 81152, "1c.2g.20gb": 20096}),
        (24258, {"1g.6gb": 5952, "1g.6gb+me": 5952, "2g.12gb": 11968, "2g.12gb+me": 11968, "4g.24gb": 23936}),
        # Half a GB is rounded up: 180/8 = 22.5, and 141/2 = 70.5.
        (183359, {"1g.23gb": 22528, "1g.45gb": 45000, "3g.90gb": 91000, "7g.180gb": 182000}),
        (143771, {"1g.18gb": 16384, "1g.35gb": 33280, "3g.71gb": 71000, "7g.141gb": 143000}),
        (97887, {"1g.24gb-me": 24000, "1g.24gb+me.all": 24000, "1g.24gb+gfx": 24000, "2g.48gb+gfx": 48000}),
    ],
    ids=[
        "A100 40GB",
        "A100 40GB larger",
        "A100 80GB",
        "H100 80GB",
        "H100 80GB larger",
        "A30",
        "B200",
        "H200",
        "RTX 6000",
    ],
)
def test_profiles_are_named_as_nvidia_names_them(
    describe: Node, source: NvmlSource, memory_mib: int, names: dict[str, int]
) -> None:
    """Slices, the card's GB by eighths, and what the profile adds; compute slices only where they are fewer."""
    described = [FakeMigInstance(name, memory_mib=size) for name, size in names.items()]
    describe([a_card(*described, memory_mib=memory_mib)])
    assert profiles(source.read()) == list(names)


def test_compute_instances_of_one_gpu_instance_are_told_apart(
    describe: Node, source: NvmlSource, tmp_path: Path
) -> None:
    """Two compute instances in a GPU instance share its capability and have one of their own each."""
    halves = [FakeMigInstance("1c.2g.10gb", gpu_instance=7, compute_instance=number) for number in range(2)]
    describe([a_card(*halves, minor=5)])
    driver_tells(tmp_path, MINORS)
    found = [gpu.mig for gpu in source.read().instances if gpu.mig]
    assert [(mig.gpu_instance, mig.compute_instance) for mig in found] == [(7, 0), (7, 1)]
    assert [mig.capabilities for mig in found] == [(741, 742), (741, 743)]


def test_unknown_capabilities_are_told_as_unknown(describe: Node, source: NvmlSource, tmp_path: Path) -> None:
    """An instance one of whose two nodes the driver does not list has none, and so have all without the list."""
    card = a_card(FakeMigInstance(gpu_instance=17), FakeMigInstance(gpu_instance=8), minor=5)
    describe([card])
    assert [gpu.mig.capabilities for gpu in source.read().instances if gpu.mig] == [None, None]
    driver_tells(tmp_path, MINORS)
    assert [gpu.mig.capabilities for gpu in source.read().instances if gpu.mig] == [None, None]


def test_a_broken_instance_hides_no_other(describe: Node, source: NvmlSource) -> None:
    """What does not answer is reported with its number and, where it can be read, its UUID; a gap is nothing."""
    node = describe(
        [
            a_card(
                FakeMigInstance(failures={HANDLE: ErrorCode.NOT_FOUND}),
                FakeMigInstance(failures={HANDLE: ErrorCode.UNKNOWN}),
                FakeMigInstance(failures={"nvmlDeviceGetUUID": ErrorCode.UNKNOWN}),
                FakeMigInstance(failures={"nvmlDeviceGetGpuInstanceById": ErrorCode.NO_PERMISSION}),
                FakeMigInstance("2g.10gb"),
            ),
            a_card(FakeMigInstance("3g.20gb")),
        ]
    )
    inventory = source.read()
    assert [gpu.label for gpu in inventory.instances] == ["0:4", "1:0"]
    assert profiles(inventory) == ["2g.10gb", "3g.20gb"]
    uuid = node.gpus[0].mig_instances[3].uuid
    assert [(each.label, each.uuid) for each in inventory.failed] == [("0:1", None), ("0:2", None), ("0:3", uuid)]
    assert "SYS_ADMIN" in inventory.failed[2].reason


@pytest.mark.parametrize("memory_mib", [0, MOST_MEMORY_MIB + 1])
def test_an_instance_of_impossible_memory_hides_no_other(describe: Node, source: NvmlSource, memory_mib: int) -> None:
    """An instance of no memory, or of more than any card has, is reported with its number and what NVML said."""
    node = describe([a_card(FakeMigInstance(memory_mib=memory_mib), FakeMigInstance("2g.10gb"))])
    inventory = source.read()
    assert profiles(inventory) == ["2g.10gb"]
    (failed,) = inventory.failed
    assert (failed.label, failed.uuid) == ("0:0", node.gpus[0].mig_instances[0].uuid)
    assert f"{memory_mib} MiB of memory" in failed.reason


def test_an_instance_whose_uuid_is_no_text_hides_no_other(describe: Node, source: NvmlSource) -> None:
    """An instance that cannot be named is reported with its number and what NVML said."""
    describe([a_card(FakeMigInstance(uuid="MIG-\udcff"), FakeMigInstance("2g.10gb"))])
    inventory = source.read()
    assert profiles(inventory) == ["2g.10gb"]
    (failed,) = inventory.failed
    assert (failed.label, failed.uuid) == ("0:0", None)
    assert "MIG-\\xff" in failed.reason


def test_an_instance_whose_uuid_is_no_instances_hides_no_other(describe: Node, source: NvmlSource) -> None:
    """An instance is offered under a UUID in NVIDIA's form only, which IDs of units are made of."""
    describe([a_card(FakeMigInstance(uuid="MIG-1"), FakeMigInstance("2g.10gb"))])
    inventory = source.read()
    assert profiles(inventory) == ["2g.10gb"]
    (failed,) = inventory.failed
    assert (failed.label, failed.uuid) == ("0:0", None)
    assert "'MIG-1'" in failed.reason


def test_a_card_that_does_not_list_its_instances_is_told(describe: Node, source: NvmlSource) -> None:
    """The card itself still answers."""
    node = describe([a_card(FakeMigInstance()), FakeGpu()])
    node.fail(0, "nvmlDeviceGetMaxMigDeviceCount", ErrorCode.UNKNOWN)
    inventory = source.read()
    assert (len(inventory.cards), inventory.instances) == (2, ())
    (failed,) = inventory.failed
    assert failed.label == "0"
    assert "cannot be listed" in failed.reason


def test_another_layout_is_seen_by_the_next_look(describe: Node, source: NvmlSource) -> None:
    """Instances made and destroyed, and MIG mode switched, need no new initialisation."""
    node = describe([a_card(*[FakeMigInstance()] * 2), FakeGpu()])
    assert profiles(source.read()) == ["1g.5gb"] * 2
    node.replace_gpu(0, a_card(FakeMigInstance("3g.20gb"), FakeMigInstance("4g.20gb")))
    node.replace_gpu(1, a_card(FakeMigInstance("7g.40gb")))
    assert profiles(source.read()) == ["3g.20gb", "4g.20gb", "7g.40gb"]
    node.replace_gpu(0, FakeGpu(mig_enabled=False))
    inventory = source.read()
    assert profiles(inventory) == ["7g.40gb"]
    assert [gpu.mig_enabled for gpu in inventory.cards] == [False, True]
    assert node.calls()["nvmlInitWithFlags"] == 1
