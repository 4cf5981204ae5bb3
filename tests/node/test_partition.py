"""Tests of a partitioned node: from the annotation of the Node to what pods get, and what they hold meanwhile."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, MutableMapping
from pathlib import Path
from random import Random
from typing import Any

import pytest

from gpushare_plugin.base.structs import replace
from gpushare_plugin.config.directives import PARTITIONING
from gpushare_plugin.core.gpu import Inventory
from gpushare_plugin.gpus.exchange import read_message
from gpushare_plugin.mps.exchange import MpsSettings
from gpushare_plugin.observe.daemon_socket import ask, socket_path
from gpushare_plugin.observe.node.report import decode, report
from gpushare_plugin.observe.node.tables import remarks
from gpushare_plugin.slices.wanted import WANTED_SLICES
from gpushare_plugin.testing.cluster.server import Refusal
from gpushare_plugin.testing.kubelet import AdmissionError, EmbeddedKubelet
from tests.node.partitioned import SLICE, PartitionedNode, partitioned
from tests.nodes import a_gpu, a_node
from tests.unit.kube.cluster import label
from tests.unit.kubelet.serving import read_held
from tests.waiting import until

Log = list[MutableMapping[str, Any]]


@pytest.fixture
async def node(kubelet: EmbeddedKubelet, short_path: Path) -> AsyncIterator[PartitionedNode]:
    """Return a node of two GPUs of 40 GB, of which one has a little less than 40 GiB to use."""
    async with partitioned(kubelet, short_path, a_node(40326, 40960)) as made:
        yield made


async def test_a_slice_appears_for_a_pod_that_asks(node: PartitionedNode, kubelet: EmbeddedKubelet) -> None:
    """Nothing is offered before it is wanted; then the slice is there, and its container is held to it."""
    await node.start()
    await node.recorded({"partitioning": "mps", "resources": ()})
    assert kubelet.capacity() == {}
    node.want({"10gb": 1})
    await node.offers(_10gb=1)
    started = await node.runs("10gb")
    assert started.environment["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=10081M"
    assert started.environment["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "25"
    assert started.environment["CUDA_MPS_PIPE_DIRECTORY"] == "/mps/pipe"
    assert started.device_ids == {SLICE.format("10gb"): {"00000000-10gb-0"}}


async def test_idle_slices_are_cut_anew_beside_held_ones(node: PartitionedNode, kubelet: EmbeddedKubelet) -> None:
    """What a pod holds stays through every change and restart; the rest follows what is wanted."""
    node.want({"10gb": 4})
    await node.start()
    await node.offers(_10gb=4)
    await node.runs("10gb", "one")
    (held,) = kubelet.allocated(SLICE.format("10gb"))
    node.want({"10gb": 1, "20gb": 1, "5gb": 2})
    await node.offers(_10gb=1, _20gb=1, _5gb=2)
    await node.runs("20gb", "two")
    await node.stop()
    node.want({"40gb": 1})  # nobody is there to see that
    await node.start()
    await node.offers(_10gb=1, _20gb=1)
    assert set(kubelet.devices(SLICE.format("10gb"))) >= {held}
    assert kubelet.allocated(SLICE.format("10gb")) == {held}
    # What pods hold is offered before the annotation of the Node has been read.
    (notice,) = await until(lambda: node.snapshot.notices)
    assert "1 slices of 40gb wanted, 0 fit: it has 40gb, of which pods hold 30gb" in notice


async def test_idle_slices_keep_their_room_over_a_restart(node: PartitionedNode) -> None:
    """The kubelet may have given one away just before: others do not come until it is known that nobody holds it."""
    node.want({"10gb": 4}, {"20gb": 1})
    await node.start()
    await node.offers(_10gb=4, _20gb=1)
    await node.stop()
    node.want({"40gb": 1}, {"20gb": 2})
    time_passes = False
    node.clock = lambda: 2000 * time.monotonic() if time_passes else 0.0
    await node.start()
    withdrawals = (await node.served()).withdrawals
    await until(lambda: len(withdrawals.hidden) == 4)
    await node.offers(_10gb=4, _20gb=2)
    assert node.snapshot.notices == ()
    time_passes = True
    await node.offers(_40gb=1, _20gb=2)


async def test_idle_slices_keep_their_ids_over_a_restart(node: PartitionedNode, kubelet: EmbeddedKubelet) -> None:
    """An allocation that the kubelet has not recorded yet names one that is still listed, whatever its number."""
    resource = SLICE.format("10gb")
    node.clock = lambda: 2000 * time.monotonic()
    node.want({"10gb": 2})
    await node.start()
    await node.offers(_10gb=2)
    await node.runs("10gb", "first")
    await node.runs("10gb", "second")
    node.end("first")
    node.want({"10gb": 1})
    await node.offers(_10gb=1)
    node.end("second")
    node.want({"10gb": 1, "5gb": 1})
    await node.offers(_10gb=1, _5gb=1)
    await until(lambda: not read_held(kubelet.plugin_directory))
    assert set(kubelet.devices(resource)) == {"00000000-10gb-1"}
    await node.stop()
    await node.start()
    await node.offers(_10gb=1, _5gb=1)
    assert set(kubelet.devices(resource)) == {"00000000-10gb-1"}


async def test_slices_of_pods_that_ended_make_way_without_a_warning(node: PartitionedNode, log: Log) -> None:
    """The kubelet's record still has them when other slices are wanted: nobody is warned of pods that are gone."""
    node.want({"40gb": 1})
    await node.start()
    await node.offers(_40gb=1)
    await node.runs("40gb")
    node.end()
    node.want({"20gb": 2})
    await node.offers(_20gb=2)
    assert [each for each in log if "20gb wanted" in str(each)] == []


