"""The dashboard for Grafana inside the chart; `python -m generators.dashboard` writes it.

It goes from the cluster to nodes, GPUs and pods. Each panel is one line of the table below.
"""

import json
from typing import Any, NamedTuple

from generators.pages import DOCUMENTS

FILE = DOCUMENTS.parent / "charts/gpushare/files/dashboard.json"

_WIDTH = 24
"""Columns of Grafana's grid."""
_OF = 'node=~"$node"'
_CARD = f'{_OF}, index!~".*:.*"'
"""A GPU in MIG mode and its instances, of indexes such as `0:1`, have series of their own: sums take the GPU alone."""
_POD = f'{_OF}, namespace=~"$namespace"'
_GPU = "{{node}} GPU {{index}}"
_CONTAINER = "{{namespace}}/{{pod}} {{container}} GPU {{index}}"
_EXTENDER = "gpushare_extender"
_PARTITIONER = "gpushare_partitioner"


class Panel(NamedTuple):
    """A panel: its title, Prometheus' query, what names a series, the unit, its width in the grid, and its kind.

    `description` is what Grafana shows beside the title; panels whose titles say everything have none.
    `most` is the end of its axis, None for that of the largest value; 1 where something is or is not, and of a part of
    a whole. From `wrong_from` on, a number says that something is wrong, and is red; it is green below. None means that
    no number is good or bad, and it has one color.
    """

    title: str
    query: str
    legend: str = ""
    unit: str = "short"
    width: int = 8
    kind: str = "timeseries"
    most: float | None = None
    wrong_from: float | None = None
    description: str = ""


def _part(part: str, whole: str, by: str, of: str = _OF) -> str:
    """Return which part of something is in use, where that is known."""
    return f"sum by ({by}) ({part}{{{of}}}) / sum by ({by}) ({whole}{{{of}}} and {part}{{{of}}})"


def _per_second(counter: str, by: str, more: str = "") -> str:
    return f"sum by ({by}) (rate({counter}{{{_OF}{more}}}[$__rate_interval]))"


