"""Tests of `gpushare_plugin.sharing.plan`."""

import pytest

from gpushare_plugin.base.structs import replace
from gpushare_plugin.config.effective import EffectiveConfig
from gpushare_plugin.config.loading.load import load
from gpushare_plugin.core.gpu import FailedGpu, Inventory
from gpushare_plugin.core.unit import KUBELET_MESSAGE_LIMIT, listed_size
from gpushare_plugin.sharing.isolation.mps import MpsNeeds, UnderMps
from gpushare_plugin.sharing.plan import plan
from tests.nodes import a_gpu, a_node
from tests.unit.sharing.settings import memory, only, planned, time_slicing, without_file

FOUR = a_node(*[40960] * 4)
SLICED = {"name": "nvidia.com/gpu", "replicas": 5}


def counts(inventory: Inventory, **sections: object) -> dict[str, int]:
    """Return how many units of each resource a node without problems advertises."""
    decided = planned(inventory, **sections)
    assert decided.problems == ()
    return {resource.name: len(resource.units) for resource in decided.resources}


def problems(inventory: Inventory, **sections: object) -> dict[str, str]:
    """Return the problems of a node by their place."""
    return {".".join(map(str, problem.path)): problem.message for problem in planned(inventory, **sections).problems}


def test_a_plan_without_a_file_shares_every_gpu_by_gib() -> None:
    """The defaults advertise aliyun.com/gpu-mem in GiB on every GPU."""
    resource = only(plan(EffectiveConfig(without_file()), FOUR))
    assert (resource.name, len(resource.units)) == ("aliyun.com/gpu-mem", 160)


def test_four_gpus_with_five_replicas_advertise_twenty() -> None:
    """Seed 002: for four GPU devices, twenty are available."""
    assert counts(FOUR, sharing=time_slicing(SLICED)) == {"nvidia.com/gpu": 20}


def test_a_node_shares_in_several_ways() -> None:
    """Each GPU goes to the entry that names it; a GPU no entry names is advertised whole."""
    sharing = memory(devices=[0]) | time_slicing({**SLICED, "rename": "nvidia.com/gpu.shared", "devices": [1, 2]})
    assert counts(FOUR, sharing=sharing) == {"aliyun.com/gpu-mem": 40, "nvidia.com/gpu.shared": 10, "nvidia.com/gpu": 1}


def test_devices_are_named_by_index_or_uuid() -> None:
    """Both forms select the same card."""
    decided = planned(FOUR, sharing=memory(devices=[a_gpu(2).uuid, 0]))
    assert {gpu.index for gpu in decided.resources[0].gpus.values()} == {0, 2}


def test_a_count_takes_what_is_not_named_elsewhere() -> None:
    """Counts are served after entries that name their GPUs, in index order."""
    sharing = memory(devices=2) | time_slicing({**SLICED, "devices": [0]})
    decided = planned(FOUR, sharing=sharing)
    assert {gpu.index for gpu in decided.resources[0].gpus.values()} == {1, 2}


def test_replicas_are_renamed_where_asked() -> None:
    """RenameByDefault appends .shared, rename says the name itself."""
    assert counts(FOUR, sharing=time_slicing(SLICED, renameByDefault=True)) == {"nvidia.com/gpu.shared": 20}
    assert counts(FOUR, sharing=time_slicing({**SLICED, "rename": "example.com/slice"})) == {"example.com/slice": 20}


def test_resource_names_can_go_by_product() -> None:
    """`resources.gpus` names GPUs by product, the first match wins, and sharing refers to those names."""
    node = Inventory((a_gpu(0, name="Tesla T4"), a_gpu(1)))
    resources = {"gpus": [{"pattern": "Tesla*", "name": "t4"}, {"pattern": "*", "name": "gpu"}]}
    sharing = time_slicing({"name": "nvidia.com/t4", "replicas": 3})
    assert counts(node, resources=resources, sharing=sharing) == {"nvidia.com/t4": 3, "nvidia.com/gpu": 1}


def test_sliced_and_whole_gpus_under_one_name_are_noticed() -> None:
    """It works as in NVIDIA's plugin, but a pod cannot tell what it gets, so it is said."""
    decided = planned(FOUR, sharing=time_slicing({**SLICED, "devices": [0]}))
    assert len(only(decided).units) == 8
    assert any("rename" in notice for notice in decided.notices)