async def test_a_slice_that_is_added_needs_no_other_to_go(node: PartitionedNode, kubelet: EmbeddedKubelet) -> None:
    """GPUs have slices of their own, and what grows is listed at once, on the streams that there are."""
    await node.start()
    node.want({"10gb": 1}, {"20gb": 1, "5gb": 1})
    await node.offers(_10gb=1, _20gb=1, _5gb=1)
    node.want({"10gb": 2}, {"20gb": 1, "5gb": 4})
    await node.offers(_10gb=2, _20gb=1, _5gb=4)
    assert len(kubelet.registrations) == 3
    assert set(kubelet.devices(SLICE.format("5gb"))) == {f"00000001-5gb-{number}" for number in range(4)}
    record = node.record
    assert record is not None
    assert {(gpu.index, gpu.resource, gpu.units) for gpu in record.gpus} <= {
        *((0, SLICE.format("10gb"), count) for count in (1, 2)),
        (1, SLICE.format("20gb"), 1),
        *((1, SLICE.format("5gb"), count) for count in (1, 4)),
    }


async def test_new_slices_come_beside_retired_ones_where_there_is_room(
    node: PartitionedNode, kubelet: EmbeddedKubelet, log: Log
) -> None:
    """They need not wait until those are dropped, which never happens while the clock stands still.

    The Node cannot be written, so slices are retired at once.
    """
    node.clock = lambda: 0.0
    node.server.refusals.append(Refusal(403, "patch", resource="nodes/status"))
    node.want({"10gb": 2})
    await node.start()
    await node.offers(_10gb=2)
    await until(lambda: any("writes the status of this Node" in str(each.get("consequence")) for each in log))
    node.want({"20gb": 1}, {"40gb": 1})
    await node.offers(_20gb=1, _40gb=1)
    assert kubelet.capacity() == {SLICE.format("10gb"): 2, SLICE.format("20gb"): 1, SLICE.format("40gb"): 1}


async def test_a_bad_annotation_keeps_what_is_offered(
    node: PartitionedNode, kubelet: EmbeddedKubelet, log: Log
) -> None:
    """It is told once, in the log and in the record; the config is neither read again nor said to have changed."""
    node.want({"10gb": 1})
    await node.start()
    await node.offers(_10gb=1)
    loaded = node.snapshot.config

    def told() -> list[MutableMapping[str, Any]]:
        return [each for each in log if "stay partitioned as they are" in str(each)]

    node.annotate(WANTED_SLICES, '{"version": 1, "gpus": 7}')
    await until(lambda: len(told()) == 1)
    node.annotate(WANTED_SLICES, '{"version": 1, "gpus": {"GPU": {"10gb": 1000000000}}}')
    await until(lambda: node.record is not None and any("1024" in each for each in node.record.notices))
    assert len(told()) == 2
    assert kubelet.allocatable() == {SLICE.format("10gb"): 1}
    assert node.snapshot.config == loaded
    assert [each["event"] for each in log if each["event"].startswith("config_")] == []


