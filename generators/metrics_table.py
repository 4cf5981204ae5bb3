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


def _row(metric: Metric[Any]) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"| `{metric.name}` | {labels} | {metric.help} |"


if __name__ == "__main__":
    PAGE.write_text(page())
