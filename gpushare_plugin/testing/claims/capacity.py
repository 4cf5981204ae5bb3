"""How much a share of a device consumes (kubernetes: structured/internal/incubating/consumable_capacity.go)."""

from collections.abc import Mapping
from fractions import Fraction
from math import ceil
from typing import Any

from gpushare_plugin.ledger.quantity import amount

Object = dict[str, Any]
Consumed = dict[str, Fraction]
"""By name of the capacity."""

_POWERS = [(f"{letter}i", 1024**power) for power, letter in reversed(list(enumerate("KMGTPE", start=1)))]


def consumption(asked: Mapping[str, str], capacities: Mapping[str, Object]) -> Consumed | None:
    """Return what a request consumes of every capacity of a device, rounded; None where the device does not fit.

    A name that the device lacks does not fit, and no more does a value that the policy does not permit.
    """
    if not asked.keys() <= capacities.keys():
        return None
    consumed = {name: _rounded(asked.get(name), capacity) for name, capacity in capacities.items()}
    fits = all(_permitted(consumed[name], capacity) for name, capacity in capacities.items())
    return consumed if fits else None


def canonical(value: Fraction) -> str:
    """Return a quantity as Kubernetes writes whole numbers in powers of 1024."""
    whole = ceil(value)
    for suffix, power in _POWERS:
        if whole and whole % power == 0:
            return f"{whole // power}{suffix}"
    return str(whole)


def _rounded(asked: str | None, capacity: Object) -> Fraction:
    """Round a request up; without a request the default, and without a default all of it."""
    policy = capacity.get("requestPolicy") or {}
    if asked is None:
        return amount(policy["default"] if policy.get("default") is not None else capacity["value"])
    wanted = amount(asked)
    if (limits := policy.get("validRange")) and limits.get("min") is not None:
        least = amount(limits["min"])
        if wanted < least:
            return least
        step = amount(limits["step"]) if limits.get("step") is not None else None
        return least + ceil((wanted - least) / step) * step if step else wanted
    return next((value for value in map(amount, policy.get("validValues") or ()) if wanted <= value), wanted)


def _permitted(value: Fraction, capacity: Object) -> bool:
    policy = capacity.get("requestPolicy") or {}
    if most := (policy.get("validRange") or {}).get("max"):
        return value <= amount(most)
    if values := policy.get("validValues"):
        return value in map(amount, values)
    return True