async def test_a_gpu_that_vanishes_comes_back_with_what_pods_hold(
    node: PartitionedNode, kubelet: EmbeddedKubelet
) -> None:
    """While it is gone the others are cut as is wanted; a GPU that this node never had is told and changes nothing."""
    node.want({"10gb": 1}, {"20gb": 2})
    await node.start()
    await node.offers(_10gb=1, _20gb=2)
    started = await node.runs("20gb")
    both = node.cards.inventory
    node.cards.inventory = replace(both, cards=both.cards[:1])
    await node.offers(_10gb=1)
    second = both.cards[1].uuid
    node.want({"10gb": 2}, **{second: {"20gb": 1, "5gb": 1}, "GPU-elsewhere": {"10gb": 1}})
    await node.offers(_10gb=2)
    (notice,) = await until(lambda: node.snapshot.notices)
    assert '"GPU-elsewhere"' in notice
    node.cards.inventory = both
    await node.offers(_10gb=2, _20gb=1, _5gb=1)
    assert kubelet.allocated(SLICE.format("20gb")) == started.device_ids[SLICE.format("20gb")]


async def test_list_shows_slices_held_and_idle_and_what_is_missing(
    node: PartitionedNode, kubelet: EmbeddedKubelet
) -> None:
    """`gpushare list` has each size of each GPU, who holds slices, and a warning of those wanted that do not fit."""
    node.want({"10gb": 2, "5gb": 1})
    await node.start()
    await node.offers(_10gb=2, _5gb=1)
    await node.runs("10gb")
    node.want({"10gb": 2, "5gb": 1, "20gb": 1})
    await until(lambda: node.snapshot.notices)
    found = decode(await asyncio.to_thread(ask, socket_path(kubelet.plugin_directory)))
    assert [(gpu.label, gpu.resource, gpu.used, gpu.units, gpu.state) for gpu in found.gpus] == [
        ("0", SLICE.format("5gb"), 0, 1, "available"),
        ("0", SLICE.format("10gb"), 1, 2, "available"),
        ("1", None, 0, 0, "not offered"),
    ]
    assert [(use.pod, use.units) for use in found.gpus[1].uses or ()] == [("pod", 1)]
    (line,) = [each for each in remarks(found) if "20gb" in each]
    assert line.startswith("Warning: GPU 0 ")
    assert "1 slices of 20gb wanted, 0 fit" in line


async def test_a_cordoned_gpu_is_cut_and_takes_no_pod(node: PartitionedNode, kubelet: EmbeddedKubelet) -> None:
    """Its slices are listed and unhealthy until the cordon ends."""
    node.annotate("gpushare/unhealthy-gpus", "1")
    node.want({"10gb": 1}, {"10gb": 2})
    await node.start()
    await node.offers(_10gb=1)
    assert kubelet.capacity() == {SLICE.format("10gb"): 3}
    node.annotate("gpushare/unhealthy-gpus", None)
    await node.offers(_10gb=3)


async def test_slices_that_people_want_by_hand_are_offered(node: PartitionedNode) -> None:
    """The annotations of nos' own work where nothing else says what is wanted."""
    node.annotate("nos.nebuly.com/spec-gpu-0-10gb", "2")
    node.annotate("nos.nebuly.com/spec-gpu-1-20gb", "1")
    await node.start()
    await node.offers(_10gb=2, _20gb=1)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"compute_capability": (3, 0)}, "has compute capability 3.0, and MPS takes 3.5 or more"),
        ({"memory_mib": 0}, "does not report its memory, and unreportedMemory in the config has no size for it"),
    ],
)
async def test_a_gpu_that_mps_cannot_share_is_named_in_the_record(
    kubelet: EmbeddedKubelet, short_path: Path, changes: dict[str, object], reason: str
) -> None:
    """The partitioner reads there why it has no slices, though some are wanted; the other GPU has its slices."""
    old = replace(a_gpu(0), **changes)
    reason = f"MPS cannot share it: it {reason}"
    async with partitioned(kubelet, short_path, Inventory((a_gpu(1),))) as node:
        node.cards.inventory = Inventory((old, a_gpu(1)))
        node.want({"10gb": 1}, {"10gb": 1})
        await node.start()
        await node.offers(_10gb=1)
        expected = [(True, reason, 0), (None, None, 1)]
        await until(
            lambda: (
                node.record and [(each.unsuitable, each.reason, each.units) for each in node.record.gpus] == expected
            ),
            lambda: str(node.record),
        )
        assert [gpu.reason for gpu in report(node.snapshot, source="daemon").gpus] == [reason, None]