ROWS: dict[str, tuple[Panel, ...]] = {
    "Cluster": (
        Panel("GPUs", f"count(gpushare_gpu_healthy{{{_CARD}}})", unit="none", width=4, kind="stat"),
        Panel(
            "GPUs that cannot be allocated",
            f"sum(1 - gpushare_gpu_healthy{{{_CARD}}})",
            unit="none",
            width=4,
            kind="stat",
            wrong_from=1,
        ),
        Panel(
            "GPUs that do not respond",
            f"sum(gpushare_gpus_unresponsive{{{_OF}}})",
            unit="none",
            width=4,
            kind="stat",
            wrong_from=1,
        ),
        Panel(
            "Containers over their limit",
            f"sum(gpushare_gpu_containers_over_limit{{{_OF}}})",
            unit="none",
            width=4,
            kind="stat",
            wrong_from=1,
        ),
        Panel(
            "Memory of GPUs in use",
            _part("gpushare_gpu_memory_used_bytes", "gpushare_gpu_memory_bytes", "", _CARD),
            unit="percentunit",
            width=4,
            kind="gauge",
            most=1,
        ),
        Panel(
            "Units held by pods",
            _part("gpushare_gpu_units_used", "gpushare_gpu_units", "resource"),
            "{{resource}}",
            "percentunit",
            4,
            "gauge",
            most=1,
        ),
    ),
    "Nodes": (
        Panel(
            "Units held by pods",
            _part("gpushare_gpu_units_used", "gpushare_gpu_units", "node, resource"),
            "{{node}} {{resource}}",
            "percentunit",
            most=1,
        ),
        Panel(
            "Memory in use",
            _part("gpushare_gpu_memory_used_bytes", "gpushare_gpu_memory_bytes", "node", _CARD),
            "{{node}}",
            "percentunit",
            most=1,
        ),
        Panel("Newest config is in effect", f"gpushare_config_last_reload_successful{{{_OF}}}", "{{node}}", most=1),
        Panel("Registered with the kubelet", f"gpushare_resource_registered{{{_OF}}}", "{{node}} {{resource}}", most=1),
        Panel(
            "Duration of the kubelet's calls (99 %)",
            "histogram_quantile(0.99, "
            + _per_second("gpushare_call_duration_seconds_bucket", "le, node, method")
            + ")",
            "{{node}} {{method}}",
            "s",
        ),
        Panel(
            "Calls of the kubelet refused",
            _per_second("gpushare_refusals_total", "node, resource, call"),
            "{{node}} {{resource}} {{call}}",
            "ops",
        ),
        Panel(
            "Errors of the API server",
            _per_second("gpushare_api_errors_total", "node, reason"),
            "{{node}} {{reason}}",
            "ops",
        ),
    ),
    "GPUs": (
        Panel("Memory in use", f"gpushare_gpu_memory_used_bytes{{{_OF}}}", _GPU, "bytes"),
        Panel("Utilization", f"gpushare_gpu_utilization_ratio{{{_OF}}}", _GPU, "percentunit", most=1),
        Panel("Units held by pods", f"gpushare_gpu_units_used{{{_OF}}}", _GPU + " {{resource}}"),
        Panel("Why it cannot be allocated", f"gpushare_gpu_unhealthy{{{_OF}}} == 1", _GPU + " {{reason}}", most=1),
        Panel("Errors by XID", f"gpushare_gpu_xid_errors_total{{{_OF}}}", _GPU + " XID {{xid}}"),
        Panel("Processes", f"gpushare_gpu_processes{{{_OF}}}", _GPU),
        Panel("Processes out of place", f"gpushare_gpu_foreign_processes{{{_OF}}}", _GPU),
        Panel(
            "Containers by whether their limit is in effect",
            f"gpushare_gpu_container_limits{{{_OF}}} > 0",
            _GPU + " {{state}}",
        ),
        Panel("Waits for pods to end", f"gpushare_gpu_waiting{{{_OF}}}", _GPU, most=1),
    ),
    "Pods": (
        Panel("Memory in use", f"gpushare_container_memory_used_bytes{{{_POD}}}", _CONTAINER, "bytes"),
        Panel(
            "Memory in use, of the limit",
            f"gpushare_container_memory_used_bytes{{{_POD}}} / gpushare_container_memory_limit_bytes{{{_POD}}}",
            _CONTAINER,
            "percentunit",
        ),
        Panel("Utilization", f"gpushare_container_utilization_ratio{{{_POD}}}", _CONTAINER, "percentunit", most=1),
    ),
    "Claims": (
        Panel(
            "GPUs by claim",
            f"count by (node) (gpushare_gpu_claims_prepared{{{_OF}}})",
            "{{node}}",
            description="The GPUs that each node gives by ResourceClaim. The device plugin offers the others as units.",
        ),
        Panel(
            "Shares that prepared claims have",
            f"gpushare_gpu_claims_prepared{{{_OF}}}",
            _GPU,
            description="Requests of claims that the node has prepared on each GPU, also for administration; "
            "a whole GPU counts as one.",
        ),
        Panel(
            "Memory held by claims",
            _part("gpushare_gpu_claimed_memory_bytes", "gpushare_gpu_memory_bytes", "node, index"),
            _GPU,
            "percentunit",
            most=1,
            description="The part of each GPU's memory that counts for prepared claims, used or not. On time-sliced "
            "GPUs claims take shares, and memory only if they ask for it.",
        ),
        Panel(
            "Calls of the kubelet for claims",
            _per_second("gpushare_claim_call_duration_seconds_count", "node, method, code"),
            "{{node}} {{method}} {{code}}",
            "ops",
            description="How often the kubelet has claims prepared (NodePrepareResources) and takes them back. Any "
            "code but OK is a call without an answer. A refused claim is an answer; see Claims refused.",
        ),
        Panel(
            "Duration of calls for claims (99 %)",
            "histogram_quantile(0.99, "
            + _per_second("gpushare_claim_call_duration_seconds_bucket", "le, node, method")
            + ")",
            "{{node}} {{method}}",
            "s",
            description="Pods start after NodePrepareResources. A claim waits up to 10 s for memory that others still "
            "hold, and for MPS; the kubelet gives up after 45 s.",
        ),
        Panel(
            "Claims refused",
            _per_second("gpushare_claim_refusals_total", "node, reason") + " > 0",
            "{{node}} {{reason}}",
            "ops",
            description="Claims that the node did not prepare, by reason; docs/claims.md says what each means and what "
            "to do. The kubelet tries again about once a minute, and each attempt counts.",
        ),
        Panel(
            "ResourceSlices are as they should be",
            f"gpushare_resource_slices_published{{{_OF}}}",
            "{{node}}",
            most=1,
            description="0 where the API server does not show kube-scheduler all GPUs that claims can get; "
            "gpushare list on the node says why (alert GpuClaimsUnpublished).",
        ),
        Panel(
            "ResourceSlices written",
            _per_second("gpushare_resource_slices_written_total", "node"),
            "{{node}}",
            "ops",
            description="Writes and deletions by the node: after changes of the config, of GPUs or of faults, and "
            "where the policy spread orders GPUs anew. A node where nothing changes writes nothing.",
        ),
        Panel(
            "ResourceSlices mended",
            _per_second("gpushare_resource_slices_mended_total", "node"),
            "{{node}}",
            "ops",
            description="ResourceSlices that somebody else had deleted or changed: a kubelet that starts deletes them "
            "once; more than that is a person or a program.",
        ),
    ),
    "Scheduler extender": (
        Panel(
            "Requests",
            f"sum by (verb, result) (rate({_EXTENDER}_requests_total[$__rate_interval]))",
            "{{verb}} {{result}}",
            "ops",
        ),
        Panel(
            "Duration of requests (99 %)",
            f"histogram_quantile(0.99, sum by (le, verb) "
            f"(rate({_EXTENDER}_request_duration_seconds_bucket[$__rate_interval])))",
            "{{verb}}",
            "s",
        ),
        Panel(
            "Pods refused", f"sum by (reason) (rate({_EXTENDER}_refusals_total[$__rate_interval]))", "{{reason}}", "ops"
        ),
        Panel("Pods with a promise that are not bound", f"max({_EXTENDER}_promises)"),
        Panel("Age of what is known of the cluster", f"max({_EXTENDER}_cache_age_seconds)", unit="s"),
        Panel("Extenders that are ready", f"sum({_EXTENDER}_ready)"),
    ),
    "Partitioner": (
        Panel(
            "Slices made",
            f"sum by (slice) (rate({_PARTITIONER}_slices_made_total[$__rate_interval]))",
            "{{slice}}",
            "ops",
        ),
        Panel(
            "Slices taken back",
            f"sum by (slice) (rate({_PARTITIONER}_slices_taken_back_total[$__rate_interval]))",
            "{{slice}}",
            "ops",
        ),
        Panel(
            "Pods for which none can be made",
            f"sum by (reason) (rate({_PARTITIONER}_refusals_total[$__rate_interval]))",
            "{{reason}}",
            "ops",
        ),
        Panel(
            "From a pod to its slice (99 %)",
            f"histogram_quantile(0.99, sum by (le) "
            f"(rate({_PARTITIONER}_pod_wait_duration_seconds_bucket[$__rate_interval])))",
            unit="s",
        ),
        Panel("Pods that wait for slices", f"max({_PARTITIONER}_waiting_pods)"),
        Panel("Longest wait of a pod", f"max({_PARTITIONER}_longest_wait_seconds)", unit="s"),
    ),
}
"""The panels, row by row."""


