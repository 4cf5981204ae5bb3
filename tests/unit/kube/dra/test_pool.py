"""Tests of `gpushare_plugin.kube.dra.pool`: which ResourceSlices a pool consists of."""

from collections.abc import Sequence

import pytest

from gpushare_plugin.base.structs import replace
from gpushare_plugin.claims.device import Device
from gpushare_plugin.kube.dra.devices import api_device
from gpushare_plugin.kube.dra.pool import Pool, Specs, can_lose, is_same, with_times
from gpushare_plugin.testing.cluster.dra.slices import MOST_DEVICES_ADVANCED
from tests.unit.kube.dra.gpus import DRIVER, FAULT, NODE, shared, whole

POOL = Pool(DRIVER, NODE)


def specs(devices: Sequence[Device], there: Specs | None = None) -> Specs:
    """Return the ResourceSlices for devices."""
    return POOL.specs([api_device(each) for each in devices], there or {})


def counted(found: Specs) -> list[tuple[int, int, int]]:
    """Return generation, number of ResourceSlices and number of devices of each."""
    return [(each.pool.generation, each.pool.resource_slice_count, len(each.devices)) for each in found.values()]


def test_devices_stay_in_their_order() -> None:
    """The scheduler takes the first that fits, by the names of ResourceSlices and by position."""
    devices = [whole(number) for number in range(MOST_DEVICES_ADVANCED * 2 + 1)]
    found = specs(devices)
    assert counted(found) == [(1, 3, 64), (1, 3, 64), (1, 3, 1)]
    ordered = [each.name for name in sorted(found) for each in found[name].devices]
    assert ordered == [each.name for each in devices]


def test_a_pool_without_devices_is_one_resource_slice() -> None:
    """An empty pool is complete, too."""
    assert counted(specs([])) == [(1, 1, 0)]


def test_the_generation_rises_only_with_several_changes() -> None:
    """So the scheduler sees all of them or none; one write is one change anyway."""
    many = [whole(number) for number in range(65)]
    before = specs(many)
    assert counted(specs([*many[:64], whole(64, taints=(FAULT,))], before)) == [(1, 2, 64), (1, 2, 1)]
    assert counted(specs([whole(0, taints=(FAULT,)), *many[1:64], whole(70)], before)) == [(2, 2, 64), (2, 2, 1)]
    assert counted(specs(many[:3], before)) == [(2, 1, 3)]
    one = {name: spec for name, spec in before.items() if len(spec.devices) == 1}
    assert counted(specs(many, one)) == [(1, 2, 64), (1, 2, 1)]


@pytest.mark.parametrize("node", [NODE, "n" * 250])
def test_names_of_resource_slices_are_valid(node: str) -> None:
    """At most 253 bytes, however long the name of the node; the same each time, and another one for each number."""
    names = {Pool(DRIVER, node).name_of(number) for number in (0, 1, 0)}
    assert len(names) == 2
    assert all(len(each) <= 253 for each in names)
    assert Pool(DRIVER, f"{node}x").name_of(0) not in names


def test_only_new_features_can_be_lost() -> None:
    """A ResourceSlice that has shared devices, or taints, keeps them; resourceslice/strategy.go."""
    there = specs([shared()])
    assert can_lose(there, {})
    assert not can_lose(specs([whole()]), {})
    assert not can_lose(specs([shared(), shared(1)], there), there)
    assert can_lose(specs([shared(taints=(FAULT,))], there), there)


def test_the_time_of_a_taint_is_no_difference_and_stays() -> None:
    """The API server sets `timeAdded` where it is missing, so a change of something else must keep it."""
    (name,) = wanted = specs([shared(taints=(FAULT,))])
    device = wanted[name].devices[0]
    stamped = replace(device, taints=(replace(device.taints[0], time_added="2026-11-27T00:00:00Z"),))
    there = replace(wanted[name], devices=(stamped,))
    assert is_same(there, wanted[name])
    assert specs([shared(taints=(FAULT,))], {name: there}) == wanted
    assert with_times(wanted[name], there) == there
