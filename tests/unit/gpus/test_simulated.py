"""Tests of `gpushare_plugin.gpus.simulated`."""

from pathlib import Path

import pytest

from gpushare_plugin.base.errors import ConfigError
from gpushare_plugin.core.driver_limits import DriverLimits
from gpushare_plugin.core.gpu import Inventory, MigAttributes
from gpushare_plugin.core.usage import Owner, Process
from gpushare_plugin.gpus import simulated
from gpushare_plugin.gpus.simulated import SimulatedSource

UUID = "GPU-0c5b7a52-0f3a-4d0e-9a3e-5d1f1a8d2c11"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return where the GPUs will be described."""
    return tmp_path / "gpus.yaml"


def read(file: Path, text: str) -> Inventory:
    """Return the node that a text describes."""
    file.write_text(text)
    return SimulatedSource(file).read()


def test_the_documented_example_is_what_it_says(file: Path) -> None:
    """The file in the module's own words describes four cards alike, one in MIG mode, and one of unknown memory."""
    node = read(file, simulated.__doc__.partition("\n\n")[2])
    assert (node.driver_version, node.cuda_version, node.failed) == ("615.71.09", (12, 8), ())
    assert node.driver_limits == DriverLimits()
    assert [gpu.index for gpu in node.cards] == [gpu.minor for gpu in node.cards] == [0, 1, 2, 3, 4, 5]
    *alike, cut, unreported = node.cards
    assert (unreported.memory_mib, unreported.total_mib) == (0, 0)
    assert {gpu.name for gpu in alike} == {"NVIDIA A100-SXM4-40GB"}
    assert {(gpu.memory_mib, gpu.compute_capability, gpu.numa_node) for gpu in alike} == {(40960, (8, 0), 0)}
    assert not any(gpu.mig_enabled for gpu in alike)
    assert cut.mig_enabled
    assert (node.machine, {gpu.pci_class for gpu in node.cards}) == ("DGX A100", {0x030200})
    assert [gpu.mig.attributes for gpu in node.instances if gpu.mig] == [
        MigAttributes(3, 3, 42, copy_engines=3),
        MigAttributes(1, 1, 14, copy_engines=1),
    ]
    assert [gpu.product for gpu in node.instances] == ["Simulated GPU MIG 3g.20gb", "Simulated GPU MIG 1g.5gb"]


def test_a_card_needs_nothing_but_its_memory(file: Path) -> None:
    """A card of which only the memory is reported is a whole card."""
    (gpu,) = read(file, "gpus: [{memory: 1500MiB}]").cards
    assert (gpu.name, gpu.memory_mib, gpu.compute_capability) == ("Simulated GPU", 1500, (8, 0))
    assert (gpu.numa_node, gpu.mig_enabled) == (None, False)


def test_a_word_for_memory_is_corrected(file: Path) -> None:
    """The refusal names the only word that is allowed."""
    with pytest.raises(ConfigError, match="2GiB or 256MiB, or unreported"):
        read(file, "gpus: [{memory: unknown}]")


def test_the_memory_of_a_card_can_be_unknown(file: Path) -> None:
    """As of GB10: its processes have memory, the card has none that anybody knows."""
    process = "{pod: default/p, memory: 6GiB}"
    file.write_text(f"gpus: [{{memory: unreported, name: NVIDIA GB10, processes: [{process}]}}]")
    (usage,) = SimulatedSource(file).sample()
    assert (usage.memory_total, usage.memory_used) == (None, None)
    assert usage.processes is not None
    assert [each.memory for each in usage.processes] == [6 << 30]


def test_a_card_can_drive_displays(file: Path) -> None:
    """The mode is the class that the card has on PCI; a part of the slices of an instance is what its profile says."""
    node = read(file, "gpus:\n- {memory: 1GiB, mode: graphics}\n- {memory: 40GiB, mig: [1c.3g.20gb]}\n")
    assert [gpu.pci_class for gpu in node.cards] == [0x030000, 0x030200]
    assert node.instances[0].mig is not None
    assert node.instances[0].mig.attributes == MigAttributes(3, 1, 14, copy_engines=3)


def test_cards_follow_one_another_in_the_order_of_the_file(file: Path) -> None:
    """Entries with counts make one numbered row of cards, each with a place on PCI of its own."""
    node = read(file, "gpus:\n- {memory: 40GiB, count: 2}\n- {memory: 16GiB, migEnabled: true}\n- {memory: 80GiB}\n")
    assert [(gpu.index, gpu.memory_mib) for gpu in node.cards] == [(0, 40960), (1, 40960), (2, 16384), (3, 81920)]
    assert [gpu.mig_enabled for gpu in node.cards] == [False, False, True, False]
    assert len({gpu.pci_bus_id for gpu in node.cards}) == 4


