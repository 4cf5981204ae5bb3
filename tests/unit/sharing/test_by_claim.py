"""Tests of the GPUs of a plan that are given by claim, in `gpushare_plugin.sharing.plan` and `by_claim`."""

import pytest

from gpushare_plugin.base.structs import replace
from gpushare_plugin.config.effective import EffectiveConfig
from gpushare_plugin.core.claimed_gpu import ClaimedGpu
from gpushare_plugin.core.gpu import FailedGpu
from gpushare_plugin.sharing.plan import Plan, plan
from tests.nodes import a_gpu, a_mig_node, a_node
from tests.unit.sharing.settings import GPU_MEM, memory, planned, settings, time_slicing

FOUR = a_node(*[40960] * 4)
ENTRY = {"name": "nvidia.com/gpu", "replicas": 5}


def split(decided: Plan) -> tuple[dict[str, set[int]], list[int]]:
    """Return the GPUs of each resource of the device plugin, and the GPUs that are given by claim, by index."""
    assert decided.problems == ()
    left = {each.name: {gpu.index for gpu in each.units.by_gpu} for each in decided.resources}
    return left, [each.gpu.index for each in decided.by_claim.values()]


def given(number: int = 0, **sections: object) -> ClaimedGpu:
    """Return a GPU of four, all of which are given by claim."""
    decided = planned(FOUR, **{"dra": {}, **sections})
    assert decided.problems == ()
    assert decided.resources == ()
    return decided.by_claim[a_gpu(number).uuid]


def test_without_the_section_no_gpu_is_given_by_claim() -> None:
    """The plan has the same resources as ever."""
    assert split(planned(FOUR, sharing=memory())) == ({GPU_MEM: {0, 1, 2, 3}}, [])


@pytest.mark.parametrize(
    ("devices", "left", "claimed"),
    [
        ("all", {}, [0, 1, 2, 3]),
        (1, {GPU_MEM: {1}, "nvidia.com/gpu": {2, 3}}, [0]),
        (3, {"nvidia.com/gpu": {3}}, [0, 1, 2]),
        ([1], {GPU_MEM: {0}, "nvidia.com/gpu": {2, 3}}, [1]),
        ([a_gpu(2).uuid, 1], {GPU_MEM: {0}, "nvidia.com/gpu": {3}}, [1, 2]),
    ],
)
def test_the_section_names_the_gpus(devices: object, left: dict[str, set[int]], claimed: list[int]) -> None:
    """A GPU is given by claim or offered to the kubelet, whatever shares the GPU; a count takes the first GPUs."""
    decided = planned(FOUR, sharing=memory(devices=[0, 1]), dra={"devices": devices})
    assert split(decided) == (left, claimed)


def test_a_gpu_given_by_claim_keeps_its_isolation() -> None:
    """MPS serves the GPU as if the device plugin offered it, with the same mode."""
    sharing = memory(isolation="mps", devices=[0])
    before, after = (planned(FOUR, sharing=sharing, **more) for more in ({}, {"dra": {"devices": [0]}}))
    assert after.mps == before.mps
    assert after.modes == before.modes
    assert after.isolations == before.isolations


@pytest.mark.parametrize(
    ("sharing", "warning"),
    [
        (time_slicing({**ENTRY, "devices": [0, 1]}), "has both replicas and whole GPUs"),
        (time_slicing({**ENTRY, "replicas": 500}), "more than its pods can use"),
        (
            memory(unit="512MiB", isolation="mps", devices=[0, 1]),
            "more units than MPS serves clients, on GPU 0 (48), GPU 1",
        ),
    ],
)
def test_warnings_are_of_the_gpus_that_the_device_plugin_offers(sharing: object, warning: str) -> None:
    """No pod asks for a unit of a GPU given by claim, and a ResourceSlice says how many clients MPS serves there."""
    assert warning in "".join(planned(FOUR, sharing=sharing, dra={"devices": [3]}).notices)
    assert planned(FOUR, sharing=sharing, dra={"devices": [0, 1]}).notices == ()
    assert planned(FOUR, sharing=sharing, dra={}).notices == ()


def test_compute_is_not_offered_on_a_gpu_given_by_claim() -> None:
    """The second resource of a GPU goes with the GPU, and the claim has the variable instead."""
    sharing = memory(isolation="mps", compute="requested")
    decided = planned(FOUR, sharing=sharing, dra={"devices": [0, 1, 2]})
    assert split(decided)[0] == {GPU_MEM: {3}, "aliyun.com/gpu-core.percentage": {3}}
    gpu = decided.by_claim[a_gpu(1).uuid]
    assert [each.name for each in gpu.resources] == [GPU_MEM]
    assert list(gpu.resource.gpus) == [gpu.gpu.uuid]
    assert gpu.compute_variable == "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"


