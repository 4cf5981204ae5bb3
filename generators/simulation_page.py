"""The tables of all keys of simulated GPUs.

`python -m generators.simulation_page` writes them into `docs/simulation.md`.
"""

from generators.pages import DOCUMENTS, with_table
from gpushare_plugin.config.schema.reference import reference
from gpushare_plugin.gpus.simulated import SimulatedNode

PAGE = DOCUMENTS / "simulation.md"


def page() -> str:
    """Return the page with its tables written again."""
    return with_table(PAGE, reference(SimulatedNode).splitlines())


if __name__ == "__main__":
    PAGE.write_text(page())
