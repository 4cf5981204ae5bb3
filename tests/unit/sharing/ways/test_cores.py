"""Tests of `gpushare_plugin.sharing.ways.memory`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from gpushare_plugin.base.errors import PlacementError
from gpushare_plugin.base.structs import replace
from gpushare_plugin.config.schema.names import CORES
from gpushare_plugin.core.gpu import Inventory
from gpushare_plugin.core.grant import Grant, Recipient
from gpushare_plugin.core.resource import Resource
from gpushare_plugin.core.snapshot import Snapshot
from gpushare_plugin.core.unit import KUBELET_MESSAGE_LIMIT, listed_size, parse_unit
from gpushare_plugin.ledger.node_record import ResourceRecord, record
from gpushare_plugin.sharing.plan import Plan
from gpushare_plugin.sharing.snapshot import planned_snapshot
from gpushare_plugin.sharing.transition import Offer, WantedOffer, advance
from tests.nodes import a_gpu, a_node
from tests.unit.sharing.holders import confirmed
from tests.unit.sharing.settings import GPU_MEM, memory, planned, settings, units_by_gpu

TWO = a_node(40960, 40960)
REQUESTED = {"isolation": "mps", "compute": "requested"}
OLD = replace(TWO, cards=(a_gpu(0, compute_capability=(6, 1)), TWO.cards[1]))


def offered(inventory: Inventory = TWO, **entry: object) -> Plan:
    """Return the plan of a node whose GPUs are shared by memory, and whose containers request compute."""
    return planned(inventory, sharing=memory(**{**REQUESTED, **entry}))


def pair(decided: Plan) -> tuple[Resource, Resource]:
    """Return the resources of memory and of compute of a plan without problems."""
    assert decided.problems == ()
    units, cores = decided.resources
    assert (units.name, cores.name) == (GPU_MEM, CORES)
    return units, cores


def on(resource: Resource, index: int) -> list[str]:
    """Return the IDs of all units of one GPU."""
    return [unit.id for unit in resource.units.values() if resource.gpus[unit.gpu].index == index]


@pytest.mark.parametrize("isolation", ["mps", "hami-core"])
def test_every_gpu_shared_by_memory_offers_a_hundred_units_of_compute(isolation: str) -> None:
    """Where something limits compute, each GPU has one unit a percent, beside its memory."""
    units, cores = pair(offered(isolation=isolation))
    assert dict(cores.units_of) == dict.fromkeys(units.units_of, 100)
    assert (units.role, cores.role) == ("memory", "cores")


@pytest.mark.parametrize(
    ("isolation", "variable"), [("mps", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"), ("hami-core", "CUDA_DEVICE_SM_LIMIT")]
)
def test_every_variable_comes_from_one_resource_only(isolation: str, variable: str) -> None:
    """The kubelet merges what a container gets in any order: memory brings the GPU, compute nothing but its limit."""
    units, cores = pair(offered(isolation=isolation))
    limit = cores.allocate(on(cores, 1)[:30])
    assert limit == Grant({variable: "30"})
    share = units.allocate(on(units, 1)[:10])
    assert variable not in share.environment
    assert share.environment["NVIDIA_VISIBLE_DEVICES"] == a_gpu(1).uuid


def test_parts_of_several_gpus_have_one_limit_that_holds_on_each() -> None:
    """Where they were promised, the smallest counts, as one variable holds for all GPUs; otherwise none is given."""
    _, cores = pair(offered())
    parts = [*on(cores, 0)[:30], *on(cores, 1)[:20]]
    assert cores.allocate(parts, Recipient(promised=True)) == Grant({"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "20"})
    with pytest.raises(PlacementError, match="50 units found on 2 GPUs, all on one GPU expected"):
        cores.allocate(parts)


def test_mps_has_no_default_percentage() -> None:
    """A default of the control daemon would limit containers that may have more."""
    assert offered().mps.active_thread_percentage is None


def test_compute_is_requested_only_where_something_limits_it() -> None:
    """With isolation none the config is rejected, with what to set."""
    with pytest.raises(ValidationError, match=r"isolation is none.*set isolation to mps, driver\+mps or hami-core"):
        settings(sharing=memory(compute="requested"))


def test_memory_cannot_have_the_name_of_compute() -> None:
    """A config that gives units of memory the name of compute is rejected, with what to set instead."""
    with pytest.raises(ValidationError, match=r"stands for compute; .*compute: requested"):
        settings(sharing=memory(name=CORES))


def test_a_gpu_that_mps_cannot_limit_offers_no_compute() -> None:
    """Before compute capability 7.0 MPS has no limits: the GPU offers memory only, and a warning says so."""
    decided = offered(OLD)
    units, cores = pair(decided)
    assert (len(units.gpus), list(cores.gpus)) == (2, [a_gpu(1).uuid])
    assert any(f"{CORES} is not offered on GPU 0: mps does not limit" in notice for notice in decided.notices)
    alone = planned(replace(OLD, cards=OLD.cards[:1]), sharing=memory(**REQUESTED))
    assert [resource.name for resource in alone.resources] == [GPU_MEM]


def test_entries_share_one_resource_of_compute() -> None:
    """Two entries with isolations of their own: each GPU is limited as its own entry says."""
    entries = [
        {"name": GPU_MEM, "devices": ["0"], **REQUESTED},
        {"name": f"{GPU_MEM}.large", "devices": ["1"], **REQUESTED, "isolation": "hami-core"},
    ]
    decided = planned(TWO, sharing={"memory": {"resources": entries}})
    assert decided.problems == ()
    cores = decided.resources[-1]
    assert cores.allocate(on(cores, 0)[:7]).environment == {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "7"}
    assert cores.allocate(on(cores, 1)[:7]).environment == {"CUDA_DEVICE_SM_LIMIT": "7"}


def test_compute_of_two_gpus_is_refused() -> None:
    """Units of two GPUs, which only the kubelet can have chosen, are never granted."""
    _, cores = pair(offered())
    with pytest.raises(PlacementError, match="5 units found on 2 GPUs"):
        cores.allocate([*on(cores, 0)[:2], *on(cores, 1)[:3]])


@given(st.lists(st.integers(1, 110), max_size=12))
def test_no_gpu_gives_more_than_a_hundred_percent(sizes: list[int]) -> None:
    """Whatever is requested one after the other: a request is on one GPU, and no GPU's limits exceed 100 together."""
    _, cores = pair(offered())
    free, given_out = set(cores.units), {0: 0, 1: 0}
    for size in sizes:
        try:
            chosen = cores.prefer(list(free), [], size)
        except PlacementError as error:
            assert max(100 - used for used in given_out.values()) < size
            assert f"{size} units requested, but no single GPU has as many free" in str(error)  # noqa: PT017
            continue
        ((index, count),) = units_by_gpu(cores, chosen).items()
        (limit,) = cores.allocate(chosen).environment.values()
        assert int(limit) == count == size
        given_out[index] += count
        free -= set(chosen)
    assert max(given_out.values()) <= 100


