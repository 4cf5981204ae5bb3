"""Tests of `gpushare_plugin.gpus.nvml.gpus`, with the real `pynvml` and a stand-in for NVIDIA's library."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from gpushare_plugin.base.errors import NoGpuLibraryError
from gpushare_plugin.core.gpu import MOST_MEMORY_MIB, FailedGpu, Gpu, Inventory
from gpushare_plugin.gpus.nvml.gpus import NvmlSource
from gpushare_plugin.testing.nvml import (
    ALL_FUNCTIONS,
    ENVIRONMENT_VARIABLE,
    LIBRARY_NAME,
    ErrorCode,
    FakeConnection,
    FakeGpu,
    FakeMigInstance,
    FakeNvml,
    Topology,
)
from tests.process.daemon import without_library
from tests.unit.gpus.conftest import Node

A100 = FakeGpu(memory_mib=40960, reserved_mib=512)
GPU = "GPU-0000000a-0000-4000-8000-00000000000a"
TWIN = "GPU-0c5b7a52-0f3a-4d0e-9a3e-5d1f1a8d2c11"


@pytest.fixture
def source(tmp_path: Path) -> NvmlSource:
    """Make a source whose driver root and sysfs are below the test's own directory."""
    return NvmlSource(tmp_path / "driver-root", tmp_path / "sys")


def kernel_knows(tmp_path: Path, device: str, numa_node: str, pci_class: str = "0x030200") -> None:
    """Let the kernel tell the NUMA node and the class of a PCI device."""
    folder = tmp_path / "sys/bus/pci/devices" / device
    folder.mkdir(parents=True)
    (folder / "numa_node").write_text(f"{numa_node}\n")
    (folder / "class").write_text(f"{pci_class}\n")


def score(inventory: Inventory, one: int, other: int) -> int:
    """Return how close two GPUs are, by their indices."""
    return inventory.closeness[frozenset((inventory.cards[one].uuid, inventory.cards[other].uuid))]


def pairs(count: int, topology: Topology) -> list[FakeConnection]:
    """Connect every two of so many cards in the same way."""
    return [FakeConnection(first, second, topology) for second in range(count) for first in range(second)]


