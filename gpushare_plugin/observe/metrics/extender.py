"""All metrics of the scheduler extender: figures counted by the extender, and values read at a scrape."""

from collections.abc import Mapping

from gpushare_plugin.base.structs import Struct, field
from gpushare_plugin.observe.metrics.counted import Counts
from gpushare_plugin.observe.metrics.metric import Metric, single
from gpushare_plugin.packing.packed_gpus import PackedGpus


class ExtenderView(Struct, frozen=True):
    """The values of the scheduler extender that a scrape reads."""

    leads: bool
    """Whether this extender holds the Lease."""
    ready: bool
    """Whether this extender answers kube-scheduler."""
    nodes: int = 0
    """The number of Nodes on which the extender places pods."""
    promises: int = 0
    """The number of pods with promised GPUs that were not seen as bound yet."""
    cache_age: float | None = None
    """Seconds since the API server last confirmed the Nodes and Pods; None until all are listed."""
    certificate_end: float | None = None
    """When the certificates of HTTPS end, in seconds since 1970; None over plain HTTP."""
    api_errors: Mapping[str, int] = field(default_factory=dict)
    """The number of failed requests to the API server, by kind."""
    longest_pause: float = 0.0
    """The longest recent pause of the event loop, in seconds."""
    packed: PackedGpus | None = None
    """The GPUs that the policy `packing` packs; None by another policy, and while this extender does not answer."""


_REQUESTS = Metric[ExtenderView](
    "gpushare_extender_requests_total",
    "Scheduler extender: requests by verb and result: done, refused, or failed (a defect).",
    ("verb", "result"),
)
_REFUSALS = Metric[ExtenderView](
    "gpushare_extender_refusals_total",
    "Scheduler extender: refused pods: no_room (others have the units), unfit (no such GPU), not_leading, bind_failed.",
    ("reason",),
)
_DURATIONS = Metric[ExtenderView](
    "gpushare_extender_request_duration_seconds",
    "Scheduler extender: durations of requests by verb and HTTP status.",
    ("verb", "code"),
    # By default, kube-scheduler waits 5 s for an answer.
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0),
)

_REASONS = ("no_room", "unfit", "not_leading", "bind_failed")
"""Why pods are refused: other pods hold the units; no node could ever fit; no extender leads; a binding failed."""


class ExtenderCounts(Counts):
    """The figures counted by a scheduler extender since its start."""

    def __init__(self) -> None:
        """Begin at zero."""
        super().__init__()
        self.requests = self.counter(_REQUESTS)
        """Answered requests, by verb and result."""
        self.refusals = self.counter(_REFUSALS)
        """Refused pods, by reason."""
        self.durations = self.histogram(_DURATIONS)
        """Seconds until the answer, by verb and HTTP status."""
        for reason in _REASONS:
            self.refusals.labels(reason)


EXTENDER_METRICS: tuple[Metric[ExtenderView], ...] = (
    single(
        "gpushare_extender_leads",
        "Scheduler extender: 1 if it holds the Lease.",
        lambda view: view.leads,
    ),
    single(
        "gpushare_extender_ready",
        "Scheduler extender: 1 if it leads and has listed all Nodes and Pods.",
        lambda view: view.ready,
    ),
    single(
        "gpushare_extender_nodes",
        "Scheduler extender: Nodes for pods with GPUs.",
        lambda view: view.nodes,
    ),
    single(
        "gpushare_extender_promises",
        "Scheduler extender: pods with promised GPUs, not yet seen as bound.",
        lambda view: view.promises,
    ),
    single(
        "gpushare_extender_gpus",
        "Scheduler extender, policy packing: usable GPUs that are whole or shared by memory.",
        lambda view: None if view.packed is None else view.packed.gpus,
    ),
    single(
        "gpushare_extender_gpus_allocated",
        "Scheduler extender, policy packing: part of these GPUs that is held or promised, in GPUs.",
        lambda view: None if view.packed is None else view.packed.allocated,
    ),
    single(
        "gpushare_extender_gpus_stranded",
        "Scheduler extender, policy packing: free and of no use, in GPUs: too small, or without CPU or memory.",
        lambda view: None if view.packed is None else view.packed.stranded,
    ),
    single(
        "gpushare_extender_gpus_too_small",
        "Scheduler extender, policy packing: free in pieces too small for recent pods, in GPUs.",
        lambda view: None if view.packed is None else view.packed.too_small,
    ),
    _REQUESTS,
    _REFUSALS,
    single(
        "gpushare_extender_cache_age_seconds",
        "Scheduler extender: seconds since the API server last confirmed Nodes and Pods.",
        lambda view: view.cache_age,
    ),
    Metric(
        "gpushare_extender_api_errors_total",
        "Scheduler extender: failed requests to the API server.",
        ("reason",),
        lambda view: [((kind,), count) for kind, count in view.api_errors.items()],
    ),
    single(
        "gpushare_extender_longest_pause_seconds",
        "Scheduler extender: longest pause of the event loop in the last two minutes.",
        lambda view: view.longest_pause,
    ),
    _DURATIONS,
    single(
        "gpushare_extender_certificate_expiration_timestamp_seconds",
        "Scheduler extender: when the HTTPS certificate ends.",
        lambda view: view.certificate_end,
    ),
)
"""All metrics of the scheduler extender, in the order of the page."""
