"""Entries of `status.devices` of a claim: what people read of each allocated device.

Limits: `AllocatedDeviceStatus` in kubernetes, staging/src/k8s.io/api/resource/v1/types.go (1.36).
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from gpushare_plugin.base.memory import MIB
from gpushare_plugin.claims.status import DeviceStatus
from gpushare_plugin.core.effect import Effect, State
from gpushare_plugin.kube.dra.devices import quantity
from gpushare_plugin.kube.objects import Condition, Kept
from gpushare_plugin.ledger.quantity import QuantityError, rounded_up

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

    `before` is the present one, None without one; `now` is the time of day in seconds since 1970. While it is not known
    whether the limit is in effect, as after a restart of the daemon, the present condition stays.
    """
    share = {"shareID": status.share_id} if status.share_id is not None else {}
    there = (before or {}).get("conditions")
    found = [_condition(status.effect, before or {}, now)] if status.effect is not None else there
    conditions = {"conditions": found} if found else {}
    identity = {"driver": driver, "pool": status.pool, "device": status.device}
    return {**identity, **share, **conditions, "data": _data(status)}


def status_of(found: Entry) -> DeviceStatus | None:
    """Return what an entry that gpushare wrote says; None for any other entry."""
    try:
        read = msgspec.convert(found, _StatusEntry)
        memory = None if read.data.limit.memory is None else rounded_up(read.data.limit.memory) // MIB
    except (msgspec.ValidationError, QuantityError):
        return None
    return DeviceStatus(
        read.pool,
        read.device,
        read.data.uuid,
        read.share_id,
        memory_mib=memory,
        percent=read.data.limit.compute,
        isolation=read.data.isolation,
        effect=next((_effect(each) for each in read.conditions if each.type == CONDITION), None),
    )


class _SaidLimit(Kept, frozen=True):
    memory: str | None = None
    compute: int | None = None


class _SaidOfDevice(Kept, frozen=True):
    uuid: str
    isolation: str
    limit: _SaidLimit = _SaidLimit()


class _StatusEntry(Kept, frozen=True):
    pool: str
    device: str
    data: _SaidOfDevice
    share_id: str | None = msgspec.field(default=None, name="shareID")
    conditions: tuple[Condition, ...] = ()


def _effect(condition: Condition) -> Effect:
    states = {words: state for state, words in _STATES.items()}
    state = states.get((condition.status, condition.reason), "unknown")
    return Effect(state, condition.message[:_LONGEST_MESSAGE].removeprefix(state).lstrip(": "))


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
