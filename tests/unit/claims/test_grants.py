"""Tests of `gpushare_plugin.claims.grants`: what a claim holds, and what its containers get."""

import re
from typing import Any

import pytest

from gpushare_plugin.base.structs import replace
from gpushare_plugin.claims.claim import ClaimRefusedError
from gpushare_plugin.config.effective import EffectiveConfig
from gpushare_plugin.core.grant import Grant
from gpushare_plugin.core.namespaces import ContainerNamespace
from gpushare_plugin.sharing.plan import plan
from tests.nodes import a_gpu, a_mig_node, a_node
from tests.unit.claims.node import FOUR, GIB, ClaimNode, request, share
from tests.unit.sharing.settings import memory, settings, time_slicing

ENTRY = {"name": "nvidia.com/gpu", "replicas": 4}
PERCENT, LIMIT = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
SLICES = {"mps": {"sizes": [{"slices": [{"size": "20gb"}, {"size": "10gb", "count": 2}]}]}}


def only(node: ClaimNode, *requests: object) -> Grant:
    """Return the grant of a claim with one request, which is allocated first."""
    (grant,) = node.grants(node.allocate(*requests)).values()  # type: ignore[arg-type] # as the tests write them
    return grant


def refused(node: ClaimNode, claim: object) -> tuple[str, str]:
    """Return the reason and the message with which a claim is refused."""
    with pytest.raises(ClaimRefusedError) as caught:
        node.grants(claim)  # type: ignore[arg-type] # as the tests write them
    return caught.value.reason, str(caught.value)


def test_two_shares_of_one_card_under_mps_have_their_own_limits() -> None:
    """10Gi and 20Gi have their memory, and the percentages that the config gives that memory."""
    node = ClaimNode(sharing=memory(isolation="mps"))
    first, second = only(node, "10Gi"), only(node, "20Gi")
    assert (first.environment[LIMIT], first.environment[PERCENT]) == ("0=10240M", "25")
    assert (second.environment[LIMIT], second.environment[PERCENT]) == ("0=20480M", "50")
    assert first.environment["NVIDIA_VISIBLE_DEVICES"] == a_gpu(0).uuid
    assert first.environment["GPUSHARE_MEMORY_LIMIT_MIB"] == "10240"
    assert first.environment["ALIYUN_COM_GPU_MEM_CONTAINER"] == "10"


def test_a_share_by_claim_has_what_units_of_the_same_size_have() -> None:
    """One source of grants: the device plugin gives the same, but for what names the container."""
    sharing = memory(isolation="hami-core", frameworkHints=True)
    by_claim = only(ClaimNode(sharing=sharing), "10Gi")
    resource = plan(EffectiveConfig(settings(sharing=sharing)), FOUR).resources[0]
    by_units = resource.allocate([unit.id for unit in resource.units.of(a_gpu(0).uuid)[:10]])
    names = "CUDA_DEVICE_MEMORY_SHARED_CACHE"
    assert by_claim.environment.pop(names) != by_units.environment.pop(names)
    assert by_claim == by_units


@pytest.mark.parametrize(("isolation", "variable"), [("mps", PERCENT), ("hami-core", "CUDA_DEVICE_SM_LIMIT")])
@pytest.mark.parametrize("compute", ["proportional", "unlimited", "requested", 30])
def test_compute_that_a_claim_asks_for_is_its_limit(isolation: str, variable: str, compute: object) -> None:
    """Whatever the config gives a share that does not ask."""
    node = ClaimNode(sharing=memory(isolation=isolation, compute=compute))
    asked = node.allocate(request(memory="10Gi", compute="40"))
    assert node.grants(asked)["gpu"].environment[variable] == "40"
    assert node.prepared(asked).devices[0].percent == 40
    unasked = node.allocate(request(memory="10Gi"))
    expected = {"proportional": "25", 30: "30"}.get(compute)
    assert node.grants(unasked)["gpu"].environment.get(variable) == expected
    assert node.prepared(unasked).devices[0].percent is None


