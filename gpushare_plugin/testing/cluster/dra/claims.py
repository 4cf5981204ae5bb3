"""What a ResourceClaim and its status have to be (kubernetes: pkg/apis/resource/validation/validation.go)."""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from gpushare_plugin.ledger.quantity import QuantityError, amount

Object = dict[str, Any]
DeviceId = tuple[str, str, str, str | None]
"""Driver, pool, device and share."""

MOST_REQUESTS, MOST_RESULTS, MOST_USERS = 32, 32, 256
MOST_SUBREQUESTS = 8
MOST_CONDITIONS = 8
LONGEST_DATA = LONGEST_PARAMETERS = 10 * 1024
LONGEST_REASON, LONGEST_MESSAGE = 1024, 32 * 1024

_LABEL = re.compile(r"([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_REASON = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")

ADMIN_LABEL = "resource.kubernetes.io/admin-access"


def device_id(found: Object) -> DeviceId:
    """Return what an entry of `allocation.devices.results` or of `status.devices` is known by."""
    return found["driver"], found["pool"], found["device"], found.get("shareID")


def results(claim: Object) -> list[Object]:
    """Return the devices that are allocated to a claim."""
    allocation = (claim.get("status") or {}).get("allocation") or {}
    return (allocation.get("devices") or {}).get("results") or []


def spec_problems(spec: Object, old: Object | None, *, admin: bool) -> Iterator[str]:
    """Yield what the API server objects to in a claim; `admin` is whether the namespace permits access for admins."""
    if old is not None and spec != old:
        yield "spec: Invalid value: field is immutable"
    devices = spec.get("devices") or {}
    requests = devices.get("requests") or []
    if len(requests) > MOST_REQUESTS:
        yield f"spec.devices.requests: Too many: {len(requests)}: must have at most {MOST_REQUESTS} items"
    for number, request in enumerate(requests):
        where = f"spec.devices.requests[{number}]"
        exactly, alternatives = request.get("exactly"), request.get("firstAvailable") or []
        if bool(exactly) == bool(alternatives):
            yield f"{where}: exactly one of `exactly` or `firstAvailable` is required"
        if len(alternatives) > MOST_SUBREQUESTS:
            yield f"{where}.firstAvailable: Too many: must have at most {MOST_SUBREQUESTS} items"
        for part in (*([exactly] if exactly else []), *alternatives):
            yield from _request(where, part, admin=admin)
    for number, config in enumerate(devices.get("config") or ()):
        parameters = (config.get("opaque") or {}).get("parameters")
        if len(json.dumps(parameters)) > LONGEST_PARAMETERS:
            yield f"spec.devices.config[{number}].opaque.parameters: Too long: at most {LONGEST_PARAMETERS} bytes"


def _request(where: str, part: Object, *, admin: bool) -> Iterator[str]:
    if not part.get("deviceClassName"):
        yield f"{where}.deviceClassName: Required value"
    mode, count = part.get("allocationMode", "ExactCount"), part.get("count")
    if mode not in {"ExactCount", "All"}:
        yield f'{where}.allocationMode: Unsupported value: "{mode}"'
    elif (mode == "All" and count) or (mode == "ExactCount" and count is not None and count <= 0):
        yield f"{where}.count: Invalid value: {count}"
    if part.get("adminAccess") and not admin:
        need = f"admin access to devices requires the `{ADMIN_LABEL}: true` label on the containing namespace"
        yield f"{where}.adminAccess: Forbidden: {need}"
    for name, asked in ((part.get("capacity") or {}).get("requests") or {}).items():
        try:
            amount(asked)
        except QuantityError as error:
            yield f"{where}.capacity.requests[{name}]: Invalid value: {error}"


