"""Every Kubernetes Event; `python -m generators.events_table` writes them into `docs/events.md`."""

from collections.abc import Iterator

from generators.pages import DOCUMENTS, with_table
from gpushare_plugin.observe.events import EVENTS, EventKind

PAGE = DOCUMENTS / "events.md"


def page() -> str:
    """Return the page with its tables generated again."""
    return with_table(PAGE, list(_tables())[:-1])


def _tables() -> Iterator[str]:
    """Yield tables of the Events on Nodes and on pods, first of warnings and then of news."""
    for pods, objects in ((False, "Node"), (True, "pod")):
        kinds = [kind for kind in EVENTS if (kind.about != "Node") is pods]
        yield from (f"| Warning on the {objects} | meaning | what to do |", "|---|---|---|")
        yield from (f"| `{each.reason}` | {each.meaning} | {each.remedy} |" for each in kinds if each.type == "Warning")
        yield from ("", f"| Normal on the {objects} | meaning |", "|---|---|")
        yield from (f"| `{each.reason}` | {_told(each)} |" for each in kinds if each.type == "Normal")
        yield ""


def _told(kind: EventKind) -> str:
    return f"{kind.meaning} {kind.remedy}".rstrip()


if __name__ == "__main__":
    PAGE.write_text(page())
