"""All metrics of the partitioner: figures counted by the partitioner, and values read at a scrape."""

from collections.abc import Mapping

from gpushare_plugin.base.structs import Struct, field
from gpushare_plugin.observe.metrics.counted import Counts
from gpushare_plugin.observe.metrics.metric import Metric, single


class PartitionerView(Struct, frozen=True):
    """The values of the partitioner that a scrape reads.

    While the partitioner does not lead, only `leads`, `api_errors` and `longest_pause` have values; the rest is 0,
    False or None.
    """

    leads: bool = False
    """Whether this partitioner holds the Lease."""
    ready: bool = False
    """Whether all Nodes and Pods are listed, and the partitioner decides on slices."""
    nodes: int = 0
    """The number of Nodes with GPUs divided by the partitioner."""
    waiting: int = 0
    """The number of pods that ask for slices and have no node."""
    longest_wait: float = 0.0
    """Seconds since the creation of the oldest waiting pod; 0 without waiting pods."""
    kept: int = 0
    """The number of slices kept for waiting pods."""
    unwritten: int = 0
    """The number of Nodes to which the decided slices could not be written at the last attempt."""
    cache_age: float | None = None
    """Seconds since the API server last confirmed the Nodes and Pods; None until all are listed."""
    api_errors: Mapping[str, int] = field(default_factory=dict)
    """The number of failed requests to the API server, by kind."""
    longest_pause: float = 0.0
    """The longest recent pause of the event loop, in seconds."""


_MADE = Metric[PartitionerView](
    "gpushare_partitioner_slices_made_total",
    "Partitioner: slices decided, by size or MIG profile.",
    ("slice",),
)
_TAKEN_BACK = Metric[PartitionerView](
    "gpushare_partitioner_slices_taken_back_total",
    "Partitioner: slices taken back from pods.",
    ("slice",),
)
_REFUSALS = Metric[PartitionerView](
    "gpushare_partitioner_refusals_total",
    "Partitioner: pods without a slice: never, or no_room for now.",
    ("reason",),
)
_ROUNDS = Metric[PartitionerView]("gpushare_partitioner_rounds_total", "Partitioner: rounds of decisions.")
_ROUND_SECONDS = Metric[PartitionerView](
    "gpushare_partitioner_round_seconds_total",
    "Partitioner: seconds of all rounds.",
)
_WAITS = Metric[PartitionerView](
    "gpushare_partitioner_pod_wait_duration_seconds",
    "Partitioner: seconds from the creation of a pod until a node offers its slices.",
    # From pods that find an idle slice to pods that wait for a GPU to become free.
    buckets=(0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 300.0, 1800.0),
)


class PartitionerCounts(Counts):
    """The figures counted by a partitioner since its start, over all its terms as leader."""

    def __init__(self) -> None:
        """Begin at zero."""
        super().__init__()
        self.made = self.counter(_MADE)
        """Slices decided to be made, by size or MIG profile."""
        self.taken_back = self.counter(_TAKEN_BACK)
        """Slices taken back from the pod for which they were made, by size or MIG profile."""
        self.refusals = self.counter(_REFUSALS)
        """Pods for which no slice can be made, by reason."""
        self.rounds = self.counter(_ROUNDS)
        """Rounds of decisions."""
        self.round_seconds = self.counter(_ROUND_SECONDS)
        """Seconds of all rounds of decisions."""
        self.waits = self.histogram(_WAITS)
        """Seconds from the creation of a pod until a node offers the slices of the pod."""


PARTITIONER_METRICS: tuple[Metric[PartitionerView], ...] = (
    single(
        "gpushare_partitioner_leads",
        "Partitioner: 1 if it holds the Lease.",
        lambda view: view.leads,
    ),
    single(
        "gpushare_partitioner_ready",
        "Partitioner: 1 if it leads and has listed all Nodes and Pods.",
        lambda view: view.ready,
    ),
    single(
        "gpushare_partitioner_nodes",
        "Partitioner: partitioned Nodes.",
        lambda view: view.nodes,
    ),
    single(
        "gpushare_partitioner_waiting_pods",
        "Partitioner: pods that wait for slices.",
        lambda view: view.waiting,
    ),
    single(
        "gpushare_partitioner_longest_wait_seconds",
        "Partitioner: age of the oldest pod that waits for slices.",
        lambda view: view.longest_wait,
    ),
    single(
        "gpushare_partitioner_slices_kept",
        "Partitioner: slices kept for waiting pods.",
        lambda view: view.kept,
    ),
    single(
        "gpushare_partitioner_nodes_unwritten",
        "Partitioner: Nodes to which decided slices could not be written.",
        lambda view: view.unwritten,
    ),
    _MADE,
    _TAKEN_BACK,
    _REFUSALS,
    _ROUNDS,
    _ROUND_SECONDS,
    single(
        "gpushare_partitioner_longest_pause_seconds",
        "Partitioner: longest pause of the event loop in the last two minutes.",
        lambda view: view.longest_pause,
    ),
    _WAITS,
    single(
        "gpushare_partitioner_cache_age_seconds",
        "Partitioner: seconds since the API server last confirmed Nodes and Pods.",
        lambda view: view.cache_age,
    ),
    Metric(
        "gpushare_partitioner_api_errors_total",
        "Partitioner: failed requests to the API server.",
        ("reason",),
        lambda view: [((kind,), count) for kind, count in view.api_errors.items()],
    ),
)
"""All metrics of the partitioner, in the order of the page."""
