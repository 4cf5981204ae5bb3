"""What axe-core finds wrong with the pages for people who use a keyboard, a screen reader, or see less contrast."""

from importlib.resources import files
from importlib.util import find_spec

import pytest
from playwright.async_api import Browser

from tests.browser.views import SCHEMES, Scheme, shown_cluster, visit, without

_PACKAGE = "axe_playwright_python"


def axe() -> str:
    """Return the program of axe-core, in the package `axe-playwright-python`."""
    if find_spec(_PACKAGE) is None:
        without("the package axe-playwright-python")
    return (files(_PACKAGE) / "axe.min.js").read_text()


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_axe_finds_nothing_in_any_view(chromium: Browser, scheme: Scheme) -> None:
    """In light and in dark, also on a telephone: no rule of WCAG 2.2 AA, and no best practice, is broken."""
    program, found = axe(), list[str]()
    async with shown_cluster(6) as address:
        page = await chromium.new_page()
        await page.goto(address)
        async for view in visit(page, address, scheme):
            await page.evaluate(program)
            for broken in (await page.evaluate("axe.run()"))["violations"]:
                places = [each["html"][:200] for each in broken["nodes"]]
                found.append(f"{view.name}: {broken['id']}: {broken['help']}: {places[:3]}")
        await page.close()
    assert found == []
