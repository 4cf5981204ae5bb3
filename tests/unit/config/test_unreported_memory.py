"""Tests of `gpushare_plugin.config.unreported_memory`: what a node offers of a GPU that does not report its memory."""

from collections.abc import Mapping

import pytest

from gpushare_plugin.base.structs import replace
from gpushare_plugin.config.effective import EffectiveConfig
from gpushare_plugin.config.unreported_memory import NO_SIZE, remedy, sized
from gpushare_plugin.core.gpu import Inventory
from gpushare_plugin.ledger.node import recorded_node
from gpushare_plugin.ledger.node_record import decode, encode, record
from gpushare_plugin.ledger.verdicts import Misfit
from gpushare_plugin.observe.node.report import report
from gpushare_plugin.sharing.cut import cut
from gpushare_plugin.sharing.plan import Plan, plan
from gpushare_plugin.sharing.snapshot import planned_snapshot
from tests.nodes import a_gpu
from tests.unit.ledger.objects import account, container, request
from tests.unit.sharing.settings import GPU_MEM, memory, planned, present, settings, time_slicing

WHOLE = "nvidia.com/gpu"
GB10 = a_gpu(0, 0, name="NVIDIA GB10", compute_capability=(12, 1))
ALONE, BESIDE = Inventory((GB10,)), Inventory((GB10, a_gpu(1, 8192)))
SIZE = [{"pattern": "NVIDIA GB10", "size": "96GiB"}]
TURNS = {"name": WHOLE, "replicas": 4}
UNDER_MPS = {"mps": {"resources": [{"name": WHOLE, "replicas": 4, "rename": "nvidia.com/gpu.shared"}]}}
SLICES = {"mps": {"sizes": [{"slices": [{"size": "4gb", "count": 2}]}]}}


def offers(decided: Plan) -> dict[str, dict[int, int]]:
    """Return the units of each resource of a plan without problems, by the index of the GPU."""
    assert decided.problems == ()
    return {
        resource.name: {resource.gpus[uuid].index: count for uuid, count in resource.units_of.items()}
        for resource in decided.resources
    }


@pytest.mark.parametrize(
    ("sharing", "alone", "beside"),
    [
        (memory(), {WHOLE: {0: 1}}, {GPU_MEM: {1: 8}, WHOLE: {0: 1}}),
        (memory(devices=[0]), {WHOLE: {0: 1}}, {WHOLE: {0: 1, 1: 1}}),
        (memory(devices=[GB10.uuid]), {WHOLE: {0: 1}}, {WHOLE: {0: 1, 1: 1}}),
        (memory(isolation="mps", compute="requested"), {WHOLE: {0: 1}}, None),
        (UNDER_MPS, {WHOLE: {0: 1}}, {"nvidia.com/gpu.shared": {1: 4}, WHOLE: {0: 1}}),
        (SLICES, {WHOLE: {0: 1}}, {"nvidia.com/gpu-4gb": {1: 2}, WHOLE: {0: 1}}),
        (time_slicing({**TURNS, "isolation": "hami-core", "rename": "nvidia.com/gpu.shared"}), {WHOLE: {0: 1}}, None),
    ],
)
def test_entries_that_need_memory_leave_such_a_gpu_out_with_words(
    sharing: Mapping[str, object], alone: Mapping[str, object], beside: Mapping[str, object] | None
) -> None:
    """The GPU is offered whole, the other GPU as before, and a warning says why and what to add to the config."""
    decided = planned(ALONE, sharing=sharing)
    assert offers(decided) == alone
    (notice,) = decided.notices
    assert f"leaves out {GB10.description}: it {NO_SIZE}" in notice
    assert 'add {pattern: "NVIDIA GB10", size: …GiB} to unreportedMemory' in notice
    if beside is not None:
        assert offers(planned(BESIDE, sharing=sharing)) == beside