def test_uuids_of_cards_are_distinct_and_last(file: Path) -> None:
    """UUIDs are the same in every run, one a card, and those that are given are kept."""
    text = f"gpus:\n- {{memory: 40GiB, count: 3}}\n- {{memory: 40GiB, uuid: {UUID}}}\n"
    uuids = [gpu.uuid for gpu in read(file, text).cards]
    assert uuids == [gpu.uuid for gpu in read(file, text).cards]
    assert len(set(uuids)) == 4
    assert uuids[0] == "GPU-b3e4bb69-63b3-546f-b87a-a756dcc28ee4"
    assert uuids[3] == UUID


def test_cards_of_one_numa_node_are_closer(file: Path) -> None:
    """Every pair of cards has a score, higher on one NUMA node than over two."""
    node = read(file, "gpus:\n- {memory: 1GiB, numaNode: 0, count: 2}\n- {memory: 1GiB, numaNode: 1}\n")
    near, far, other = (frozenset(node.cards[index].uuid for index in pair) for pair in ((0, 1), (0, 2), (1, 2)))
    assert node.closeness.keys() == {near, far, other}
    assert node.closeness[near] > node.closeness[far] == node.closeness[other] > 0


def test_the_file_is_read_at_each_look(file: Path) -> None:
    """What the file says now counts, so a node can change while something watches it."""
    file.write_text("gpus: [{memory: 1GiB}]")
    source = SimulatedSource(file)
    assert len(source.read().cards) == 1
    file.write_text("gpus: [{memory: 1GiB, count: 5}]")
    assert len(source.read().cards) == 5


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("", [":1:1: the file is empty"]),
        ("gpus: [", [":1:8: this is not YAML"]),
        ("driverVersion: '1'", [":1:1: gpus: "]),
        ("gpus:\n- name: A100\n", [":2:3: gpus[0].memory: "]),
        ("gpus: [{memory: 40GB}]", [':1:17: gpus[0].memory: found "40GB"; did you mean "40GiB"?']),
        (
            "gpus: [{memory: unreported, mig: [1g.5gb]}]",
            [":1:8: gpus[0]: found memory: unreported on a card in MIG mode, whose instances"],
        ),
        ("gpus: [{memory: 0GiB}]", [':1:17: gpus[0].memory: found "0GiB"']),
        ("gpus: [{memory: 16385GiB}]", [':1:17: gpus[0].memory: found "16385GiB"; allowed: at most 16384GiB']),
        (
            "gpus: [{memory: 1GiB, count: 0}]",
            [":1:30: gpus[0].count: found 0; allowed: a whole number from 1 to 64"],
        ),
        ("gpus: [{memory: 1GiB, count: 65}]", [":1:30: gpus[0].count: found 65; allowed: a whole number from 1 to 64"]),
        ("gpus: [{memory: 1GiB, uuid: GPU-1}]", [':1:29: gpus[0].uuid: found "GPU-1"; allowed: GPU- and 36 ']),
        (
            "gpus: [{memory: 1GiB, computeCapability: 8}]",
            [':1:42: gpus[0].computeCapability: found 8; allowed: a version such as "8.0", in quotes'],
        ),
        (
            "gpus: [{memory: 1GiB, numaNode: -1}]",
            [":1:33: gpus[0].numaNode: found -1; allowed: a whole number of 0 or more"],
        ),
        ("gpus: [{memory: 1GiB, migEnabled: 1}]", [":1:35: gpus[0].migEnabled: found 1; allowed: true or false"]),
        ("gpus: [{memory: 1GiB}]\ncudaVersion: twelve", [':2:14: cudaVersion: found "twelve"; allowed: a version ']),
        (
            "gpus: [{memory: 1GiB, mode: game}]",
            [':1:29: gpus[0].mode: found "game"; allowed: compute, graphics'],
        ),
        (
            'gpus: [{memory: 1GiB, name: "a\\eb"}]',
            [r':1:29: gpus[0].name: found "a\u001bb"; allowed: text on one line, without control characters'],
        ),
        ("version: v1\nsharing: {}\n", [":1:10: version: found a config, but simulated GPUs are expected"]),
        ("gpus: [{memory: 1GiB}]\ngpus: [{memory: 1GiB}]", [':2:1: gpus: "gpus" is given twice, first on line 1']),
        (f"gpus: [{{memory: 1GiB, count: 2, uuid: {UUID}}}]", [":1:8: gpus[0]: found a uuid for 2 GPUs"]),
        (
            f"gpus: [{{memory: 1GiB, uuid: {UUID}}}, {{memory: 2GiB, uuid: {UUID}}}]",
            [f":1:1: gpus: found {UUID} more than once"],
        ),
        (
            "gpus: [{memory: 1GiB, memry: 1GiB}]\ndriver: 570",
            [
                ':1:30: gpus[0].memry: unknown key "memry"; did you mean "memory"? Allowed here: memory, ',
                ':2:9: driver: unknown key "driver"; Allowed here: gpus, ',
            ],
        ),
    ],
)
def test_every_mistake_is_told_with_its_place(file: Path, text: str, lines: list[str]) -> None:
    """Wrong files are refused with all their mistakes, each with its line and column."""
    with pytest.raises(ConfigError) as refusal:
        read(file, text)
    for line, start in zip(refusal.value.lines, lines, strict=True):
        assert line.startswith(f"{file}{start}")


