"""The rows about who has what: namespaces, what is free for the next pod, and single pods."""

from generators.dashboard.panel import Query, lines, table
from generators.dashboard.promql import free, free_memory, held_gpus, pods
from generators.recorded import COST

_CONTAINER = "{{namespace}}/{{pod}} {{container}} GPU {{index}}"
_LIMIT, _USED = pods("gpushare_container_memory_limit_bytes"), pods("gpushare_container_memory_used_bytes")
_UTILIZATION = pods("gpushare_container_utilization_ratio")
_NEEDS = " Needs usage.containerMetrics of the chart; use also needs usage.hostPID."
_BY = "cluster, namespace"
_BY_POD = "cluster, namespace, pod, container, node, index, resource"
_COST = pods(COST)

NAMESPACES = (
    table(
        "Held and used by namespace",
        "What pods of each namespace hold and use. Two of four replicas of a GPU are half a GPU. Memory held is the "
        "sum of limits, without containers that have no limit (time slicing). Costs need prometheusRule.prices of the "
        "chart." + _NEEDS,
        {"cluster": "Cluster", "namespace": "Namespace"},
        Query(f"sum by ({_BY}) ({held_gpus(pods)})", "GPUs held"),
        Query(f"sum by ({_BY}) ({_UTILIZATION})", "GPUs' worth of computing"),
        Query(f"sum by ({_BY}) ({_LIMIT})", "Memory held", "bytes"),
        Query(f"sum by ({_BY}) ({_USED})", "Memory used", "bytes"),
        Query(
            f"sum by ({_BY}) ({_USED} and {_LIMIT}) / sum by ({_BY}) ({_LIMIT} and {_USED})",
            "Memory used of held",
            "percentunit",
        ),
        Query(f"sum by ({_BY}) ({_COST})", "Cost of an hour"),
        Query(
            f"sum by ({_BY}) (sum_over_time({_COST}[$__range:$__interval])) * $__interval_ms / 3600000",
            "Cost in the time shown",
        ),
    ),
    lines(
        "GPUs held",
        "GPUs that pods of each namespace hold, used or not." + _NEEDS,
        f"sum by ({_BY}) ({held_gpus(pods)})",
        "{{namespace}}",
    ),
    lines(
        "Memory held",
        "The sum of the limits of each namespace's containers." + _NEEDS,
        f"sum by ({_BY}) ({_LIMIT})",
        "{{namespace}}",
        "bytes",
    ),
    lines(
        "Memory used",
        "The memory that the containers of each namespace use." + _NEEDS,
        f"sum by ({_BY}) ({_USED})",
        "{{namespace}}",
        "bytes",
    ),
    lines(
        "Cost of an hour",
        "What the held parts of GPUs cost by the hour, used or not, in the currency of prometheusRule.prices of the "
        "chart. Without prices, this panel is empty." + _NEEDS,
        f"sum by ({_BY}) ({_COST})",
        "{{namespace}}",
    ),
)

_PIECE = "$piece * 1024 ^ 3"
_ALL, _TOO_SMALL = (f"sum by (cluster, product, resource) ({free_memory()}{less})" for less in ("", f" < {_PIECE}"))
_LARGEST = f"max by (cluster, product, resource) ({free_memory()})"
_LOST = f"({_TOO_SMALL} or 0 * {_ALL})"

FREE = (
    table(
        "Free by model",
        "What the next pod can get. A free piece is what is free of one GPU: a pod with one GPU cannot get more than "
        "the largest piece. Pieces that are smaller than the size of a pod, chosen above, are of no use to a pod of "
        "that size.",
        {"cluster": "Cluster", "product": "Model", "resource": "Resource"},
        Query(f"count by (cluster, product, resource) ({free()})", "GPUs"),
        Query(f"sum by (cluster, product, resource) ({free()})", "Units free"),
        Query(f"max by (cluster, product, resource) ({free()})", "Largest free piece, units"),
        Query(_ALL, "Memory free", "bytes"),
        Query(_LARGEST, "Largest free piece, memory", "bytes"),
        Query(_LOST, "In pieces too small", "bytes"),
    ),
    lines(
        "Largest free piece",
        "The most memory that one GPU of each model has free. A pod that asks for more waits.",
        _LARGEST,
        "{{product}} {{resource}}",
        "bytes",
    ),
    lines(
        "Free in pieces that are too small",
        "The part of the free memory in pieces that are smaller than the size of a pod, chosen above.",
        f"{_LOST} / ({_ALL} > 0)",
        "{{product}} {{resource}}",
        "percentunit",
        most=1,
    ),
)

PODS = (
    table(
        "All containers",
        "What every container holds and uses of a GPU." + _NEEDS,
        {
            "cluster": "Cluster",
            "namespace": "Namespace",
            "pod": "Pod",
            "container": "Container",
            "node": "Node",
            "index": "GPU",
            "resource": "Resource",
        },
        Query(f"max by ({_BY_POD}) ({pods('gpushare_container_units')})", "Units"),
        Query(f"max by ({_BY_POD}) ({_LIMIT})", "Memory held", "bytes"),
        Query(f"max by ({_BY_POD}) ({_USED})", "Memory used", "bytes"),
        Query(f"max by ({_BY_POD}) ({_USED} / {_LIMIT})", "Memory used of held", "percentunit"),
        Query(f"max by ({_BY_POD}) ({_UTILIZATION})", "Utilization", "percentunit"),
    ),
    lines("Memory in use", "The memory of its GPU that each container uses." + _NEEDS, _USED, _CONTAINER, "bytes"),
    lines(
        "Memory in use, of the limit",
        "The memory in use, in percent of the limit. A container over 100 % uses more than it may. Alert: GpuOverused."
        + _NEEDS,
        f"{_USED} / {_LIMIT}",
        _CONTAINER,
        "percentunit",
    ),
    lines(
        "Utilization",
        "The part of the time in which each container computed. Not known for MIG." + _NEEDS,
        _UTILIZATION,
        _CONTAINER,
        "percentunit",
        most=1,
    ),
)
