"""Why claims are not prepared; `python -m generators.refusals_table` writes the table into `docs/claims.md`."""

from generators.pages import DOCUMENTS, with_table
from gpushare_plugin.claims.refusals import REFUSALS

PAGE = DOCUMENTS / "claims.md"


def page() -> str:
    """Return the page with its table generated again."""
    rows = (f"| `{reason}` | {each.meaning} | {each.remedy} |" for reason, each in REFUSALS.items())
    return with_table(PAGE, ["| reason | meaning | what to do |", "|---|---|---|", *rows])


if __name__ == "__main__":
    PAGE.write_text(page())
