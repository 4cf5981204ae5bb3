"""Maps of many nodes: how they are made beside other work."""

import asyncio
import re

import pytest

from gpushare_plugin.base.structs import replace
from gpushare_plugin.claims.cluster import ClusterClaims
from gpushare_plugin.web.pages import Pages
from gpushare_plugin.web.picture import Picture
from gpushare_plugin.web.query import Query
from gpushare_plugin.web.viewer import EVERYTHING
from tests.unit.observe.cluster.clusters import Cluster, gpu, recorded

NODES = 200
SAMPLES = 6
"""The tiles of the legend."""


@pytest.fixture
def cluster() -> Cluster:
    """Return a cluster of many nodes."""
    made = Cluster()
    for number in range(NODES):
        made.node(f"node-{number:03}", recorded(gpu(f"node-{number:03}", 0)))
    return made


@pytest.fixture
def picture(cluster: Cluster) -> Picture:
    """Return the picture of the cluster."""
    made = Picture()
    made.refresh(cluster.account, ClusterClaims())
    return made


def change(cluster: Cluster, picture: Picture) -> None:
    """Have a pod on the last node."""
    cluster.pod("new", 3, f"node-{NODES - 1}", on=0)
    picture.refresh(cluster.account, ClusterClaims())


def check(page: str, began: int, picture: Picture) -> None:
    """Check that a page of a moment has no later change, and asks for all of them."""
    assert (page.count('class="tile '), page.count('aria-label="GPU 0: 0 of 15 GiB"')) == (NODES + SAMPLES, NODES)
    assert re.findall("since=([0-9]+)", page) == [str(began)]
    assert [each.use.name for each in picture.changed_since(began)] == [f"node-{NODES - 1}"]


async def test_rows_are_made_while_a_map_is_sent(cluster: Cluster, picture: Picture) -> None:
    """The first part is there before the last row is made; a change meanwhile is sent with the updates."""
    began = picture.revision.value
    parts = await Pages(picture).map(Query(), EVERYTHING)
    first = next(parts)
    change(cluster, picture)
    check(first + "".join(parts), began, picture)


async def test_other_work_has_its_turn_while_nodes_are_grouped(cluster: Cluster, picture: Picture) -> None:
    """A change meanwhile is sent with the updates."""
    began = picture.revision.value
    making = asyncio.create_task(Pages(picture).map(Query.of({"group": "model"}), EVERYTHING))
    await asyncio.sleep(0)
    assert not making.done()
    change(cluster, picture)
    check("".join(await making), began, picture)


async def test_groups_of_a_node_have_an_id_each() -> None:
    """Without spaces, also where names of models differ by a space alone: else each change loads the map anew."""
    cluster, picture = Cluster(), Picture()
    cluster.node(
        "a", recorded(*(replace(gpu("a", at), product=name) for at, name in enumerate(("A B", "A-B", "A%20B"))))
    )
    picture.refresh(cluster.account, ClusterClaims())
    rows = Pages(picture).rows(picture.nodes["a"], Query(group="model"), EVERYTHING)
    assert (len(rows), len({row.id for row in rows})) == (3, 3)
    assert not any(" " in row.id for row in rows)


async def test_the_form_of_a_map_is_that_of_its_address() -> None:
    """A browser puts no older choice into the form on the way back; the labels say how a name has to be written."""
    page = "".join(await Pages(Picture()).map(Query(), EVERYTHING))
    assert '<form class="choices" method="get" action="/" autocomplete="off">' in page
    assert ("Nodes with (case counts)" in page, "Namespace (whole name)" in page) == (True, True)
