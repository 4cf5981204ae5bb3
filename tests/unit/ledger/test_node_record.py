"""Tests of `gpushare_plugin.ledger.node_record`: the annotation."""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare_plugin.base.errors import PlacementError
from gpushare_plugin.base.structs import replace
from gpushare_plugin.base.version import __version__
from gpushare_plugin.core.chooser import Chooser, CloseGpus, OneGpu, OneSlice, Request
from gpushare_plugin.core.policies import UnitCounts, is_policy
from gpushare_plugin.core.snapshot import ConfigStanding, Snapshot
from gpushare_plugin.ledger.node import recorded_node
from gpushare_plugin.ledger.node_record import (
    GpuRecord,
    NodeRecord,
    RecordError,
    ResourceRecord,
    decode,
    encode,
    record,
)
from gpushare_plugin.slices.mig import MigProfile
from gpushare_plugin.slices.slice import SliceKind
from tests.nodes import a_gpu, a_mig_node, a_node
from tests.snapshots import snapshot
from tests.unit.sharing.settings import GPU_MEM, planned


def test_the_format_of_the_record_does_not_change() -> None:
    """The annotation is this JSON, which the scheduler side reads; another format would be another version."""
    inventory = a_node(8192, 8192, numa_node=1)
    first, second = (gpu.uuid for gpu in inventory.cards)
    made = snapshot(
        {"memory": {"resources": [{"name": "aliyun.com/gpu-mem", "unit": "2GiB", "devices": [0]}]}},
        inventory=replace(inventory, closeness={frozenset({first, second}): 40}),
        unhealthy={second: "XID 79"},
        notices=("something",),
    )
    assert json.loads(encode(record(made))) == {
        "version": 1,
        "gpus": [
            {
                "index": 0,
                "uuid": "GPU-00000000-0000-4000-8000-000000000000",
                "product": "NVIDIA A100-SXM4-40GB",
                "numaNode": 1,
                "memoryMiB": 8192,
                "mode": "memory",
                "resource": "aliyun.com/gpu-mem",
                "units": 4,
                "unitMiB": 2048,
                "healthy": True,
            },
            {
                "index": 1,
                "uuid": "GPU-00000001-0000-4000-8000-000000000001",
                "product": "NVIDIA A100-SXM4-40GB",
                "numaNode": 1,
                "memoryMiB": 8192,
                "mode": "exclusive",
                "resource": "nvidia.com/gpu",
                "units": 1,
                "unitMiB": 0,
                "healthy": False,
                "reason": "XID 79",
            },
        ],
        "resources": [
            {"name": "aliyun.com/gpu-mem", "kind": "memory", "placement": "binpack"},
            {"name": "nvidia.com/gpu", "kind": "gpus"},
        ],
        "closeness": [[40]],
        "notices": ["something"],
        "gpushare": __version__,
    }


def test_a_written_record_can_be_read() -> None:
    """Reading gives what was written, and ignores what a later change adds."""
    made = record(snapshot({"timeSlicing": {"resources": [{"name": "nvidia.com/gpu", "replicas": 4}]}}, 8192))
    assert made.gpus[0].mode == "time-slicing"
    assert decode(encode(made)) == made
    assert decode(json.dumps({**json.loads(encode(made)), "more": 1})) == made


AMOUNTS = st.integers(0, 2**31 - 1)
PARTS = st.integers(0, 255)
TEXTS = st.text(max_size=12)
PROFILES = st.builds(
    MigProfile,
    name=st.sampled_from(["1g.5gb", "1g.5gb+me", "3g.20gb"]),
    starts=st.lists(PARTS, max_size=8).map(tuple),
    size=PARTS,
    compute=PARTS,
    most=PARTS,
)
GPUS = st.builds(
    GpuRecord,
    index=AMOUNTS,
    uuid=TEXTS,
    profile=st.none() | TEXTS,
    memory_mib=AMOUNTS,
    reason=st.none() | TEXTS,
    start=st.none() | AMOUNTS,
    profiles=st.none() | st.lists(PROFILES, max_size=3).map(tuple),
)


