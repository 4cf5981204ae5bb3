"""What an API server takes: Kubernetes' own kinds by its schemas, and the kinds of Prometheus' operator by ours."""

from typing import Any

import jsonschema  # type: ignore[import-untyped] # ships no types; comes with kubernetes-validate, which works by it
import kubernetes_validate  # type: ignore[import-untyped] # ships no types

_TEXT = {"type": "string"}
_LABELS = {"type": "object", "additionalProperties": _TEXT}


def _fields(*required: str, **properties: Any) -> dict[str, Any]:
    """Return the schema of an object with these fields and no others."""
    return {"type": "object", "additionalProperties": False, "required": [*required], "properties": properties}


def _list(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


_ENDPOINT = _fields(
    port=_TEXT,
    path=_TEXT,
    interval={"type": "string", "pattern": "^[0-9]+(y|w|d|h|m|s|ms)$"},
    honorLabels={"const": True},
    relabelings=_list(_fields(sourceLabels=_list(_TEXT), targetLabel=_TEXT)),
)
_POD_MONITOR = _fields(
    apiVersion={"const": "monitoring.coreos.com/v1"},
    kind={"const": "PodMonitor"},
    metadata=_fields(name=_TEXT, namespace=_TEXT, labels=_LABELS),
    spec=_fields("selector", selector=_fields(matchLabels=_LABELS), podMetricsEndpoints=_list(_ENDPOINT)),
)
_SERVICE_MONITOR = _fields(
    apiVersion={"const": "monitoring.coreos.com/v1"},
    kind={"const": "ServiceMonitor"},
    metadata=_fields(name=_TEXT, namespace=_TEXT, labels=_LABELS),
    spec=_fields("selector", "endpoints", selector=_fields(matchLabels=_LABELS), endpoints=_list(_ENDPOINT)),
)
_RULE = _fields("alert", "expr", alert=_TEXT, expr=_TEXT, **{"for": _TEXT}, labels=_LABELS, annotations=_LABELS)
_PROMETHEUS_RULE = _fields(
    apiVersion={"const": "monitoring.coreos.com/v1"},
    kind={"const": "PrometheusRule"},
    metadata=_fields(name=_TEXT, namespace=_TEXT, labels=_LABELS),
    spec=_fields("groups", groups=_list(_fields("name", "rules", name=_TEXT, rules=_list(_RULE)))),
)
_OF_THE_OPERATOR = {"PodMonitor": _POD_MONITOR, "ServiceMonitor": _SERVICE_MONITOR, "PrometheusRule": _PROMETHEUS_RULE}
"""The fields that the chart sets, as the operator's CRDs (0.91) have them."""


_SINCE = {
    "ValidatingAdmissionPolicy": (1, 30),
    "ValidatingAdmissionPolicyBinding": (1, 30),
    "MutatingAdmissionPolicy": (1, 36),
    "MutatingAdmissionPolicyBinding": (1, 36),
}
"""The Kubernetes version that a kind came with; older ones have no schema of it."""


def check(manifest: dict[str, Any], version: str) -> None:
    """Raise unless the API server of Kubernetes `version` takes the object, and knows every field of it."""
    if manifest["kind"] in _OF_THE_OPERATOR:
        jsonschema.validate(manifest, _OF_THE_OPERATOR[manifest["kind"]])
    elif tuple(map(int, version.split(".")[:2])) >= _SINCE.get(manifest["kind"], (1, 0)):
        kubernetes_validate.validate(manifest, version, strict=True)