def test_an_id_of_compute_names_its_gpu() -> None:
    """An ID of compute is like no other, and says which GPU it is of; a hundred GPUs have room in a list."""
    units, cores = pair(offered())
    assert not units.units.keys() & cores.units.keys()
    for unit in cores.units.values():
        assert parse_unit(unit.id, {uuid: gpu.numa_node for uuid, gpu in cores.gpus.items()}) == unit
    assert 50 * listed_size(cores.units.values()) < KUBELET_MESSAGE_LIMIT


def test_the_record_says_what_is_compute() -> None:
    """A scheduler sees both resources of each GPU; the GPU itself counts as shared as its memory is."""
    made = planned_snapshot(settings(sharing=memory(**REQUESTED)), TWO, offered())
    written = record(made)
    assert written.resources == (
        ResourceRecord(name=GPU_MEM, kind="memory", policy="binpack", single_gpu=True),
        ResourceRecord(name=CORES, kind="cores", policy="binpack"),
    )
    assert [(gpu.index, gpu.resource, gpu.units, gpu.unit_mib, gpu.mode) for gpu in written.gpus] == [
        (0, GPU_MEM, 40, 1024, "mps"),
        (0, CORES, 100, 0, "mps"),
        (1, GPU_MEM, 40, 1024, "mps"),
        (1, CORES, 100, 0, "mps"),
    ]


def test_compute_that_is_listed_first_changes_no_mode() -> None:
    """A GPU is shared by memory in whatever order its resources are."""
    decided = offered(isolation="hami-core")
    snapshot = Snapshot(TWO, decided.resources[::-1])
    assert [snapshot.mode(gpu) for gpu in TWO.cards] == ["memory", "memory"]


def test_compute_that_is_offered_no_more_keeps_no_memory_waiting() -> None:
    """Back to a fixed percentage: memory stays offered as it is, units of compute only until no pod holds them."""
    offer, _ = advance(Offer(), wanted(offered()), None, 0)
    held = on(offer.resources[CORES], 0)[:30]
    offer, waiting = advance(offer, wanted(offered(compute=60)), confirmed(*held, at=10), 5)
    assert not waiting
    assert (len(offer.resources[GPU_MEM].units), set(offer.resources[CORES].retired)) == (80, set(held))


def test_compute_in_another_mode_waits_for_that_of_old() -> None:
    """From MPS to HAMi-core: a GPU offers nothing new while a pod holds compute of it, and no ID is listed twice."""
    offer, _ = advance(Offer(), wanted(offered()), None, 0)
    held = on(offer.resources[CORES], 0)[:30]
    offer, waiting = advance(offer, wanted(offered(isolation="hami-core")), confirmed(*held, at=10), 5)
    assert [each.gpu for each in waiting] == [a_gpu(0).uuid]
    assert set(offer.resources[CORES].gpus) == set(offer.resources[GPU_MEM].gpus) == {a_gpu(1).uuid}
    offer, waiting = advance(offer, wanted(offered(isolation="hami-core")), confirmed(at=20), 15)
    assert (waiting, len(offer.resources[CORES].units)) == ((), 200)


def wanted(decided: Plan) -> WantedOffer:
    """Return what a plan wants to be listed."""
    return WantedOffer(decided.resources, decided.modes)
