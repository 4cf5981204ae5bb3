"""What a panel is, and how each kind of panel is made."""

from collections.abc import Mapping
from typing import NamedTuple

from generators.dashboard.promql import buckets, greatest, least

STATUS = frozenset({"stat", "gauge"})
"""The kinds of panels that show the last number alone, with a color."""


class Query(NamedTuple):
    """What a panel asks Prometheus."""

    promql: str
    """The query, with variables of the dashboard."""
    name: str = ""
    """What names a series, with its labels in braces; in a table the heading of the column."""
    unit: str = ""
    """The unit of the column of a table, as Grafana calls it."""


class Panel(NamedTuple):
    """A panel of the dashboard."""

    title: str
    """The title."""
    description: str
    """What Grafana shows beside the title; alerts that it names become links where the chart knows their page."""
    queries: tuple[Query, ...]
    """One query; of a table one for each column."""
    unit: str = "short"
    """The unit, as Grafana calls it."""
    width: int = 8
    """The columns of the 24 of Grafana's grid."""
    kind: str = "timeseries"
    """Grafana's type of panel."""
    most: float | None = None
    """The end of the axis; None for that of the largest value."""
    wrong_from: float | None = None
    """The number from which on something is wrong, which is red; None where no number is good or bad."""
    by: Mapping[str, str] = {}
    """The headings of the columns of a table that are labels, by label; a row is what has the same labels."""


def lines(  # noqa: PLR0913 - what a panel is made of
    title: str,
    description: str,
    promql: str,
    name: str = "",
    unit: str = "short",
    *,
    most: float | None = None,
    low_is_wrong: bool = False,
) -> Panel:
    """Return a panel with lines over time: of all series those 20 that were highest, or lowest where that is wrong."""
    shown = least(promql) if low_is_wrong else greatest(promql)
    return Panel(title, description, (Query(shown, name),), unit, most=most)


def few_lines(title: str, description: str, promql: str, name: str = "", unit: str = "short") -> Panel:
    """Return a panel with lines over time, of which there are few in any cluster."""
    return Panel(title, description, (Query(promql, name),), unit)


def number(title: str, description: str, promql: str, *, wrong_from: float | None = None) -> Panel:
    """Return a panel with one number."""
    return Panel(title, description, (Query(promql),), "none", 4, "stat", wrong_from=wrong_from)


def gauge(title: str, description: str, promql: str, name: str = "") -> Panel:
    """Return a panel with parts of a whole."""
    return Panel(title, description, (Query(promql, name),), "percentunit", 4, "gauge", most=1)


def table(title: str, description: str, by: Mapping[str, str], *columns: Query, width: int = 24) -> Panel:
    """Return a panel with a table: the headings of labels, and the columns with values."""
    return Panel(title, description, columns, width=width, kind="table", by=by)


def heat_map(title: str, description: str, ratio: str) -> Panel:
    """Return a panel with how many of the series of a ratio are in which fifth, over time."""
    return Panel(title, description, (Query(buckets(ratio), "{{le}}"),), "percentunit", 12, "heatmap")