class TestFacts:
    """What is reported of a card."""

    def test_every_known_field_of_a_card_is_told(self, describe: Node, source: NvmlSource, tmp_path: Path) -> None:
        """Each field of each card is NVML's own; memory is what is left; NUMA comes from the kernel."""
        node = describe(
            [
                A100,
                FakeGpu(
                    "Tesla T4",
                    minor=5,
                    brand=2,
                    memory_mib=15360,
                    reserved_mib=450,
                    compute_capability=(7, 5),
                    mig_enabled=None,
                ),
            ],
            driver_version="550.54.14",
            cuda_version=(12, 4),
        )
        kernel_knows(tmp_path, "0000:17:00.0", "1")
        inventory = source.read()
        assert inventory.cards == (
            Gpu(
                index=0,
                uuid=node.gpus[0].uuid,
                minor=0,
                name="NVIDIA A100-SXM4-40GB",
                compute_capability=(8, 0),
                memory_mib=40960 - 512,
                pci_bus_id="00000000:07:00.0",
                numa_node=None,
                mig_enabled=False,
                mig_capable=True,
                total_mib=40960,
                brand="Nvidia",
            ),
            Gpu(
                index=1,
                uuid=node.gpus[1].uuid,
                minor=5,
                name="Tesla T4",
                compute_capability=(7, 5),
                memory_mib=15360 - 450,
                pci_bus_id="00000000:17:00.0",
                numa_node=1,
                mig_enabled=False,
                total_mib=15360,
                pci_class=0x030200,
                brand="Tesla",
            ),
        )
        assert (inventory.failed, inventory.driver_version, inventory.cuda_version) == ((), "550.54.14", (12, 4))

    @pytest.mark.parametrize(
        ("written", "told"), [("0x030000", 0x030000), ("0x030200", 0x030200), ("", None), ("display", None)]
    )
    def test_the_pci_class_of_a_card_is_the_kernels(
        self, describe: Node, source: NvmlSource, tmp_path: Path, written: str, told: int | None
    ) -> None:
        """The class that says whether a card drives displays is the kernel's, unknown where that does not tell it."""
        describe([FakeGpu(pci_bus_id="00000000:07:00.0")])
        kernel_knows(tmp_path, "0000:07:00.0", "0", written)
        (gpu,) = source.read().cards
        assert gpu.pci_class == told

    def test_the_root_complex_of_a_card_is_the_kernels(
        self, describe: Node, source: NvmlSource, tmp_path: Path
    ) -> None:
        """Claims bring GPUs and network cards of one root complex together; empty where the kernel shows no link."""
        describe([FakeGpu(pci_bus_id="00000000:07:00.0"), FakeGpu(pci_bus_id="00000000:08:00.0")])
        devices = tmp_path / "sys/bus/pci/devices"
        devices.mkdir(parents=True)
        (devices / "0000:07:00.0").symlink_to("../../../devices/pci0000:00/0000:00:01.0/0000:07:00.0")
        assert [gpu.pci_root for gpu in source.read().cards] == ["pci0000:00", ""]

    def test_the_brand_of_a_card_has_the_words_of_nvidia(self, describe: Node, source: NvmlSource) -> None:
        """A number that is not known yet is no brand."""
        describe([FakeGpu(), FakeGpu(brand=2), FakeGpu(brand=99)])
        assert [gpu.brand for gpu in source.read().cards] == ["Nvidia", "Tesla", ""]

    def test_the_model_of_the_machine_is_the_firmwares(
        self, describe: Node, source: NvmlSource, tmp_path: Path
    ) -> None:
        """The model of the host is the firmware's product name, empty where there is no such file."""
        describe([FakeGpu()])
        assert source.read().machine == ""
        folder = tmp_path / "sys/class/dmi/id"
        folder.mkdir(parents=True)
        (folder / "product_name").write_text("PowerEdge XE9680\n")
        assert source.read().machine == "PowerEdge XE9680"

    @pytest.mark.parametrize(
        ("bus_id", "device", "written", "told"),
        [
            ("00000000:07:00.0", "0000:07:00.0", "0", 0),
            ("00000000:AB:00.0", "0000:ab:00.0", "1", 1),
            ("00010000:07:00.0", "10000:07:00.0", "3", 3),
            ("00000000:07:00.0", "0000:07:00.0", "-1", None),
            ("00000000:07:00.0", "0000:07:00.0", "", None),
            ("00000000:07:00.0", "0000:08:00.0", "1", None),
        ],
    )
    def test_the_numa_node_of_a_card_is_the_kernels(  # noqa: PLR0913, PLR0917 - one row of the table
        self,
        describe: Node,
        source: NvmlSource,
        tmp_path: Path,
        bus_id: str,
        device: str,
        written: str,
        told: int | None,
    ) -> None:
        """The kernel writes PCI addresses in its own way; -1, nothing, or no file is no NUMA node."""
        describe([FakeGpu(pci_bus_id=bus_id)])
        kernel_knows(tmp_path, device, written)
        (gpu,) = source.read().cards
        assert gpu.numa_node == told

    @pytest.mark.parametrize("code", [ErrorCode.FUNCTION_NOT_FOUND, ErrorCode.NOT_SUPPORTED])
    def test_an_old_driver_does_not_tell_what_it_reserves(
        self, describe: Node, source: NvmlSource, code: ErrorCode
    ) -> None:
        """Without the second version of the memory call, the total counts."""
        describe([FakeGpu(memory_mib=40960, reserved_mib=512, failures={"nvmlDeviceGetMemoryInfo_v2": code})])
        (gpu,) = source.read().cards
        assert gpu.memory_mib == 40960

    @pytest.mark.parametrize(
        ("card", "told"),
        [
            (FakeGpu(mig_enabled=True, mig_instances=(FakeMigInstance(),)), True),
            (FakeGpu(mig_enabled=False), False),
            (FakeGpu(mig_enabled=None), False),
            (FakeGpu(failures={"nvmlDeviceGetMigMode": ErrorCode.FUNCTION_NOT_FOUND}), False),
        ],
    )
    def test_an_unknown_mig_mode_is_off(self, describe: Node, source: NvmlSource, card: FakeGpu, *, told: bool) -> None:
        """MIG mode is on, off, or unknown to card or driver, which is off."""
        describe([card])
        (gpu,) = source.read().cards
        assert gpu.mig_enabled is told