async def test_the_record_says_where_mps_serves_fewer_slices(kubelet: EmbeddedKubelet, short_path: Path) -> None:
    """A GPU before Volta has 16 at most: who decides on slices must not want more, which would never be made."""
    cards = a_node(40960, 40960).cards
    old = replace(cards[0], compute_capability=(6, 1))
    async with partitioned(kubelet, short_path, replace(a_node(), cards=(old, cards[1]))) as node:
        await node.start()
        await node.recorded({"partitioning": "mps"})
        assert node.record is not None
        assert [each.most_slices for each in node.record.gpus] == [16, None]


async def test_a_node_is_not_partitioned_without_the_option(node: PartitionedNode, kubelet: EmbeddedKubelet) -> None:
    """GPUs are shared as the config says, and a warning names what to turn on."""
    node.partitioning = False
    node.want({"10gb": 2})
    node.configure("sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 2}]}}")
    await node.start()
    await kubelet.wait_for(lambda seen: seen.capacity() == {"nvidia.com/gpu": 4})
    (notice,) = await until(lambda: node.snapshot.notices)
    assert "--partitioning" in notice
    await node.recorded({"partitioning": None})


async def test_a_node_that_loses_the_label_is_shared_as_the_config_says(
    node: PartitionedNode, kubelet: EmbeddedKubelet
) -> None:
    """And one that gets it is partitioned, without a restart of the daemon."""
    await node.start()
    await node.recorded({"partitioning": "mps"})
    label(node.server, PARTITIONING, None)
    await kubelet.wait_for(lambda seen: seen.capacity() == {"nvidia.com/gpu": 2})
    label(node.server, PARTITIONING, "mps")
    await until(
        lambda: node.snapshot.partitioning == "mps" and not any(resource.units for resource in node.snapshot.resources)
    )


async def test_mps_is_up_before_the_first_slice(node: PartitionedNode) -> None:
    """The GPUs are desired under MPS from the start, and the label that brings `gpushare mps` to the node is there."""
    await node.start()
    await node.recorded({"partitioning": "mps"})
    desired = await until(lambda: read_message(node.root.wanted, MpsSettings))
    assert desired is not None
    assert desired.uuids == {gpu.uuid for gpu in node.cards.inventory.cards}
    await until(lambda: node.snapshot.needs_mps)


async def test_held_slices_never_change_whatever_happens(node: PartitionedNode, kubelet: EmbeddedKubelet) -> None:
    """Pods come and end, wishes change, daemon and kubelet restart: held IDs stay, and no GPU has more than it is."""
    random = Random(16)  # noqa: S311 - the same in each run
    node.clock = lambda: 2000 * time.monotonic()
    held: dict[str, frozenset[str]] = {}
    await node.start()
    for step in range(24):
        match random.choice(["want", "want", "admit", "admit", "end", "restart", "kubelet"]):
            case "want":
                node.want(*({f"{gib}gb": random.randint(1, 4) for gib in random.sample((5, 10, 20), 2)} for _ in "01"))
            case "admit":
                size = random.choice(["5gb", "10gb", "20gb"])
                with contextlib.suppress(AdmissionError):
                    started = await node.runs(size, f"pod-{step}")
                    held[f"pod-{step}"] = started.device_ids.get(SLICE.format(size), frozenset())
            case "end" if held:
                node.end(name := random.choice(sorted(held)))
                del held[name]
            case "restart":
                await node.stop()
                await node.start()
            case "kubelet":
                await kubelet.restart()
        served = await node.served()
        await served.ask_kubelet()
        ids = [id_ for each in held.values() for id_ in each]
        listed = {id_ for resource in served.resources for id_ in resource.units}
        assert len(ids) == len(set(ids))
        assert set(ids) <= listed
        for gpu in ("00000000", "00000001"):
            assert sum(int(id_.split("-")[1][:-2]) for id_ in listed if id_.startswith(gpu)) <= 40
    assert held
