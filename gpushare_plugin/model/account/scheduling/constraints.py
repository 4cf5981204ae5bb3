"""What a pod requires of a node whatever is free there: its labels, its name, and which taints the pod tolerates."""

import re
from collections.abc import Mapping
from typing import Final

from gpushare_plugin.foundation.structs import Struct
from gpushare_plugin.foundation.text import some_of
from gpushare_plugin.model.account.request import beyond
from gpushare_plugin.model.account.scheduling.taint import Taint

_NODE_NAME: Final = "metadata.name"
_LARGEST: Final = 2**63 - 1
_MOST_DIGITS: Final = len(str(_LARGEST))
_SHOWN = 3
"""Terms, and values of a requirement, that messages repeat: the message is made for each node."""
_LONGEST_SHOWN = 63
"""Characters of a value that messages repeat: labels of nodes have no longer ones."""

MOST_RULES = 128
MOST_VALUES = 1024
MOST_CHARACTERS = 64 * 1024
"""What is kept of a pod: labels of its node selector, terms, requirements and tolerations together, and values, with
their characters, which older API servers do not limit.

Each is compared with each node of the cluster, again after each change of the node.
"""

_LABEL_INTEGER = re.compile(r"[+-]?[0-9]+")
_TAINT_INTEGER = re.compile(r"0|-?[1-9][0-9]*")


class Requirement(Struct, frozen=True, gc=False):
    """What a label has to be: `In`, `NotIn`, `Exists`, `DoesNotExist`, `Gt` or `Lt`; no other operator is met."""

    key: str
    operator: str
    values: tuple[str, ...] = ()

    def met_by(self, labels: Mapping[str, str]) -> bool:
        """Return whether labels meet it."""
        value = labels.get(self.key)
        match self.operator:
            case "In":
                return value in self.values
            case "NotIn":
                return bool(self.values) and value not in self.values
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
            case "Gt" | "Lt":
                return value is not None and len(self.values) == 1 and self._compares(value, self.values[0])
            case _:
                return False

    def _compares(self, value: str, bound: str) -> bool:
        found, limit = _integer(value, _LABEL_INTEGER), _integer(bound, _LABEL_INTEGER)
        if found is None or limit is None:
            return False
        return found > limit if self.operator == "Gt" else found < limit

    def __str__(self) -> str:
        """Return it as people write it."""
        return " ".join((self.key, self.operator, some_of(self.values, _SHOWN, _shown))).rstrip()


class Term(Struct, frozen=True, gc=False):
    """Requirements that have to be met together: of labels, and of fields, which can only be the node's name."""

    labels: tuple[Requirement, ...] = ()
    fields: tuple[Requirement, ...] = ()

    def met_by(self, node: str, labels: Mapping[str, str]) -> bool:
        """Return whether a node of this name and these labels matches; a term that requires nothing matches none."""
        for requirement in self.labels:
            if not requirement.met_by(labels):
                return False
        for requirement in self.fields:
            if not requirement.met_by({_NODE_NAME: node}):
                return False
        return bool(self.labels or self.fields)

    def unmet(self, node: str, labels: Mapping[str, str]) -> str:
        """Return why a node does not match."""
        for requirement in self.labels:
            if not requirement.met_by(labels):
                return f"{requirement} required, {_found(requirement.key, labels)}"
        for requirement in self.fields:
            if not requirement.met_by({_NODE_NAME: node}):
                return f"{requirement} required"
        return "a term that is empty matches no node"


class Toleration(Struct, frozen=True, gc=False):
    """Taints that a pod tolerates; an empty key or effect stands for all, the operator is `Equal` if it is empty.

    `Lt` and `Gt` compare numbers, in clusters that let pods have them: those with the feature gate
    TaintTolerationComparisonOperators.
    """

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""

    def tolerates(self, taint: Taint) -> bool:
        """Return whether a pod with it tolerates a taint."""
        if self.effect not in {"", taint.effect} or self.key not in {"", taint.key}:
            return False
        match self.operator:
            case "" | "Equal":
                return self.value == taint.value
            case "Exists":
                return True
            case "Lt" | "Gt":
                found, limit = _integer(taint.value, _TAINT_INTEGER), _integer(self.value, _TAINT_INTEGER)
                if found is None or limit is None:
                    return False
                return found > limit if self.operator == "Gt" else found < limit
            case _:
                return False


_RULES = "rules of node selector, node affinity and tolerations"
_VALUES = "values in its node affinity"
_CHARACTERS = "characters in the values of its node affinity"

NOWHERE: Final = (Term(),)
"""The affinity that no node matches."""


class Constraints(Struct, frozen=True, cache_hash=True, weakref=True):
    """Everything a pod requires of a node but room: pods with equal constraints have the same verdict on each node.

    `selector` are labels that the node has to have; `affinity` are terms of which one has to match, None where any
    node will do.
    """

    selector: tuple[tuple[str, str], ...] = ()
    affinity: tuple[Term, ...] | None = None
    tolerations: tuple[Toleration, ...] = ()

    @property
    def excess(self) -> str | None:
        """What is too much of them to be kept, None where all of it can be."""
        terms = self.affinity or ()
        requirements = [each for term in terms for each in (*term.labels, *term.fields)]
        rules = len(self.selector) + len(terms) + len(requirements) + len(self.tolerations)
        values = [value for each in requirements for value in each.values]
        return beyond(
            {_RULES: rules, _VALUES: len(values), _CHARACTERS: sum(map(len, values))},
            {_RULES: MOST_RULES, _VALUES: MOST_VALUES, _CHARACTERS: MOST_CHARACTERS},
        )

    def tolerates(self, taint: Taint) -> bool:
        """Return whether any toleration is one for this taint."""
        return any(toleration.tolerates(taint) for toleration in self.tolerations)

    def met_by(self, node: str, labels: Mapping[str, str]) -> bool:
        """Return whether a node of this name and these labels is what selector and affinity ask for."""
        for key, value in self.selector:
            if labels.get(key) != value:
                return False
        return self.affinity is None or any(term.met_by(node, labels) for term in self.affinity)

    def unmet(self, node: str, labels: Mapping[str, str]) -> str:
        """Return what a node does not have that selector or affinity ask for."""
        for key, value in self.selector:
            if labels.get(key) != value:
                return f"node selector: {key}={value} required, {_found(key, labels)}"
        terms = self.affinity or ()
        reasons = [term.unmet(node, labels) for term in terms[:_SHOWN]]
        if len(terms) > _SHOWN:
            reasons.append(f"one of {len(terms) - _SHOWN} more terms")
        return "node affinity: " + ("; or ".join(reasons) or "there is no term that a node could match")


def _found(key: str, labels: Mapping[str, str]) -> str:
    return f"{key}={labels[key]} found" if key in labels else f"the node has no label {key}"


def _shown(value: str) -> str:
    return value if len(value) <= _LONGEST_SHOWN else f"{value[:_LONGEST_SHOWN]}…"


def _integer(text: str, form: re.Pattern[str]) -> int | None:
    """Return the number that a text of this form is, None where it is none or one of more than 64 bits."""
    if form.fullmatch(text) is None:
        return None
    digits = text.lstrip("+-").lstrip("0")
    # Whoever may create pods can write any number of digits, and Python raises ValueError beyond some thousands.
    if len(digits) > _MOST_DIGITS:
        return None
    number = int(digits or "0") * (-1 if text.startswith("-") else 1)
    return number if -_LARGEST - 1 <= number <= _LARGEST else None
