"""What a ResourceSlice has to be (kubernetes: pkg/apis/resource/validation/validation.go, staging api/resource/v1)."""

import re
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from gpushare_plugin.ledger.quantity import QuantityError, amount

Object = dict[str, Any]

MOST_DEVICES, MOST_DEVICES_ADVANCED = 128, 64
MOST_ATTRIBUTES_AND_CAPACITIES = 32
LONGEST_VALUE = 64
LONGEST_ID, LONGEST_DOMAIN = 32, 63
MOST_TAINTS = 16
MOST_VALID_VALUES = 10

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_SUBDOMAIN = re.compile(r"(?=.{1,253}$)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_C_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# semver.org 2.0.0: no leading zeros in numbers
_NUMBER, _PRE = r"(0|[1-9]\d*)", r"(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)"
_SEMVER = re.compile(
    rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}(-{_PRE}(\.{_PRE})*)?(\+[0-9a-zA-Z-]+(\.[0-9a-zA-Z-]+)*)?", re.ASCII
)

_NODES = ("nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection")
_VALUES = ("bool", "int", "string", "version")
_EFFECTS = ("None", "NoSchedule", "NoExecute")


def problems(new: Object, old: Object | None) -> Iterator[str]:
    """Yield what the API server objects to in a ResourceSlice; one bad device refuses the whole slice."""
    spec = new["spec"]
    if not _SUBDOMAIN.fullmatch(spec.get("driver", "")) or len(spec["driver"]) > LONGEST_DOMAIN:
        yield f'spec.driver: Invalid value: "{spec.get("driver")}"'
    yield from _pool(spec)
    if old is not None:
        yield from _unchanged(spec, old["spec"])
    chosen = [field for field in _NODES if spec.get(field)]
    if len(chosen) != 1:
        among = ", ".join(f"`{field}`" for field in _NODES)
        yield f"spec: exactly one of {among} is required, found {len(chosen)}"
    if "sharedCounters" in spec and "devices" in spec:
        yield "spec: Invalid value: only one of `sharedCounters` or `devices` is allowed"
    yield from _devices(spec.get("devices") or [])


def _pool(spec: Object) -> Iterator[str]:
    pool = spec.get("pool") or {}
    if not all(_SUBDOMAIN.fullmatch(part) for part in pool.get("name", "").split("/")):
        yield f'spec.pool.name: Invalid value: "{pool.get("name")}"'
    if pool.get("resourceSliceCount", 0) <= 0:
        yield "spec.pool.resourceSliceCount: Invalid value: must be greater than zero"
    if pool.get("generation", 0) < 0:
        yield "spec.pool.generation: Invalid value: must be greater than or equal to zero"


def _unchanged(new: Object, old: Object) -> Iterator[str]:
    for field, is_now, was in (
        ("pool.name", new["pool"].get("name"), old["pool"]["name"]),
        ("driver", new.get("driver"), old["driver"]),
        ("nodeName", new.get("nodeName"), old.get("nodeName")),
    ):
        if is_now != was:
            yield f'spec.{field}: Invalid value: "{is_now}": field is immutable'


def _devices(devices: list[Object]) -> Iterator[str]:
    advanced = any(each.get("taints") or each.get("consumesCounters") for each in devices)
    most = MOST_DEVICES_ADVANCED if advanced else MOST_DEVICES
    if len(devices) > most:
        yield f"spec.devices: Too many: {len(devices)}: must have at most {most} items"
    seen = set()
    for number, device in enumerate(devices):
        where, name = f"spec.devices[{number}]", device.get("name", "")
        if name in seen:
            yield f'{where}: Duplicate value: "{name}"'
        seen.add(name)
        yield from _device(where, device, name)


def _device(where: str, device: Object, name: str) -> Iterator[str]:
    if not _LABEL.fullmatch(name):
        yield f'{where}.name: Invalid value: "{name}": a lowercase RFC 1123 label is required'
    attributes, capacities = device.get("attributes") or {}, device.get("capacity") or {}
    if (total := len(attributes) + len(capacities)) > MOST_ATTRIBUTES_AND_CAPACITIES:
        most = f"must not exceed {MOST_ATTRIBUTES_AND_CAPACITIES}"
        yield f"{where}: Invalid value: {total}: the total number of attributes and capacities {most}"
    for key, value in attributes.items():
        yield from _qualified(f"{where}.attributes[{key}]", key)
        yield from _attribute(f"{where}.attributes[{key}]", value)
    shared = device.get("allowMultipleAllocations") is True
    for key, capacity in capacities.items():
        yield from _qualified(f"{where}.capacity[{key}]", key)
        yield from _capacity(f"{where}.capacity[{key}]", capacity, shared=shared)
    taints = device.get("taints") or []
    if len(taints) > MOST_TAINTS:
        yield f"{where}.taints: Too many: {len(taints)}: must have at most {MOST_TAINTS} items"
    for number, taint in enumerate(taints):
        if not taint.get("key") or taint.get("effect") not in _EFFECTS:
            yield f'{where}.taints[{number}].effect: Unsupported value: "{taint.get("effect")}"'