def dashboard() -> str:
    """Return the dashboard as Grafana imports it."""
    return (
        json.dumps(
            {
                "title": "gpushare",
                "uid": "gpushare",
                "tags": ["gpu"],
                "schemaVersion": 39,
                "refresh": "30s",
                "time": {"from": "now-3h", "to": "now"},
                "templating": {
                    "list": [
                        {"name": "datasource", "type": "datasource", "query": "prometheus"},
                        _variable("node", "label_values(gpushare_gpu_healthy, node)"),
                        _variable("namespace", "label_values(gpushare_container_units, namespace)"),
                    ]
                },
                "panels": _panels(),
            },
            indent=1,
        )
        + "\n"
    )


def _variable(name: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "query": query,
        "refresh": 2,
        "includeAll": True,
        "allValue": ".*",
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
    }


def _panels() -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    y = 0
    for title, panels in ROWS.items():
        made.append(
            {"type": "row", "title": title, "id": len(made) + 1, "gridPos": {"x": 0, "y": y, "w": _WIDTH, "h": 1}}
        )
        y, x = y + 1, 0
        for panel in panels:
            if x + panel.width > _WIDTH:
                x, y = 0, y + 7
            made.append(_panel(panel, len(made) + 1, {"x": x, "y": y, "w": panel.width, "h": 7}))
            x += panel.width
        y += 7
    return made


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    return {
        "type": panel.kind,
        "title": panel.title,
        **({"description": panel.description} if panel.description else {}),
        "id": number,
        "gridPos": place,
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "fieldConfig": {"defaults": _field(panel), "overrides": []},
        "targets": [{"refId": "A", "expr": panel.query, "legendFormat": panel.legend}],
    }


def _field(panel: Panel) -> dict[str, Any]:
    """Return unit, range and colors of a panel; where colors are left to Grafana, 80 and more is red."""
    steps: list[dict[str, str | float | None]] = [{"color": "blue", "value": None}]
    if panel.wrong_from is not None:
        steps = [{"color": "green", "value": None}, {"color": "red", "value": panel.wrong_from}]
    return {
        "unit": panel.unit,
        "min": 0,
        **({} if panel.most is None else {"max": panel.most}),
        **({} if panel.kind == "timeseries" else {"thresholds": {"mode": "absolute", "steps": steps}}),
    }


if __name__ == "__main__":
    FILE.write_text(dashboard())