def test_an_overlap_names_the_gpu_and_both_entries() -> None:
    """One GPU belongs to one way of sharing."""
    sharing = memory(devices="all") | time_slicing({**SLICED, "devices": [1]})
    found = problems(FOUR, sharing=sharing)["sharing.memory.resources.0.devices"]
    for fact in ("GPU 1", a_gpu(1).uuid, "sharing.memory.resources[0]", "sharing.timeSlicing.resources[0]"):
        assert fact in found


@pytest.mark.parametrize("reference", [7, "GPU-00000009-0000-4000-8000-000000000009"])
def test_a_device_that_matches_no_gpu_is_refused(reference: object) -> None:
    """The message names the reference and the GPUs there are."""
    found = problems(FOUR, sharing=memory(devices=[reference]))["sharing.memory.resources.0.devices"]
    assert f'"{reference}"' in found
    assert a_gpu(3).uuid in found


def test_a_count_beyond_the_gpus_is_refused() -> None:
    """Five of four GPUs cannot be selected."""
    assert "5 GPUs requested" in problems(FOUR, sharing=memory(devices=5))["sharing.memory.resources.0.devices"]


def test_a_device_that_does_not_answer_does_not_stop_the_others() -> None:
    """A card that failed is no mistake in the settings: the rest is served and the lack is said."""
    node = replace(a_node(40960), failed=(FailedGpu(1, "GPU is lost"),))
    for devices in ([0, 1], 2):
        decided = planned(node, sharing=memory(devices=devices))
        assert len(only(decided).units) == 40
        assert decided.notices


def test_a_unit_larger_than_a_gpu_is_refused() -> None:
    """The message names the card and its memory."""
    found = problems(a_node(40960, 15095), sharing=memory(unit="16GiB"))["sharing.memory.resources.0.unit"]
    assert "GPU 1" in found
    assert "15095 MiB" in found


def test_a_mistake_that_concerns_several_gpus_is_one_problem() -> None:
    """The mistake is not counted once for each GPU."""
    decided = planned(a_node(*[40960] * 6), sharing=memory(unit="100GiB"))
    [problem] = decided.problems
    assert all(f"GPU {index} " in problem.message for index in range(4))
    assert problem.message.endswith(" and 2 more; use a smaller unit")


def test_units_come_from_usable_memory() -> None:
    """An A10 has 23,028 MiB, of which a driver keeps 512: that is less than 22 GiB, so 21 units and 1,012 MiB left."""
    assert counts(a_node(23028 - 512), sharing=memory()) == {"aliyun.com/gpu-mem": 21}
    assert counts(a_node(23028 - 512), sharing=memory(unit="512MiB")) == {"aliyun.com/gpu-mem": 43}


def test_a_unit_too_small_for_the_kubelet_names_the_smallest_that_fits() -> None:
    """81,920 units pass the kubelet's 4 MiB; the unit named instead is accepted."""
    node = a_node(*[81920] * 8)
    found = problems(node, sharing=memory(unit="MiB"))["sharing.memory.resources.0.unit"]
    assert f"{KUBELET_MESSAGE_LIMIT:,}" in found
    smallest = found.rpartition(" ")[2]
    assert counts(node, sharing=memory(unit=smallest))["aliyun.com/gpu-mem"] > 0


def test_a_name_whose_unit_cannot_change_is_refused_where_there_is_too_much_memory() -> None:
    """MiB of one card fit under the name of HAMi; those of eight do not, and another name is the remedy."""
    mib = memory(name="nvidia.com/gpumem", unit="MiB")
    assert counts(a_node(40960), sharing=mib)["nvidia.com/gpumem"] == 40960
    (found,) = problems(a_node(*[81920] * 8), sharing=mib).values()
    assert "so advertise larger units under another name, such as aliyun.com/gpu-mem" in found
    smallest = found.partition("these GPUs is ")[2].partition(",")[0]
    assert counts(a_node(*[81920] * 8), sharing=memory(unit=smallest))["aliyun.com/gpu-mem"] > 0


def test_too_many_replicas_name_the_most_that_fit() -> None:
    """A replica count the kubelet would refuse is found before any replica is made."""
    node = a_node(*[40960] * 8)
    entry = {**SLICED, "replicas": 1_000_000_000}
    found = problems(node, sharing=time_slicing(entry))["sharing.timeSlicing.resources.0.replicas"]
    most = int(found.split("at most ")[1].split()[0])
    assert counts(node, sharing=time_slicing({**entry, "replicas": most}))["nvidia.com/gpu"] == 8 * most
    assert problems(node, sharing=time_slicing({**entry, "replicas": most + 1}))


