"""What an API server takes: Kubernetes' own kinds by its schemas, and the kinds of Prometheus' operator by ours."""

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import jsonschema  # type: ignore[import-untyped] # ships no types; comes with kubernetes-validate, which works by it
from kubernetes_validate.utils import schema_contents  # type: ignore[import-untyped] # ships no types
from referencing import Registry, Resource

_TEXT = {"type": "string"}
_LABELS = {"type": "object", "additionalProperties": _TEXT}


def _fields(*required: str, **properties: Any) -> dict[str, Any]:
    """Return the schema of an object with these fields and no others."""
    return {"type": "object", "additionalProperties": False, "required": [*required], "properties": properties}


def _list(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


_DURATION = {"type": "string", "pattern": "^[0-9]+(y|w|d|h|m|s|ms)$"}
_RELABELINGS = _list(
    _fields(
        sourceLabels=_list(_TEXT),
        separator=_TEXT,
        targetLabel=_TEXT,
        regex=_TEXT,
        modulus={"type": "integer"},
        replacement=_TEXT,
        action=_TEXT,
    )
)
_ENDPOINT = _fields(
    port=_TEXT,
    path=_TEXT,
    interval=_DURATION,
    scrapeTimeout=_DURATION,
    honorLabels={"type": "boolean"},
    relabelings=_RELABELINGS,
    metricRelabelings=_RELABELINGS,
)
_NAMESPACES = _fields("matchNames", matchNames=_list(_TEXT))
_POD_MONITOR = _fields(
    apiVersion={"const": "monitoring.coreos.com/v1"},
    kind={"const": "PodMonitor"},
    metadata=_fields(name=_TEXT, namespace=_TEXT, labels=_LABELS),
    spec=_fields(
        "selector",
        namespaceSelector=_NAMESPACES,
        selector=_fields(matchLabels=_LABELS),
        podMetricsEndpoints=_list(_ENDPOINT),
    ),
)
_SERVICE_MONITOR = _fields(
    apiVersion={"const": "monitoring.coreos.com/v1"},
    kind={"const": "ServiceMonitor"},
    metadata=_fields(name=_TEXT, namespace=_TEXT, labels=_LABELS),
    spec=_fields(
        "selector",
        "endpoints",
        namespaceSelector=_NAMESPACES,
        selector=_fields(matchLabels=_LABELS),
        endpoints=_list(_ENDPOINT),
    ),
)
_ALERT = _fields("alert", "expr", alert=_TEXT, expr=_TEXT, **{"for": _TEXT}, labels=_LABELS, annotations=_LABELS)
_RECORD = _fields("record", "expr", record=_TEXT, expr=_TEXT, labels=_LABELS)
_RULE = {"oneOf": [_ALERT, _RECORD]}
_PROMETHEUS_RULE = _fields(
    apiVersion={"const": "monitoring.coreos.com/v1"},
    kind={"const": "PrometheusRule"},
    metadata=_fields(name=_TEXT, namespace=_TEXT, labels=_LABELS),
    spec=_fields("groups", groups=_list(_fields("name", "rules", name=_TEXT, rules=_list(_RULE)))),
)
_OF_THE_OPERATOR = {"PodMonitor": _POD_MONITOR, "ServiceMonitor": _SERVICE_MONITOR, "PrometheusRule": _PROMETHEUS_RULE}
"""The fields that the chart sets, as the operator's CRDs (0.91) have them."""


_SINCE = {
    "DeviceClass": (1, 34),
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
        _validator(manifest["kind"], manifest["apiVersion"], version).validate(manifest)
    for spec in _pods(manifest):
        _refuse_repeats(spec)


def _pods(found: Any) -> Iterator[dict[str, Any]]:
    """Yield each specification of a pod in an object."""
    if isinstance(found, dict):
        if "containers" in found:
            yield found
        found = [*found.values()]
    if isinstance(found, list):
        for each in found:
            yield from _pods(each)


def _refuse_repeats(pod: dict[str, Any]) -> None:
    """Raise where a pod has twice what has to be there once, which no schema says.

    An API server refuses volumes with one name and mounts with one path (ValidateVolumes and ValidateVolumeMounts in
    pkg/apis/core/validation of kubernetes/kubernetes). It warns of variables and ports (pkg/api/pod/warnings.go), of
    which server-side apply, that has lists by these keys, keeps one only.
    """
    lists: list[tuple[str, Any, tuple[str, ...]]] = [("volumes", pod.get("volumes", []), ("name",))]
    for container in [*pod["containers"], *pod.get("initContainers", [])]:
        lists += [
            ("volumeMounts", container.get("volumeMounts", []), ("mountPath",)),
            ("env", container.get("env", []), ("name",)),
            ("ports", container.get("ports", []), ("containerPort", "protocol")),
        ]
    for place, entries, keys in lists:
        found = [tuple(entry.get(key) for key in keys) for entry in entries]
        repeated = {each for each in found if found.count(each) > 1}
        assert not repeated, f"{place} has more than once: {repeated}"


@cache
def _validator(kind: str, api_version: str, version: str) -> Any:
    """Return what validates objects of a kind as `kubernetes_validate.validate(…, strict=True)` does.

    That reads all definitions of the Kubernetes version for each object, which takes longer than all the rest.
    """
    group = re.sub(r"^([^./]*)(?:\.[^/]*)?/", r"\1-", api_version)
    schema = schema_contents(f"{_folder(version)}/{kind.lower()}-{group}.json", version)
    registry = Resource.from_contents(schema) @ _definitions(version)
    return jsonschema.Draft202012Validator(schema, registry=registry)


@cache
def _definitions(version: str) -> Any:
    definitions = Resource.from_contents(schema_contents(f"{_folder(version)}/_definitions.json", version))
    return definitions @ Registry()


def _folder(version: str) -> str:
    return f"kubernetes-json-schema/v{version}-local-strict"
