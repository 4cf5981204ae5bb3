"""What a pod needs of a node apart from GPUs: labels and name of the node, tolerated taints, other resources."""

import re
from collections.abc import Mapping
from typing import Final

from gpushare_plugin.base.structs import Struct, kept_while_used
from gpushare_plugin.base.text import some_of
from gpushare_plugin.ledger.demand import NOTHING, Demand, HostPort
from gpushare_plugin.ledger.request import beyond
from gpushare_plugin.ledger.taint import Taint

_NODE_NAME: Final = "metadata.name"
_LARGEST: Final = 2**63 - 1
_MOST_DIGITS: Final = len(str(_LARGEST))
_SHOWN = 3
"""The most terms, and values of a requirement, in a message: a message is made for each node, and has to be short."""
_LONGEST_SHOWN = 63
"""The most characters of a value in a message: labels of nodes have at most 63 characters."""

MOST_RULES = 128
"""The most rules kept of a pod: labels of the node selector, terms, requirements and tolerations together.

Each rule is compared with each node of the cluster, again after each change of the node.
"""
MOST_VALUES = 1024
"""The most values in the requirements of a pod."""
MOST_CHARACTERS = 64 * 1024
"""The most characters of all values of a pod, not limited by older API servers."""

_LABEL_INTEGER = re.compile(r"[+-]?[0-9]+")
_TAINT_INTEGER = re.compile(r"0|-?[1-9][0-9]*")


class Requirement(Struct, frozen=True, gc=False):
    """A requirement on a label."""

    key: str
    """The key of the label."""
    operator: str
    """The operator: `In`, `NotIn`, `Exists`, `DoesNotExist`, `Gt` or `Lt`; no label meets an unknown operator."""
    values: tuple[str, ...] = ()
    """The values to compare with; a single number for `Gt` and `Lt`."""

    def met_by(self, labels: Mapping[str, str]) -> bool:
        """Return whether labels meet the requirement."""
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
        """Return the requirement in words: key, operator and values."""
        return " ".join((self.key, self.operator, some_of(self.values, _SHOWN, _shown))).rstrip()


class Term(Struct, frozen=True, gc=False):
    """A set of requirements to be met together."""

    labels: tuple[Requirement, ...] = ()
    """The requirements on labels."""
    fields: tuple[Requirement, ...] = ()
    """The requirements on fields, with the node's name as the only possible field."""

    def met_by(self, node: str, labels: Mapping[str, str]) -> bool:
        """Return whether a node with the given name and labels matches; an empty term matches no node."""
        for requirement in self.labels:
            if not requirement.met_by(labels):
                return False
        for requirement in self.fields:
            if not requirement.met_by({_NODE_NAME: node}):
                return False
        return bool(self.labels or self.fields)

    def unmet(self, node: str, labels: Mapping[str, str]) -> str:
        """Return why a node does not match, in words."""
        for requirement in self.labels:
            if not requirement.met_by(labels):
                return f"{requirement} required, {_found(requirement.key, labels)}"
        for requirement in self.fields:
            if not requirement.met_by({_NODE_NAME: node}):
                return f"{requirement} required"
        return "a term that is empty matches no node"


class Toleration(Struct, frozen=True, gc=False):
    """A toleration of a pod for taints."""

    key: str = ""
    """The key of tolerated taints; empty for any key."""
    operator: str = ""
    """The operator: `Equal` (also if empty), `Exists`, or `Lt` and `Gt` for numbers.

    Pods can have `Lt` and `Gt` in clusters with the feature gate TaintTolerationComparisonOperators.
    """
    value: str = ""
    """The value to compare with the value of a taint."""
    effect: str = ""
    """The effect of tolerated taints; empty for any effect."""

    def tolerates(self, taint: Taint) -> bool:
        """Return whether a pod with the toleration tolerates a taint."""
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
"""An affinity that matches no node."""


