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
    "Pages: users of whom the API server was asked who they are and what they may see: allowed, forbidden (without the "
    "right to see the pages), unknown (no user has the token), failed (no answer), busy (too many at the same time).",
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
    single("gpushare_web_nodes", "Pages: Nodes that are shown.", lambda view: view.nodes),
    single("gpushare_web_visitors", "Pages: users that are known.", lambda view: view.visitors),
    _REVIEWS,
    single(
        "gpushare_web_longest_pause_seconds",
        "Pages: the longest time in the last minute or two in which the event loop could do nothing else.",
        lambda view: view.longest_pause,
    ),
    Metric(
        "gpushare_web_api_errors_total",
        "Pages: requests to the API server that failed, with the reasons of gpushare_api_errors_total.",
        ("reason",),
        lambda view: [((kind,), count) for kind, count in view.api_errors.items()],
    ),
)
"""All metrics of the pages, in the order of the page."""
