"""What an API server takes: Kubernetes' own kinds by its schemas, and the one kind of Prometheus' operator by ours."""

from typing import Any

import jsonschema  # type: ignore[import-untyped] # ships no types; comes with kubernetes-validate, which works by it
import kubernetes_validate  # type: ignore[import-untyped] # ships no types

_LABELS = {"type": "object", "additionalProperties": {"type": "string"}}
_ENDPOINT = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "port": {"type": "string"},
        "path": {"type": "string"},
        "interval": {"type": "string", "pattern": "^[0-9]+(y|w|d|h|m|s|ms)$"},
        "relabelings": {
            "type": "array",
            "items": {
                "type": "object",
                "additionalProperties": False,
                "properties": {
                    "sourceLabels": {"type": "array", "items": {"type": "string"}},
                    "targetLabel": {"type": "string"},
                },
            },
        },
    },
}
_POD_MONITOR = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "apiVersion": {"const": "monitoring.coreos.com/v1"},
        "kind": {"const": "PodMonitor"},
        "metadata": {
            "type": "object",
            "additionalProperties": False,
            "properties": {"name": {"type": "string"}, "namespace": {"type": "string"}, "labels": _LABELS},
        },
        "spec": {
            "type": "object",
            "additionalProperties": False,
            "required": ["selector"],
            "properties": {
                "selector": {
                    "type": "object",
                    "additionalProperties": False,
                    "properties": {"matchLabels": _LABELS},
                },
                "podMetricsEndpoints": {"type": "array", "items": _ENDPOINT},
            },
        },
    },
}
"""The fields that the chart sets, as the operator's CRD (0.91) has them."""


_SINCE = {"ValidatingAdmissionPolicy": (1, 30), "ValidatingAdmissionPolicyBinding": (1, 30)}
"""The Kubernetes version that a kind came with; older ones have no schema of it."""


def check(manifest: dict[str, Any], version: str) -> None:
    """Raise unless the API server of Kubernetes `version` takes the object, and knows every field of it."""
    if manifest["kind"] == "PodMonitor":
        jsonschema.validate(manifest, _POD_MONITOR)
    elif tuple(map(int, version.split(".")[:2])) >= _SINCE.get(manifest["kind"], (1, 0)):
        kubernetes_validate.validate(manifest, version, strict=True)
