"""The tables of all keys of the config file.

`python -m generators.config_tables` writes them into `docs/configuration.md`.
"""

from generators.pages import DOCUMENTS, with_table
from gpushare_plugin.config.schema.reference import reference

PAGE = DOCUMENTS / "configuration.md"


def page() -> str:
    """Return the page with its tables written again."""
    return with_table(PAGE, reference().splitlines())


if __name__ == "__main__":
    PAGE.write_text(page())
