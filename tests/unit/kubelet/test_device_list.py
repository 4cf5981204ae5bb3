"""Tests of `gpushare_plugin.kubelet.device_plugin.service`."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare_plugin.base.structs import replace
from gpushare_plugin.config.schema.sections import Flags
from gpushare_plugin.core.chooser import Replicas
from gpushare_plugin.core.resource import Resource, Units, UnitsByGpu
from gpushare_plugin.core.unit import KUBELET_MESSAGE_LIMIT, Form, Unit
from gpushare_plugin.kubelet.api import deviceplugin_pb2 as api
from gpushare_plugin.kubelet.device_plugin.service import SerialisedDevices
from gpushare_plugin.sharing.ways.injection import Injection
from gpushare_plugin.sharing.ways.replicas import ReplicaGranter, most_replicas, replica_units
from tests.nodes import a_gpu

GPUS = (a_gpu(0, numa_node=0), a_gpu(1, numa_node=1), a_gpu(2))


def replicas(shares: UnitsByGpu) -> Resource:
    """Return a resource of these units."""
    return Resource("nvidia.com/gpu", Units(shares), Replicas(), ReplicaGranter(Injection(Flags())))


def device(unit: Unit, health: str) -> api.Device:
    """Return a unit as it stands in a list."""
    nodes = [] if unit.numa_node is None else [api.NUMANode(ID=unit.numa_node)]
    return api.Device(ID=unit.id, health=health, topology=api.TopologyInfo(nodes=nodes) if nodes else None)


def message(resource: Resource, word: str = "Unhealthy") -> api.ListAndWatchResponse:
    """Return the list of a resource, made unit by unit, with this `word` for units that are not healthy."""
    devices = [device(unit, word if unit.gpu in resource.unhealthy else "Healthy") for unit in resource.units.values()]
    return api.ListAndWatchResponse(devices=[*devices, *(device(unit, word) for unit in resource.retired.values())])


def test_units_carry_health_and_numa_node() -> None:
    """NUMA node 0 is a node, no NUMA node is none."""
    resource = replace(replicas({gpu: replica_units(gpu, 1) for gpu in GPUS}), unhealthy={GPUS[1].uuid: "XID 79"})
    devices = api.ListAndWatchResponse.FromString(SerialisedDevices().of(resource)).devices
    assert [device.health for device in devices] == ["Healthy", "Unhealthy", "Healthy"]
    assert [[node.ID for node in device.topology.nodes] for device in devices] == [[0], [1], []]
    assert [device.HasField("topology") for device in devices] == [True, True, False]


COUNTS = st.dictionaries(st.sampled_from(GPUS), st.integers(0, 12))
UNHEALTHY = st.frozensets(st.sampled_from([gpu.uuid for gpu in GPUS]))


@given(st.lists(st.tuples(st.none() | COUNTS, st.integers(0, 3), UNHEALTHY), max_size=8))
def test_every_list_is_the_bytes_of_the_whole_message(
    changes: list[tuple[dict[Any, int] | None, int, frozenset[str]]],
) -> None:
    """Whatever was listed before: units that come, go or retire, and GPUs that fail, are as if made all at once."""
    device_list, resource = SerialisedDevices(), replicas({})
    for counts, retired, unhealthy in changes:
        if counts is not None:
            shares = {gpu: replica_units(gpu, count) for gpu, count in counts.items()}
            leaving = Form.replica(GPUS[0].uuid).units(GPUS[0].uuid, 0, range(100, 100 + retired))
            resource = replace(resource, units=Units(shares), retired={unit.id: unit for unit in leaving})
        resource = replace(resource, unhealthy=dict.fromkeys(unhealthy, "XID 79"))
        assert device_list.of(resource) == message(resource).SerializeToString()


@pytest.mark.parametrize("failed", [1, 2, 3])
def test_a_list_that_fits_while_all_is_well_fits_when_gpus_fail(failed: int) -> None:
    """To the last byte: the word is left out where there is no room for it, and no unit is left out or healthy."""
    count = most_replicas(GPUS)
    resource = replicas({gpu: replica_units(gpu, count) for gpu in GPUS})
    device_list = SerialisedDevices()
    well = device_list.of(resource)
    assert len(well) <= KUBELET_MESSAGE_LIMIT < len(well) + 3 * 64
    sick = replace(resource, unhealthy=dict.fromkeys([gpu.uuid for gpu in GPUS[:failed]], "XID 79"))
    assert message(sick).ByteSize() > KUBELET_MESSAGE_LIMIT
    shown = device_list.of(sick)
    assert shown == message(sick, "").SerializeToString()
    assert len(shown) < len(well)
    assert device_list.of(resource) == well


class Counting(list[Unit]):
    """Units that count how often somebody goes over them."""

    times = 0

    def __iter__(self) -> Iterator[Unit]:
        """Count, and go over them."""
        self.times += 1
        return super().__iter__()


def test_units_are_serialised_once_for_each_health() -> None:
    """A fault or a recovery joins what is there, however many units there are."""
    units = Counting(replica_units(GPUS[0], 4))
    device_list, resource = SerialisedDevices(), replicas({GPUS[0]: units})
    before = units.times
    for _ in range(5):
        device_list.of(replace(resource, unhealthy={GPUS[0].uuid: "XID 79"}))
        device_list.of(resource)
    assert units.times == before + 2