class Constraints(Struct, frozen=True, cache_hash=True, weakref=True):
    """A pod's requirements on a node apart from room; pods with equal constraints share the verdict of each node."""

    selector: tuple[tuple[str, str], ...] = ()
    """The labels of the node selector: a node needs all of the labels."""
    affinity: tuple[Term, ...] | None = None
    """The terms of the required node affinity: a node needs to match any of the terms; None for any node."""
    tolerations: tuple[Toleration, ...] = ()
    """The tolerations of the pod."""

    @property
    def excess(self) -> str | None:
        """Which counts of the constraints are too large to keep, in words; None if everything can be kept."""
        terms = self.affinity or ()
        requirements = [each for term in terms for each in (*term.labels, *term.fields)]
        rules = len(self.selector) + len(terms) + len(requirements) + len(self.tolerations)
        values = [value for each in requirements for value in each.values]
        return beyond(
            {_RULES: rules, _VALUES: len(values), _CHARACTERS: sum(map(len, values))},
            {_RULES: MOST_RULES, _VALUES: MOST_VALUES, _CHARACTERS: MOST_CHARACTERS},
        )

    def about(self, key: str) -> "Constraints":
        """Return the constraints on one label alone: none where another alternative of the affinity leaves it open."""
        selector = tuple([each for each in self.selector if each[0] == key])
        terms = [Term(tuple([each for each in term.labels if each.key == key])) for term in self.affinity or ()]
        return Constraints(selector, tuple(terms) if terms and all(term.labels for term in terms) else None)

    def tolerates(self, taint: Taint) -> bool:
        """Return whether any toleration of the pod tolerates a taint."""
        return any(toleration.tolerates(taint) for toleration in self.tolerations)

    def met_by(self, node: str, labels: Mapping[str, str]) -> bool:
        """Return whether a node with the given name and labels meets selector and affinity."""
        for key, value in self.selector:
            if labels.get(key) != value:
                return False
        return self.affinity is None or any(term.met_by(node, labels) for term in self.affinity)

    def unmet(self, node: str, labels: Mapping[str, str]) -> str:
        """Return the unmet label or terms of selector or affinity, in words."""
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
    """Return the integer in a text that matches `form`; None for other texts, and for more than 64 bits."""
    if form.fullmatch(text) is None:
        return None
    digits = text.lstrip("+-").lstrip("0")
    # Pods can have values with any number of digits; Python raises ValueError beyond some thousand digits.
    if len(digits) > _MOST_DIGITS:
        return None
    number = int(digits or "0") * (-1 if text.startswith("-") else 1)
    return number if -_LARGEST - 1 <= number <= _LARGEST else None


DEFAULT_SCHEDULER = "default-scheduler"
"""The scheduler of pods without a scheduler name."""


class Needs(Struct, frozen=True, eq=False, weakref=True):
    """What a pod needs of a node: constraints that the node meets, and room for the demand.

    Each object equals itself alone; `shared_needs` returns one object for equal needs.
    """

    constraints: Constraints = Constraints()
    """The constraints, which do not depend on other pods."""
    demand: Demand = NOTHING
    """The resources and host ports taken by the pod."""
    problem: str | None = None
    """Which counts of the pod are too large to keep: no node is then found for the pod; None for no problem."""


NOT_READ = Needs()
"""The needs of a pod in programs that do not judge nodes."""

_shared_constraints = kept_while_used(Constraints)


def shared_needs(constraints: Constraints, demand: Demand, problem: str | None = None) -> Needs:
    """Return the shared object for equal needs, such as the needs of replicas."""
    shared = _shared_constraints(constraints.selector, constraints.affinity, constraints.tolerations)
    return _shared(shared, tuple(demand.resources.items()), tuple(demand.ports), problem)


@kept_while_used
def _shared(
    constraints: Constraints, resources: tuple[tuple[str, int], ...], ports: tuple[HostPort, ...], problem: str | None
) -> Needs:
    return Needs(constraints, Demand(dict(resources), dict.fromkeys(ports, 1)), problem)
