"""Every Kubernetes Event; `python -m generators.events_table` writes them into `docs/events.md`."""

from generators.pages import DOCUMENTS, with_table
from gpushare_plugin.observe.events import EVENTS, EventKind

PAGE = DOCUMENTS / "events.md"


def page() -> str:
    """Return the page with its table generated again."""
    return with_table(
        PAGE, ["| reason | type | on | meaning | what to do |", "|---|---|---|---|---|", *map(_row, EVENTS)]
    )


def _row(kind: EventKind) -> str:
    return f"| `{kind.reason}` | {kind.type} | {kind.about} | {kind.meaning} | {kind.remedy} |"


if __name__ == "__main__":
    PAGE.write_text(page())
