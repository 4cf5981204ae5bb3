"""Pages that are sent in parts, over a real connection."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from gpushare_plugin.observe.http.connections import listening
from gpushare_plugin.web.sending import in_parts
from gpushare_plugin.web.server import LIMITS
from tests.logs import logged

LINE = "a line of the page\n"
LINES = 1_000_000
FEW = 10_000


@asynccontextmanager
async def served(page: Callable[[], Iterator[str]]) -> AsyncIterator[str]:
    """Serve a page, and yield the address."""

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        return in_parts(request, page())

    async with listening("127.0.0.1:0", answer, LIMITS) as port:
        yield f"http://127.0.0.1:{port}/"


@pytest.mark.parametrize("encoding", ["gzip, deflate", "identity"])
async def test_what_is_sent_can_be_read_before_the_rest_is_made(encoding: str) -> None:
    """The page ends once its first line has been read, and the whole page is what was made."""
    read, made = asyncio.Event(), 0

    def lines() -> Iterator[str]:
        nonlocal made
        while not read.is_set() and made < LINES:
            made += 1
            yield LINE

    headers = {"Accept-Encoding": encoding}
    async with (
        served(lines) as address,
        aiohttp.ClientSession(headers=headers) as session,
        session.get(address) as answer,
    ):
        first = await answer.content.readexactly(len(LINE))
        read.set()
        assert first + await answer.read() == LINE.encode() * made
        assert made < LINES
        assert answer.headers.get("Content-Encoding") == ("gzip" if "gzip" in encoding else None)


async def test_half_a_page_is_not_taken_for_the_whole() -> None:
    """A defect in the middle ends the connection, and is logged."""

    def lines() -> Iterator[str]:
        yield from [LINE] * FEW
        raise ValueError("a defect")

    with logged() as log:
        async with served(lines) as address, aiohttp.ClientSession() as session, session.get(address) as answer:
            with pytest.raises(aiohttp.ClientPayloadError):
                await answer.read()
    assert [(each["event"], each["path"]) for each in log] == [("page_failed", "/")]
