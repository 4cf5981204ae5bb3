"""The devices of a node in the order in which they are tried (kubernetes: incubating/pools_incubating.go)."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

Object = dict[str, Any]
DeviceId = tuple[str, str, str]
"""Driver, pool and name."""


@dataclass(frozen=True, slots=True)
class OfferedDevice:
    """A device of a ResourceSlice."""

    id: DeviceId
    device: Object

    @property
    def shared(self) -> bool:
        """Whether several claims can have a share of the device."""
        return self.device.get("allowMultipleAllocations") is True


def offered(slices: Iterable[Object], node: str) -> list[OfferedDevice]:
    """Return the devices of complete pools: by driver and pool, then the name of the slice, then their position.

    Of a pool, the slices of the highest generation count; where some of them are missing, the pool is not used, and
    where two devices have one name, neither is it.
    """
    pools: dict[tuple[str, str], list[Object]] = {}
    for each in slices:
        if each["spec"].get("nodeName") == node:
            pools.setdefault((each["spec"]["driver"], each["spec"]["pool"]["name"]), []).append(each)
    return [found for key in sorted(pools) for found in _devices(key, pools[key])]


def _devices(key: tuple[str, str], slices: list[Object]) -> list[OfferedDevice]:
    newest = max(_generation(each) for each in slices)
    current = sorted(
        (each for each in slices if _generation(each) == newest), key=lambda each: each["metadata"]["name"]
    )
    if len(current) != current[0]["spec"]["pool"]["resourceSliceCount"]:
        return []
    found = [OfferedDevice((*key, each["name"]), each) for one in current for each in one["spec"].get("devices") or ()]
    return found if len({each.id for each in found}) == len(found) else []


def _generation(found: Object) -> int:
    return int(found["spec"]["pool"].get("generation", 0))