@settings(max_examples=25)
@given(st.lists(GPUS, max_size=3).map(tuple), st.sampled_from([None, "mps", "mig"]))
def test_a_written_record_of_instances_can_be_read(gpus: tuple[GpuRecord, ...], partitioning: SliceKind | None) -> None:
    """Profiles, places and how the node is partitioned come back as they went; what is None takes no room."""
    made = NodeRecord(gpus=gpus, partitioning=partitioning)
    text = encode(made)
    assert decode(text) == made
    assert None not in [value for gpu in json.loads(text)["gpus"] for value in gpu.values()]


def test_a_record_of_an_earlier_version_can_be_read() -> None:
    """A record without products, resources and closeness is read; it just does not say how the node chooses."""
    gpu = {"index": 0, "uuid": "GPU-0", "memoryMiB": 8192, "mode": "memory", "resource": GPU_MEM, "units": 8}
    read = decode(json.dumps({"version": 1, "gpus": [gpu], "notices": []}))
    assert (read.gpus[0].units, read.resources, read.closeness) == (8, (), None)
    assert (read.config, read.gpushare) == (None, None)


@pytest.mark.parametrize(
    ("standing", "config"),
    [(None, None), (ConfigStanding("", 0.0), ""), (ConfigStanding("a100", 0.0, refused=True), "a100")],
)
def test_a_record_names_the_config_in_effect_and_the_version(
    standing: ConfigStanding | None, config: str | None
) -> None:
    """Without a file the name is empty; before a config is in effect the record does not say."""
    read = decode(encode(record(replace(snapshot({}, 8192), config=standing))))
    assert (read.config, read.gpushare) == (config, __version__)


def test_a_kind_that_a_later_version_adds_is_ignored() -> None:
    """A reader that does not know how to choose for a resource still chooses for the others."""
    made = record(snapshot({}, 8192))
    later = ResourceRecord(name="example.com/new", kind="new", policy="anywhere")
    read = decode(encode(replace(made, resources=(later, *made.resources))))
    assert chooser_of(read, "nvidia.com/gpu") == CloseGpus({})
    offer = recorded_node("node", replace(read, gpus=(replace(read.gpus[0], resource=later.name), *read.gpus))).offers
    assert [each.chooser(exact=True) for each in offer.values()] == [None, CloseGpus({})]


def chooser_of(read: NodeRecord, resource: str) -> Chooser:
    """Return what chooses GPUs for requests of a resource as the node does, by its record alone."""
    (how,) = (each for each in read.resources if each.name == resource)
    match how.kind, how.policy:
        case "memory" | "cores", policy if is_policy(policy):
            return OneGpu(policy, next(gpu.unit_mib for gpu in read.gpus if gpu.resource == resource))
        case "slices", _:
            return OneSlice()
    chooser = recorded_node("node", read).offers[resource].chooser(exact=True)
    assert chooser is not None
    return chooser


LINKS = {(0, 1): 230, (0, 2): 10, (0, 3): 10, (1, 2): 10, (1, 3): 10, (2, 3): 40}
LINKED = replace(
    a_node(8192, 4096, 8192, 8192),
    closeness={frozenset((a_gpu(one).uuid, a_gpu(other).uuid)): score for (one, other), score in LINKS.items()},
)
WAYS: dict[str, dict[str, Any]] = {
    "memory, binpack": {"sharing": {"memory": {"resources": [{"name": GPU_MEM}]}}},
    "memory, spread": {"sharing": {"memory": {"resources": [{"name": GPU_MEM, "placement": "spread"}]}}},
    "replicas, distributed": {"sharing": {"timeSlicing": {"resources": [{"name": "nvidia.com/gpu", "replicas": 3}]}}},
    "replicas, packed": {
        "sharing": {"timeSlicing": {"resources": [{"name": "nvidia.com/gpu", "replicas": 3, "devices": [0, 2]}]}},
        "flags": {"plugin": {"sharedDevicesAllocationPolicy": "packed"}},
    },
    "replicas, spread": {
        "sharing": {"timeSlicing": {"resources": [{"name": "nvidia.com/gpu", "replicas": 3}]}},
        "flags": {"plugin": {"sharedDevicesAllocationPolicy": "spread"}},
    },
    "slices": {"sharing": {"mps": {"sizes": [{"slices": [{"size": "2gb"}, {"size": "1gb", "count": 2}]}]}}},
    "whole GPUs": {"sharing": {}},
    "MIG instances": {
        "sharing": {},
        "flags": {"migStrategy": "mixed"},
        "inventory": a_mig_node(("1g.5gb", "1g.5gb"), ("2g.10gb",), None),
    },
}


