"""Every metric; `python -m generators.metrics_table` writes them into `docs/metrics.md`."""

from typing import Any

from generators.pages import DOCUMENTS, with_table
from gpushare_plugin.observe.metrics.extender import EXTENDER_METRICS
from gpushare_plugin.observe.metrics.metric import Metric
from gpushare_plugin.observe.metrics.node import METRICS
from gpushare_plugin.observe.metrics.partitioner import PARTITIONER_METRICS
from gpushare_plugin.observe.metrics.web import WEB_METRICS

PAGE = DOCUMENTS / "metrics.md"


def page() -> str:
    """Return the page with its table generated again."""
    rows = [*map(_row, METRICS), *map(_row, EXTENDER_METRICS), *map(_row, PARTITIONER_METRICS), *map(_row, WEB_METRICS)]
    return with_table(PAGE, ["| metric | labels | meaning |", "|---|---|---|", *rows])


_CONTAINER = ("namespace", "pod", "container", "index", "uuid", "resource")
_GPU = ("index", "uuid")
"""Labels that many metrics begin with; the page explains the word that stands for them."""


def _row(metric: Metric[Any]) -> str:
    word, begin = next(
        (each for each in (("container", _CONTAINER), ("GPU", _GPU)) if metric.labels[: len(each[1])] == each[1]),
        ("", ()),
    )
    labels = ", ".join([*filter(None, [word]), *(f"`{label}`" for label in metric.labels[len(begin) :])])
    return f"| `{metric.name}` | {labels} | {metric.help} |"


if __name__ == "__main__":
    PAGE.write_text(page())