@pytest.mark.parametrize("others", [0, 1, 3])
def test_whole_gpus_beside_replicas_count_in_their_list(others: int) -> None:
    """As many replicas as the message says fit beside the whole GPUs of the same name, and no more."""
    node, entry = a_node(*[40960] * (1 + others)), {**SLICED, "devices": [0], "replicas": 1_000_000}
    found = problems(node, sharing=time_slicing(entry))["sharing.timeSlicing.resources.0.replicas"]
    most = int(found.split("at most ")[1].split()[0])
    resource = only(planned(node, sharing=time_slicing({**entry, "replicas": most})))
    assert listed_size(resource.units.values()) <= KUBELET_MESSAGE_LIMIT
    assert problems(node, sharing=time_slicing({**entry, "replicas": most + 1}))


def test_the_same_name_for_memory_and_gpus_is_refused() -> None:
    """A pod that asks for nvidia.com/gpu must not get a unit of memory."""
    found = problems(FOUR, sharing=memory(name="nvidia.com/gpu", devices=[0]))
    assert "another name" in found["sharing.memory.resources"]


def test_all_problems_are_found_at_once() -> None:
    """Three mistakes of three kinds are three problems."""
    sharing = memory(unit="64GiB", devices=[0, 9]) | time_slicing({**SLICED, "devices": [0]})
    assert set(problems(FOUR, sharing=sharing)) == {
        "sharing.memory.resources.0.devices",
        "sharing.memory.resources.0.unit",
        "sharing.timeSlicing.resources.0.devices",
    }


def test_a_card_in_mig_mode_is_whole_or_sliced_but_not_cut_by_memory() -> None:
    """Under strategy none it is advertised as in NVIDIA's plugin; its memory cannot be cut into units."""
    node = Inventory((a_gpu(0, mig_enabled=True), a_gpu(1)))
    assert counts(node, sharing=time_slicing(SLICED)) == {"nvidia.com/gpu": 10}
    decided = planned(node, sharing=memory())
    assert {resource.name: list(resource.gpus) for resource in decided.resources} == {
        "aliyun.com/gpu-mem": [a_gpu(1).uuid],
        "nvidia.com/gpu": [a_gpu(0).uuid],
    }
    assert any("MIG mode" in notice for notice in decided.notices)


def test_sharing_a_resource_no_gpu_has_changes_nothing() -> None:
    """NVIDIA's sample files name MIG resources that most nodes lack."""
    entry = {"name": "nvidia.com/mig-1g.5gb", "replicas": 2}
    decided = planned(FOUR, sharing=time_slicing(SLICED, entry))
    assert len(only(decided).units) == 20
    assert any("mig-1g.5gb" in notice for notice in decided.notices)


# ---------------------------------------------------------------------- MPS

SIZES = {"sizes": [{"slices": [{"size": "10gb", "count": 2}]}]}


def mps(**section: object) -> dict[str, object]:
    """Return a `sharing` section with this MPS section."""
    return {"mps": section}


def test_mps_advertises_replicas_as_nvidias_plugin_does() -> None:
    """The same schema as time slicing, the same IDs and names."""
    assert counts(FOUR, sharing=mps(resources=[SLICED])) == {"nvidia.com/gpu": 20}
    assert counts(FOUR, sharing=mps(resources=[SLICED], renameByDefault=True)) == {"nvidia.com/gpu.shared": 20}


def test_the_daemon_is_told_an_equal_split_for_replicas() -> None:
    """Each GPU under MPS has its own limit of memory; GPUs that MPS does not share are not its business."""
    node = a_node(40960, 15095, 40960)
    needs = planned(node, sharing=mps(resources=[{**SLICED, "devices": [0, 1]}])).mps
    assert needs == MpsNeeds({a_gpu(0).uuid: UnderMps(8192), a_gpu(1).uuid: UnderMps(3019)}, 20)


def test_the_daemon_is_told_no_limit_where_containers_bring_their_own() -> None:
    """Units and slices differ in size; a default would only lower what a container may have."""
    sharing = memory(isolation="mps", devices=[0, 1]) | mps(sizes=[{**SIZES["sizes"][0], "devices": [2]}])
    needs = planned(FOUR, sharing=sharing).mps
    assert needs == MpsNeeds(dict.fromkeys((a_gpu(0).uuid, a_gpu(1).uuid, a_gpu(2).uuid), UnderMps(None)), None)


