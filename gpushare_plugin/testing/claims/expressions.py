"""The few forms of CEL that selectors of the tests need; everything else is refused by name.

Terms are joined by `&&`: `device.driver == "d"`, `device.allowMultipleAllocations == true`,
`device.attributes["d"].name == value` and `device.capacity["d"].name.compareTo(quantity("10Gi")) >= 0`, with the
operators ==, !=, >=, <=, > and <.
"""

import json
import operator
import re
from typing import Any

from gpushare_plugin.ledger.quantity import amount
from gpushare_plugin.testing.claims.errors import SelectorError

Object = dict[str, Any]

_OPERATORS = {
    "==": operator.eq,
    "!=": operator.ne,
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
_TERM = re.compile(
    r"""device\.(?:(?P<field>driver|allowMultipleAllocations)
    |attributes\["(?P<domain>[^"]+)"\]\.(?P<attribute>\w+)
    |capacity\["(?P<of>[^"]+)"\]\.(?P<capacity>\w+)\.compareTo\(quantity\("(?P<quantity>[^"]+)"\)\))
    \s*(?P<operator>[=!<>]=|[<>])\s*(?P<value>.+)""",
    re.VERBOSE,
)


def matches(expression: str, driver: str, device: Object) -> bool:
    """Return whether a device of a driver is selected; raises SelectorError, also for an attribute that it lacks."""
    return all(_holds(term.strip(), driver, device) for term in expression.split("&&"))


def _holds(term: str, driver: str, device: Object) -> bool:
    form = _TERM.fullmatch(term)
    if form is None:
        raise SelectorError(f"found {term!r}; the allocator of the test kit knows the forms in {__name__} alone")
    return bool(_OPERATORS[form["operator"]](_value(form, driver, device), json.loads(form["value"])))


def _value(form: re.Match[str], driver: str, device: Object) -> Any:
    if form["field"]:
        return driver if form["field"] == "driver" else device.get("allowMultipleAllocations") is True
    kind, domain, name = (
        ("attributes", form["domain"], form["attribute"])
        if form["attribute"]
        else ("capacity", form["of"], form["capacity"])
    )
    known = device.get(kind) or {}
    found = known.get(f"{domain}/{name}", known.get(name) if domain == driver else None)
    if found is None:
        raise SelectorError(f"no such key: {name}")
    if kind == "attributes":
        return next(iter(found.values()))
    difference = amount(found["value"]) - amount(form["quantity"])
    return (difference > 0) - (difference < 0)
