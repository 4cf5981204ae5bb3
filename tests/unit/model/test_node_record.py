"""Tests of `gpushare_plugin.model.node_record`: the annotation."""

import json

import pytest

from gpushare_plugin.model.node_record import (
    GpuRecord,
    NodeRecord,
    RecordError,
    decode,
    encode,
    record,
)
from gpushare_plugin.model.snapshot import Snapshot
from tests.nodes import a_mig_node, a_node
from tests.snapshots import snapshot


def test_the_format() -> None:
    """The annotation is this JSON, which the scheduler side reads; another format would be another version."""
    made = snapshot(
        {"memory": {"resources": [{"name": "aliyun.com/gpu-mem", "unit": "2GiB", "devices": [0]}]}},
        8192,
        8192,
        unhealthy={a_node(8192, 8192).gpus[1].uuid: "XID 79"},
        notices=("something",),
    )
    assert json.loads(encode(record(made))) == {
        "version": 1,
        "gpus": [
            {
                "index": 0,
                "uuid": "GPU-00000000-0000-4000-8000-000000000000",
                "memoryMib": 8192,
                "mode": "memory",
                "resource": "aliyun.com/gpu-mem",
                "units": 4,
                "unitMib": 2048,
                "healthy": True,
            },
            {
                "index": 1,
                "uuid": "GPU-00000001-0000-4000-8000-000000000001",
                "memoryMib": 8192,
                "mode": "exclusive",
                "resource": "nvidia.com/gpu",
                "units": 1,
                "unitMib": 0,
                "healthy": False,
                "reason": "XID 79",
            },
        ],
        "notices": ["something"],
    }


def test_what_is_written_can_be_read() -> None:
    """Reading gives what was written, and passes over what a later change adds."""
    made = record(snapshot({"timeSlicing": {"resources": [{"name": "nvidia.com/gpu", "replicas": 4}]}}, 8192))
    assert made.gpus[0].mode == "time-slicing"
    assert decode(encode(made)) == made
    assert decode(json.dumps({**json.loads(encode(made)), "more": 1})) == made


def test_slices_and_instances_have_records_of_their_own() -> None:
    """A GPU of two sizes is told twice, MIG instances beside their card, and MPS by the settings it comes from."""
    sizes = {"mps": {"sizes": [{"slices": [{"size": "2gb", "count": 2}, {"size": "4gb"}]}]}}
    made = record(snapshot(sizes, 8192))
    assert [(each.mode, each.resource, each.units, each.unit_mib) for each in made.gpus] == [
        ("mps", "nvidia.com/gpu-2gb", 2, 2048),
        ("mps", "nvidia.com/gpu-4gb", 1, 4096),
    ]
    made = record(snapshot({}, inventory=a_mig_node(("1g.5gb", "2g.10gb")), flags={"migStrategy": "mixed"}))
    assert [(each.index, each.profile, each.resource) for each in made.gpus] == [
        (0, None, None),
        (0, "1g.5gb", "nvidia.com/mig-1g.5gb"),
        (0, "2g.10gb", "nvidia.com/mig-2g.10gb"),
    ]


def test_a_gpu_that_is_not_offered_has_no_mode() -> None:
    """A GPU in no resource is told all the same."""
    assert record(Snapshot(a_node(8192))).gpus == (GpuRecord(index=0, uuid=a_node(8192).gpus[0].uuid, memory_mib=8192),)


def test_a_gpu_that_waits_for_pods_says_so() -> None:
    """A GPU that is well, and offered in no way before its pods end, has a reason, too."""
    inventory = a_node(8192)
    waiting = {inventory.gpus[0].uuid: "changes over when its pods end: default/main"}
    (made,) = record(Snapshot(inventory, waiting=waiting)).gpus
    assert (made.mode, made.healthy, made.reason) == (None, True, "changes over when its pods end: default/main")


def test_notices_have_little_room() -> None:
    """Of very many and very long notices the first are told, shortened, with how many more there are."""
    few = tuple(f"notice {number}" for number in range(20))
    assert record(Snapshot(notices=few)).notices == few
    *told, more = record(Snapshot(notices=tuple(f"notice {number}" for number in range(2000)))).notices
    assert (tuple(told), more) == (few, "1,980 more notices are left out here; see the log of gpushare on this node")
    (whole,) = record(Snapshot(notices=("é" * 256,))).notices
    (cut,) = record(Snapshot(notices=("é" * 257,))).notices
    assert (whole, cut) == ("é" * 256, "é" * 254 + "…")


def test_the_worst_notices_leave_room_for_the_gpus_and_for_others() -> None:
    """Even when JSON writes six bytes for one, notices take a quarter of what annotations may have."""
    worst = tuple("\x00" * 10_000 for _ in range(10_000))
    assert len(encode(record(Snapshot(notices=worst))).encode()) < 64 * 1024


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "the whole"),
        ('{"version": 2, "gpus": []}', "version"),
        ('{"version": 1}', "gpus"),
        ('{"version": 1, "gpus": [{"index": 0}]}', r"gpus\.0\.uuid"),
    ],
)
def test_what_cannot_be_read_is_told(text: str, complaint: str) -> None:
    """Nonsense and later versions are refused with their place."""
    with pytest.raises(RecordError, match=f"annotation gpushare/gpus: {complaint}"):
        decode(text)


def test_equal_records_are_spelled_alike() -> None:
    """The text of a record can be compared."""
    assert encode(NodeRecord(gpus=())) == encode(NodeRecord(gpus=()))
