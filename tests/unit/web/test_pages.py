"""Maps of many nodes: how they are made beside other work."""

import asyncio
import re

from gpushare_plugin.claims.cluster import ClusterClaims
from gpushare_plugin.web.pages import Pages
from gpushare_plugin.web.picture import Picture
from gpushare_plugin.web.query import Query
from gpushare_plugin.web.viewer import EVERYTHING
from tests.unit.observe.cluster.clusters import Cluster, gpu, recorded

NODES = 200


async def test_a_change_while_a_map_is_made_is_sent_afterwards() -> None:
    """Other work has its turn between nodes; the page asks for all changes since the moment when making it began."""
    cluster, picture = Cluster(), Picture()
    for number in range(NODES):
        cluster.node(f"node-{number:03}", recorded(gpu(f"node-{number:03}", 0)))
    picture.refresh(cluster.account, ClusterClaims())
    began = picture.revision.value
    making = asyncio.create_task(Pages(picture).map(Query(), EVERYTHING))
    await asyncio.sleep(0)
    assert not making.done()
    cluster.pod("new", 3, "node-000", on=0)
    picture.refresh(cluster.account, ClusterClaims())
    page = await making
    assert re.findall("since=([0-9]+)", page) == [str(began)]
    assert [each.use.name for each in picture.changed_since(began)] == ["node-000"]
