"""Tests of `gpushare_plugin.core.unit`."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare_plugin.core.unit import Form, Unit, parse_unit, short_uuids, wire_size
from gpushare_plugin.kubelet.api import deviceplugin_pb2 as api
from gpushare_plugin.slices.slice import Slice
from tests.nodes import a_gpu

gpu_uuids = st.uuids().map(lambda uuid: f"GPU-{uuid}")


def test_a_memory_unit_names_its_gpu_and_size() -> None:
    """A person reads GPU and size from the ID, and `nvidia-smi -L` shows the same digits."""
    uuid = "GPU-5f4c2a1b-9d11-4c5e-8f66-0123456789ab"
    short = short_uuids([uuid])[uuid]
    assert f"{Form.memory(short, 1024).prefix}17" == "5f4c2a1b-1Gi-17"
    assert f"{Form.memory(short, 256).prefix}0" == "5f4c2a1b-256Mi-0"
    assert f"{Form.memory(short, 2048).prefix}0" == "5f4c2a1b-2Gi-0"


def test_a_memory_unit_fits_the_budget_of_a_long_list() -> None:
    """10,240 units of 64 MiB with NUMA nodes stay below 400 kB: eight GPUs of 80 GiB."""
    assert sum(wire_size(Form.memory("5f4c2a1b", 64).prefix, 1280, 1) for _ in range(8)) < 400_000


def test_a_replica_has_the_form_other_tools_split() -> None:
    """Replica IDs are the UUID, two colons and a number, as dcgm-exporter expects them."""
    assert f"{Form.replica('GPU-a').prefix}3" == "GPU-a::3"


@given(st.lists(gpu_uuids, unique=True, max_size=16))
def test_short_names_are_distinct(uuids: list[str]) -> None:
    """No two GPUs of a node share a short name."""
    assert len(set(short_uuids(uuids).values())) == len(uuids)


def test_gpus_that_share_their_first_digits_are_named_in_full() -> None:
    """Hand-made UUIDs that begin alike do not clash, and others keep their short name."""
    alike = [f"GPU-{UUID(int=number)}" for number in range(2)]
    other = "GPU-5f4c2a1b-9d11-4c5e-8f66-0123456789ab"
    names = short_uuids([*alike, other])
    assert names[other] == "5f4c2a1b"
    assert {len(names[uuid]) for uuid in alike} == {32}


@given(st.text("abcdef-", max_size=40), st.integers(0, 12_000), st.none() | st.integers(0, 127))
def test_wire_size_is_what_protobuf_takes(prefix: str, count: int, numa_node: int | None) -> None:
    """The size computed without building the list is exactly the size of the list, all units healthy."""
    topology = None if numa_node is None else api.TopologyInfo(nodes=[api.NUMANode(ID=numa_node)])
    devices = [api.Device(ID=f"{prefix}{n}", health="Healthy", topology=topology) for n in range(count)]
    assert wire_size(prefix, count, numa_node) == api.ListAndWatchResponse(devices=devices).ByteSize()


@given(st.integers(1, 200_000), st.integers(0, 100_000))
def test_an_id_of_a_unit_tells_its_gpu_and_its_size(unit_mib: int, number: int) -> None:
    """Whatever the settings were when an ID was allocated, the ID is enough to know what it stands for."""
    gpus = [a_gpu(0), a_gpu(1), a_gpu(9, uuid=a_gpu(1).uuid.replace("-0000-", "-1111-"))]
    short = short_uuids(gpu.uuid for gpu in gpus)
    for gpu in gpus:
        units = [
            Unit(gpu.uuid, gpu.uuid, 0, Form.whole(gpu.uuid)),
            *Form.replica(gpu.uuid).units(gpu.uuid, None, [number]),
            *Form.memory(short[gpu.uuid], unit_mib).units(gpu.uuid, None, [number], unit_mib),
            *Form.cores(short[gpu.uuid]).units(gpu.uuid, None, [number]),
            *Form.cut(short[gpu.uuid], Slice("mps", "10gb")).units(gpu.uuid, None, [number], 10 * 1024),
        ]
        assert [parse_unit(unit.id, {gpu.uuid: None for gpu in gpus}) for unit in units] == units


def test_an_id_of_an_absent_card_is_still_a_unit_of_that_card() -> None:
    """A card that is off the bus comes back, and then what pods hold of it counts."""
    uuid = a_gpu(7).uuid
    assert parse_unit(uuid, {}) == Unit(uuid, uuid, 0, Form.whole(uuid))
    assert parse_unit(f"{uuid}::3", {a_gpu(0).uuid: None}) == Unit(f"{uuid}::3", uuid, 3, Form.replica(uuid))
    of_memory = Form.memory("00000007", 2048)
    absent = Unit("00000007-2Gi-5", "00000007", 5, of_memory, None, 2048)
    assert parse_unit(absent.id, {a_gpu(0).uuid: None}) == absent
    assert absent.on({uuid: 1}) == Unit(absent.id, uuid, 5, of_memory, 1, 2048)


def test_a_slice_has_its_nominal_memory() -> None:
    """The ID states a size in GiB, and a unit has MiB."""
    gpu = a_gpu(7).uuid
    form = Form.cut("00000007", Slice("mps", "10gb"))
    assert parse_unit("00000007-10gb-1", {gpu: 0}) == Unit("00000007-10gb-1", gpu, 1, form, 0, 10 * 1024)


@pytest.mark.parametrize("id_", ["", "0", "00000000", "0000-1Gi-0", "00000000-1Gi-", "00000000-1Ti-1", "GPU-1::0"])
def test_an_id_of_another_plugin_is_no_unit(id_: str) -> None:
    """Other plugins' IDs name no unit."""
    assert parse_unit(id_, {a_gpu(0).uuid: None, a_gpu(1).uuid: None}) is None