class TestFailures:
    """What happens when something does not answer."""

    @pytest.mark.parametrize(
        "function",
        [
            ALL_FUNCTIONS,
            "nvmlDeviceGetHandleByIndex_v2",
            "nvmlDeviceGetUUID",
            "nvmlDeviceGetPciInfo_v3",
            "nvmlDeviceGetMinorNumber",
            "nvmlDeviceGetName",
            "nvmlDeviceGetCudaComputeCapability",
            "nvmlDeviceGetMemoryInfo_v2",
            "nvmlDeviceGetMigMode",
        ],
    )
    def test_a_card_that_fails_is_told_and_the_others_serve(
        self, describe: Node, source: NvmlSource, function: str
    ) -> None:
        """Whatever is asked of a lost card, its index, the reason and, where it was still known, its UUID are known."""
        node = describe([A100, A100, A100])
        node.fail(1, function, ErrorCode.GPU_IS_LOST)
        inventory = source.read()
        nameless = function in {ALL_FUNCTIONS, "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetUUID"}
        assert inventory.failed == (FailedGpu(1, "GPU is lost", None if nameless else node.gpus[1].uuid, lost=True),)
        assert [(gpu.index, gpu.uuid) for gpu in inventory.cards] == [(0, node.gpus[0].uuid), (2, node.gpus[2].uuid)]
        assert list(inventory.closeness) == [frozenset((node.gpus[0].uuid, node.gpus[2].uuid))]

    @pytest.mark.parametrize(
        ("function", "code", "lost"),
        [
            ("nvmlDeviceGetName", ErrorCode.GPU_IS_LOST, True),
            ("nvmlDeviceGetName", ErrorCode.RESET_REQUIRED, True),
            ("nvmlDeviceGetName", ErrorCode.NOT_FOUND, False),
            ("nvmlDeviceGetName", ErrorCode.UNKNOWN, False),
            ("nvmlDeviceGetHandleByIndex_v2", ErrorCode.GPU_IS_LOST, True),
            ("nvmlDeviceGetHandleByIndex_v2", ErrorCode.RESET_REQUIRED, True),
            ("nvmlDeviceGetHandleByIndex_v2", ErrorCode.NOT_FOUND, True),
            ("nvmlDeviceGetHandleByIndex_v2", ErrorCode.UNKNOWN, False),
        ],
    )
    def test_a_lost_card_is_told_from_one_that_fails(
        self, describe: Node, source: NvmlSource, function: str, code: ErrorCode, *, lost: bool
    ) -> None:
        """A card is lost when NVML says so or does not find it; the name it gave once is still known."""
        node = describe([A100, A100])
        source.read()
        node.fail(1, function, code)
        (failed,) = source.read().failed
        assert (failed.index, failed.uuid, failed.lost) == (1, node.gpus[1].uuid, lost)

    def test_a_card_that_answers_again_is_back_at_the_next_look(self, describe: Node, source: NvmlSource) -> None:
        """The next look sees a card that answers again."""
        node = describe([A100, A100])
        node.fail(1, ALL_FUNCTIONS, ErrorCode.GPU_IS_LOST)
        assert len(source.read().cards) == 1
        node.recover(1)
        assert len(source.read().cards) == 2

    @pytest.mark.parametrize(
        ("function", "code", "words"),
        [
            ("nvmlInitWithFlags", ErrorCode.DRIVER_NOT_LOADED, "NVML cannot be used: Driver Not Loaded. On a GPU node"),
            ("nvmlDeviceGetCount_v2", ErrorCode.UNKNOWN, "cannot list the GPUs: Unknown Error"),
            ("nvmlSystemGetDriverVersion", ErrorCode.UNKNOWN, "cannot list the GPUs: Unknown Error"),
            ("nvmlSystemGetCudaDriverVersion_v2", ErrorCode.UNKNOWN, "cannot list the GPUs"),
        ],
    )
    def test_a_library_that_fails_is_told(
        self, describe: Node, source: NvmlSource, function: str, code: ErrorCode, words: str
    ) -> None:
        """Without what every card needs there is no GPU; once the library works, the next look finds them."""
        node = describe([A100], failures={function: code})
        with pytest.raises(NoGpuLibraryError, match=words):
            source.read()
        node.recover()
        assert len(source.read().cards) == 1

    def test_a_node_without_cards_has_no_gpu(self, describe: Node, source: NvmlSource) -> None:
        """NVML may work and have nothing to tell."""
        describe([])
        assert source.read().cards == ()

    def test_nvml_is_initialised_once(self, describe: Node, source: NvmlSource) -> None:
        """A second look asks the cards, and does not initialise again."""
        node = describe([A100])
        assert source.read() == source.read()
        assert node.calls()["nvmlInitWithFlags"] == 1
        assert node.calls()["nvmlDeviceGetCount_v2"] == 2


