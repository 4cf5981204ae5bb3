"""Every panel of the dashboard in `docs/dashboard.md`, with what Grafana says beside its title."""

from generators.dashboard.rows import ROWS
from generators.pages import DOCUMENTS, with_table

PAGE = DOCUMENTS / "dashboard.md"


def page() -> str:
    """Return the page with its table generated again."""
    rows = (f"| {row} | {panel.title} | {panel.description} |" for row, panels in ROWS.items() for panel in panels)
    return with_table(PAGE, ["| row | panel | what it shows |", "|---|---|---|", *rows])
