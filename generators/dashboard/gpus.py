"""The rows about the hardware: the cluster at a glance, its nodes, its GPUs, and the GPUs that need a look."""

from generators.dashboard.panel import Query, gauge, heat_map, lines, number, table
from generators.dashboard.promql import (
    CARD,
    GPU,
    INSTANCE,
    OFFER,
    alerts,
    gpus,
    held_per_card,
    info,
    node_rate,
    nodes,
    or_zero,
    part,
    products,
    quantile_99,
    unused_for_an_hour,
    with_card,
)

_NAME = "{{node}} GPU {{index}}"
_NODE = {"cluster": "Cluster", "node": "Node"}
_GPU = {**_NODE, "index": "GPU", "product": "Model"}
_BY_NODE, _BY_GPU = "cluster, node", "cluster, node, index"
_USED, _TOTAL = "gpushare_gpu_memory_used_bytes", "gpushare_gpu_memory_bytes"
_UNITS_USED, _UNITS = gpus("gpushare_gpu_units_used"), gpus("gpushare_gpu_units")
_UTILIZATION = "gpushare_gpu_utilization_ratio"
_CANNOT = f"1 - {gpus('gpushare_gpu_healthy', CARD)}"
_OF_ITS_CARD = "on (cluster, node, card)"


def _memory(by: str, more: str = CARD) -> str:
    return part(gpus(_USED, more), gpus(_TOTAL, more), by)


CLUSTER = (
    number(
        "GPUs",
        "The GPUs that respond. A GPU in MIG mode is one.",
        f"count({gpus('gpushare_gpu_healthy', CARD)})",
    ),
    number(
        "GPUs that cannot be allocated",
        "GPUs that are faulty, cordoned or not served by MPS, or have such a MIG instance. Alerts: GpuFaulty, "
        "GpuNotServedByMps, GpuDriverLimitsNotSet.",
        f"sum({_CANNOT})",
        wrong_from=1,
    ),
    number(
        "GPUs that do not respond",
        "GPUs that do not answer the driver, never answered, or are gone. Alert: GpuUnresponsive.",
        f"sum({nodes('gpushare_gpus_unresponsive')})",
        wrong_from=1,
    ),
    number(
        "Containers over their limit",
        "Containers that use more memory of a GPU than their limit and 512 MiB. Alert: GpuOverused.",
        f"sum({gpus('gpushare_gpu_containers_over_limit')})",
        wrong_from=1,
    ),
    gauge(
        "Memory of GPUs in use",
        "The part of the memory of all GPUs that processes use, without GPUs of which the use is not known.",
        _memory(""),
    ),
    gauge(
        "Units held by pods",
        "The part of the offered units that pods hold, used or not, by resource.",
        part(_UNITS_USED, _UNITS, "resource", OFFER),
        "{{resource}}",
    ),
    table(
        "Alerts that fire",
        "The alerts of gpushare that fire now. docs/alerts.md says what each alert means and what to do.",
        {"cluster": "Cluster", "alertname": "Alert", "severity": "Severity", "node": "Node", "index": "GPU"},
        Query(f"max by (cluster, alertname, severity, node, index) ({alerts()})"),
    ),
)

