"""Entries of `status.devices` of a claim: what people read of each allocated device.

Limits: `AllocatedDeviceStatus` in kubernetes, staging/src/k8s.io/api/resource/v1/types.go (1.36).
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from gpushare_plugin.base.memory import MIB
from gpushare_plugin.claims.status import DeviceStatus
from gpushare_plugin.core.effect import Effect, State
from gpushare_plugin.kube.dra.devices import quantity

CONDITION = "LimitInEffect"
"""The type of the condition that says whether the limit of a share is enforced."""
_LONGEST_MESSAGE = 1024
"""Characters of the message of a condition; the API server takes 32 KiB."""

_STATES: Mapping[State, tuple[str, str]] = {
    "in effect": ("True", "InEffect"),
    "in effect since": ("True", "InEffectSince"),
    "not in effect": ("False", "NotInEffect"),
    "unknown": ("Unknown", "Unknown"),
}

Entry = Mapping[str, Any]
"""An entry of `status.devices`, as in the API."""


def key(entry: Entry) -> tuple[object, ...]:
    """Return what an entry is known by: driver, pool, device and share."""
    return tuple(entry.get(name) for name in ("driver", "pool", "device", "shareID"))


def entry(driver: str, status: DeviceStatus, before: Entry | None, now: float) -> Entry:
    """Return the entry for a device.

    `before` is the present one, None without one; `now` is the time of day in seconds since 1970.
    """
    share = {"shareID": status.share_id} if status.share_id is not None else {}
    conditions = {"conditions": [_condition(status.effect, before or {}, now)]} if status.effect is not None else {}
    identity = {"driver": driver, "pool": status.pool, "device": status.device}
    return {**identity, **share, **conditions, "data": _data(status)}


def _data(status: DeviceStatus) -> Entry:
    limit: dict[str, object] = {}
    if status.memory_mib is not None:
        limit["memory"] = quantity(status.memory_mib * MIB, "bytes")
    if status.percent is not None:
        limit["compute"] = status.percent
    return {"uuid": status.gpu, "isolation": status.isolation, **({"limit": limit} if limit else {})}


def _condition(effect: Effect, before: Entry, now: float) -> Entry:
    status, reason = _STATES[effect.state]
    there: Entry = next((each for each in before.get("conditions") or () if each.get("type") == CONDITION), {})
    at = datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "type": CONDITION,
        "status": status,
        "reason": reason,
        "message": effect.words[:_LONGEST_MESSAGE],
        "lastTransitionTime": there.get("lastTransitionTime", at) if there.get("status") == status else at,
    }
