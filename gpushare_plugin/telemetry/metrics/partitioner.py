"""Every metric of the partitioner, what it counts itself, and what a scrape shows beside that."""

from collections.abc import Mapping

from gpushare_plugin.foundation.structs import Struct, field
from gpushare_plugin.telemetry.metrics.counted import Counts
from gpushare_plugin.telemetry.metrics.metric import Metric, single


class PartitionerView(Struct, frozen=True):
    """What a scrape reads of the partitioner; all but the first and the last two are 0 or None where it does not lead.

    `leads` is whether this partitioner holds the Lease.
    `ready` is whether all Nodes and Pods are listed, so that slices are decided.
    `nodes` is the number of Nodes whose GPUs are divided.
    `waiting` is the number of pods that ask for slices and have no node.
    `longest_wait` is how long ago the oldest waiting pod was created, in seconds; 0 for none.
    `kept` is the number of slices that are kept for waiting pods.
    `unwritten` is the number of Nodes to which the decided slices could not be written at the last attempt.
    `cache_age` is how many seconds ago the API server last confirmed the Nodes and Pods; None before all are listed.
    `api_errors` are the requests to the API server that failed, by kind.
    `longest_pause` is the longest pause of the event loop lately, in seconds.
    """

    leads: bool = False
    ready: bool = False
    nodes: int = 0
    waiting: int = 0
    longest_wait: float = 0.0
    kept: int = 0
    unwritten: int = 0
    cache_age: float | None = None
    api_errors: Mapping[str, int] = field(default_factory=dict)
    longest_pause: float = 0.0


_MADE = Metric[PartitionerView](
    "gpushare_partitioner_slices_made_total",
    "Partitioner: slices decided to be made, by size or MIG profile.",
    ("slice",),
)
_TAKEN_BACK = Metric[PartitionerView](
    "gpushare_partitioner_slices_taken_back_total",
    "Partitioner: slices taken back from the pod they were made for, each with an Event, by size or MIG profile.",
    ("slice",),
)
_REFUSALS = Metric[PartitionerView](
    "gpushare_partitioner_refusals_total",
    "Partitioner: pods for which no slice can be made; never, or no_room for now.",
    ("reason",),
)
_ROUNDS = Metric[PartitionerView]("gpushare_partitioner_rounds_total", "Partitioner: rounds of decisions.")
_ROUND_SECONDS = Metric[PartitionerView](
    "gpushare_partitioner_round_seconds_total",
    "Partitioner: seconds that the rounds of decisions took, summed.",
)
_WAITS = Metric[PartitionerView](
    "gpushare_partitioner_pod_wait_duration_seconds",
    "Partitioner: pods whose slices a node offers, and how long that took from the creation of the pod.",
    # From an idle slice to a GPU that has to become free.
    buckets=(0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 300.0, 1800.0),
)


class PartitionerCounts(Counts):
    """What a partitioner has counted since its start, over all terms.

    `made` are slices decided to be made, by name.
    `taken_back` are slices taken back from the pod they were made for, by name.
    `refusals` are pods for which no slice can be made, by reason.
    `rounds` are rounds of decisions.
    `round_seconds` are the seconds that all rounds took.
    `waits` are the seconds from the creation of a pod until a node offered its slices.
    """

    def __init__(self) -> None:
        """Count nothing yet."""
        super().__init__()
        self.made = self.counter(_MADE)
        self.taken_back = self.counter(_TAKEN_BACK)
        self.refusals = self.counter(_REFUSALS)
        self.rounds = self.counter(_ROUNDS)
        self.round_seconds = self.counter(_ROUND_SECONDS)
        self.waits = self.histogram(_WAITS)


PARTITIONER_METRICS: tuple[Metric[PartitionerView], ...] = (
    single(
        "gpushare_partitioner_leads",
        "Partitioner: 1 if it holds the Lease, 0 otherwise.",
        lambda view: view.leads,
    ),
    single(
        "gpushare_partitioner_ready",
        "Partitioner: 1 if it leads and has listed all Nodes and Pods, so that it decides; 0 otherwise.",
        lambda view: view.ready,
    ),
    single(
        "gpushare_partitioner_nodes",
        "Partitioner: Nodes whose GPUs it divides.",
        lambda view: view.nodes,
    ),
    single(
        "gpushare_partitioner_waiting_pods",
        "Partitioner: pods that ask for slices and have no node.",
        lambda view: view.waiting,
    ),
    single(
        "gpushare_partitioner_longest_wait_seconds",
        "Partitioner: seconds since the creation of the oldest pod that asks for slices and has no node; 0 for none.",
        lambda view: view.longest_wait,
    ),
    single(
        "gpushare_partitioner_slices_kept",
        "Partitioner: slices that are kept for waiting pods.",
        lambda view: view.kept,
    ),
    single(
        "gpushare_partitioner_nodes_unwritten",
        "Partitioner: Nodes to which the slices that were decided could not be written at the last attempt.",
        lambda view: view.unwritten,
    ),
    _MADE,
    _TAKEN_BACK,
    _REFUSALS,
    _ROUNDS,
    _ROUND_SECONDS,
    single(
        "gpushare_partitioner_longest_pause_seconds",
        "Partitioner: the longest time in the last minute or two in which its event loop could do nothing else.",
        lambda view: view.longest_pause,
    ),
    _WAITS,
    single(
        "gpushare_partitioner_cache_age_seconds",
        "Partitioner: seconds since the API server last confirmed what is known of Nodes and Pods.",
        lambda view: view.cache_age,
    ),
    Metric(
        "gpushare_partitioner_api_errors_total",
        "Partitioner: requests to the API server that failed, with the reasons of gpushare_api_errors_total.",
        ("reason",),
        lambda view: [((kind,), count) for kind, count in view.api_errors.items()],
    ),
)
"""All metrics of the partitioner, in the order of the page."""