NODES = (
    table(
        "All nodes",
        "Every node with its GPUs, their use, and what is wrong. 1 means yes, 0 means no.",
        _NODE,
        Query(f"count by ({_BY_NODE}) ({gpus('gpushare_gpu_healthy', CARD)})", "GPUs"),
        Query(f"sum by ({_BY_NODE}) ({_CANNOT})", "GPUs that cannot be allocated"),
        Query(f"sum by ({_BY_NODE}) ({nodes('gpushare_gpus_unresponsive')})", "GPUs that do not respond"),
        Query(_memory(_BY_NODE), "Memory in use", "percentunit"),
        Query(f"min by ({_BY_NODE}) ({nodes('gpushare_config_last_reload_successful')})", "Newest config is in effect"),
        Query(f"min by ({_BY_NODE}) ({nodes('gpushare_resource_registered')})", "Registered with the kubelet"),
    ),
    lines(
        "Units held by pods",
        "The part of each node's units that pods hold, used or not.",
        part(_UNITS_USED, _UNITS, f"{_BY_NODE}, resource", OFFER),
        "{{node}} {{resource}}",
        "percentunit",
        most=1,
    ),
    lines(
        "Memory in use",
        "The part of the memory of each node's GPUs that processes use.",
        _memory(_BY_NODE),
        "{{node}}",
        "percentunit",
        most=1,
    ),
    lines(
        "Newest config is in effect",
        "0 where a node has rejected its newest config, and keeps the earlier config. Alert: GpushareConfigRejected.",
        f"min by ({_BY_NODE}) ({nodes('gpushare_config_last_reload_successful')})",
        "{{node}}",
        most=1,
        low_is_wrong=True,
    ),
    lines(
        "Registered with the kubelet",
        "0 where the kubelet does not know a resource, so that no pod gets it. Alert: GpuResourceNotRegistered.",
        f"min by ({_BY_NODE}, resource) ({nodes('gpushare_resource_registered')})",
        "{{node}} {{resource}}",
        most=1,
        low_is_wrong=True,
    ),
    lines(
        "Duration of the kubelet's calls (99 %)",
        "How long 99 of 100 calls of the kubelet take at most. A pod starts only after the answers to its calls.",
        quantile_99(node_rate("gpushare_call_duration_seconds_bucket", f"le, {_BY_NODE}, method")),
        "{{node}} {{method}}",
        "s",
    ),
    lines(
        "Calls of the kubelet refused",
        "Each refused call is a pod that does not start. The Events of the pod say why. Alert: GpushareRefusals.",
        node_rate("gpushare_refusals_total", f"{_BY_NODE}, resource, call"),
        "{{node}} {{resource}} {{call}}",
        "ops",
    ),
    lines(
        "Errors of the API server",
        "Failed requests of nodes to the API server. A conflict is harmless: the daemon tries again. Alert: "
        "GpushareApiErrors.",
        node_rate("gpushare_api_errors_total", f"{_BY_NODE}, reason"),
        "{{node}} {{reason}}",
        "ops",
    ),
)

GPUS = (
    table(
        "All GPUs",
        "Every GPU and MIG instance, with its mode: memory, time-slicing, mps, exclusive, or none if it is not "
        "offered. 1 means yes, 0 means no.",
        {**_GPU, "mode": "Mode"},
        Query(f"max by ({_BY_GPU}, product, mode) ({info()})"),
        Query(f"min by ({_BY_GPU}) ({gpus('gpushare_gpu_healthy')})", "Can be allocated"),
        Query(f"max by ({_BY_GPU}) ({gpus(_TOTAL)})", "Memory", "bytes"),
        Query(_memory(_BY_GPU, ""), "Memory in use", "percentunit"),
        Query(part(_UNITS_USED, _UNITS, _BY_GPU, OFFER), "Units held by pods", "percentunit"),
        Query(f"max by ({_BY_GPU}) ({gpus(_UTILIZATION)})", "Utilization", "percentunit"),
        Query(f"max by ({_BY_GPU}) ({gpus('gpushare_gpu_processes')})", "Processes"),
    ),
    heat_map(
        "GPUs by memory in use",
        "How many GPUs have no memory in use, up to a fifth, up to two fifths, and so on: the darker, the more GPUs.",
        f"({gpus(_USED, CARD)} / {_TOTAL})",
    ),
    heat_map(
        "GPUs by utilization",
        "How many GPUs compute none of the time, up to a fifth of the time, and so on: the darker, the more GPUs.",
        gpus(_UTILIZATION, CARD),
    ),
    lines(
        "Memory in use",
        "The memory of each GPU that processes use, without the memory that the driver keeps.",
        gpus(_USED),
        _NAME,
        "bytes",
    ),
    lines(
        "Utilization",
        "The part of the time in which each GPU computed. Not known for MIG.",
        gpus(_UTILIZATION),
        _NAME,
        "percentunit",
        most=1,
    ),
    lines(
        "Units held by pods", "The units of each GPU that pods hold, used or not.", _UNITS_USED, _NAME + " {{resource}}"
    ),
    lines(
        "Why it cannot be allocated",
        "GPUs that pods cannot get: fault, cordon, mps (MPS does not serve the GPU) or limits (nothing sets the "
        "driver's limits). Alerts: GpuFaulty, GpuNotServedByMps, GpuDriverLimitsNotSet.",
        f"{gpus('gpushare_gpu_unhealthy')} == 1",
        _NAME + " {{reason}}",
        most=1,
    ),
    lines(
        "Errors by XID",
        "Errors that the driver reported since the daemon started. Many such errors are caused by programs of pods.",
        f"{gpus('gpushare_gpu_xid_errors_total')}",
        _NAME + " XID {{xid}}",
    ),
    lines("Processes", "Processes that use each GPU.", gpus("gpushare_gpu_processes"), _NAME),
    lines(
        "Processes out of place",
        "Processes that are in no pod, or in a pod that holds nothing of this GPU. Alert: GpuForeignProcess.",
        gpus("gpushare_gpu_foreign_processes"),
        _NAME,
    ),
    lines(
        "Containers by whether their limit is in effect",
        "With not_in_effect nothing keeps the container within its limit. Alert: GpuLimitNotInEffect.",
        f"{gpus('gpushare_gpu_container_limits')} > 0",
        _NAME + " {{state}}",
    ),
    lines(
        "Waits for pods to end",
        "1 where a GPU is not yet shared as its config says, because pods hold units of the earlier mode. Alert: "
        "GpuWaiting.",
        gpus("gpushare_gpu_waiting"),
        _NAME,
        most=1,
    ),
)

