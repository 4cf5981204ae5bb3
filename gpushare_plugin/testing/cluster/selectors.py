"""Field selectors, such as `spec.nodeName=gpu-1`, of the fields that the tests need."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_TERM = re.compile(r"(?P<field>[\w.]+)(?P<operator>!=|==?)(?P<value>.*)")


@dataclass(frozen=True, slots=True)
class Selectable:
    """The fields of an object by which it can be selected."""

    name: str
    namespace: str
    node: str
    phase: str

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> "Selectable":
        """Return those of an object."""
        metadata = found["metadata"]
        spec, status = found.get("spec") or {}, found.get("status") or {}
        return cls(
            metadata["name"], metadata.get("namespace", ""), spec.get("nodeName") or "", status.get("phase") or ""
        )


_FIELDS = {
    "metadata.name": "name",
    "metadata.namespace": "namespace",
    "spec.nodeName": "node",
    "status.phase": "phase",
}


@dataclass(frozen=True, slots=True)
class Selector:
    """Terms that must all hold: a field, whether it has to be equal, and the value."""

    terms: tuple[tuple[str, bool, str], ...] = ()

    @classmethod
    def parse(cls, text: str) -> "Selector":
        """Read a selector; raises ValueError for a field by which objects cannot be selected."""
        terms = []
        for part in filter(None, text.split(",")):
            term = _TERM.fullmatch(part)
            if term is None or term["field"] not in _FIELDS:
                raise ValueError(f"field label not supported: {part}")
            terms.append((_FIELDS[term["field"]], term["operator"] != "!=", term["value"]))
        return cls(tuple(terms))

    @property
    def name(self) -> str | None:
        """The one name that is selected, None for more."""
        return next((value for field, equal, value in self.terms if field == "name" and equal), None)

    def matches(self, found: Selectable) -> bool:
        """Return whether an object is selected."""
        return all((getattr(found, field) == value) is equal for field, equal, value in self.terms)
