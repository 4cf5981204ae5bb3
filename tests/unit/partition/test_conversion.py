"""Tests of `gpushare_plugin.partition.conversion` and `pods`: what the cluster says, as the decision takes it."""

from gpushare_plugin.base.structs import replace
from gpushare_plugin.ledger.cluster import ClusterAccount
from gpushare_plugin.ledger.constraints import Constraints, shared_needs
from gpushare_plugin.ledger.demand import NOTHING
from gpushare_plugin.ledger.node import recorded_node
from gpushare_plugin.ledger.node_record import GpuRecord, NodeRecord, ResourceRecord
from gpushare_plugin.ledger.pod import Share
from gpushare_plugin.ledger.request import ContainerRequest
from gpushare_plugin.partition.conversion import mig_layout, partition_node_of
from gpushare_plugin.partition.nodes import PartitionNode
from gpushare_plugin.partition.pods import problem
from gpushare_plugin.slices.memory import MemoryRoom
from gpushare_plugin.slices.room import Layout
from gpushare_plugin.slices.slice import Slice, SliceKind
from gpushare_plugin.slices.wanted import Wanted
from tests.unit.ledger.objects import gpu_record, pod, request
from tests.unit.partition.simulation import A100

TEN, TWENTY = "nvidia.com/gpu-10gb", "nvidia.com/gpu-20gb"


def _container(name: str, **amounts: int) -> ContainerRequest:
    names = {"ten": TEN, "twenty": TWENTY, "mig": "nvidia.com/mig-1g.5gb"}
    return ContainerRequest(name, "app", tuple((names[key], amount) for key, amount in amounts.items()))


def _cards(*records: GpuRecord) -> NodeRecord:
    names = dict.fromkeys(each.resource for each in records if each.resource)
    return NodeRecord(gpus=records, resources=tuple(ResourceRecord(name=name, kind="slices") for name in names))


def _account(record: NodeRecord, partitioning: SliceKind = "mps") -> ClusterAccount:
    account, record = ClusterAccount(), replace(record, partitioning=partitioning)
    account.put_node(replace(recorded_node("node", record, "spread"), record=record))
    return account


def _found(account: ClusterAccount) -> PartitionNode:
    """Return the node as the decision takes it."""
    found = partition_node_of(account.account_of("node"))
    assert found is not None
    return found


def test_a_node_under_mps_has_its_cards_with_what_they_list_and_what_pods_hold() -> None:
    """Capacity is the memory in GiB, rounded up; slices of pods whose GPU is not known are counted by node."""
    record = _cards(
        gpu_record(0, 2, memory_mib=40_000, resource=TEN),
        gpu_record(0, 1, memory_mib=40_000, resource=TWENTY),
        gpu_record(1, 0, memory_mib=40_960, resource=None, mode=None, healthy=False, reason="XID 79"),
        gpu_record(2, 5, resource="nvidia.com/gpu"),
        gpu_record(3, 0, resource=None, mode=None),
        gpu_record(3, 0, uuid="MIG-3-0", profile="1g.5gb", resource=None, mode=None),
    )
    account = _account(record)
    one, two = request(_container("main", ten=1)), request(_container("main", twenty=1))
    gone = request(_container("main", mig=1))
    placed = pod(one, "node", "placed", allocation=(Share("main", TEN, "GPU-node-0", 1),))
    for each in (placed, pod(two, "node", "somewhere"), pod(gone, "node", "gone"), pod(one, None, "waits")):
        account.put_pod(each)
    found = _found(account)
    assert [(each.index, each.room.parts, each.listed, dict(each.held)) for each in found.gpus] == [
        (0, 40, {"10gb": 2, "20gb": 1}, {"10gb": 1}),
        (1, 40, {}, {}),
        (2, 5, {}, {}),
    ]
    assert [each.reason for each in found.gpus] == [
        None,
        "unhealthy: XID 79",
        "offered as nvidia.com/gpu by the config of the node",
    ]
    assert found.unplaced == {"20gb": 1, "1g.5gb": 1}
    assert (found.policy, found.wanted) == ("spread", Wanted())


