"""What the queries of the dashboard, and of the recording rules, are made of.

`cluster`, the label that a server above several Prometheus servers knows, is the same as none where nobody sets it. A
GPU in MIG mode and its instances, of indexes such as `0:1` and products such as `A100 MIG 3g.20gb`, have series of
their own: sums take the GPU alone.
"""

from collections.abc import Callable

MOST_LINES = 20
"""The most lines that a panel draws."""
FIFTHS = (0, 0.2, 0.4, 0.6, 0.8, 1)
"""The upper edges of the buckets of a heat map."""

GPU = "cluster, node, uuid"
"""The labels that name a GPU or MIG instance."""
GPU_AND_CARD = f"{GPU}, card"
"""The same with the index of the card, which a MIG instance has in common with its GPU."""
OFFER = f"{GPU}, resource"
"""The labels that name a resource of a GPU."""
CARD = 'index!~".*:.*"'
"""What has these labels is a GPU, and no MIG instance."""
INSTANCE = 'index=~".+:.+"'
"""What has these labels is a MIG instance."""

_CLUSTER = 'cluster=~"$cluster"'
_NODE = f'{_CLUSTER}, node=~"$node"'
_MODEL = 'product=~"$model( MIG .*)?"'
_CHOSEN_GPUS = f"gpushare_gpu_info{{{_NODE}, {_MODEL}}}"
_CHOSEN_NODES = f'{{__name__=~"gpushare_(gpu|build)_info", {_NODE}, uuid=~"$gpu", {_MODEL}}}'
"""Every daemon has `gpushare_build_info`, without labels of a GPU: it matches if all GPUs are chosen."""

Select = Callable[[str, str], str]
"""Returns what a metric has, of series with more labels than those that are chosen."""


def gpus(metric: str, more: str = "") -> str:
    """Return what a metric of GPUs has for the chosen ones."""
    return _of_gpus(metric, _NODE, 'uuid=~"$gpu"', more)


def pods(metric: str, more: str = "") -> str:
    """Return what a metric of containers has for the chosen namespaces and GPUs."""
    return _of_gpus(metric, _NODE, 'uuid=~"$gpu", namespace=~"$namespace"', more)


def unused_for_an_hour() -> str:
    """Return the chosen GPUs that computed nothing in the last hour; not MIG, of which that is not known."""
    series = everywhere("gpushare_gpu_utilization_ratio", f'{_NODE}, uuid=~"$gpu"')
    return f"((max_over_time({series}[1h]) and on ({GPU}) {_CHOSEN_GPUS}) == 0)"


def alerts() -> str:
    """Return the alerts of gpushare that fire; those of GPUs only for the chosen ones."""
    series = f'ALERTS{{{_NODE}, uuid=~"$gpu", alertname=~"Gpu.*", alertstate="firing"}}'
    return f"({series} unless on ({GPU}) (gpushare_gpu_info{{{_NODE}}} unless {_CHOSEN_GPUS}))"


def _of_gpus(metric: str, *labels: str) -> str:
    return f"({everywhere(metric, ', '.join(filter(None, labels)))} and on ({GPU}) {_CHOSEN_GPUS})"


def info(more: str = "") -> str:
    """Return the chosen GPUs and MIG instances themselves, each of them 1."""
    return everywhere("gpushare_gpu_info", ", ".join(filter(None, (_NODE, 'uuid=~"$gpu"', _MODEL, more))))


def everywhere(metric: str, more: str = "") -> str:
    """Return what a metric has, whatever is chosen."""
    return f"{metric}{{{more}}}" if more else metric


def nodes(metric: str) -> str:
    """Return what a metric of nodes has for the nodes with a chosen GPU; if all are chosen, also for those without."""
    return f"({metric}{{{_NODE}}} and on (cluster, node) {_CHOSEN_NODES})"


def node_rate(counter: str, by: str) -> str:
    """Return how often a second something happens on the chosen nodes."""
    return f"sum by ({by}) (rate({counter}{{{_NODE}}}[$__rate_interval]) and on (cluster, node) {_CHOSEN_NODES})"


def cluster(metric: str) -> str:
    """Return what a metric of a program that serves the whole cluster has."""
    return f"{metric}{{{_CLUSTER}}}"


