"""What lists and watches select: by fields, such as `spec.nodeName=gpu-1`, and labels, such as `app in (a, b),!old`."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

_FIELD = re.compile(r"(?P<name>[\w.]+)(?P<operator>!=|==?)(?P<value>.*)")
_LABEL = re.compile(
    r"\s*(?:(?P<absent>!)\s*)?(?P<name>[\w./-]+)\s*"
    r"(?:(?P<operator>!=|==?)\s*(?P<value>[\w.-]*)\s*|(?P<set>in|notin)\s*\((?P<values>[\w.,\s-]*)\)\s*)?"
    r"(?P<end>,|$)"
)


@dataclass(frozen=True, slots=True)
class Selectable:
    """The fields of an object by which it can be selected."""

    name: str
    namespace: str
    node: str
    phase: str
    driver: str = ""
    about: str = ""
    reason: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> "Selectable":
        """Return those of an object."""
        metadata = found["metadata"]
        spec, status = found.get("spec") or {}, found.get("status") or {}
        return cls(
            metadata["name"],
            metadata.get("namespace", ""),
            spec.get("nodeName") or "",
            status.get("phase") or "",
            spec.get("driver") or "",
            (found.get("involvedObject") or {}).get("uid") or "",
            found.get("reason") or "",
            dict(metadata.get("labels") or {}),
        )


_FIELDS = {
    "involvedObject.uid": "about",
    "metadata.name": "name",
    "metadata.namespace": "namespace",
    "reason": "reason",
    "spec.driver": "driver",
    "spec.nodeName": "node",
    "status.phase": "phase",
}

_Values = frozenset[str | None]
"""Values of a label; None for an object without it."""


@dataclass(frozen=True, slots=True)
class Selector:
    """Terms that must all hold.

    Of fields: a field, whether it has to be equal, and the value. Of labels: a label, whether its value has to be one
    of some, and these.
    """

    terms: tuple[tuple[str, bool, str], ...] = ()
    labels: tuple[tuple[str, bool, _Values], ...] = ()

    @classmethod
    def of(cls, query: Mapping[str, str]) -> "Selector":
        """Read the selectors of a request; raises ValueError for those that cannot be."""
        return cls(
            tuple(_field_terms(query.get("fieldSelector", ""))), tuple(_label_terms(query.get("labelSelector", "")))
        )

    @property
    def name(self) -> str | None:
        """The one name that is selected, None for more."""
        return next((value for field, equal, value in self.terms if field == "name" and equal), None)

    def matches(self, found: Selectable) -> bool:
        """Return whether an object is selected."""
        # A plain loop: a list goes through tens of thousands of objects in benchmarks.
        for name, equal, value in self.terms:
            if (getattr(found, name) == value) is not equal:
                return False
        return not self.labels or all(
            (found.labels.get(label) in values) is wanted for label, wanted, values in self.labels
        )


def _field_terms(text: str) -> Iterator[tuple[str, bool, str]]:
    for part in filter(None, text.split(",")):
        term = _FIELD.fullmatch(part)
        if term is None or term["name"] not in _FIELDS:
            raise ValueError(f"field label not supported: {part}")
        yield _FIELDS[term["name"]], term["operator"] != "!=", term["value"]


def _label_terms(text: str) -> Iterator[tuple[str, bool, _Values]]:
    at = 0
    while text.strip() and (at < len(text) or text.endswith(",")):
        term = _LABEL.match(text, at)
        if term is None or (term["absent"] and (term["operator"] or term["set"])):
            raise ValueError(f"unable to parse requirement: {text[at:]!r}")
        at = term.end()
        if term["operator"]:
            yield term["name"], term["operator"] != "!=", frozenset({term["value"]})
        elif term["set"]:
            yield term["name"], term["set"] == "in", frozenset(each.strip() for each in term["values"].split(","))
        else:
            # Whether there is such a label at all.
            yield term["name"], bool(term["absent"]), frozenset({None})