def test_a_gpu_that_mps_cannot_share_is_not_taken_for_an_empty_one() -> None:
    """The node's own reason is given; a GPU that waits for pods is as good as others."""
    reason = "MPS cannot share it: it has compute capability 3.0, and MPS takes 3.5 or more"
    record = _cards(
        gpu_record(0, 0, resource=None, mode=None, reason=reason, unsuitable=True),
        gpu_record(1, 0, resource=None, mode=None, reason="changes its mode when its pods end: a/b"),
        gpu_record(2, 0, resource=None, mode=None, reason="XID 79", healthy=False, unsuitable=True),
    )
    found = _found(_account(record))
    assert [each.reason for each in found.gpus] == [reason, None, "unhealthy: XID 79"]


def test_a_gpu_has_no_more_slices_than_mps_serves() -> None:
    """The record names the number where it is smaller than usual; a larger one, which no MPS serves, does not count."""
    record = _cards(
        gpu_record(0, 1, resource=TEN, most_slices=16),
        gpu_record(1, 1, resource=TEN),
        gpu_record(2, 1, resource=TEN, most_slices=2**31 - 1),
    )
    found = _found(_account(record))
    rooms = [each.room for each in found.gpus]
    assert [room.most for room in rooms if isinstance(room, MemoryRoom)] == [16, 48, 48]


def test_a_node_with_mig_has_its_instances_at_their_places() -> None:
    """Only cards of which the places are known are partitioned; an instance that is held is held at its place."""
    name = "nvidia.com/mig-1g.5gb"
    record = _cards(
        gpu_record(0, 0, resource=None, mode=None, profiles=A100.profiles),
        gpu_record(0, 1, uuid="MIG-a", profile="1g.5gb", resource=name, start=0),
        gpu_record(0, 1, uuid="MIG-b", profile="1g.5gb", resource=name, start=6),
        gpu_record(1, 1, resource="nvidia.com/gpu"),
    )
    account = _account(record, "mig")
    asked = request(_container("main", mig=1))
    account.put_pod(pod(asked, "node", "placed", allocation=(Share("main", name, "MIG-b", 1),)))
    (found,) = _found(account).gpus
    assert (found.uuid, found.listed, found.held) == (
        "GPU-node-0",
        {"1g.5gb@0": 1, "1g.5gb@6": 1},
        {"1g.5gb@6": 1},
    )
    nowhere = replace(record, gpus=tuple(replace(each, start=None) for each in record.gpus), partitioning="mig")
    account.put_node(replace(recorded_node("node", nowhere), record=nowhere))
    assert _found(account).unplaced == {"1g.5gb": 1}


def test_the_pods_of_an_owner_are_known_with_their_cards() -> None:
    """Those with slices on the node, wherever their slices are; a MIG instance stands for its card."""
    mig_name = "nvidia.com/mig-1g.5gb"
    record = _cards(
        gpu_record(0, 2, resource=TEN),
        gpu_record(1, 0, resource=None, mode=None, profiles=A100.profiles),
        gpu_record(1, 1, uuid="MIG-a", profile="1g.5gb", resource=mig_name, start=0),
    )
    account = _account(record)
    one, mig = request(_container("main", ten=1)), request(_container("main", mig=1))
    for each in (
        pod(one, "node", "placed", owner="set", allocation=(Share("main", TEN, "GPU-node-0", 1),)),
        pod(one, "node", "somewhere", owner="set"),
        pod(mig, "node", "mig", owner="other", allocation=(Share("main", mig_name, "MIG-a", 1),)),
        pod(one, "node", "alone", allocation=(Share("main", TEN, "GPU-node-0", 1),)),
    ):
        account.put_pod(each)
    found = _found(account)
    assert found.replicas == {"set": {"placed": ("GPU-node-0",), "somewhere": ()}, "other": {"mig": ("GPU-node-1",)}}


def _mig_card(*instances: GpuRecord) -> NodeRecord:
    """Return the record of an A100 in MIG mode with these instances."""
    return _cards(gpu_record(0, 0, resource=None, mode=None, profiles=A100.profiles), *instances)


def _instance(uuid: str, profile: str, start: int | None) -> GpuRecord:
    return gpu_record(0, 1, uuid=uuid, profile=profile, start=start, resource=f"nvidia.com/mig-{profile}")