class TestNonsense:
    """What happens when an answer cannot be right."""

    @pytest.mark.parametrize(
        ("memory_mib", "reserved_mib", "words"),
        [
            (512, 512, "512 MiB of memory, 512 MiB of them reserved"),
            (512, 513, "512 MiB of memory, 513 MiB of them reserved"),
            (MOST_MEMORY_MIB + 1, 0, "16777217 MiB of memory, 0 MiB of them reserved"),
            ((1 << 44) - 1, 512, "17592186044415 MiB of memory, 512 MiB of them reserved"),
        ],
    )
    @pytest.mark.parametrize("mig", [False, True])
    def test_a_card_of_impossible_memory_fails_alone(  # noqa: PLR0913 - one row of the table
        self, describe: Node, source: NvmlSource, memory_mib: int, reserved_mib: int, words: str, *, mig: bool
    ) -> None:
        """No more than what is reserved, or more than any card has: that card fails, the others serve."""
        nonsense = FakeGpu(
            memory_mib=memory_mib,
            reserved_mib=reserved_mib,
            mig_enabled=mig,
            mig_instances=(FakeMigInstance(),) if mig else (),
        )
        node = describe([nonsense, A100])
        inventory = source.read()
        (failed,) = inventory.failed
        assert (failed.index, failed.uuid, failed.lost) == (0, node.gpus[0].uuid, False)
        assert words in failed.reason
        assert "expected" in failed.reason
        assert [gpu.index for gpu in inventory.cards] == [1]
        assert inventory.instances == ()

    @pytest.mark.parametrize("old", [False, True])
    def test_the_most_and_the_least_memory_are_believed(self, describe: Node, source: NvmlSource, *, old: bool) -> None:
        """A card of 16 TiB and one that has a single MiB to give are cards, whatever the driver tells of reserves."""
        failures = {"nvmlDeviceGetMemoryInfo_v2": ErrorCode.NOT_SUPPORTED} if old else {}
        most = FakeGpu(memory_mib=MOST_MEMORY_MIB, failures=failures)
        describe([most, FakeGpu(memory_mib=1, failures=failures)])
        assert [gpu.memory_mib for gpu in source.read().cards] == [MOST_MEMORY_MIB, 1]

    def test_a_uuid_that_is_no_text_costs_its_card(self, describe: Node, source: NvmlSource) -> None:
        """A card that cannot be named is not offered; what it said is reported, and so is the name it had before."""
        node = describe([A100, A100])
        before = source.read().cards[0].uuid
        node.replace_gpu(0, FakeGpu(uuid="GPU-\udcff\udcfe"))
        inventory = source.read()
        assert [gpu.index for gpu in inventory.cards] == [1]
        (failed,) = inventory.failed
        assert (failed.index, failed.uuid) == (0, before)
        assert failed.reason == "NVML reports b'GPU-\\xff\\xfe', which is not text; UTF-8 expected"

    @pytest.mark.parametrize("uuid", ["GPU-1", "GPU-\u20ac", f"{GPU}0", GPU.upper(), f"{GPU},all", "MIG" + GPU[3:]])
    def test_a_uuid_of_no_gpu_costs_its_card(self, describe: Node, source: NvmlSource, uuid: str) -> None:
        """IDs of units are made of UUIDs and read back, so a card is offered under a UUID in NVIDIA's form only."""
        describe([FakeGpu(uuid=uuid), A100])
        inventory = source.read()
        assert [gpu.index for gpu in inventory.cards] == [1]
        (failed,) = inventory.failed
        assert (failed.index, failed.uuid) == (0, None)
        assert failed.reason == f"NVML reports the UUID {uuid!r}; GPU- and 32 hexadecimal digits in groups expected"

    def test_a_version_or_a_product_that_is_no_text_costs_nothing(self, describe: Node, source: NvmlSource) -> None:
        """Nothing depends on how the driver or a card is called; what is no text is shown as numbers."""
        describe([FakeGpu("A100\udcff")], driver_version="570.\udcfe")
        inventory = source.read()
        assert inventory.driver_version == "570.\\xfe"
        assert [gpu.name for gpu in inventory.cards] == ["A100\\xff"]

    def test_cards_of_one_uuid_all_fail(self, describe: Node, source: NvmlSource) -> None:
        """Nobody could tell which of them a container gets, so none is offered; each says with which it clashes."""
        node = describe([FakeGpu(uuid=TWIN), A100, FakeGpu(uuid=TWIN), FakeGpu(uuid=TWIN)])
        inventory = source.read()
        assert [gpu.uuid for gpu in inventory.cards] == [node.gpus[1].uuid]
        assert [(each.index, each.uuid) for each in inventory.failed] == [(0, TWIN), (2, TWIN), (3, TWIN)]
        assert inventory.failed[1].reason == "GPU 0 and 3 have the same UUID; a UUID of its own expected"
        node.replace_gpu(0, A100)
        node.replace_gpu(3, A100)
        assert len(source.read().cards) == 4

    def test_instances_of_one_uuid_all_fail(self, describe: Node, source: NvmlSource) -> None:
        """What holds for cards holds for instances, also on two cards."""
        twin = FakeMigInstance(uuid=TWIN.replace("GPU", "MIG"))
        describe([FakeGpu(mig_enabled=True, mig_instances=(twin,))] * 2)
        inventory = source.read()
        assert (len(inventory.cards), inventory.instances) == (2, ())
        assert [(each.label, each.reason) for each in inventory.failed] == [
            ("0:0", "GPU 1:0 has the same UUID; a UUID of its own expected"),
            ("1:0", "GPU 0:0 has the same UUID; a UUID of its own expected"),
        ]