def cluster_rate(counter: str, by: str) -> str:
    """Return how often a second something happens in a program that serves the whole cluster."""
    return f"sum by ({by}) (rate({cluster(counter)}[$__rate_interval]))"


def quantile_99(buckets_by_le: str) -> str:
    """Return the duration that 99 % of the calls do not exceed."""
    return f"histogram_quantile(0.99, {buckets_by_le})"


def part(some: str, whole: str, by: str, on: str = GPU) -> str:
    """Return which part of something is in use, where that is known."""
    return f"sum by ({by}) ({some}) / sum by ({by}) ({whole} and on ({on}) {some})"


def with_card(promql: str) -> str:
    """Return series of GPUs with the label `card`, which is the index without the number of a MIG instance."""
    return f'label_replace({promql}, "card", "$1", "index", "([^:]*).*")'


def greatest(promql: str) -> str:
    """Return the series that were the highest in the time shown, no more than a panel draws."""
    return f"({promql}) and topk({MOST_LINES}, max_over_time(({promql})[$__range:$__interval] @ end()))"


def least(promql: str) -> str:
    """Return the series that were the lowest in the time shown, no more than a panel draws."""
    return f"({promql}) and bottomk({MOST_LINES}, min_over_time(({promql})[$__range:$__interval] @ end()))"


def buckets(ratio: str) -> str:
    """Return how many series of a ratio are at most 0, 0.2 and so on, up to 1, as Prometheus has a histogram."""
    return " or ".join(
        f'label_replace(count({ratio} <= {edge}) or vector(0), "le", "{edge}", "", "")' for edge in FIFTHS
    )


def or_zero(promql: str) -> str:
    """Return a number, 0 where there is none."""
    return f"{promql} or vector(0)"


def free(more: str = "") -> str:
    """Return the units of the chosen GPUs that pods can get now, with the product; not where no one knows who holds."""
    left = f"clamp_min({gpus('gpushare_gpu_units_allocatable')} - {gpus('gpushare_gpu_units_used')}, 0)"
    return f"max by ({OFFER}) ({left}){more} * on ({GPU}) group_left (product) {products(_NODE)}"


def free_memory() -> str:
    """Return the same in bytes, where a unit is an amount of memory."""
    return free(f" * on ({OFFER}) max by ({OFFER}) (gpushare_gpu_unit_memory_bytes{{{_NODE}}})")


def products(labels: str = "") -> str:
    """Return every GPU and MIG instance once, with its product alone."""
    return f"max by ({GPU}, product) ({everywhere('gpushare_gpu_info', labels)})"


def held_per_card() -> str:
    """Return how many units and shares of the chosen GPUs pods and claims hold, with those of MIG instances."""
    held = gpus("", '__name__=~"gpushare_(gpu_units_used|gpu_claims_prepared)"')
    return f"sum by (cluster, node, card) ({with_card(held)})"


def held_gpus(select: Select) -> str:
    """Return which part of a GPU each container holds, by its labels: 0.25 for one of four replicas.

    Claims, and several resources of a container together, are the part of the memory that is their limit; a claim
    without a limit has an equal part of all claims. A MIG instance is the part of the GPU whose memory it has.
    """
    units = f"{select('gpushare_container_units', '')} / {_each(OFFER, 'gpushare_gpu_units')}"
    limit = f"{select('gpushare_container_memory_limit_bytes', '')} / {_each(GPU, 'gpushare_gpu_memory_bytes')}"
    claims = select("gpushare_container_units", 'resource=~"claim:.*"')
    equal = f"{claims} / {_each(GPU, 'gpushare_gpu_claims_prepared')}"
    cards = f"max by (cluster, node, card) ({with_card(everywhere('gpushare_gpu_memory_bytes', CARD))})"
    memory = f"max by ({GPU_AND_CARD}) ({with_card('gpushare_gpu_memory_bytes')})"
    of_card = f"max by ({GPU}) ({memory} / on (cluster, node, card) group_left () {cards})"
    return f"({units} or {limit} or {equal}) * on ({GPU}) group_left () {of_card}"


def _each(labels: str, metric: str) -> str:
    return f"on ({labels}) group_left () max by ({labels}) ({metric})"
