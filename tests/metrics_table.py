"""Every metric; `python -m tests.metrics_table` writes them into `docs/metrics.md`."""

from pathlib import Path

from gpushare_plugin.metrics import METRICS, Metric

PAGE = Path(__file__).parent.parent / "docs" / "metrics.md"

_BEGIN, _END = "<!-- table -->\n", "<!-- end of table -->\n"


def page() -> str:
    """Return the page with the table of today."""
    text = PAGE.read_text()
    table = "\n".join(["| metric | type | labels | meaning |", "|---|---|---|---|", *map(_row, METRICS)])
    return f"{text[: text.index(_BEGIN)]}{_BEGIN}\n{table}\n\n{text[text.index(_END) :]}"


def _row(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"| `{metric.name}` | {metric.type} | {labels} | {metric.help} |"


if __name__ == "__main__":
    PAGE.write_text(page())
