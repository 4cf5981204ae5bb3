"""Feature gates for DRA by version, and the fields that an API server drops without a word where a gate is off."""

from dataclasses import dataclass
from typing import Any, Self

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Gates:
    """Which gates are on; the defaults are those of 1.36 (kubernetes: pkg/features/kube_features.go)."""

    consumable_capacity: bool = True
    partitionable_devices: bool = True
    device_taints: bool = True
    binding_conditions: bool = True
    device_status: bool = True
    granular_status: bool = True

    @classmethod
    def of(cls, version: str) -> Self:
        """Return the defaults of `1.34`, `1.35` or `1.36`: what is on in 1.36 alone was alpha, or not there, before."""
        if version == "1.36":
            return cls()
        if version not in {"1.34", "1.35"}:
            raise ValueError(f"version {version} found, expected 1.34, 1.35 or 1.36")
        return cls(
            consumable_capacity=False,
            partitionable_devices=False,
            device_taints=False,
            binding_conditions=False,
            granular_status=False,
        )

    def drop_from_slice(self, new: Object, old: Object | None) -> None:
        """Drop fields of a ResourceSlice whose gate is off, unless the slice had them before (strategy.go)."""
        before = _devices(old) if old else []
        self._drop_from_devices(_devices(new), before)
        for field in ("sharedCounters", "perDeviceNodeSelection"):
            if not self.partitionable_devices and not (old and old["spec"].get(field)):
                new["spec"].pop(field, None)
        if not self.consumable_capacity and not any(map(_consumable, before)):
            _drop_shares(new)

    def _drop_from_devices(self, devices: list[Object], before: list[Object]) -> None:
        for on, fields in (
            (self.device_taints, ("taints",)),
            (self.partitionable_devices, ("consumesCounters", "nodeName", "nodeSelector", "allNodes")),
            (self.binding_conditions, ("bindingConditions", "bindingFailureConditions", "bindsToNode")),
        ):
            if not on and not any(each.get(field) for each in before for field in fields):
                for device in devices:
                    for field in fields:
                        device.pop(field, None)

    def drop_from_claim(self, new: Object, old: Object | None) -> None:
        """Drop fields of a ResourceClaim whose gate is off (registry/resource/resourceclaim/strategy.go)."""
        status = new.get("status") or {}
        if not self.device_status and not ((old or {}).get("status") or {}).get("devices"):
            status.pop("devices", None)
        if self.consumable_capacity:
            return
        for request in new["spec"].get("devices", {}).get("requests") or ():
            for part in (request.get("exactly") or {}, *(request.get("firstAvailable") or ())):
                part.pop("capacity", None)
        for result in ((status.get("allocation") or {}).get("devices") or {}).get("results") or ():
            result.pop("shareID", None)
            result.pop("consumedCapacity", None)
        for device in status.get("devices") or ():
            device.pop("shareID", None)


def _devices(found: Object) -> list[Object]:
    return found["spec"].get("devices") or []


def _drop_shares(new: Object) -> None:
    for device in _devices(new):
        device.pop("allowMultipleAllocations", None)
        for capacity in (device.get("capacity") or {}).values():
            capacity.pop("requestPolicy", None)


def _consumable(device: Object) -> bool:
    capacities = (device.get("capacity") or {}).values()
    return device.get("allowMultipleAllocations") is not None or any(each.get("requestPolicy") for each in capacities)
