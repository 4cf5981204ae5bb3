"""Every alert of the chart; `python -m generators.alerts_page` writes into `docs/alerts.md` what the rules say.

That is the first paragraph of each section: the severity, the time, and what the alert means. What to do is written in
the page alone, and the condition in the rules alone.
"""

import re
import textwrap
from collections.abc import Iterator
from typing import NamedTuple

import yaml

from generators.pages import DOCUMENTS

RULES = DOCUMENTS.parent / "charts/gpushare/files/alerts.yaml"
PAGE = DOCUMENTS / "alerts.md"

_WIDTH = 150
"""Characters of a line of the page."""

_REMEDY = "**Do:**"
"""The first word of the second paragraph of a section."""


class Alert(NamedTuple):
    """An alert: its name, severity, what it means, and its condition in PromQL.

    `wait` is for how long the condition holds before the alert fires; empty for an alert that fires at once.
    """

    name: str
    severity: str
    meaning: str
    condition: str
    wait: str

    @property
    def threshold(self) -> str | None:
        """The number that ends the condition after `>` or `<`, which the chart can replace; None where none does."""
        found = re.search(r" [<>] ([0-9][0-9 *.]*)$", self.condition)
        return found and found[1]


def alerts() -> Iterator[Alert]:
    """Yield every alert in the order of the rules."""
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        for rule in group["rules"]:
            meaning = rule["annotations"]["description"]
            yield Alert(rule["alert"], rule["labels"]["severity"], meaning, rule["expr"], rule.get("for", ""))


def page() -> str:
    """Return the page with the first paragraph of each section written again.

    Raises SystemExit where an alert has no section with a remedy: no section of another alert gets the paragraph.
    """
    text = PAGE.read_text()
    for each in alerts():
        before, heading, after = text.partition(f"\n## {each.name}\n\n")
        section, following, others = after.partition("\n## ")
        _, do, remedy = section.partition(_REMEDY)
        if not do:
            wanted = f"'## {each.name}' with '{_REMEDY}'"
            raise SystemExit(f"docs/alerts.md has no section {wanted}: write the section first")
        first = f"**{each.severity.capitalize()}, {each.wait or 'at once'}.** {each.meaning}"
        paragraph = textwrap.fill(first, _WIDTH, break_on_hyphens=False)
        text = f"{before}{heading}{paragraph}\n\n{do}{remedy}{following}{others}"
    return text


if __name__ == "__main__":
    PAGE.write_text(page())