class TestNeedsReset:
    """What the driver says must be done to a card."""

    def test_a_card_needs_a_reset_if_the_driver_says_so(self, describe: Node, source: NvmlSource) -> None:
        """Nothing to be done is no reset, anything else is one, and a driver that does not say is not quoted."""
        old = FakeGpu(recovery_action=1, failures={"nvmlDeviceGetFieldValues": ErrorCode.FUNCTION_NOT_FOUND})
        node = describe([*(FakeGpu(recovery_action=action) for action in range(8)), FakeGpu(), old])
        inventory = source.read()
        assert len(inventory.cards) == 10
        assert inventory.needs_reset == {gpu.uuid: action > 0 for action, gpu in enumerate(node.gpus[:8])}

    def test_the_need_for_a_reset_is_asked_at_every_look(self, describe: Node, source: NvmlSource) -> None:
        """A card that was reset needs none any more."""
        node = describe([FakeGpu(recovery_action=4)])
        assert source.read().needs_reset == {node.gpus[0].uuid: True}
        node.replace_gpu(0, FakeGpu(recovery_action=0))
        assert source.read().needs_reset == {node.gpus[0].uuid: False}


class TestChangingCards:
    """Cards that come and go while the daemon runs."""

    def test_a_new_card_is_seen_at_the_next_look(self, describe: Node, tmp_path: Path) -> None:
        """When the kernel knows another card NVML is initialised again, once, and the card is there."""
        node = describe([A100])
        source = NvmlSource(tmp_path, tmp_path, node.procfs)
        assert len(source.read().cards) == 1
        node.add_gpu(FakeGpu("Tesla T4"))
        assert [source.read().cards[1].name for _ in range(3)] == ["Tesla T4"] * 3
        assert (node.calls()["nvmlInitWithFlags"], node.calls()["nvmlShutdown"]) == (2, 1)

    def test_a_card_that_the_kernel_no_longer_knows_is_gone(self, describe: Node, tmp_path: Path) -> None:
        """When the kernel no longer knows a card, NVML does not either, and the others have new numbers."""
        node = describe([A100, A100, A100])
        source = NvmlSource(tmp_path, tmp_path, node.procfs)
        source.read()
        node.remove_gpu(1)
        inventory = source.read()
        assert [(gpu.index, gpu.uuid) for gpu in inventory.cards] == [(0, node.gpus[0].uuid), (1, node.gpus[2].uuid)]
        assert inventory.failed == ()
        assert list(inventory.closeness) == [frozenset((node.gpus[0].uuid, node.gpus[2].uuid))]
        node.add_gpu(node.gpus[1])
        assert {gpu.uuid for gpu in source.read().cards} == {gpu.uuid for gpu in node.gpus}

    def test_a_node_may_be_without_cards_for_a_while(self, describe: Node, tmp_path: Path) -> None:
        """The last card went, and another one came."""
        node = describe([A100])
        source = NvmlSource(tmp_path, tmp_path, node.procfs)
        source.read()
        node.remove_gpu(0)
        assert source.read() == source.read() == Inventory((), driver_version="570.86.15", cuda_version=(12, 8))
        node.add_gpu(A100)
        assert [gpu.index for gpu in source.read().cards] == [0]

    def test_a_card_the_kernel_still_knows_is_lost(self, describe: Node, source: NvmlSource) -> None:
        """A card that went without a word of the kernel's is lost, by its name, and NVML stays initialised."""
        node = describe([A100, A100])
        source.read()
        node.remove_gpu(0)
        assert source.read().failed == (FailedGpu(0, "GPU is lost", node.gpus[0].uuid, lost=True),)
        assert node.calls()["nvmlInitWithFlags"] == 1

    def test_devices_in_sysfs_tell_of_changed_cards_where_proc_does_not(
        self, describe: Node, source: NvmlSource, tmp_path: Path
    ) -> None:
        """Where `/proc` shows what was there when the container started, a device the driver is bound to tells."""
        node = describe([A100])
        bound = tmp_path / "sys/bus/pci/drivers/nvidia"
        bound.mkdir(parents=True)
        source.read()
        (bound / "bind").touch()
        source.read()
        assert node.calls()["nvmlInitWithFlags"] == 1
        (bound / "0000:17:00.0").symlink_to(tmp_path)
        source.read()
        assert node.calls()["nvmlInitWithFlags"] == 2

    def test_nvml_that_cannot_begin_anew_is_told(self, describe: Node, tmp_path: Path) -> None:
        """If the driver is gone when the cards change, there is no library until it is back."""
        node = describe([A100])
        source = NvmlSource(tmp_path, tmp_path, node.procfs)
        source.read()
        node.add_gpu(A100)
        node.fail(None, "nvmlInitWithFlags", ErrorCode.DRIVER_NOT_LOADED)
        for _ in range(2):
            with pytest.raises(NoGpuLibraryError, match="Driver Not Loaded"):
                source.read()
        node.recover()
        assert len(source.read().cards) == 2

    def test_another_uuid_at_the_same_place_is_another_card(self, describe: Node, source: NvmlSource) -> None:
        """A card may be replaced."""
        node = describe([A100, A100])
        before = source.read()
        node.replace_gpu(1, FakeGpu(uuid="GPU-0c5b7a52-0f3a-4d0e-9a3e-5d1f1a8d2c11"))
        after = source.read()
        assert [gpu.uuid for gpu in after.cards] == [before.cards[0].uuid, "GPU-0c5b7a52-0f3a-4d0e-9a3e-5d1f1a8d2c11"]
        assert list(after.closeness) == [frozenset(gpu.uuid for gpu in after.cards)]


