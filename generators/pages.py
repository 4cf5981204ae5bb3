"""Pages of the documentation that have a table generated from the code, between two comments."""

from collections.abc import Iterable
from pathlib import Path

DOCUMENTS = Path(__file__).parent.parent / "docs"

_BEGIN, _END = "<!-- table -->\n", "<!-- end of table -->\n"


def names_as_code(names: Iterable[str]) -> str:
    """Return names as code, with commas between them."""
    return ", ".join(f"`{name}`" for name in names)


def with_table(page: Path, rows: list[str]) -> str:
    """Return the text of a page with these rows as its table."""
    text = page.read_text()
    table = "\n".join(rows)
    return f"{text[: text.index(_BEGIN)]}{_BEGIN}\n{table}\n\n{text[text.index(_END) :]}"