def status_problems(new: Object, old: Object) -> Iterator[str]:
    """Yield what the API server objects to in a change of a claim's status."""
    status, before = new.get("status") or {}, old.get("status") or {}
    users = status.get("reservedFor") or []
    if len(users) > MOST_USERS:
        yield f"status.reservedFor: Too many: {len(users)}: must have at most {MOST_USERS} items"
    if users and not status.get("allocation"):
        yield "status.reservedFor: Forbidden: may not be specified when `allocated` is not set"
    if status.get("allocation") and before.get("allocation") and status["allocation"] != before["allocation"]:
        yield "status.allocation: Invalid value: field is immutable"
    if len(results(new)) > MOST_RESULTS:
        yield f"status.allocation.devices.results: Too many: must have at most {MOST_RESULTS} items"
    yield from _device_problems(status.get("devices") or [], {device_id(each) for each in results(new)})


def _device_problems(devices: list[Object], allocated: set[DeviceId]) -> Iterator[str]:
    keys = [device_id(each) for each in devices]
    for number, device in enumerate(devices):
        where = f"status.devices[{number}]"
        if keys.count(keys[number]) > 1:
            yield f"{where}: Duplicate value"
        if keys[number] not in allocated:
            yield f"{where}: Invalid value: must be an allocated device in the claim"
        if len(device.get("conditions") or ()) > MOST_CONDITIONS:
            yield f"{where}.conditions: Too many: must have at most {MOST_CONDITIONS} items"
        yield from _condition_problems(f"{where}.conditions", device.get("conditions") or ())
        data = device.get("data")
        if data is not None and not isinstance(data, dict):
            yield f"{where}.data: Invalid value: must be a valid JSON object"
        if len(json.dumps(data).encode()) > LONGEST_DATA:
            yield f"{where}.data: Too long: may not be more than {LONGEST_DATA} bytes"


def _condition_problems(where: str, conditions: Sequence[Object]) -> Iterator[str]:
    """Yield what is wrong with conditions (k8s.io/apimachinery: pkg/apis/meta/v1/validation, ValidateConditions)."""
    types = [each.get("type") for each in conditions]
    for number, each in enumerate(conditions):
        here = f"{where}[{number}]"
        if types.count(types[number]) > 1:
            yield f"{here}.type: Duplicate value"
        if not _LABEL.fullmatch(str(each.get("type", ""))):
            yield f"{here}.type: Invalid value: a qualified name is required"
        if each.get("status") not in {"True", "False", "Unknown"}:
            yield f"{here}.status: Unsupported value"
        if not _TIME.fullmatch(str(each.get("lastTransitionTime", ""))):
            yield f"{here}.lastTransitionTime: Required value"
        reason = str(each.get("reason", ""))
        if len(reason) > LONGEST_REASON or not _REASON.fullmatch(reason):
            yield f"{here}.reason: Invalid value"
        if len(str(each.get("message", "")).encode()) > LONGEST_MESSAGE:
            yield f"{here}.message: Too long: may not be more than {LONGEST_MESSAGE} bytes"


def drop_deallocated(new: Object, old: Object) -> None:
    """Drop the status of devices that are not allocated any more (strategy.go, dropDeallocatedStatusDevices)."""
    gone = {device_id(each) for each in results(old)} - {device_id(each) for each in results(new)}
    if devices := (new.get("status") or {}).get("devices"):
        if kept := [each for each in devices if device_id(each) not in gone]:
            new["status"]["devices"] = kept
        else:
            del new["status"]["devices"]


def changed_drivers(new: Object, old: Object) -> set[str]:
    """Return the drivers whose entries in `status.devices` a change adds, changes or removes."""
    is_now, was = (
        {device_id(each): each for each in (claim.get("status") or {}).get("devices") or ()} for claim in (new, old)
    )
    return {key[0] for key in is_now.keys() | was.keys() if is_now.get(key) != was.get(key)}


def node_of(claim: Object) -> str | None:
    """Return the one node whose name the allocation selects, as `nodeNameFromAllocation` does."""
    allocation = (claim.get("status") or {}).get("allocation") or {}
    terms = (allocation.get("nodeSelector") or {}).get("nodeSelectorTerms") or []
    fields = terms[0].get("matchFields") or [] if len(terms) == 1 and not terms[0].get("matchExpressions") else []
    if len(fields) == 1 and (fields[0]["key"], fields[0]["operator"]) == ("metadata.name", "In"):
        names = fields[0]["values"]
        return str(names[0]) if len(names) == 1 else None
    return None
