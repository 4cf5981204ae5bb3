"""The picture of docs/packing.md, from a real Chromium; `make simulation-picture` makes it anew."""

import asyncio
import shlex
import tempfile
from pathlib import Path

from tests.browser.views import PICTURES, running_chromium
from tests.process.daemon import gpushare

PAGE = Path(__file__).parents[2] / "docs" / "packing.md"


def shown_command() -> list[str]:
    """Return the words of the command on the page whose output is shown there."""
    (line,) = [line for line in PAGE.read_text().splitlines() if line.endswith("-o html > report.html")]
    return shlex.split(line.removesuffix(" > report.html"))[1:]


async def make_picture(report: Path) -> None:
    """Make the picture of the first curves of a report."""
    async with running_chromium() as browser:
        page = await browser.new_page(viewport={"width": 800, "height": 1200})
        await page.goto(report.as_uri())
        await page.locator("svg").first.screenshot(path=PICTURES / "simulation.png")


def main() -> None:
    """Run the command of the page, and make the picture of what the command shows."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.html")
        report.write_text(asyncio.run(gpushare(*shown_command())).output)
        asyncio.run(make_picture(report))


if __name__ == "__main__":
    main()
