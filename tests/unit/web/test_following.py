"""What pages follow: a cluster that several processes show, one after another or side by side."""

import re
from pathlib import Path

import aiohttp

from gpushare_plugin.base.tasks import beside
from gpushare_plugin.kube.client import NODES, Client
from gpushare_plugin.testing.cluster import ApiServer
from gpushare_plugin.web.following import FollowedPicture
from tests.unit.web.visited import a_cluster, asked, visited
from tests.waiting import until


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


async def test_what_was_deleted_between_two_followings_is_shown_no_longer(tmp_path: Path) -> None:
    """A program that has to begin again shows the cluster as it is then."""
    async with ApiServer() as server, Client(server.kubeconfig(tmp_path / "config")) as client:
        a_cluster(server)
        followed = FollowedPicture()
        async with beside(followed.follow(client)) as following:
            await followed.shown.wait()
            following.cancel()
        assert "gpu-1" in followed.picture.nodes
        server.store.delete(NODES, "gpu-1")
        async with beside(followed.follow(client)) as following:
            await until(lambda: dict(followed.picture.nodes) == {})
            following.cancel()
        assert dict(followed.judged.account.nodes) == {}
