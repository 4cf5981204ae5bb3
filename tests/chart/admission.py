"""Asks the chart's admission policies as an API server does: their CEL is evaluated by Google's own library."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from cel_expr_python import cel  # type: ignore[import-untyped] # ships no marker
from cel_expr_python.ext import ext_optional, ext_strings  # type: ignore[import-untyped]

from tests.chart.rendering import objects

_LIBRARIES = """
name: Kubernetes
extensions:
- {name: two-var-comprehensions, version: latest}
"""
"""What expressions can use besides strings and optional values.

Source: baseOpts in apiserver/pkg/cel/environment/base.go of Kubernetes, which has these from 1.32 on.
"""

Object = Mapping[str, Any]


@dataclass(frozen=True)
class AdmissionRequest:
    """What somebody wants to write; `resource` may be a part, such as `pods/binding`. `before` is what is there.

    The object of a deletion is None.
    """

    resource: str
    operation: str
    object: Object | None
    before: Object | None = None
    user: str = "jane"
    extra: Mapping[str, list[str]] = field(default_factory=dict)

    def given(self) -> dict[str, Any]:
        """Return what expressions can name; empty fields are left out, as an API server does."""
        resource, _, subresource = self.resource.partition("/")
        request: dict[str, Any] = {
            "operation": self.operation,
            "name": (self.object or self.before or {})["metadata"]["name"],
            "resource": {"group": "", "version": "v1", "resource": resource},
            "userInfo": {"username": self.user},
        }
        if subresource:
            request["subResource"] = subresource
        if self.extra:
            request["userInfo"]["extra"] = dict(self.extra)
        return {"request": request, "object": self.object, "oldObject": self.before}


@cache
def _environment() -> Any:
    names = ("request", "object", "oldObject", "variables")
    extensions = [ext_optional.ExtOptional(), ext_strings.ExtStrings()]
    config = cel.NewEnvConfigFromYaml(_LIBRARIES)
    return cel.NewEnv(config=config, variables=dict.fromkeys(names, cel.Type.DYN), extensions=extensions)


def evaluated(expression: str, given: Mapping[str, Any]) -> Any:
    """Return what an expression comes to; raises RuntimeError where it is no CEL, or fails."""
    return _environment().compile(expression).eval(data=dict(given)).plain_value()


@cache
def _policies(values: str) -> dict[str, Any]:
    made = objects(json.loads(values))
    return {each["metadata"]["name"]: each["spec"] for each in made if each["kind"].endswith("AdmissionPolicy")}


class Policy:
    """One policy of the chart, validating or mutating."""

    def __init__(self, values: dict[str, Any], name: str) -> None:
        """Find it among what the chart makes."""
        self.spec = _policies(json.dumps(values))[name]

    def concerns(self, request: AdmissionRequest) -> bool:
        """Return whether the API server asks this policy."""
        rules = self.spec["matchConstraints"]["resourceRules"]
        if not any(request.resource in rule["resources"] and request.operation in rule["operations"] for rule in rules):
            return False
        given = request.given()
        return all(evaluated(each["expression"], given) for each in self.spec.get("matchConditions", []))

    def objections(self, request: AdmissionRequest) -> list[str]:
        """Return why the API server rejects a request; nothing where it does not."""
        if not self.concerns(request):
            return []
        given = {**request.given(), "variables": {}}
        for each in self.spec.get("variables", []):
            given["variables"][each["name"]] = evaluated(each["expression"], given)
        return [
            evaluated(each["messageExpression"], given) if "messageExpression" in each else each["message"]
            for each in self.spec["validations"]
            if not evaluated(each["expression"], given)
        ]

    def patches(self, request: AdmissionRequest) -> list[dict[str, Any]]:
        """Return the JSON patches that a mutating policy makes; none where it is not asked."""
        if not self.concerns(request):
            return []
        (mutation,) = self.spec["mutations"]
        # The type of a patch is Kubernetes' own; here a patch is a map of the same fields.
        fields = re.sub(r"\b(op|path|value):", r"'\1':", mutation["jsonPatch"]["expression"])
        return list(evaluated(fields.replace("JSONPatch{", "{"), request.given()))

    def changed(self, request: AdmissionRequest) -> Any:
        """Return the object as the policy leaves it."""
        changed = json.loads(json.dumps(request.object))
        for patch in self.patches(request):
            *way, last = patch["path"].strip("/").split("/")
            place = changed
            for step in way:
                place = place[int(step) if isinstance(place, list) else step]
            assert patch["op"] == "add" or last in place, "an API server replaces only what is there"
            place[last] = patch["value"]
        return changed