@pytest.mark.parametrize("way", WAYS)
@given(data=st.data())
def test_a_scheduler_chooses_as_the_node_does(way: str, data: st.DataObject) -> None:
    """From the record and counts alone, any request gets the GPUs, or the error, that the node itself would give."""
    made = snapshot(**{"inventory": LINKED, **WAYS[way]})
    sick = data.draw(st.sets(st.sampled_from([gpu.uuid for gpu in made.inventory.gpus]), max_size=2))
    made = replace(
        made,
        unhealthy=dict.fromkeys(sick, "XID 79"),
        resources=tuple(replace(resource, unhealthy=dict.fromkeys(sick, "XID 79")) for resource in made.resources),
    )
    resource = data.draw(st.sampled_from(made.resources))
    free = {uuid: data.draw(st.integers(0, count)) for uuid, count in resource.units_of.items()}
    available = [unit.id for gpu, units in resource.units.by_gpu.items() for unit in units[: free[gpu.uuid]]]
    size = data.draw(st.integers(1, 10))
    must = data.draw(st.lists(st.sampled_from(available), max_size=size, unique=True)) if available else []
    read = decode(encode(record(made)))
    chooser = chooser_of(read, resource.name)
    counts = {
        gpu.uuid: UnitCounts(gpu.index, free[gpu.uuid] if gpu.healthy else 0, gpu.units)
        for gpu in read.gpus
        if gpu.resource == resource.name
    }
    taken = Counter(resource.units[id_].gpu for id_ in must)
    there = outcome(lambda: chooser.choose(Request(resource.name, size, counts, taken)))
    here = outcome(lambda: Counter(resource.units[id_].gpu for id_ in resource.prefer(available, must, size)))
    # The node adds why GPUs are out.
    assert there == (here.partition("; GPU ")[0] if isinstance(here, str) else here)


def outcome(choose: Callable[[], Mapping[str, int]]) -> Mapping[str, int] | str:
    """Return how many units of which GPU were chosen, or why none could be."""
    try:
        return {uuid: count for uuid, count in choose().items() if count}
    except PlacementError as error:
        return str(error)


def test_a_large_node_leaves_room_for_others() -> None:
    """16 GPUs in seven instances each, all closeness and the worst notices take half of what annotations may have."""
    node = a_mig_node(*[("1g.5gb",) * 7] * 16)
    pairs = combinations(node.cards, 2)
    node = replace(node, closeness={frozenset((one.uuid, other.uuid)): 1800 for one, other in pairs})
    made = snapshot(
        {}, inventory=node, flags={"migStrategy": "mixed"}, notices=tuple("\x00" * 10_000 for _ in range(10_000))
    )
    text = encode(record(made))
    assert len(text.encode()) < 128 * 1024
    assert len(json.dumps(json.loads(text)["closeness"], separators=(",", ":"))) < 1024


def test_slices_and_instances_have_records_of_their_own() -> None:
    """A GPU of two sizes has two records, MIG instances have theirs beside their card, and MPS is a mode."""
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
    """A GPU in no resource has a record all the same."""
    (gpu,) = a_node(8192).cards
    assert record(Snapshot(a_node(8192))).gpus == (
        GpuRecord(index=0, uuid=gpu.uuid, product=gpu.name, memory_mib=8192),
    )


