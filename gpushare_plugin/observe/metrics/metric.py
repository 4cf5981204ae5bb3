"""Definition of a metric, without Prometheus' library: the daemon of a node imports the library in a thread only."""

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from gpushare_plugin.base.structs import Struct
from gpushare_plugin.core.resource import Durations

V = TypeVar("V")

Sample = tuple[tuple[str, ...], float | Durations]
"""The values of a metric's labels, and the value of the metric."""


class Metric(Struct, Generic[V], frozen=True):
    """A metric of a program."""

    name: str
    """The name, by Prometheus' conventions; the type of the metric follows from the name."""
    help: str
    """The meaning for people, in one line."""
    labels: tuple[str, ...] = ()
    """The names of the labels."""
    samples: Callable[[V], Iterable[Sample]] = lambda _view: ()
    """Returns the current values from the view of a scrape; nothing for a metric counted by the program itself."""
    buckets: tuple[float, ...] = ()
    """The upper bounds of a histogram counted by the program, in seconds."""

    @property
    def type(self) -> str:
        """The type of the metric, in Prometheus' words."""
        if self.name.endswith("_duration_seconds"):
            return "histogram"
        return {"total": "counter", "info": "info"}.get(self.name.rpartition("_")[-1], "gauge")


def single(name: str, help_: str, value: Callable[[V], float | None]) -> Metric[V]:
    """Return a metric without labels and with one value; no sample while `value` returns None."""

    def samples(view: V) -> Iterable[Sample]:
        return [] if (found := value(view)) is None else [((), found)]

    return Metric(name, help_, samples=samples)