def test_with_protocol_3_of_mps_the_namespace_has_the_limits() -> None:
    """Two requests of one claim have a namespace each."""
    node = ClaimNode(sharing=memory(isolation="mps"), flags={"mpsProtocol": 3})
    claim = node.allocate(request("a", memory="10Gi", compute="40"), request("b", memory="20Gi"))
    first, second = (grant.namespace for grant in node.grants(claim).values())
    assert isinstance(first, ContainerNamespace)
    assert isinstance(second, ContainerNamespace)
    assert (first.memory_limit_mib, first.active_thread_percentage) == (10240, 40)
    assert (second.memory_limit_mib, second.active_thread_percentage) == (20480, 50)
    assert first.name != second.name
    assert node.grants(claim)["a"].namespace == first, "the same claim gets the same again"


def test_claims_of_one_name_have_different_ids() -> None:
    """A claim that is made anew has another UID, so its container counts its memory apart."""
    node = ClaimNode(sharing=memory(isolation="hami-core"))
    caches = {
        node.grants(share(uid, consumed={"memory": GIB, "compute": 0}))["gpu"].environment[
            "CUDA_DEVICE_MEMORY_SHARED_CACHE"
        ]
        for uid in ("first", "second")
    }
    assert len(caches) == 2


def test_a_replica_has_its_part() -> None:
    """Under MPS the daemon limits memory; the container has its part of the compute, also with several shares."""
    node = ClaimNode(sharing={"mps": {"resources": [ENTRY], "failRequestsGreaterThanOne": False}})
    claim = node.allocate(request(shares="2"))
    grant = node.grants(claim)["gpu"]
    assert grant.environment[PERCENT] == "25"
    assert grant.environment["GPUSHARE_MEMORY_LIMIT_MIB"] == "10240"
    assert LIMIT not in grant.environment
    (device,) = node.prepared(claim).devices
    assert (device.memory_mib, device.shares, device.percent) == (10240, 2, None)


def test_a_time_sliced_gpu_is_given_without_limits() -> None:
    """The memory that a claim asks for counts, and nothing enforces the memory."""
    node = ClaimNode(sharing=time_slicing(ENTRY))
    claim = node.allocate(request(memory="5Gi"), request("other"))
    assert node.grants(claim)["gpu"].environment == {"NVIDIA_VISIBLE_DEVICES": a_gpu(0).uuid}
    assert [each.memory_mib for each in node.prepared(claim).devices] == [5120, 0]


def test_a_slice_has_its_part_of_the_usable_memory() -> None:
    """Two slices of 20gb are half of a card each, though the card has less than 40 GiB."""
    node = ClaimNode(a_node(40448), sharing=SLICES)
    claim = node.allocate("15Gi")
    assert node.grants(claim)["gpu-0"].environment[LIMIT] == "0=20224M"
    assert node.prepared(claim).devices[0].memory_mib == 20224


def test_whole_gpus_are_given_together() -> None:
    """A request of two GPUs makes both visible, in the order of the node; all of their memory counts."""
    node = ClaimNode()
    claim = node.allocate(request(count=2))
    uuids = f"{a_gpu(0).uuid},{a_gpu(1).uuid}"
    assert node.grants(claim)["gpu"].environment == {"NVIDIA_VISIBLE_DEVICES": uuids}
    assert [each.memory_mib for each in node.prepared(claim).devices] == [40960, 40960]


def test_a_mig_instance_is_given_whole() -> None:
    """The instance is visible by its UUID."""
    node = ClaimNode(a_mig_node(("1g.5gb",)), flags={"migStrategy": "mixed"})
    assert only(node, request()).environment["NVIDIA_VISIBLE_DEVICES"].startswith("MIG-")