def test_a_gpu_that_waits_for_pods_has_a_reason() -> None:
    """A healthy GPU that is not offered before its pods end has a reason, too."""
    inventory = a_node(8192)
    waiting = {inventory.cards[0].uuid: "changes over when its pods end: default/main"}
    (made,) = record(Snapshot(inventory, waiting=waiting)).gpus
    assert (made.mode, made.healthy, made.reason) == (None, True, "changes over when its pods end: default/main")


def test_a_gpu_that_cannot_be_divided_has_a_reason_and_says_so() -> None:
    """It is told from a GPU that has no slices yet, and from one that waits."""
    inventory = a_node(8192, 8192)
    reason = "MPS cannot share it: it is in MIG mode, and MPS shares whole GPUs only"
    first, second = record(Snapshot(inventory, partitioning="mps", unsuitable={a_gpu(0).uuid: reason})).gpus
    assert (first.mode, first.healthy, first.reason, first.unsuitable) == (None, True, reason, True)
    assert (second.reason, second.unsuitable) == (None, None)


def test_a_gpu_that_is_given_by_claim_says_so_and_is_not_offered() -> None:
    """The extender chooses among units, and a GPU given by claim has none; a MIG instance has a record of its own."""
    node = a_mig_node(("1g.5gb",), None)
    decided = planned(node, flags={"migStrategy": "mixed"}, dra={})
    made = record(Snapshot(node, decided.resources, by_claim=decided.by_claim))
    assert [(gpu.uuid, gpu.by_claim, gpu.resource) for gpu in made.gpus] == [
        (a_gpu(0).uuid, None, None),
        (node.instances[0].uuid, True, None),
        (a_gpu(1).uuid, True, None),
    ]
    assert decode(encode(made)) == made
    assert recorded_node("node", made).offers == {}


def test_notices_have_little_room() -> None:
    """Of very many and very long notices the first are recorded, shortened, with how many more there are."""
    few = tuple(f"notice {number}" for number in range(20))
    assert record(Snapshot(notices=few)).notices == few
    *recorded, more = record(Snapshot(notices=tuple(f"notice {number}" for number in range(2000)))).notices
    assert (tuple(recorded), more) == (few, "1,980 more warnings; see the log of gpushare on this node")
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
        ("", "the value"),
        ('{"version": 2, "gpus": []}', "version '2' found, version 1 expected: .* update this gpushare"),
        ('{"version": 2, "gpus": [', "version"),
        ('{"version": 2, "more": "\\ud800"}', "version"),
        ('{"version": 2, "more": ' + "9" * 5000 + "}", "version"),
        ('{"version": 2, "more": ' + "[" * 5000, "version"),
        ('{"version": 1e400}', "version"),
        ('{"version": 1}', "gpus"),
        ('{"version": 1, "gpus": [{"index": 0}]}', r"gpus\.0\.uuid"),
        ('{"version": 1, "gpus": [{"index": 0, "uuid": "u", "memoryMiB": 1, "units": -1}]}', r"gpus\.0\.units"),
        ('{"version": 1, "gpus": [{"index": 0, "uuid": "u", "memoryMiB": -1}]}', r"gpus\.0\.memoryMiB"),
        ('{"version": 1, "gpus": [{"index": 0, "uuid": "u", "memoryMiB": 1, "units": 9999999999}]}', r"gpus\.0\.units"),
        ('{"version": 1, "gpus": [{"index": "first"}]}', r"gpus\.0\.index: Expected `int`, got `str`"),
    ],
)
def test_an_invalid_record_is_an_error(text: str, complaint: str) -> None:
    """Invalid values, absurd numbers and later versions are errors that name the place."""
    with pytest.raises(RecordError, match=f"annotation gpushare/gpus: {complaint}"):
        decode(text)


def test_equal_records_are_spelled_alike() -> None:
    """The text of a record can be compared."""
    assert encode(NodeRecord(gpus=())) == encode(NodeRecord(gpus=()))
