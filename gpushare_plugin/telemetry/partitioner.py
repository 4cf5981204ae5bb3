"""Every metric of the partitioner."""

from gpushare_plugin.telemetry.views import Metric, PartitionerView

PARTITIONER_METRICS: tuple[Metric[PartitionerView], ...] = (
    Metric(
        "gpushare_partitioner_leads",
        "Partitioner: 1 if it holds the Lease, 0 otherwise.",
        (),
        lambda view: [((), view.leads)],
    ),
    Metric(
        "gpushare_partitioner_ready",
        "Partitioner: 1 if it leads and has listed all Nodes and Pods, so that it decides; 0 otherwise.",
        (),
        lambda view: [((), view.ready)],
    ),
    Metric(
        "gpushare_partitioner_nodes",
        "Partitioner: Nodes whose GPUs it divides.",
        (),
        lambda view: [((), view.nodes)],
    ),
    Metric(
        "gpushare_partitioner_waiting_pods",
        "Partitioner: pods that ask for slices and have no node.",
        (),
        lambda view: [((), view.waiting)],
    ),
    Metric(
        "gpushare_partitioner_longest_wait_seconds",
        "Partitioner: seconds since the creation of the oldest pod that asks for slices and has no node; 0 for none.",
        (),
        lambda view: [((), view.longest_wait)],
    ),
    Metric(
        "gpushare_partitioner_slices_kept",
        "Partitioner: slices that are kept for waiting pods.",
        (),
        lambda view: [((), view.kept)],
    ),
    Metric(
        "gpushare_partitioner_nodes_unwritten",
        "Partitioner: Nodes to which the slices that were decided could not be written at the last attempt.",
        (),
        lambda view: [((), view.unwritten)],
    ),
    Metric(
        "gpushare_partitioner_slices_made_total",
        "Partitioner: slices decided to be made, by size or MIG profile.",
        ("slice",),
        lambda view: [((name,), count) for name, count in view.made.items()],
    ),
    Metric(
        "gpushare_partitioner_slices_taken_back_total",
        "Partitioner: slices taken back from the pod they were made for, each with an Event, by size or MIG profile.",
        ("slice",),
        lambda view: [((name,), count) for name, count in view.taken_back.items()],
    ),
    Metric(
        "gpushare_partitioner_refusals_total",
        "Partitioner: pods for which no slice can be made; never, or no_room for now.",
        ("reason",),
        lambda view: [((reason,), count) for reason, count in view.refused.items()],
    ),
    Metric(
        "gpushare_partitioner_rounds_total",
        "Partitioner: rounds of decisions.",
        (),
        lambda view: [((), view.rounds)],
    ),
    Metric(
        "gpushare_partitioner_round_seconds_total",
        "Partitioner: seconds that the rounds of decisions took, summed.",
        (),
        lambda view: [((), view.round_seconds)],
    ),
    Metric(
        "gpushare_partitioner_longest_pause_seconds",
        "Partitioner: the longest time in the last minute or two in which its event loop could do nothing else.",
        (),
        lambda view: [((), view.longest_pause)],
    ),
    Metric(
        "gpushare_partitioner_pod_wait_duration_seconds",
        "Partitioner: pods whose slices a node offers, and how long that took from the creation of the pod.",
        (),
        lambda view: [((), view.waits)],
    ),
    Metric(
        "gpushare_partitioner_cache_age_seconds",
        "Partitioner: seconds since the API server last confirmed what is known of Nodes and Pods.",
        (),
        lambda view: [((), view.cache_age)] if view.cache_age is not None else [],
    ),
    Metric(
        "gpushare_partitioner_api_errors_total",
        "Partitioner: requests to the API server that failed, with the reasons of gpushare_api_errors_total.",
        ("reason",),
        lambda view: [((kind,), count) for kind, count in view.api_errors.items()],
    ),
)
"""All of them, in the order of the page."""
