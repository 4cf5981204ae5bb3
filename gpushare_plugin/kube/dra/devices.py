"""Devices of a node in the form of the API, with quantities as Kubernetes writes them.

The canonical form of quantities: kubernetes, staging/src/k8s.io/apimachinery/pkg/api/resource/quantity.go.
"""

from typing import Any

import msgspec

from gpushare_plugin.claims.capacities import MEMORY
from gpushare_plugin.claims.device import (
    Attribute,
    Capacity,
    CapacityUnit,
    Device,
    DeviceTaint,
    SemanticVersion,
    TaintEffect,
)
from gpushare_plugin.kube.dra.objects import ApiAttribute, ApiCapacity, ApiDevice, ApiPolicy, ApiRange, ApiTaint
from gpushare_plugin.ledger.quantity import rounded_up

_SUFFIXES = {"bytes": (1024, ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")), "number": (1000, ("", "k", "M", "G", "T", "P"))}


def api_device(device: Device) -> ApiDevice:
    """Return a device as the API has devices."""
    return ApiDevice(
        name=device.name,
        attributes={name: _attribute(value) for name, value in device.attributes.items()},
        capacity={name: _capacity(each, shared=device.shared) for name, each in device.capacities.items()},
        taints=tuple(ApiTaint(key=each.key, value=each.value, effect=each.effect) for each in device.taints),
        allow_multiple_allocations=device.shared or None,
    )


def device_of(found: ApiDevice) -> Device:
    """Return a device of the API; raises QuantityError."""
    attributes = {name: _value(each) for name, each in found.attributes.items()}
    return Device(
        name=found.name,
        gpu=str(attributes.get("uuid", found.name)),
        shared=bool(found.allow_multiple_allocations),
        attributes=attributes,
        capacities={name: _capacity_of(name, each) for name, each in found.capacity.items()},
        taints=tuple(DeviceTaint(each.key, each.value, _effect(each.effect)) for each in found.taints),
    )


def device_data(device: Device) -> dict[str, Any]:
    """Return a device as in the JSON of a ResourceSlice."""
    data: dict[str, Any] = msgspec.to_builtins(api_device(device))
    return data


def quantity(amount: int, unit: CapacityUnit) -> str:
    """Return an amount, in bytes or as a number, as a quantity in its canonical form: `80Gi`, not `81920Mi`."""
    base, suffixes = _SUFFIXES[unit]
    power = 0
    while amount and amount % base == 0 and power + 1 < len(suffixes):
        amount //= base
        power += 1
    return f"{amount}{suffixes[power]}"


def _attribute(value: Attribute) -> ApiAttribute:
    match value:
        case SemanticVersion(text=text):
            return ApiAttribute(version=text)
        case bool():
            return ApiAttribute(flag=value)
        case int():
            return ApiAttribute(number=value)
        case _:
            return ApiAttribute(string=value)


def _capacity(capacity: Capacity, *, shared: bool) -> ApiCapacity:
    policy = _policy(capacity) if shared and capacity.default is not None else None
    return ApiCapacity(value=quantity(capacity.amount, capacity.unit), request_policy=policy)


def _policy(capacity: Capacity) -> ApiPolicy:
    limits = None
    if not capacity.values and capacity.least is not None and capacity.step is not None:
        least, step = (quantity(each, capacity.unit) for each in (capacity.least, capacity.step))
        limits = ApiRange(min=least, step=step)
    return ApiPolicy(
        default=quantity(capacity.default or 0, capacity.unit),
        valid_values=tuple(quantity(each, capacity.unit) for each in capacity.values),
        valid_range=limits,
    )


def _value(found: ApiAttribute) -> Attribute:
    if found.version is not None:
        return SemanticVersion(found.version)
    return next((each for each in (found.string, found.number, found.flag) if each is not None), "")


def _effect(text: str) -> TaintEffect:
    """Return an effect; an effect that is new counts as one that keeps claims away."""
    return "None" if text == "None" else "NoExecute" if text == "NoExecute" else "NoSchedule"


def _capacity_of(name: str, found: ApiCapacity) -> Capacity:
    policy = found.request_policy
    span = policy.valid_range if policy is not None else None
    return Capacity(
        rounded_up(found.value),
        "bytes" if name == MEMORY else "number",
        default=_number(policy.default) if policy is not None else None,
        least=_number(span.min) if span is not None else None,
        step=_number(span.step) if span is not None else None,
        values=tuple(map(rounded_up, policy.valid_values)) if policy is not None else (),
    )


def _number(text: str | None) -> int | None:
    return None if text is None else rounded_up(text)