class TestCloseness:
    """How close two cards are."""

    def test_cards_that_are_nearer_on_pci_are_closer(self, describe: Node, source: NvmlSource) -> None:
        """Every level of the PCI tree scores above the next."""
        topologies: Sequence[Topology] = list(Topology)
        describe([A100] * 7, [FakeConnection(0, other, topology) for other, topology in enumerate(topologies, start=1)])
        inventory = source.read()
        scores = [score(inventory, 0, other) for other in range(1, 7)]
        assert scores == sorted(scores, reverse=True)
        assert len(set(scores)) == 6
        assert scores[-1] > 0

    def test_nvlink_beats_pci(self, describe: Node, source: NvmlSource) -> None:
        """One NVLink is more than any way over PCI, and more links are more."""
        connections = [
            FakeConnection(0, 1, Topology.INTERNAL),
            FakeConnection(0, 2, Topology.SYSTEM, nvlinks=1),
            FakeConnection(0, 3, Topology.SYSTEM, nvlinks=2),
        ]
        describe([A100] * 4, connections)
        inventory = source.read()
        assert score(inventory, 0, 3) > score(inventory, 0, 2) > score(inventory, 0, 1) > 0

    def test_links_to_a_switch_count_for_every_pair(self, describe: Node, source: NvmlSource) -> None:
        """Cards on an NVSwitch are as close as the fewer links of the two; idle links do not count."""
        cards = [FakeGpu(switch_links=12), FakeGpu(switch_links=6), FakeGpu(switch_links=12), FakeGpu(idle_links=12)]
        describe(cards, pairs(4, Topology.SYSTEM))
        inventory = source.read()
        assert score(inventory, 0, 2) > score(inventory, 0, 1) == score(inventory, 1, 2) > score(inventory, 0, 3)
        assert score(inventory, 0, 3) == score(inventory, 1, 3) == 10

    def test_cards_without_known_links_are_far_apart_and_usable(self, describe: Node, source: NvmlSource) -> None:
        """A driver without topology or NVLink leaves the cards far apart, and usable."""
        unsupported = ("nvmlDeviceGetTopologyCommonAncestor", "nvmlDeviceGetNvLinkState")
        describe([A100] * 2, pairs(2, Topology.INTERNAL), failures=dict.fromkeys(unsupported, ErrorCode.NOT_SUPPORTED))
        inventory = source.read()
        assert len(inventory.cards) == 2
        assert score(inventory, 0, 1) == 0

    def test_links_between_cards_are_asked_once(self, describe: Node, source: NvmlSource) -> None:
        """The driver is asked again only when the cards are others."""
        asking = {"nvmlDeviceGetTopologyCommonAncestor", "nvmlDeviceGetNvLinkState"}
        node = describe([FakeGpu(switch_links=12)] * 4, pairs(4, Topology.SYSTEM))
        first = source.read().closeness
        before = node.calls()
        assert [source.read().closeness for _ in range(3)] == [first] * 3
        assert not asking & set(node.calls() - before)
        node.fail(3, ALL_FUNCTIONS, ErrorCode.UNKNOWN)
        assert len(source.read().closeness) == 3
        assert asking < set(node.calls() - before)
        node.recover(3)
        assert source.read().closeness == first


