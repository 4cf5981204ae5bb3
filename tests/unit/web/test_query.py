"""What the address of a map asks for, and which GPUs are then shown."""

import re

import pytest

from gpushare_plugin.claims.cluster import ClusterClaims
from gpushare_plugin.web.pages import Pages
from gpushare_plugin.web.picture import Picture
from gpushare_plugin.web.query import Query
from gpushare_plugin.web.viewer import EVERYTHING, Viewer
from tests.unit.observe.cluster.clusters import Cluster, gpu, recorded


@pytest.fixture
def picture() -> Picture:
    """Return the picture of a node of two models with a pod, and of a cordoned node of a pool."""
    cluster, made = Cluster(), Picture()
    cluster.node("a", recorded(gpu("a", 0, product="NVIDIA A100"), gpu("a", 1, product="NVIDIA A10")))
    cluster.pod("held", 6, "a", on=0, namespace="red")
    labels = {"node.kubernetes.io/instance-type": "large", "karpenter.sh/nodepool": "spot"}
    cluster.node("b", recorded(gpu("b", 0, product="NVIDIA A100")), unschedulable=True, labels=labels)
    made.refresh(cluster.account, ClusterClaims())
    return made


async def map_of(picture: Picture, address: dict[str, str], viewer: Viewer = EVERYTHING) -> str:
    """Return the map of an address."""
    return "".join(await Pages(picture).map(Query.of(address), viewer))


async def tiles_on(picture: Picture, address: dict[str, str], viewer: Viewer = EVERYTHING) -> list[str]:
    """Return the addresses of the tiles on the map of an address."""
    page = await map_of(picture, address, viewer)
    return re.findall(r'class="tile [^"]*" href="/nodes/([^"]*)"', page)


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ({}, ["a#gpu-0", "a#gpu-1", "b#gpu-0"]),
        ({"node": "b"}, ["b#gpu-0"]),
        ({"model": "a10"}, ["a#gpu-1"]),
        ({"namespace": "red"}, ["a#gpu-0"]),
        ({"free": "10"}, ["a#gpu-1"]),
        ({"free": "9GiB"}, ["a#gpu-0", "a#gpu-1"]),
        ({"free": "10 gib"}, ["a#gpu-1"]),
        ({"free": "9216MiB", "model": "A100"}, ["a#gpu-0"]),
        ({"state": "cordoned"}, ["b#gpu-0"]),
        ({"state": "faulty"}, []),
        ({"group": "model"}, ["a#gpu-1", "a#gpu-0", "b#gpu-0"]),
    ],
)
async def test_only_gpus_that_meet_all_filters_are_on_the_map(
    picture: Picture, address: dict[str, str], shown: list[str]
) -> None:
    """A model is meant by whole words, and a cordoned node has nothing free."""
    assert await tiles_on(picture, address) == shown


async def test_faulty_gpus_are_found_on_cordoned_nodes() -> None:
    """A fault counts though the node is cordoned: the tile has the border of a fault, and says both."""
    cluster, made = Cluster(), Picture()
    sick = gpu("a", 1, healthy=False, reason="XID 79")
    cluster.node("a", recorded(gpu("a", 0), sick), unschedulable=True)
    made.refresh(cluster.account, ClusterClaims())
    assert await tiles_on(made, {"state": "faulty"}) == ["a#gpu-1"]
    page = await map_of(made, {"state": "faulty"})
    assert "node cordoned; unhealthy: XID 79" in page
    assert re.findall('class="tile ([^"]*)" href', page) == ["h0 bad"]
    assert "<h1>1 faulty GPU on 1 node</h1>" in page


async def test_a_namespace_that_a_viewer_may_not_see_is_found_by_nobody(picture: Picture) -> None:
    """Not even that the namespace has units of a GPU."""
    stranger = Viewer("alice", frozenset({"blue"}))
    assert await tiles_on(picture, {"namespace": "red"}, stranger) == []


async def test_nodes_stand_with_those_of_their_pool(picture: Picture) -> None:
    """The label of the cloud comes before the type of the machine; a node without a label is in no pool."""
    page = await map_of(picture, {"group": "pool"})
    assert re.findall("<h2>(.*)</h2>", page) == ["no pool", "spot"]


async def test_an_address_that_is_not_understood_shows_everything(picture: Picture) -> None:
    """The page says what is wrong with the amount; a text is as long as a name can be."""
    query = Query.of({"group": "x", "size": "huge", "free": "much", "node": "n" * 1000})
    assert (query.group, query.size, len(query.node)) == ("node", "medium", 253)
    page = await map_of(picture, {"free": "much"})
    assert "found &#39;much&#39;, expected a number of units" in page
    assert await tiles_on(picture, {"free": "much"}) == ["a#gpu-0", "a#gpu-1", "b#gpu-0"]


async def test_a_page_says_that_no_gpu_meets_the_filters(picture: Picture) -> None:
    """And not that the cluster shares no GPUs."""
    page = await map_of(picture, {"model": "H100"})
    assert "No GPU of this cluster meets all filters." in page
    assert "gpushare/gpus" not in page