@pytest.mark.parametrize(
    ("sections", "environment"),
    [
        (
            {"sharing": memory(isolation="hami-core")},
            {"CUDA_DEVICE_MEMORY_LIMIT_0": "10240m", "CUDA_DEVICE_MEMORY_LIMIT_1": "10240m"},
        ),
        ({"sharing": memory()}, {"GPUSHARE_MEMORY_LIMIT_MIB": "10240,10240"}),
        ({"sharing": memory(isolation="mps", allowMultiGPUShares=True)}, {LIMIT: "0=10240M,1=10240M"}),
    ],
)
def test_several_gpus_have_the_limits_that_an_isolation_has_for_several(
    sections: dict[str, object], environment: dict[str, str]
) -> None:
    """A request of two GPUs has its share on each."""
    grant = only(ClaimNode(**sections), request(memory="10Gi", count=2))  # type: ignore[arg-type] # sections alone
    assert environment.items() <= grant.environment.items()


def test_several_gpus_under_mps_have_one_namespace() -> None:
    """With protocol 3, the limits hold on each GPU."""
    node = ClaimNode(sharing=memory(isolation="mps"), flags={"mpsProtocol": 3})
    grant = only(node, request(memory="10Gi", count=2))
    assert grant.namespace is not None
    assert grant.namespace.memory_limit_mib == 10240


def test_replicas_of_several_gpus_have_the_defaults_of_the_daemon() -> None:
    """The MPS control daemon limits every client on every GPU alike."""
    grant = only(ClaimNode(sharing={"mps": {"resources": [ENTRY]}}), request(count=2))
    assert grant.environment["GPUSHARE_MEMORY_LIMIT_MIB"] == "10240,10240"


@pytest.mark.parametrize(
    ("sharing", "words"),
    [
        (
            memory(isolation="mps"),
            r"claim-1, request gpu: shares of GPUs 0, 1 found, and MPS.*sharing\.memory\.resources\[\]\.allowMulti",
        ),
        (SLICES, r"slices of several GPUs found \(0, 1\).*ask for one GPU"),
        (memory(devices=[0]), r"GPUs 0, 1 are not shared alike.*matchAttribute"),
    ],
)
def test_several_gpus_that_nothing_limits_are_refused(sharing: dict[str, object], words: str) -> None:
    """The message says what to ask for instead."""
    node = ClaimNode(a_node(40960, 40960), sharing=sharing)
    reason, message = refused(node, node.allocate(request(memory="10Gi", count=2)))
    assert reason == "cannot-limit"
    assert re.search(words, message)


@pytest.mark.parametrize(
    ("isolation", "protocol", "limits"),
    [
        ("mps", 2, {LIMIT: "0=20480M", PERCENT: "60", "GPUSHARE_MEMORY_LIMIT_MIB": "20480"}),
        ("hami-core", 2, {"CUDA_DEVICE_MEMORY_LIMIT_0": "20480m", "CUDA_DEVICE_SM_LIMIT": "60"}),
        ("mps", 3, {"GPUSHARE_MEMORY_LIMIT_MIB": "20480"}),
    ],
)
def test_several_shares_of_one_gpu_in_a_request_are_one_share(
    isolation: str, protocol: int, limits: dict[str, str]
) -> None:
    """Before Kubernetes 1.36, `count: 2` can have two shares of one GPU: what counts is what the container can use."""
    node = ClaimNode(sharing=memory(isolation=isolation), flags={"mpsProtocol": protocol}, begins_again=True)
    claim = node.allocate(request(memory="10Gi", compute="30", count=2))
    assert {each.device for each in claim.devices} == {a_gpu(0).uuid.lower()}
    grant, counted = node.grants(claim)["gpu"], node.prepared(claim)
    assert grant.environment["NVIDIA_VISIBLE_DEVICES"] == a_gpu(0).uuid
    assert limits.items() <= grant.environment.items()
    if grant.namespace is not None:
        assert (grant.namespace.memory_limit_mib, grant.namespace.active_thread_percentage) == (20480, 60)
    assert [(each.memory_mib, each.percent) for each in counted.devices] == [(10240, 30), (10240, 30)]
    node.check(counted, [])