def test_an_instance_of_another_shape_blocks_its_memory_slices() -> None:
    """Several compute instances of one GPU instance block that once; one of which nothing is known blocks the card."""
    both = _mig_card(*(_instance(f"MIG-{number}", f"{number}c.3g.20gb", 0) for number in (1, 2)))
    mig = mig_layout(both)
    (room,) = mig.rooms.values()
    assert (room.left(Layout()), mig.places) == (4, {})
    assert [each.name for each in room.options(Layout(), Slice("mig", "3g.20gb"))] == ["3g.20gb@4"]
    assert not room.options(Layout(), Slice("mig", "7g.40gb"))
    assert room.fits(["3g.20gb@4"])
    assert not room.fits(["3g.20gb@0"])
    for profile, start in (("1c.3g.20gb", None), ("9g.99gb", 0), ("1g.5gb", 7)):
        (room,) = mig_layout(_mig_card(_instance("MIG-1", profile, start))).rooms.values()
        assert room.left(Layout()) == 0, profile


def test_a_pod_cannot_claim_an_instance_of_another_profile() -> None:
    """What it really holds is not known then, so any instance of its own profile may be the one."""
    name = "nvidia.com/mig-1g.5gb"
    record = _mig_card(_instance("MIG-a", "1g.5gb", 0), _instance("MIG-b", "3g.20gb", 4))
    account = _account(record, "mig")
    asked = request(_container("main", mig=1))
    account.put_pod(pod(asked, "node", allocation=(Share("main", name, "MIG-b", 1),)))
    found = _found(account)
    assert (found.gpus[0].held, found.unplaced) == ({}, {"1g.5gb": 1})


def test_a_pod_that_claims_more_slices_than_there_can_be_makes_nothing_large() -> None:
    """A pod can be created with a node, whatever it asks for; no list is made of its slices."""
    record = _cards(gpu_record(0, 1, memory_mib=40_960, resource=TEN))
    account = _account(record)
    account.put_pod(
        pod(request(_container("main", ten=2**31)), "node", allocation=(Share("main", TEN, "GPU-node-0", 2**31),))
    )
    found = _found(account)
    assert found.gpus[0].held == {"10gb": 1024}


def test_a_pod_waits_for_the_slices_of_its_containers() -> None:
    """One slice a container, the largest first; a pod with a node, one that ends and one without slices do not wait."""
    both = request(_container("a", ten=1), _container("b", twenty=1), _container("c", ten=1))
    found = pod(both, priority=3)
    assert found.waits_for_slices
    assert [each.name for each in found.slices] == ["20gb", "10gb", "10gb"]
    assert (problem(found), found.label) == (None, "default/pod")
    assert not pod(both, "node").waits_for_slices
    assert not pod(both, ending=True).waits_for_slices
    assert not pod(request()).waits_for_slices


def test_a_container_with_more_than_one_slice_is_refused_in_words() -> None:
    """Slices cannot be combined, whether of one size, of several, or of MPS and MIG; what can be done is said."""
    assert problem(pod(request(_container("main", ten=2)))) == (
        "container main asks for 2 slices of nvidia.com/gpu-10gb, at most 1 is allowed: slices cannot be combined; "
        "request one larger slice"
    )
    mixed = pod(request(_container("main", ten=1, twenty=1), _container("other", mig=1)))
    assert problem(mixed) == (
        "container main asks for 2 slices of nvidia.com/gpu-10gb and nvidia.com/gpu-20gb, at most 1 is allowed: slices "
        "cannot be combined; request one larger slice"
    )
    assert problem(pod(request(_container("main", mig=1, twenty=1)))) is not None
    many = pod(request(*(_container(str(number), ten=1) for number in range(65))))
    assert problem(many) == "the pod asks for more than 64 slices"
    assert len(many.slices) == 64


def test_pods_share_a_search_if_they_require_the_same() -> None:
    """Pods with equal requirements share a search; others do not."""
    asked, zones = request(_container("main", ten=1)), ("a", "a", "b")
    required = [shared_needs(Constraints(selector=(("zone", zone),)), NOTHING) for zone in zones]
    first, second, third = (pod(asked, uid=str(n), needs=each).alike for n, each in enumerate(required))
    assert first == second != third
