"""All metrics of the pages in a cluster: figures counted by the program, and values read at a scrape."""

from collections.abc import Mapping

from gpushare_plugin.base.structs import Struct
from gpushare_plugin.observe.metrics.counted import Counts
from gpushare_plugin.observe.metrics.metric import Metric, single


class WebView(Struct, frozen=True):
    """The values of the pages that a scrape reads."""

    nodes: int
    """The number of nodes that the pages show."""
    visitors: int
    """The number of users that are known."""
    api_errors: Mapping[str, int]
    """The number of failed requests to the API server, by kind."""
    longest_pause: float
    """The longest recent pause of the event loop, in seconds."""


_REVIEWS = Metric[WebView](
    "gpushare_web_reviews_total",
    "Pages: reviews of users: allowed, forbidden, unknown (no such token), failed (no answer), busy (too many).",
    ("result",),
)


class WebCounts(Counts):
    """The figures counted by the pages since the start of the program."""

    def __init__(self) -> None:
        """Begin at zero."""
        super().__init__()
        self.reviews = self.counter(_REVIEWS)
        """The reviewed users, by result."""


WEB_METRICS: tuple[Metric[WebView], ...] = (
    single("gpushare_web_nodes", "Pages: Nodes shown.", lambda view: view.nodes),
    single("gpushare_web_visitors", "Pages: known users.", lambda view: view.visitors),
    _REVIEWS,
    single(
        "gpushare_web_longest_pause_seconds",
        "Pages: longest pause of the event loop in the last two minutes.",
        lambda view: view.longest_pause,
    ),
    Metric(
        "gpushare_web_api_errors_total",
        "Pages: failed requests to the API server.",
        ("reason",),
        lambda view: [((kind,), count) for kind, count in view.api_errors.items()],
    ),
)
"""All metrics of the pages, in the order of the page."""