READ = """
import json, sys
from pathlib import Path
from gpushare_plugin.base.errors import NoGpuLibraryError
from gpushare_plugin.gpus.nvml.gpus import NvmlSource
try:
    print(json.dumps([gpu.name for gpu in NvmlSource(Path(sys.argv[1])).read().gpus]))
except NoGpuLibraryError as error:
    print(json.dumps(str(error)))
"""


def answer(root: Path, **environment: str) -> object:
    """Ask for the GPUs with a driver root, in a process that has not loaded any library yet."""
    command = [sys.executable, "-c", READ, str(root)]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


class TestLibrary:
    """Which library is loaded."""

    @pytest.mark.parametrize("folder", ["usr/lib64", "usr/lib/x86_64-linux-gnu", "usr/lib"])
    def test_the_driver_roots_own_library_is_preferred(self, tmp_path: Path, folder: str) -> None:
        """What lies below the driver root is used before anything the loader would find; here that is broken."""
        root = tmp_path / "driver-root"
        (root / folder).mkdir(parents=True)
        with FakeNvml([FakeGpu("Tesla T4")]) as node:
            shutil.copy(node.library, root / folder / LIBRARY_NAME)
            environment = {**without_library(tmp_path), ENVIRONMENT_VARIABLE: str(node.path)}
            assert answer(root, **environment) == ["Tesla T4"]

    def test_the_loader_finds_a_library_that_is_not_below_the_root(self, tmp_path: Path) -> None:
        """A container runtime mounts the library where the loader looks."""
        with FakeNvml([FakeGpu("Tesla T4")]) as node:
            assert answer(tmp_path, **node.environment) == ["Tesla T4"]

    def test_a_missing_library_is_told_with_a_remedy(self, tmp_path: Path) -> None:
        """Where no library is found the message says so and what to do."""
        told = answer(tmp_path, **without_library(tmp_path))
        assert str(told).startswith("NVML cannot be used: NVML Shared Library Not Found. On a GPU node: is the NVIDIA")

    def test_a_broken_library_below_the_root_is_told_and_not_replaced(self, tmp_path: Path) -> None:
        """A library below the root that cannot be loaded is named, and none other is used in its place."""
        library = tmp_path / "usr/lib64" / LIBRARY_NAME
        library.parent.mkdir(parents=True)
        library.touch()
        with FakeNvml() as node:
            assert str(answer(tmp_path, **node.environment)).startswith(f"{library} cannot be loaded: ")
