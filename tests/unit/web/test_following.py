"""What pages follow: a cluster that several processes show, one after another or side by side."""

import re
from pathlib import Path

import aiohttp

from gpushare_plugin.testing.cluster import ApiServer
from tests.unit.web.visited import a_cluster, asked, visited


async def test_a_page_of_another_process_is_loaded_again(tmp_path: Path) -> None:
    """What the page has seen is no revision of this process, whichever numbers both have reached."""
    async with ApiServer() as server:
        a_cluster(server)
        async with visited(server, tmp_path) as before:
            _, page = await asked(before, "token-of-olga")
        (seen,) = re.findall('data-updates="([^"]+)"', page)
        headers = {"Authorization": "Bearer token-of-olga"}
        async with (
            visited(server, tmp_path) as address,
            aiohttp.ClientSession(headers=headers) as session,
            session.get(address + seen.replace("&amp;", "&")) as stream,
        ):
            assert b"event: load" in await stream.content.readuntil(b"\n\n")