def test_a_count_of_gpus_takes_those_that_can_be_shared() -> None:
    """Two GPUs are asked for and one can be shared: it is, with the warning about the other one."""
    decided = planned(BESIDE, sharing=memory(devices=2))
    assert offers(decided) == {GPU_MEM: {1: 8}, WHOLE: {0: 1}}
    assert [NO_SIZE in notice for notice in decided.notices] == [True]


def test_a_count_that_the_node_cannot_meet_in_any_case_is_refused() -> None:
    """A GPU of unknown memory excuses itself, and no GPU that the node does not have; the refusal names it."""
    (problem,) = planned(BESIDE, sharing=memory(devices=3)).problems
    assert problem.message.startswith("3 GPUs requested, but this node has 1 to choose from")
    assert problem.message.endswith(f"; GPU 0 {NO_SIZE}")


@pytest.mark.parametrize("sharing", [{}, time_slicing(TURNS)])
def test_whole_gpus_and_time_slices_need_no_memory(sharing: Mapping[str, object]) -> None:
    """Nothing is missing, so nothing is said; containers get no limit in their environment."""
    decided = planned(ALONE, sharing=sharing)
    assert offers(decided) == {WHOLE: {0: 4 if sharing else 1}}
    assert decided.notices == ()
    (resource,) = decided.resources
    granted = resource.allocate([next(iter(resource.units))])
    assert granted.environment == {"NVIDIA_VISIBLE_DEVICES": GB10.uuid}


@pytest.mark.parametrize(
    ("sharing", "expected"),
    [
        (memory(), {GPU_MEM: {0: 96}}),
        (
            memory(isolation="mps", compute="requested", unit="2GiB"),
            {GPU_MEM: {0: 48}, "aliyun.com/gpu-core.percentage": {0: 100}},
        ),
        (UNDER_MPS, {"nvidia.com/gpu.shared": {0: 4}}),
        (SLICES, {"nvidia.com/gpu-4gb": {0: 2}}),
    ],
)
def test_with_a_size_in_the_config_the_gpu_is_shared_by_memory(
    sharing: Mapping[str, object], expected: Mapping[str, object]
) -> None:
    """The size counts as the memory that containers can use."""
    decided = planned(ALONE, sharing=sharing, unreportedMemory=SIZE)
    assert (offers(decided), decided.notices) == (expected, ())


def test_limits_are_parts_of_the_size_in_the_config() -> None:
    """A container with a quarter of the GPU under MPS may use a quarter of the size."""
    decided = planned(ALONE, sharing=UNDER_MPS, unreportedMemory=SIZE)
    assert [mode.memory_limit_mib for mode in decided.mps.gpus.values()] == [24576]
    by_memory = planned(ALONE, sharing=memory(frameworkHints=True), unreportedMemory=SIZE).resources[0]
    ids = [unit.id for unit in by_memory.units.values()][:24]
    environment = by_memory.allocate(ids).environment
    assert (environment["GPUSHARE_MEMORY_LIMIT_MIB"], environment["GPUSHARE_GPU_MEMORY_MIB"]) == ("24576", "98304")
    assert environment["XLA_PYTHON_CLIENT_MEM_FRACTION"] == "0.250000"


@pytest.mark.parametrize(
    ("name", "mib", "sizes", "expected"),
    [
        ("NVIDIA GB10", 0, SIZE, 98304),
        ("NVIDIA Thor", 0, SIZE, 0),
        ("NVIDIA Thor", 0, [*SIZE, {"pattern": "*Thor", "size": "512MiB"}, {"pattern": "*", "size": "GiB"}], 512),
        ("", 0, [{"pattern": "*", "size": "GiB"}], 1024),
        ("NVIDIA GB10", 8192, SIZE, 8192),
    ],
)
def test_the_first_entry_for_the_product_counts_and_only_without_a_report(
    name: str, mib: int, sizes: list[dict[str, str]], expected: int
) -> None:
    """What the driver reports is never replaced."""
    found = sized(Inventory((a_gpu(0, mib, name=name),)), settings(unreportedMemory=sizes).unreported_memory)
    assert [gpu.memory_mib for gpu in found.cards] == [expected]