_IDLE = f"{with_card(unused_for_an_hour())} and {_OF_ITS_CARD} {held_per_card()} > 0"
_WITH_PRODUCT = f"* on ({GPU}) group_left (product) {products()}"

_MPS = 'mode="mps"'


def _cards_by_reason(reason: str) -> str:
    return gpus("gpushare_gpu_unhealthy", f'{CARD}, reason="{reason}"')


SPECIAL = (
    number(
        "GPUs divided by MIG",
        "GPUs that have MIG instances.",
        or_zero(f"count(count by (cluster, node, card) ({with_card(info(INSTANCE))}))"),
    ),
    number("MIG instances", "The MIG instances of all GPUs.", or_zero(f"count({info(INSTANCE)})")),
    number(
        "MIG instances held",
        "MIG instances of which pods hold units.",
        or_zero(f"count(sum by ({GPU}) ({gpus('gpushare_gpu_units_used', INSTANCE)}) > 0)"),
    ),
    number("GPUs under MPS", "GPUs that pods share through MPS.", or_zero(f"count({info(_MPS)})")),
    number(
        "GPUs that MPS does not serve",
        "GPUs that the config shares through MPS, and that cannot be allocated because MPS does not serve them. Alert: "
        "GpuNotServedByMps.",
        or_zero(f"count({gpus('gpushare_gpu_mps_served')} == 0)"),
        wrong_from=1,
    ),
    number(
        "Programs under MPS",
        "Processes that compute through MPS.",
        or_zero(f"sum({gpus('gpushare_gpu_mps_clients')})"),
    ),
    number(
        "Faulty GPUs",
        "GPUs of which the driver reported a fault, or that do not answer. Alert: GpuFaulty.",
        or_zero(f"sum({_cards_by_reason('fault')})"),
        wrong_from=1,
    ),
    number(
        "Cordoned GPUs",
        "GPUs that somebody keeps from new pods.",
        or_zero(f"sum({_cards_by_reason('cordon')})"),
    ),
    number(
        "GPUs that nobody holds",
        "GPUs of which no pod and no claim holds a unit or share.",
        or_zero(f"count({held_per_card()} == 0)"),
    ),
    number(
        "Held and idle GPUs",
        "GPUs that pods or claims hold, and that computed nothing in the last hour. Not known for MIG.",
        or_zero(f"count({_IDLE})"),
    ),
    table(
        "GPUs that need a look",
        "GPUs that cannot be allocated, by reason, and GPUs that are held and computed nothing for an hour (idle).",
        {**_GPU, "reason": "Why"},
        Query(
            f"max by ({_BY_GPU}, product, reason) (({gpus('gpushare_gpu_unhealthy')} == 1) {_WITH_PRODUCT}) or "
            f'label_replace(max by ({_BY_GPU}, product) (({_IDLE}) {_WITH_PRODUCT}), "reason", "idle", "", "")'
        ),
        width=8,
    ),
)