@pytest.mark.parametrize(("compute", "told"), [("equal", 33), (40, 40), ("unlimited", None), ("proportional", None)])
def test_the_daemon_is_told_the_compute_of_slices_if_all_have_the_same(compute: object, told: int | None) -> None:
    """Equal slices and a percentage hold whatever a container's variables say; memory stays the container's own."""
    slices = [{"size": "10gb", "count": 2}, {"size": "20gb"}]
    needs = planned(a_node(40960), sharing=mps(sizes=[{"slices": slices, "compute": compute}])).mps
    assert needs == MpsNeeds({a_gpu(0).uuid: UnderMps(None)}, told)


def test_the_daemon_is_told_a_percentage_only_if_all_gpus_have_the_same() -> None:
    """One default holds for all GPUs, and caps every client: with two percentages there is none."""
    entries = [{**SLICED, "devices": [0], "rename": "a.io/a"}, {**SLICED, "devices": [1], "replicas": 2}]
    needs = planned(FOUR, sharing=mps(resources=entries)).mps
    assert needs == MpsNeeds({a_gpu(0).uuid: UnderMps(8192), a_gpu(1).uuid: UnderMps(20480)}, None)
    alike = [{**SLICED, "devices": [0], "replicas": 34}, {**SLICED, "devices": [1], "replicas": 48, "rename": "a.io/a"}]
    assert planned(FOUR, sharing=mps(resources=alike)).mps.active_thread_percentage == 2
    mixed = planned(FOUR, sharing=memory(isolation="mps", devices=[0]) | mps(resources=[{**SLICED, "devices": [1]}]))
    assert mixed.mps is not None
    assert mixed.mps.active_thread_percentage is None


@pytest.mark.parametrize("sharing", [memory(), memory(isolation="hami-core"), time_slicing(SLICED), {}])
def test_a_node_without_mps_needs_no_daemon(sharing: dict[str, object]) -> None:
    """Nodes that do not share through MPS never see it."""
    assert planned(FOUR, sharing=sharing).mps == MpsNeeds()


@pytest.mark.parametrize(
    ("sharing", "place"),
    [
        (mps(resources=[SLICED]), "sharing.mps.resources.0.devices"),
        (mps(**SIZES), "sharing.mps.sizes.0.devices"),
        (memory(isolation="mps"), "sharing.memory.resources.0.devices"),
    ],
)
def test_a_gpu_too_old_for_mps_is_refused(sharing: dict[str, object], place: str) -> None:
    """Compute capability 3.5 is the least; the message names the card and what it has."""
    found = problems(a_node(40960, compute_capability=(3, 0)), sharing=sharing)[place]
    for fact in ("GPU 0", "3.0", "3.5"):
        assert fact in found


@pytest.mark.parametrize(
    ("sharing", "place"),
    [(mps(resources=[SLICED]), "sharing.mps.resources.0.devices"), (mps(**SIZES), "sharing.mps.sizes.0.devices")],
)
def test_a_card_in_mig_mode_is_refused_under_mps(sharing: dict[str, object], place: str) -> None:
    """Each such card is named; the others are no reason to hide it."""
    node = Inventory((a_gpu(0), a_gpu(1, mig_enabled=True), a_gpu(2, mig_enabled=True)))
    found = [
        problem for problem in planned(node, sharing=sharing).problems if ".".join(map(str, problem.path)) == place
    ]
    assert [problem.message[:5] for problem in found] == ["GPU 1", "GPU 2"]
    assert all("MIG mode" in problem.message for problem in found)


def test_more_replicas_than_clients_before_volta_are_refused() -> None:
    """48 clients are the file's own limit; 16 depend on the GPU, and the message has both numbers."""
    old = Inventory((a_gpu(0, compute_capability=(6, 1)), a_gpu(1)))
    found = problems(old, sharing=mps(resources=[{**SLICED, "replicas": 17}]))
    assert list(found) == ["sharing.mps.resources.0.replicas"]
    for fact in ("17 containers", "GPU 0", "16 clients"):
        assert fact in found["sharing.mps.resources.0.replicas"]
    assert counts(old, sharing=mps(resources=[{**SLICED, "replicas": 16}])) == {"nvidia.com/gpu": 32}


def test_more_slices_than_clients_are_refused() -> None:
    """A large GPU could have more slices of 1gb than MPS serves clients."""
    sharing = mps(sizes=[{"slices": [{"size": "1gb", "count": 48}, {"size": "2gb"}]}])
    found = problems(a_node(81920), sharing=sharing)["sharing.mps.sizes.0.slices"]
    assert "49 containers" in found
    assert "48 clients" in found


