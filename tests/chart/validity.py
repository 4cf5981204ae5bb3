"""What an API server takes: Kubernetes' own kinds by its schemas, and the one kind of Prometheus' operator by ours."""

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
    relabelings=_list(_fields(sourceLabels=_list(_TEXT), targetLabel=_TEXT)),
)
_POD_MONITOR = _fields(
    apiVersion={"const": "monitoring.coreos.com/v1"},
    kind={"const": "PodMonitor"},
    metadata=_fields(name=_TEXT, namespace=_TEXT, labels=_LABELS),
    spec=_fields("selector", selector=_fields(matchLabels=_LABELS), podMetricsEndpoints=_list(_ENDPOINT)),
)
"""The fields that the chart sets, as the operator's CRD (0.91) has them."""


_SINCE = {
    "ValidatingAdmissionPolicy": (1, 30),
    "ValidatingAdmissionPolicyBinding": (1, 30),
    "MutatingAdmissionPolicy": (1, 36),
    "MutatingAdmissionPolicyBinding": (1, 36),
}
"""The Kubernetes version that a kind came with; older ones have no schema of it."""


def check(manifest: dict[str, Any], version: str) -> None:
    """Raise unless the API server of Kubernetes `version` takes the object, and knows every field of it."""
    if manifest["kind"] == "PodMonitor":
        jsonschema.validate(manifest, _POD_MONITOR)
    elif tuple(map(int, version.split(".")[:2])) >= _SINCE.get(manifest["kind"], (1, 0)):
        kubernetes_validate.validate(manifest, version, strict=True)