def test_a_node_without_such_gpus_is_left_as_it_is() -> None:
    """Nothing is made anew for it."""
    usual = Inventory((a_gpu(1),))
    assert sized(usual, settings(unreportedMemory=SIZE).unreported_memory) is usual


def test_the_record_of_the_node_has_zero_for_unknown_memory() -> None:
    """Readers of any version take the number that they expect; the units say that none of them is memory."""
    made = planned_snapshot(settings(sharing=memory()), ALONE, planned(ALONE, sharing=memory()))
    (gpu,) = decode(encode(record(made))).gpus
    assert (gpu.memory_mib, gpu.resource, gpu.units, gpu.unit_mib, gpu.healthy) == (0, WHOLE, 1, 0, True)
    given = {"sharing": memory(), "unreportedMemory": SIZE}
    (sized_gpu,) = record(planned_snapshot(settings(**given), ALONE, planned(ALONE, **given))).gpus
    assert (sized_gpu.memory_mib, sized_gpu.units, sized_gpu.unit_mib) == (98304, 96, 1024)


def test_the_extender_places_pods_on_such_a_gpu_by_its_units() -> None:
    """A pod that asks for a whole GPU gets the one without memory, a pod that asks for memory the other one."""
    made = planned_snapshot(settings(sharing=memory()), BESIDE, planned(BESIDE, sharing=memory()))
    cluster = account(recorded_node("node", decode(encode(record(made)))))
    for asked, gpu in (
        (request(container("main", gpu=1)), GB10),
        (request(container("main", memory=8)), BESIDE.cards[1]),
    ):
        assert {share.gpu for share in cluster.place(asked, "node").shares} == {gpu.uuid}
    assert isinstance(cluster.fit(request(container("main", memory=9)), "node"), Misfit)


def test_a_report_has_no_number_for_what_is_unknown() -> None:
    """Memory, address and compute capability are absent, not zero."""
    bare = Inventory((replace(GB10, compute_capability=None, pci_bus_id="", name=""),))
    made = planned_snapshot(settings(), bare, planned(bare))
    (gpu,) = report(made).gpus
    assert (gpu.memory_mib, gpu.compute_capability, gpu.pci_bus_id, gpu.product) == (None, "", "", "")
    assert record(made).gpus[0].product is None


def test_a_partitioned_node_offers_no_slices_of_such_a_gpu() -> None:
    """Under MPS a slice is a part of the memory; the partitioner reads that the GPU is unsuitable, and why."""
    config = settings()
    decided = plan(EffectiveConfig(config, partitioning="mps"), BESIDE)
    (notice,) = decided.notices
    assert notice.endswith(f"is not partitioned: it {NO_SIZE}; {remedy(GB10)}")
    wanted = {gpu.uuid: {"4gb": 1} for gpu in BESIDE.cards}
    assert cut(wanted, BESIDE.cards, present(BESIDE)).numbers.keys() == {BESIDE.cards[1].uuid}
    both = sized(BESIDE, settings(unreportedMemory=SIZE).unreported_memory)
    assert cut(wanted, both.cards, present(both)).numbers.keys() == wanted.keys()


def test_mps_does_not_take_a_gpu_of_unknown_compute_capability() -> None:
    """Whether MPS can share the GPU, and whether its limits hold, is unknown: the config is refused with a remedy."""
    strange = Inventory((a_gpu(0, 8192, compute_capability=None),))
    (problem,) = planned(strange, sharing=UNDER_MPS).problems
    assert (
        "does not report its compute capability, and MPS takes 3.5 or more: leave it out of devices" in problem.message
    )
    assert offers(planned(strange, sharing=memory())) == {GPU_MEM: {0: 8}}


def test_a_size_beyond_any_card_is_refused() -> None:
    """The message says how much a card can have at most."""
    with pytest.raises(ValueError, match="at most 16384GiB"):
        settings(unreportedMemory=[{"pattern": "*", "size": "16385GiB"}])