def test_more_units_than_clients_are_noticed() -> None:
    """Pods take several units at once, so it can work: it is said, and nothing is refused."""
    decided = planned(a_node(40960, 81920), sharing=memory(isolation="mps"))
    assert decided.problems == ()
    (notice,) = decided.notices
    assert "GPU 1 (48)" in notice
    assert "GPU 0" not in notice


def test_a_gpu_on_which_mps_enforces_nothing_is_noticed() -> None:
    """Limits need compute capability 7.0; without them MPS still shares."""
    node = Inventory((a_gpu(0, 15000, compute_capability=(6, 1)), a_gpu(1, 15000, compute_capability=(7, 0))))
    decided = planned(node, sharing=memory(isolation="mps"))
    assert decided.problems == ()
    (notice,) = decided.notices
    assert notice.endswith("as on GPU 0")


def test_a_gpu_is_cut_in_one_way_under_mps_as_well() -> None:
    """Slices and replicas of one GPU are refused, with both places."""
    found = problems(FOUR, sharing=mps(resources=[SLICED], **SIZES))
    assert "sharing.mps.sizes[0] (nvidia.com/gpu-10gb)" in found["sharing.mps.resources.0.devices"]


def test_a_size_under_the_name_of_whole_gpus_is_refused() -> None:
    """A pod that asks for a slice must not get a whole GPU."""
    resources = {"gpus": [{"pattern": "*", "name": "gpu-10gb"}]}
    sharing = mps(sizes=[{**SIZES["sizes"][0], "devices": [0]}])
    assert "another name" in problems(FOUR, resources=resources, sharing=sharing)["sharing.mps.sizes"]


def test_a_count_can_be_of_all_that_are_free() -> None:
    """As many GPUs as are left are no problem, and nothing is said of them, though a card has failed; one more is."""
    node = replace(a_node(8192, 8192, 8192), failed=(FailedGpu(3, "GPU is lost"),))
    sharing = memory(devices=2) | time_slicing({**SLICED, "devices": [2]})
    decided = planned(node, sharing=sharing)
    assert (decided.problems, decided.notices) == ((), ())
    assert planned(node, sharing=sharing | memory(devices=3)).notices != ()
    several = problems(replace(node, failed=()), sharing=sharing | memory(devices=3))
    found = several["sharing.memory.resources.0.devices"]
    assert found == "3 GPUs requested, but 2 of the 3 of this node are not selected by another entry"
    alone = problems(replace(node, failed=()), dra={"devices": 9})["dra.devices"]
    assert alone == "9 GPUs requested, but this node has 3 to choose from"


def test_a_device_that_is_named_may_be_the_card_that_failed() -> None:
    """A card that did not even tell its UUID can be any; one that did is that one, by UUID or index, and no other."""
    nameless, named = FailedGpu(1, "no answer"), FailedGpu(1, "no answer", a_gpu(1).uuid)
    for failed, device, excused in [
        (nameless, a_gpu(7).uuid, True),
        (nameless, 1, True),
        (named, a_gpu(1).uuid, True),
        (named, 1, True),
        (named, a_gpu(7).uuid, False),
        (named, 7, False),
    ]:
        decided = planned(replace(a_node(8192), failed=(failed,)), sharing=memory(devices=[0, device]))
        assert (not decided.problems, bool(decided.notices)) == (excused, excused)


def test_a_plan_stops_at_many_problems() -> None:
    """A hundred devices that are not there are reported, and that there are more; the others are not looked for."""
    decided = planned(a_node(8192), sharing=memory(devices=list(range(1, 1000))))
    assert len(decided.problems) == 101
    assert decided.resources == ()
    loaded = load(None)
    assert loaded.lines(decided.problems)[-1].endswith("at least 1 more mistakes are not shown; fix these first")
    assert planned(a_node(8192), sharing=memory(devices=list(range(100)))).problems[-1].message.startswith('"99"')


@pytest.mark.parametrize(
    ("driver", "isolation", "refused"),
    [("580.95.05", "mps", True), ("615.71.09", "mps", False), ("", "mps", False), ("580.95.05", "none", False)],
)
def test_protocol_3_of_mps_needs_a_driver(driver: str, isolation: str, *, refused: bool) -> None:
    """A driver that cannot have it is a problem where MPS shares a GPU; a driver of unknown version is none."""
    node = replace(FOUR, driver_version=driver)
    found = problems(node, sharing=memory(isolation=isolation), flags={"mpsProtocol": 3})
    assert list(found) == (["flags.mpsProtocol"] if refused else [])
    assert not refused or "MPS has protocol 3 from driver 615 on" in found["flags.mpsProtocol"]
