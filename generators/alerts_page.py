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
    """Return the page with the first paragraph of each section written again."""
    text = PAGE.read_text()
    for each in alerts():
        before, heading, section = text.partition(f"\n## {each.name}\n\n")
        _, blank, after = section.partition("\n\n")
        first = f"**{each.severity.capitalize()}, {each.wait or 'at once'}.** {each.meaning}"
        text = before + heading + textwrap.fill(first, _WIDTH, break_on_hyphens=False) + blank + after
    return text


if __name__ == "__main__":
    PAGE.write_text(page())
