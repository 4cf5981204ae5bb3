"""The panels of each row of the dashboard in `docs/dashboard.md`; Grafana shows what each panel means."""

from generators.dashboard.rows import ROWS
from generators.pages import DOCUMENTS, with_table

PAGE = DOCUMENTS / "dashboard.md"


def page() -> str:
    """Return the page with its table generated again."""
    rows = (f"| {row} | {'; '.join(panel.title for panel in panels)} |" for row, panels in ROWS.items())
    return with_table(PAGE, ["| row | panels |", "|---|---|", *rows])
