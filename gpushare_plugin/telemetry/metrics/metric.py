"""What a metric is; without Prometheus' library, which the daemon of a node imports in a thread only."""

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from gpushare_plugin.foundation.structs import Struct
from gpushare_plugin.model.resource import Durations

V = TypeVar("V")

Sample = tuple[tuple[str, ...], float | Durations]
"""The values of a metric's labels, and its own."""


class Metric(Struct, Generic[V], frozen=True):
    """A metric of a program.

    `name` follows Prometheus' conventions, from which the type follows.
    `help` is one line for people.
    `labels` are the names of the labels.
    `samples` returns the current values from what a scrape shows; none of a metric that the program counts itself.
    `buckets` are the upper bounds of a histogram that the program counts, in seconds.
    """

    name: str
    help: str
    labels: tuple[str, ...] = ()
    samples: Callable[[V], Iterable[Sample]] = lambda _view: ()
    buckets: tuple[float, ...] = ()

    @property
    def type(self) -> str:
        """The type of the metric, in Prometheus' words."""
        if self.name.endswith("_duration_seconds"):
            return "histogram"
        return {"total": "counter", "info": "info"}.get(self.name.rpartition("_")[-1], "gauge")


def single(name: str, help_: str, value: Callable[[V], float | None]) -> Metric[V]:
    """Return a metric without labels that has one value, or no sample while the value is None."""

    def samples(view: V) -> Iterable[Sample]:
        return [] if (found := value(view)) is None else [((), found)]

    return Metric(name, help_, samples=samples)