def test_a_gpu_shared_by_memory() -> None:
    """Without an isolation, neither the number of claims nor compute counts."""
    gpu = given(sharing=memory(unit="2GiB", placement="spread"), dra={"default": "8GiB"})
    assert (gpu.way, gpu.isolation, gpu.limited, gpu.default_mib, gpu.policy) == (
        "memory",
        "none",
        False,
        8192,
        "spread",
    )
    assert (gpu.shares, gpu.compute_variable, gpu.shared) == (None, None, True)
    assert len(gpu.resource.units) == 20


def test_under_mps_the_clients_count() -> None:
    """MPS serves 48 clients on a GPU of compute capability 7.0 or more, and 16 before."""
    sharing = memory(isolation="mps")
    assert given(sharing=sharing).shares == 48
    old = planned(replace(FOUR, cards=(a_gpu(0, compute_capability=(6, 1)),)), sharing=sharing, dra={})
    assert old.by_claim[a_gpu(0).uuid].shares == 16
    assert old.by_claim[a_gpu(0).uuid].compute_variable is None


def test_replicas_take_turns_or_run_under_mps() -> None:
    """The policy of replicas fills a GPU first or takes the emptiest, and MPS refuses several replicas."""
    gpu = given(sharing=time_slicing(ENTRY))
    assert (gpu.way, gpu.shares, gpu.single_share, gpu.limited, gpu.policy) == ("replicas", 5, False, False, "spread")
    packed = {"plugin": {"sharedDevicesAllocationPolicy": "packed"}}
    under_mps = given(sharing={"mps": {"resources": [ENTRY]}}, flags=packed)
    assert (under_mps.way, under_mps.shares, under_mps.single_share) == ("mps-replicas", 5, True)
    assert (under_mps.limited, under_mps.policy) == (True, "binpack")
    assert given(sharing=time_slicing({**ENTRY, "isolation": "hami-core"})).way == "replicas"


def test_slices_have_a_resource_for_each_size() -> None:
    """The smallest size is the first, and only this GPU has units in the resources."""
    slices = [{"size": "20gb"}, {"size": "10gb", "count": 2}]
    gpu = given(1, sharing={"mps": {"sizes": [{"slices": slices}]}})
    assert gpu.way == "slices"
    assert [each.name for each in gpu.resources] == ["nvidia.com/gpu-10gb", "nvidia.com/gpu-20gb"]
    assert all(list(each.gpus) == [a_gpu(1).uuid] for each in gpu.resources)


def test_whole_gpus_and_mig_instances_are_exclusive() -> None:
    """Whatever no entry shares is whole; a card in MIG mode is not offered, but its instances are."""
    assert not given().shared
    node = a_mig_node(("1g.5gb", "2g.10gb"), None)
    decided = planned(node, flags={"migStrategy": "mixed"}, dra={})
    assert {each.way for each in decided.by_claim.values()} == {"whole"}
    assert decided.by_claim.keys() == {gpu.uuid for gpu in node.gpus if gpu.mig or not gpu.mig_enabled}


@pytest.mark.parametrize(
    ("devices", "words"),
    [
        (["7"], '"7" matches no GPU'),
        (9, "9 GPUs requested"),
        ([0], "in MIG mode and is not offered itself"),
    ],
)
def test_what_cannot_be_given_by_claim_is_a_problem(devices: object, words: str) -> None:
    """The message is at `dra.devices`."""
    node = a_mig_node(("1g.5gb", "2g.10gb"), None)
    (problem,) = planned(node, flags={"migStrategy": "mixed"}, dra={"devices": devices}).problems
    assert problem.path == ("dra", "devices")
    assert words in problem.message


def test_a_card_that_does_not_answer_does_not_stop_the_others() -> None:
    """A card that is gone is no mistake of the config; the rest is given by claim, with a warning."""
    node = replace(a_node(40960), failed=(FailedGpu(1, "GPU is lost"),))
    for devices in ([0, 1], 2):
        decided = planned(node, dra={"devices": devices})
        assert split(decided) == ({}, [0])
        assert any("unresponsive" in each or "responsive" in each for each in decided.notices)


def test_a_partitioned_node_gives_nothing_by_claim() -> None:
    """GPUs are divided as annotations want; the warning says so."""
    decided = plan(EffectiveConfig(settings(dra={}), partitioning="mps"), FOUR)
    assert decided.by_claim == {}
    assert any(notice.startswith("dra has no effect") for notice in decided.notices)
