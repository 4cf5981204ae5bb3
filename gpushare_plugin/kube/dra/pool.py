"""Pure: which ResourceSlices a pool consists of, given those that there are.

Rules of the API (kubernetes, staging/src/k8s.io/api/resource/v1/types.go): the scheduler uses the ResourceSlices of the
highest generation of a pool, and ignores the pool where their number is not the one that they name. Devices are tried
in the order of the names of their ResourceSlices, and then of their position.
"""

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Literal

from gpushare_plugin.base.structs import Struct, replace
from gpushare_plugin.kube.dra.objects import ApiDevice, ApiPool, ApiResourceSliceSpec, ApiTaint

MOST_DEVICES = 64
"""The most devices of a ResourceSlice: 64 where devices have taints, else 128, but taints come and go."""
_LONGEST_NAME = 253
"""Bytes in the name of an object (RFC 1123, subdomain)."""

Feature = Literal["shares", "taints"]
"""What an API server drops from devices without a word where a feature gate is off."""

Specs = Mapping[str, ApiResourceSliceSpec]
"""The specs of ResourceSlices, by name."""


class Pool(Struct, frozen=True):
    """The pool of one DRA driver on one node, which is named like the node."""

    driver: str
    """The name of the DRA driver."""
    node: str
    """The name of the node."""

    def name_of(self, number: int) -> str:
        """Return the name of the ResourceSlice with this number: always the same, so that two daemons make no two."""
        name = f"{self.node}-{self.driver}-{number:02}"
        digest = sha256(name.encode()).hexdigest()
        return name if len(name) <= _LONGEST_NAME else f"{digest}-{number:02}"

    def specs(self, devices: Sequence[ApiDevice], there: Specs) -> Specs:
        """Return the specs of all ResourceSlices of the pool, where `there` are those that exist.

        The generation stays where one ResourceSlice changes, and rises where several do, so that the scheduler sees all
        changes or none.
        """
        newest = max((each.pool.generation for each in there.values()), default=1)
        specs = self._specs(devices, newest)
        changed = [name for name in specs.keys() | there.keys() if not is_same(specs.get(name), there.get(name))]
        return specs if len(changed) <= 1 or not there else self._specs(devices, newest + 1)

    def _specs(self, devices: Sequence[ApiDevice], generation: int) -> Specs:
        # An empty pool is one ResourceSlice without devices.
        parts = [devices[first : first + MOST_DEVICES] for first in range(0, len(devices) or 1, MOST_DEVICES)]
        pool = ApiPool(name=self.node, generation=generation, resource_slice_count=len(parts))
        return {
            self.name_of(number): ApiResourceSliceSpec(
                driver=self.driver, node_name=self.node, pool=pool, devices=tuple(part)
            )
            for number, part in enumerate(parts)
        }


def is_same(one: ApiResourceSliceSpec | None, other: ApiResourceSliceSpec | None) -> bool:
    """Return whether two specs say the same, whenever their taints were added."""
    return one == other or (one is not None and other is not None and _timeless(one) == _timeless(other))


def incomplete(specs: Specs) -> Specs:
    """Return the specs with a ResourceSlice too few, so that the scheduler does not use the pool."""
    return {
        name: replace(spec, pool=replace(spec.pool, resource_slice_count=len(specs) + 1))
        for name, spec in specs.items()
    }


def can_lose(specs: Specs, there: Specs) -> bool:
    """Return whether an API server can drop features from `specs`: it keeps those that a ResourceSlice has already."""
    return any(
        _features(spec.devices) - _features(there.get(name, ApiResourceSliceSpec()).devices)
        for name, spec in specs.items()
    )


def lost(asked: ApiResourceSliceSpec, kept: ApiResourceSliceSpec) -> frozenset[Feature]:
    """Return the features that an API server dropped from what it was asked to write."""
    kept_devices = {each.name: each for each in kept.devices}
    return frozenset(
        feature
        for each in asked.devices
        if each.name in kept_devices
        for feature in _features([each]) - _features([kept_devices[each.name]])
    )


def with_times(spec: ApiResourceSliceSpec, there: ApiResourceSliceSpec) -> ApiResourceSliceSpec:
    """Return the spec with the times at which taints were added that are there already."""
    times = {(device.name, _timeless_taint(taint)): taint for device in there.devices for taint in device.taints}
    devices = (
        replace(device, taints=tuple(times.get((device.name, each), each) for each in device.taints))
        for device in spec.devices
    )
    return replace(spec, devices=tuple(devices))


def _features(devices: Sequence[ApiDevice]) -> set[Feature]:
    found: set[Feature] = set()
    for each in devices:
        if each.allow_multiple_allocations:
            found.add("shares")
        if each.taints:
            found.add("taints")
    return found


def _timeless(spec: ApiResourceSliceSpec) -> ApiResourceSliceSpec:
    devices = (replace(each, taints=tuple(map(_timeless_taint, each.taints))) for each in spec.devices)
    return replace(spec, devices=tuple(devices))


def _timeless_taint(taint: ApiTaint) -> ApiTaint:
    return replace(taint, time_added=None)