def test_several_shares_of_one_gpu_have_the_compute_of_their_memory() -> None:
    """Where the claim asks for no compute, the config gives what it gives one share of that size."""
    node = ClaimNode(sharing=memory(isolation="mps"), begins_again=True)
    both = node.grants(node.allocate(request(memory="10Gi", count=2)))["gpu"]
    assert both == replace(node.grants(node.allocate("20Gi"))["gpu-0"])


def test_several_shares_for_administration_are_one_gpu() -> None:
    """The container sees the GPU once."""
    node = ClaimNode(sharing=memory(isolation="mps"), begins_again=True)
    claim = node.allocate(request(memory="1Gi", adminAccess=True, count=2))
    assert node.grants(claim)["gpu"] == Grant({"NVIDIA_VISIBLE_DEVICES": a_gpu(0).uuid})


def test_several_replicas_without_limits_are_one_gpu() -> None:
    """As for `shares: "2"`."""
    node = ClaimNode(sharing=time_slicing(ENTRY), begins_again=True)
    claim = node.allocate(request(count=2))
    assert node.grants(claim)["gpu"].environment == {"NVIDIA_VISIBLE_DEVICES": a_gpu(0).uuid}
    assert [each.shares for each in node.prepared(claim).devices] == [1, 1]


@pytest.mark.parametrize(
    ("sharing", "word"),
    [
        (SLICES, "slice"),
        ({"mps": {"resources": [ENTRY]}}, "replica"),
        (time_slicing({**ENTRY, "isolation": "hami-core"}), "replica"),
        ({"timeSlicing": {"failRequestsGreaterThanOne": True, "resources": [ENTRY]}}, "replica"),
    ],
)
def test_several_parts_of_one_gpu_are_refused_where_a_container_has_one(sharing: dict[str, object], word: str) -> None:
    """The container could not use what both count; the message says how to get different GPUs."""
    node = ClaimNode(a_node(40960, 40960), sharing=sharing, begins_again=True)
    reason, message = refused(node, node.allocate(request(count=2)))
    assert reason == "cannot-limit"
    assert f"several shares of GPU 0 found, and a container has one {word} of a GPU" in message
    apart = node.allocate(request(count=2), constraints=[{"distinctAttribute": "gpu.gpushare.io/uuid"}])
    assert {each.device for each in apart.devices} == {a_gpu(0).uuid.lower(), a_gpu(1).uuid.lower()}


def test_different_limits_on_several_gpus_are_refused_by_the_isolation() -> None:
    """The words are those of the isolation; the claim and the request come first."""
    node = ClaimNode(a_node(40960, 81920), sharing=memory(isolation="mps"), flags={"mpsProtocol": 3})
    reason, message = refused(node, node.allocate(request(count=2)))
    assert reason == "cannot-limit"
    assert message.startswith("claim default/claim-1, request gpu: 40960 MiB on GPU 0")
    assert "request the same amount of each GPU" in message


def test_access_for_administration_has_no_limits_and_does_not_count() -> None:
    """The container sees the GPU, whatever shares the GPU."""
    node = ClaimNode(sharing=memory(isolation="mps"))
    claim = node.allocate(request(adminAccess=True))
    assert node.grants(claim)["gpu"] == Grant({"NVIDIA_VISIBLE_DEVICES": a_gpu(0).uuid})
    (device,) = node.prepared(claim).devices
    assert (device.memory_mib, device.shares, device.percent, device.admin_access) == (0, 0, None, True)


def test_several_gpus_for_administration_need_not_be_shared_alike() -> None:
    """No limit has to hold; a request that is only partly for administration is refused."""
    node = ClaimNode(a_node(40960, 40960), sharing=memory(isolation="mps", devices=[0]))
    claim = node.allocate(request(adminAccess=True, count=2))
    uuids = f"{a_gpu(0).uuid},{a_gpu(1).uuid}"
    assert node.grants(claim)["gpu"].environment == {"NVIDIA_VISIBLE_DEVICES": uuids}
    first, second = claim.devices
    partly = replace(claim, devices=(first, replace(second, admin_access=False)))
    assert "partly for administration" in refused(node, partly)[1]


