"""Tests of `gpushare_plugin.partition.stranded_slices`: which few pods, if moved, leave room for a slice."""

from datetime import UTC, datetime

from gpushare_plugin.base.structs import replace
from gpushare_plugin.ledger.moving import Moving
from gpushare_plugin.ledger.node import Node, recorded_node
from gpushare_plugin.ledger.node_record import GpuRecord, NodeRecord, ResourceRecord
from gpushare_plugin.ledger.pod import Pod, Share
from gpushare_plugin.ledger.request import ContainerRequest
from gpushare_plugin.partition.stranded_slices import card_with_room, slice_for
from gpushare_plugin.slices.slice import SliceKind
from gpushare_plugin.slices.wanted import KeptSlice, Wanted
from tests.unit.ledger.objects import account, gpu_record, pod, request
from tests.unit.partition.simulation import A100

TEN, TWENTY = "nvidia.com/gpu-10gb", "nvidia.com/gpu-20gb"
ONE, THREE = "nvidia.com/mig-1g.5gb", "nvidia.com/mig-3g.20gb"


def partitioned(kind: SliceKind, *gpus: GpuRecord) -> Node:
    """Return a partitioned node."""
    names = dict.fromkeys(gpu.resource for gpu in gpus if gpu.resource)
    kinds = tuple(ResourceRecord(name=name, kind="slices") for name in names)
    record = NodeRecord(gpus=gpus, resources=kinds, partitioning=kind)
    made: Node = replace(recorded_node("node", record), record=record)
    return made


def with_slice(name: str, resource: str, on: str | None = None) -> Pod:
    """Return a pod with one slice, on a GPU or waiting."""
    asked = request(ContainerRequest("main", "app", ((resource, 1),)))
    shares = None if on is None else (Share("main", resource, on, 1),)
    return pod(asked, None if on is None else "node", name, allocation=shares)


def mps_card(index: int, tens: int, twenties: int = 0) -> list[GpuRecord]:
    """Return the records of a card of 40 GiB with slices."""
    sizes = [(TEN, tens), (TWENTY, twenties)]
    return [gpu_record(index, units, memory_mib=40_960, resource=name, unit_mib=0) for name, units in sizes if units]


def kept(index: int, size: str) -> KeptSlice:
    """Return a slice of a card that is kept for a waiting pod."""
    return KeptSlice(f"GPU-node-{index}", size, datetime(2026, 1, 1, tzinfo=UTC))


def test_one_pod_goes_so_that_a_larger_slice_fits_under_mps() -> None:
    """The pod goes to an idle slice of its size on another card; idle slices are no hindrance."""
    there = partitioned("mps", *mps_card(0, 4), *mps_card(1, 1, 1))
    held = [with_slice(name, TEN, "GPU-node-0") for name in ("a", "b", "c")]
    waiting, beside = with_slice("waiting", TWENTY), with_slice("d", TWENTY, "GPU-node-1")
    found = slice_for(Moving(account(there, pods=(*held, beside)), {}), waiting)
    (relief,) = found.reliefs
    assert (relief.index, [share.gpu for move in relief.moves for share in move.place.shares]) == (0, ["GPU-node-1"])
    roomy = card_with_room(account(there, pods=(*held[:2], beside)), waiting)
    assert roomy is not None
    assert roomy.gpu.index == 0
    # Of the other card, 10 GiB are kept for another pod: together with the slice of 20 GiB, too much is taken.
    taken: Node = replace(there, wanted=Wanted(pods={"other": (kept(1, "10gb"),)}))
    assert slice_for(Moving(account(taken, pods=(*held, beside)), {}), waiting).candidates == 2


def test_of_single_pods_the_smallest_that_is_enough_goes() -> None:
    """Any of the pods would leave room; the one with a slice of 10 GiB moves."""
    there = partitioned("mps", *mps_card(0, 2, 1), *mps_card(1, 1, 1), *mps_card(2, 1, 1))
    held = (with_slice("large", TWENTY, "GPU-node-0"), with_slice("a", TEN, "GPU-node-0"))
    beside = (
        with_slice("b", TEN, "GPU-node-0"),
        with_slice("c", TWENTY, "GPU-node-1"),
        with_slice("d", TEN, "GPU-node-2"),
    )
    waiting = with_slice("waiting", "nvidia.com/gpu-5gb")
    full = replace(there, wanted=Wanted(pods={"other": tuple(kept(index, "20gb") for index in (1, 2))}))
    found = slice_for(Moving(account(full, pods=(*held, *beside)), {}), waiting)
    assert [move.pod.name for move in found.reliefs[0].moves] == ["a"]


def test_mig_instances_at_their_places_decide_who_goes() -> None:
    """A profile begins at certain places of a card: only pods at the places of one of them are in the way."""
    small = [
        gpu_record(0, 1, uuid=f"MIG-{start}", profile="1g.5gb", resource=ONE, start=start, unit_mib=0)
        for start in (0, 1, 5)
    ]
    card = gpu_record(0, 0, resource=None, mode=None, profiles=A100.profiles)
    other = gpu_record(1, 0, resource=None, mode=None, profiles=A100.profiles)
    idle = gpu_record(1, 1, uuid="MIG-idle", profile="1g.5gb", resource=ONE, start=0, unit_mib=0)
    large = gpu_record(1, 1, uuid="MIG-large", profile="3g.20gb", resource=THREE, start=4, unit_mib=0)
    there = partitioned("mig", card, *small, other, idle, large)
    pods = (
        *(with_slice(f"at-{start}", ONE, f"MIG-{start}") for start in (0, 1, 5)),
        with_slice("l", THREE, "MIG-large"),
    )
    found = slice_for(Moving(account(there, pods=pods), {}), with_slice("waiting", THREE))
    (relief,) = found.reliefs
    assert (relief.index, [move.pod.name for move in relief.moves]) == (0, ["at-5"])
    # A pod that stays is in the way for good, and two others have no place.
    assert (
        slice_for(Moving(account(there, pods=pods), {"at-5": "DaemonSet"}), with_slice("waiting", THREE)).reliefs == ()
    )