def test_a_missing_file_is_told(file: Path) -> None:
    """There is no node without its file."""
    with pytest.raises(ConfigError, match="there is no such file"):
        SimulatedSource(file).read()


def test_instances_of_a_card_in_mig_mode(file: Path) -> None:
    """Profiles make a card one in MIG mode; instances have names that last, their memory, and nodes of their own."""
    text = "gpus:\n- {memory: 40GiB, count: 2, numaNode: 1, mig: [1g.5gb, 1c.3g.20gb, 1g.5gb+me]}\n- {memory: 16GiB}\n"
    node = read(file, text)
    assert [gpu.mig_enabled for gpu in node.cards] == [True, True, False]
    assert [gpu.label for gpu in node.instances] == ["0:0", "0:1", "0:2", "1:0", "1:1", "1:2"]
    assert [gpu.memory_mib for gpu in node.instances_of(node.cards[1])] == [5120, 20480, 5120]
    assert {(gpu.index, gpu.minor, gpu.numa_node) for gpu in node.instances_of(node.cards[1])} == {(1, 1, 1)}
    assert len({gpu.uuid for gpu in node.instances}) == 6
    assert node == read(file, text)
    numbers = [number for gpu in node.instances if gpu.mig and gpu.mig.capabilities for number in gpu.mig.capabilities]
    assert len(set(numbers)) == 12
    changed = read(file, text.replace("1c.3g.20gb", "2g.10gb")).instances
    assert {gpu.uuid for gpu in node.instances} - {gpu.uuid for gpu in changed} == {
        gpu.uuid for gpu in node.instances if gpu.mig and gpu.mig.number == 1
    }


@pytest.mark.parametrize(
    ("profiles", "message"),
    [
        ("[1g5gb]", ':1:30: gpus[0].mig[0]: found "1g5gb"; allowed: a MIG profile such as 1g.5gb'),
        ("[1g.5gb, 5]", ":1:38: gpus[0].mig[1]: found 5; allowed: a MIG profile such as 1g.5gb"),
        (f"[{', '.join(['1g.5gb'] * 8)}]", "at most 7"),
    ],
)
def test_layouts_that_cannot_be_are_refused(file: Path, profiles: str, message: str) -> None:
    """A profile is spelled as NVIDIA spells it, and a card has up to seven instances."""
    with pytest.raises(ConfigError) as refused:
        read(file, f"gpus: [{{memory: 40GiB, mig: {profiles}}}]")
    assert message in str(refused.value)


def test_cards_are_used_as_the_file_says(file: Path) -> None:
    """Each process of an entry uses each of its cards; without a pod it is one of the host."""
    file.write_text(
        "gpus:\n"
        "- {memory: 16GiB, count: 2, processes: [{pod: default/a, container: main, memory: 2GiB, utilization: 30}]}\n"
        "- {memory: 16GiB, processes: [{memory: 1GiB}]}\n"
        "- {memory: 16GiB}\n"
    )
    first, second, third, fourth = SimulatedSource(file).sample()
    assert (first.memory_total, first.memory_used, first.utilization) == (16 << 30, 2 << 30, 0.3)
    assert first.processes == second.processes
    assert first.processes == (Process(1, "simulated", 2 << 30, 0.3, Owner(pod="default/a", container="main")),)
    assert third.processes == (Process(1, "simulated", 1 << 30, 0.0),)
    assert (fourth.memory_used, fourth.processes) == (0, ())


@pytest.mark.parametrize(
    ("process", "expected"),
    [
        ("{memory: 1GiB, pod: trainer}", "<namespace>/<name>"),
        ("{memory: 1GiB, pods: default/a}", 'did you mean "pod"'),
        ("{pod: default/a}", "missing"),
        ("{memory: 1GiB, utilization: 101}", "utilization"),
    ],
)
def test_a_mistake_in_a_process_is_named(file: Path, process: str, expected: str) -> None:
    """What cannot be simulated is said, with what is allowed."""
    file.write_text(f"gpus:\n- memory: 16GiB\n  processes:\n  - {process}\n")
    with pytest.raises(ConfigError) as raised:
        SimulatedSource(file).sample()
    assert expected in str(raised.value)


def test_processes_on_instances_are_refused(file: Path) -> None:
    """Which instance a process uses cannot be said, so none are simulated there."""
    with pytest.raises(ConfigError, match="processes on a card in MIG mode"):
        read(file, "gpus:\n- {memory: 40GiB, mig: [1g.5gb], processes: [{memory: 1GiB}]}\n")


def test_simulated_gpus_limit_no_memory(file: Path) -> None:
    """Limits are unknown, with the reason, whatever is asked."""
    asked = [("GPU-1", Path("/sys/fs/cgroup/a")), ("GPU-2", Path("/sys/fs/cgroup/a"))]
    found = {each: str(reason) for each, reason in SimulatedSource(file).read_limits(asked).items()}
    assert found == dict.fromkeys(asked, "simulated GPUs have no driver that limits memory")