@pytest.mark.parametrize("admin", [False, True])
def test_a_gpu_that_cannot_be_passed_to_a_container_is_refused(admin: bool) -> None:  # noqa: FBT001 - the case
    """For example a MIG instance whose device nodes the driver does not list; the claim comes first."""
    node = a_mig_node(("1g.5gb",))
    (instance,) = node.instances
    assert instance.mig is not None
    unlisted = replace(node, instances=(replace(instance, mig=replace(instance.mig, capabilities=None)),))
    flags = {"migStrategy": "mixed", "plugin": {"passDeviceSpecs": True}}
    claims = ClaimNode(unlisted, flags=flags)
    reason, message = refused(claims, claims.allocate(request(adminAccess=admin)))
    assert reason == "cannot-limit"
    assert message.startswith("claim default/claim-1, request gpu: GPU 0:0 ")


def test_an_alternative_is_prepared_as_its_request() -> None:
    """The kubelet knows requests, not alternatives."""
    node = ClaimNode(sharing=memory())
    claim = share(request="gpu/large", consumed={"memory": GIB})
    assert list(node.grants(claim)) == ["gpu"]
    assert node.prepared(claim).devices[0].request == "gpu"


@pytest.mark.parametrize(
    ("sharing", "fields", "reason", "words"),
    [
        (
            memory(),
            {"device": "gpu-gone"},
            "unknown-device",
            "claim default/claim: this node does not give device gpu-gone by claim any more; delete the pod",
        ),
        ({}, {}, "other-way", "the claim has a share, and the GPU is now given whole"),
        (memory(), {"share_id": None}, "other-way", "the claim has the whole GPU, and the GPU is now given in shares"),
        (
            memory(isolation="mps"),
            {"consumed": {"memory": GIB}},
            "other-way",
            "only one of both has the capacity compute, shares",
        ),
        (memory(), {"consumed": {"memory": GIB, "shares": 1}}, "other-way", "only one of both has the capacity shares"),
        (
            memory(),
            {"consumed": {"memory": 41 * GIB}},
            "other-way",
            f"the claim has {41 * GIB} of memory, 1 to {40 * GIB} expected",
        ),
        (memory(), {"consumed": {"memory": 0}}, "other-way", "the claim has 0 of memory"),
        (
            memory(isolation="hami-core"),
            {"consumed": {"memory": GIB, "compute": 101}},
            "other-way",
            "the claim has 101 of compute, 0 to 100 expected",
        ),
        (SLICES, {"consumed": {"memory": 15 * GIB, "shares": 1}}, "other-way", f"the claim has {15 * GIB} of memory"),
    ],
)
def test_a_claim_that_does_not_suit_the_gpu_any_more_is_refused(
    sharing: dict[str, object], fields: dict[str, Any], reason: str, words: str
) -> None:
    """Another config, a GPU that is gone, an allocation that nobody could have made: each has its words."""
    found, message = refused(ClaimNode(sharing=sharing), share(**fields))
    assert found == reason
    assert message.startswith("claim default/claim: ")
    assert words in message
    assert "in another way since" not in message


def test_a_claim_keeps_its_memory_when_the_unit_changes() -> None:
    """A limit is exact, whatever the unit is when the claim is prepared."""
    node = ClaimNode(sharing=memory(unit="2GiB", isolation="hami-core"))
    claim = share(consumed={"memory": 3 * GIB, "compute": 0})
    assert node.grants(claim)["gpu"].environment["CUDA_DEVICE_MEMORY_LIMIT_0"] == "3072m"
    assert node.prepared(claim).devices[0].memory_mib == 3072
