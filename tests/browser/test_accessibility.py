"""What axe-core finds wrong with the pages for people who use a keyboard, a screen reader, or see less contrast."""

from urllib.parse import urlsplit

import pytest
from playwright.async_api import Browser

from tests.browser.views import SCHEMES, TELEPHONE, VIEWS, Scheme, broken_rules, shown_cluster, too_wide, visit


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_axe_finds_nothing_in_any_view(chromium: Browser, scheme: Scheme) -> None:
    """In light and in dark no rule of WCAG 2.2 AA, and no best practice, is broken, on a telephone neither.

    On a telephone nothing is wider than the screen, but what scrolls by itself.
    """
    found = list[str]()
    async with shown_cluster(6) as address:
        page = await chromium.new_page()
        await page.goto(address)
        async for view in visit(page, address, scheme):
            found += [f"{view.name}: {each}" for each in await broken_rules(page)]
            await page.set_viewport_size({"width": TELEPHONE, "height": 700})
            found += [f"{view.name} on a telephone: {each}" for each in await too_wide(page)]
            if scheme == "light" and view.width != TELEPHONE:
                found += [f"{view.name} on a telephone: {each}" for each in await broken_rules(page)]
        await page.close()
    assert found == []


async def test_every_page_is_a_view(chromium: Browser) -> None:
    """The pages that the head of each page leads to are among the views, which axe and the pictures are of."""
    async with shown_cluster(1) as address:
        page = await chromium.new_page()
        await page.goto(address)
        links = (
            await page.get_by_role("navigation", name="Pages")
            .get_by_role("link")
            .evaluate_all("links => links.map((link) => link.pathname)")
        )
        await page.close()
    assert set(links) <= {urlsplit(view.path).path for view in VIEWS}
