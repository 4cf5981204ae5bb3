"""Tests of `gpushare_plugin.gpus.nvml.unanswered`: every question that is asked about a card, and nobody answers."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from gpushare_plugin.base.memory import MIB
from gpushare_plugin.base.structs import replace
from gpushare_plugin.core.gpu import Inventory
from gpushare_plugin.core.usage import GpuUsage
from gpushare_plugin.gpus.nvml.gpus import NvmlSource
from gpushare_plugin.testing.nvml import (
    GB10,
    NO_MEMORY_REPORTED,
    ErrorCode,
    FakeConnection,
    FakeGpu,
    FakeMigInstance,
    FakeNvml,
    FakeProcess,
    Topology,
)
from tests.unit.gpus.conftest import Node

Make = Callable[[], NvmlSource]

WITHOUT_ANSWER = (ErrorCode.NOT_SUPPORTED, ErrorCode.FUNCTION_NOT_FOUND, ErrorCode.NO_PERMISSION)
"""Codes that say that there is no answer; any other code is about the card."""

MEMORY = ("nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetMemoryInfo")
FACTS: Mapping[tuple[str, ...], Mapping[str, object]] = {
    ("nvmlDeviceGetName",): {"name": ""},
    ("nvmlDeviceGetBrand",): {"brand": ""},
    ("nvmlDeviceGetPciInfo_v3",): {"pci_bus_id": "", "numa_node": None, "pci_class": None},
    ("nvmlDeviceGetMigMode",): {"mig_capable": False},
    ("nvmlDeviceGetCudaComputeCapability",): {"compute_capability": None},
    ("nvmlDeviceGetMemoryInfo_v2",): {"memory_mib": 40960},
    MEMORY: {"memory_mib": 0, "total_mib": 0},
}
"""What a look at a card does not know without the answers to some questions."""
NEEDED = {
    "nvmlDeviceGetHandleByIndex_v2": "",
    "nvmlDeviceGetUUID": "NVML does not report its UUID",
    "nvmlDeviceGetMinorNumber": "NVML does not report its minor number",
}
"""The questions without whose answer a card cannot be offered, and what is said of it."""
BESIDE: Mapping[tuple[str, ...], Mapping[str, object]] = {
    ("nvmlDeviceGetFieldValues",): {"needs_reset": True},
    ("nvmlDeviceGetTopologyCommonAncestor",): {"closeness": True},
    ("nvmlDeviceGetNvLinkState",): {"closeness": True},
    ("nvmlDeviceGetNvLinkRemoteDeviceType",): {"closeness": True},
    ("nvmlDeviceGetNvLinkRemotePciInfo_v2",): {"closeness": True},
}
"""Questions about the node of which one card is a part: the facts that are less without an answer."""
CLIENTS = "nvmlDeviceGetMPSComputeRunningProcesses_v3"
USES: Mapping[tuple[str, ...], Mapping[str, object]] = {
    ("nvmlDeviceGetUtilizationRates",): {"utilization": None},
    (CLIENTS,): {"mps_clients": None},
    ("nvmlDeviceGetGraphicsRunningProcesses_v3",): {},
    ("nvmlDeviceGetMemoryInfo_v2",): {"memory_total": 40960 * MIB, "memory_used": (512 + 500) * MIB},
    MEMORY: {"memory_total": None, "memory_used": None},
}
"""What a look at the use of a card does not know without the answers to some questions."""
ELSEWHERE = {
    "nvmlInitWithFlags",
    "nvmlDeviceGetCount_v2",
    "nvmlErrorString",
    "nvmlSystemGetDriverVersion",
    "nvmlSystemGetCudaDriverVersion_v2",
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetProcessUtilization",
    "nvmlDeviceGetHandleByUUID",
}
"""Functions that are about the library or the node, or have a test of their own below."""

CARDS = (
    FakeGpu(reserved_mib=512, used_mib=500, utilization=45, recovery_action=0, processes=(FakeProcess(1, 300, 40),)),
    FakeGpu(recovery_action=0),
)
LINKED = (FakeConnection(0, 1, Topology.SINGLE_SWITCH, nvlinks=2),)


@pytest.fixture
def procfs(tmp_path: Path) -> Path:
    """Return a `/proc` of the host with process 1, which began when the machine did."""
    proc = tmp_path / "proc"
    (proc / "self/ns").mkdir(parents=True)
    (proc / "self/ns/pid").symlink_to("pid:[4026531836]")
    (proc / "1").mkdir()
    (proc / "1/stat").write_text("1 (program) S " + " ".join(["0"] * 30))
    (proc / "1/cgroup").write_text("0::/user.slice\n")
    return proc


@pytest.fixture
def node(describe: Node) -> FakeNvml:
    """Describe two cards that answer everything."""
    return describe(CARDS, LINKED)


@pytest.fixture
def make(node: FakeNvml, procfs: Path) -> Make:
    """Return a function that makes a source for these cards, of which the kernel knows the first."""
    device = procfs.parent / "sys/bus/pci/devices/0000:07:00.0"
    device.mkdir(parents=True)
    (device / "numa_node").write_text("1\n")
    (device / "class").write_text("0x030200\n")
    assert node.gpus[0].pci_bus_id == "00000000:07:00.0"
    return lambda: NvmlSource(procfs.parent / "driver-root", procfs.parent / "sys", procfs)


@pytest.fixture
def source(make: Make) -> NvmlSource:
    """Make a source for these cards."""
    return make()


def unanswered(node: FakeNvml, functions: tuple[str, ...], code: ErrorCode) -> None:
    """Let the first card answer questions with an error."""
    for function in functions:
        node.fail(0, function, code)


def used(source: NvmlSource) -> tuple[GpuUsage, ...]:
    """Return how the cards are used, after a look at them."""
    source.read()
    return source.sample()


def looked(make: Make, node: FakeNvml, functions: tuple[str, ...], code: ErrorCode) -> tuple[Inventory, Inventory]:
    """Return a look where everything is answered, and the first look of another source without some answers."""
    usual = make().read()
    assert not usual.failed
    unanswered(node, functions, code)
    return usual, make().read()


@pytest.mark.parametrize("code", WITHOUT_ANSWER)
@pytest.mark.parametrize("functions", FACTS)
def test_a_question_without_an_answer_costs_one_fact(
    node: FakeNvml, make: Make, functions: tuple[str, ...], code: ErrorCode
) -> None:
    """The card stays with all other facts, and so does the other card."""
    usual, found = looked(make, node, functions, code)
    assert found.cards == (replace(usual.cards[0], **FACTS[functions]), usual.cards[1])
    assert (found.failed, found.needs_reset) == ((), usual.needs_reset)


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN, ErrorCode.TIMEOUT, ErrorCode.GPU_IS_LOST])
@pytest.mark.parametrize("functions", FACTS)
def test_an_error_that_says_nothing_of_the_question_is_the_cards(
    node: FakeNvml, make: Make, functions: tuple[str, ...], code: ErrorCode
) -> None:
    """Such a card does not answer: it is reported with its UUID, and the other card serves."""
    usual, found = looked(make, node, functions, code)
    assert [(each.uuid, each.lost) for each in found.failed] == [(usual.cards[0].uuid, code == ErrorCode.GPU_IS_LOST)]
    assert found.cards == usual.cards[1:]


@pytest.mark.parametrize("code", [*WITHOUT_ANSWER, ErrorCode.UNKNOWN])
@pytest.mark.parametrize("function", NEEDED)
def test_a_card_without_uuid_or_minor_number_is_left_out_with_words(
    node: FakeNvml, make: Make, function: str, code: ErrorCode
) -> None:
    """Units are named by UUIDs and device nodes by minor numbers: there is no card without them."""
    usual, found = looked(make, node, (function,), code)
    (failed,) = found.failed
    assert (failed.index, found.cards) == (0, usual.cards[1:])
    words = NEEDED[function] if code in WITHOUT_ANSWER else "Unknown Error"
    assert words in failed.reason


@pytest.mark.parametrize("code", [*WITHOUT_ANSWER, ErrorCode.UNKNOWN])
@pytest.mark.parametrize("functions", BESIDE)
def test_what_a_node_knows_of_its_cards_together_is_less_without_an_answer(
    node: FakeNvml, make: Make, functions: tuple[str, ...], code: ErrorCode
) -> None:
    """No card is lost for a link, a path, or a recovery action that NVML does not report."""
    usual, found = looked(make, node, functions, code)
    assert (found.cards, found.failed) == (usual.cards, ())
    first = usual.cards[0].uuid
    assert (first in found.needs_reset) is ("needs_reset" not in BESIDE[functions])
    (before,), (after,) = usual.closeness.values(), found.closeness.values()
    assert (after < before) is ("closeness" in BESIDE[functions])


@pytest.mark.parametrize("code", WITHOUT_ANSWER)
@pytest.mark.parametrize("functions", USES)
def test_the_use_of_a_card_is_known_but_for_what_has_no_answer(
    node: FakeNvml, source: NvmlSource, functions: tuple[str, ...], code: ErrorCode
) -> None:
    """A value without an answer is absent, not zero; all others are there, of both cards."""
    usual = used(source)
    unanswered(node, functions, code)
    (process,) = usual[0].processes or ()
    known = replace(process, mps_client=None) if functions == (CLIENTS,) else process
    assert source.sample() == (replace(usual[0], processes=(known,), **USES[functions]), usual[1])


@pytest.mark.parametrize("code", WITHOUT_ANSWER)
def test_processes_without_an_answer_are_unknown_with_words(
    node: FakeNvml, source: NvmlSource, code: ErrorCode
) -> None:
    """Who uses the card is unknown, how much of it is used is not."""
    usual = used(source)
    unanswered(node, ("nvmlDeviceGetComputeRunningProcesses_v3",), code)
    first, second = source.sample()
    assert (first.memory_used, first.utilization, first.processes) == (500 * MIB, 0.45, None)
    assert "does not report the processes of GPU 0" in str(first.unknown)
    assert second == usual[1]


@pytest.mark.parametrize("code", [*WITHOUT_ANSWER, ErrorCode.UNKNOWN])
def test_the_utilization_of_a_process_may_be_unknown(node: FakeNvml, source: NvmlSource, code: ErrorCode) -> None:
    """The process and its memory are known."""
    usual = used(source)
    unanswered(node, ("nvmlDeviceGetProcessUtilization",), code)
    (process,) = source.sample()[0].processes or ()
    assert usual[0].processes is not None
    assert process == replace(usual[0].processes[0], utilization=None)


@pytest.mark.parametrize("code", WITHOUT_ANSWER)
def test_a_node_without_versions_has_its_cards(node: FakeNvml, source: NvmlSource, code: ErrorCode) -> None:
    """The versions of driver and CUDA are for people and labels only."""
    usual = source.read()
    for function in ("nvmlSystemGetDriverVersion", "nvmlSystemGetCudaDriverVersion_v2"):
        node.fail(None, function, code)
    found = source.read()
    assert found.cards == usual.cards
    assert (found.driver_version, found.cuda) == ("", "")


def test_every_question_about_a_card_has_a_row(node: FakeNvml, source: NvmlSource) -> None:
    """A question that is added to a look at cards or at their use is added here, too."""
    used(source)
    rows = {function for table in (FACTS, BESIDE, USES) for row in table for function in row}
    assert set(node.calls()) - rows - NEEDED.keys() <= ELSEWHERE


def test_a_card_that_reports_zero_bytes_reports_nothing(describe: Node, source: NvmlSource) -> None:
    """A frame buffer of no bytes is that of a card that uses the memory of the host."""
    describe([FakeGpu(memory_mib=0)])
    (card,) = source.read().cards
    assert (card.memory_mib, card.total_mib) == (0, 0)
    (usage,) = source.sample()
    assert (usage.memory_total, usage.memory_used) == (None, None)


def test_a_gb10_is_a_card_without_memory(describe: Node, source: NvmlSource) -> None:
    """All facts but memory are known, and what each process uses."""
    describe(
        [
            FakeGpu(
                GB10.name,
                compute_capability=(12, 1),
                mig_enabled=None,
                utilization=10,
                processes=(FakeProcess(1, 700, 10),),
                failures=GB10.failures,
            )
        ]
    )
    (card,) = source.read().cards
    assert (card.name, card.compute_capability, card.memory_mib, card.mig_capable) == ("NVIDIA GB10", (12, 1), 0, False)
    (usage,) = source.sample()
    assert (usage.memory_total, usage.memory_used, usage.utilization) == (None, None, 0.1)
    assert [each.memory for each in usage.processes or ()] == [700 * MIB]


def test_instances_of_a_card_without_memory_are_left_out_with_words(describe: Node, make: Make) -> None:
    """The name of a profile has a part of the memory of the card, and with it the name of the resource."""
    node = describe(
        [FakeGpu(mig_enabled=True, mig_instances=(FakeMigInstance(),), failures=NO_MEMORY_REPORTED), FakeGpu()]
    )
    found = make().read()
    assert [gpu.uuid for gpu in found.cards] == [gpu.uuid for gpu in node.gpus]
    (failed,) = found.failed
    assert (failed.number, found.instances) == (0, ())
    assert "NVML does not report the memory of its card" in failed.reason