def _qualified(where: str, key: str) -> Iterator[str]:
    *domains, identifier = key.split("/")
    if len(domains) > 1 or any(len(each) > LONGEST_DOMAIN or not _SUBDOMAIN.fullmatch(each) for each in domains):
        yield f'{where}: Invalid value: "{key}": the domain is not valid'
    if len(identifier) > LONGEST_ID:
        yield f"{where}: Too long: may not be more than {LONGEST_ID} bytes"
    if not _C_IDENTIFIER.fullmatch(identifier):
        yield f'{where}: Invalid value: "{identifier}": a valid C identifier is required'


def _attribute(where: str, value: Object) -> Iterator[str]:
    given = [kind for kind in _VALUES if value.get(kind) is not None]
    if len(given) != 1:
        yield f"{where}: Invalid value: exactly one value must be specified"
        return
    text = value[given[0]]
    if given[0] == "version" and not _SEMVER.fullmatch(text):
        yield f'{where}.version: Invalid value: "{text}": must be a string compatible with semver.org spec 2.0.0'
    if given[0] in {"string", "version"} and len(text.encode()) > LONGEST_VALUE:
        yield f"{where}.{given[0]}: Too long: may not be more than {LONGEST_VALUE} bytes"


def _capacity(where: str, capacity: Object, *, shared: bool) -> Iterator[str]:
    policy = capacity.get("requestPolicy")
    try:
        whole = amount(capacity["value"])
        if policy and not shared:
            yield f"{where}.requestPolicy: Forbidden: allowMultipleAllocations must be true"
        elif policy:
            yield from _policy(f"{where}.requestPolicy", policy, whole)
    except (QuantityError, KeyError) as error:
        yield f"{where}.value: Invalid value: {error}"


def _policy(where: str, policy: Object, whole: Fraction) -> Iterator[str]:
    values, limits = policy.get("validValues") or [], policy.get("validRange")
    if values and limits:
        yield f"{where}: Forbidden: exactly one policy can be specified"
    elif (values or limits) and policy.get("default") is None:
        yield f"{where}.default: Required value: required when validValues or validRange is defined"
    elif values:
        yield from _valid_values(
            f"{where}.validValues", [amount(each) for each in values], amount(policy["default"]), whole
        )
    elif limits:
        yield from _valid_range(f"{where}.validRange", limits, amount(policy["default"]), whole)


def _valid_values(where: str, values: list[Fraction], default: Fraction, whole: Fraction) -> Iterator[str]:
    if values != sorted(values):
        yield f"{where}: Invalid value: values must be sorted in ascending order"
    if len(values) > MOST_VALID_VALUES:
        yield f"{where}: Too many: {len(values)}: must have at most {MOST_VALID_VALUES} items"
    if any(each > whole for each in values):
        yield f"{where}: Invalid value: option is larger than capacity value: {whole}"
    if default not in values:
        yield f"{where}: Invalid value: default value is not valid according to the requestPolicy"


def _valid_range(where: str, limits: Object, default: Fraction, whole: Fraction) -> Iterator[str]:
    if limits.get("min") is None:
        yield f"{where}.min: Required value: required when validRange is defined"
        return
    least, most = amount(limits["min"]), amount(limits["max"]) if limits.get("max") is not None else None
    if least > whole or default < least:
        yield f"{where}.min: Invalid value: not at most the default and the capacity value"
    if most is not None and (least > most or most > whole or default > most):
        yield f"{where}.max: Invalid value: not at least min and the default, and at most the capacity value"
    if limits.get("step") is not None:
        step = amount(limits["step"])
        if least + step > whole:
            yield f"{where}.step: Invalid value: one step {least + step} is larger than capacity value: {whole}"
        for value in (default, *([most] if most is not None else [])):
            if (value - least) % step:
                yield f"{where}.step: Invalid value: {value} is not a multiple of a given step ({step}) from ({least})"
