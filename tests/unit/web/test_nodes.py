"""The page of all nodes."""

import re

from gpushare_plugin.base.structs import replace
from gpushare_plugin.claims.cluster import ClusterClaims
from gpushare_plugin.web.node_lines import node_line
from gpushare_plugin.web.nodes_page import NodesPage
from gpushare_plugin.web.picture import Picture
from tests.unit.observe.cluster.clusters import Cluster, gpu, recorded
from tests.unit.web.test_random_cluster import Words


def pictured(cluster: Cluster) -> Picture:
    """Return the picture of a cluster."""
    picture = Picture()
    picture.refresh(cluster.account, ClusterClaims())
    return picture


def test_a_line_has_what_is_held_and_the_largest_free_piece() -> None:
    """Amounts are those of the resource, and how GPUs are shared is what the record says."""
    cluster = Cluster()
    cluster.node("a", recorded(gpu("a", 0), gpu("a", 1), notices=("one", "two", "three", "four")))
    cluster.pod("held", 5, "a", on=0)
    line = node_line(pictured(cluster).nodes["a"].use)
    (shared,) = line.shared
    assert (shared.held, shared.units, shared.free, shared.largest, shared.unit) == (5, 30, 25, 15, "GiB")
    assert (shared.modes, line.gpus, line.models) == (("memory",), 2, (("NVIDIA A100-SXM4-40GB", 2),))
    assert (line.states, line.daemon, line.notices, line.more_notices) == ((), "unknown", ("one", "two", "three"), 1)


def test_free_is_what_new_pods_can_get() -> None:
    """Nothing of a cordoned node; units of a pod whose GPU is unknown are free on no GPU."""
    cluster = Cluster()
    cluster.node("a", recorded(gpu("a", 0)), unschedulable=True)
    cluster.node("b", recorded(gpu("b", 0), gpu("b", 1)))
    cluster.pod("somewhere", 5, "b")
    nodes = pictured(cluster).nodes
    assert [(each.free, each.largest) for each in node_line(nodes["a"].use).shared] == [(0, 0)]
    assert [(each.held, each.free, each.largest) for each in node_line(nodes["b"].use).shared] == [(5, 20, 10)]


async def test_nodes_with_a_fault_are_first() -> None:
    """Then other states, then notices; the heading counts faults and cordons apart, and a fault has its reason."""
    cluster = Cluster()
    cluster.node("a", recorded(gpu("a", 0)))
    cluster.node("b", recorded(gpu("b", 0), notices=("old driver",)))
    cluster.node("c", recorded(gpu("c", 0, healthy=False, reason="XID 79")))
    cluster.node("ab", recorded(gpu("ab", 0)), unschedulable=True)
    cluster.plain("d", 15, 1)
    page = await NodesPage(pictured(cluster)).all("")
    words = Words(page).found
    assert [each for each in words if each in {"a", "ab", "b", "c", "d"}] == ["c", "ab", "b", "a", "d"]
    assert {
        '<a href="/?state=faulty&amp;size=large">1 faulty</a>',
        '<a href="/?state=cordoned&amp;size=large">1 cordoned</a>',
    } <= set(re.findall(r"<a href=./.state=.*?</a>", page))
    assert {"old driver", "GPU 0: unhealthy: XID 79"} <= set(words)
    assert sum("unhealthy" in each for each in words) == 1


async def test_nodes_have_their_config_and_version_and_an_upgrade_is_told() -> None:
    """What an earlier daemon wrote is unknown, and counts as another version; a node without a record has neither."""
    cluster = Cluster()
    for name, version, config in (("a", "1.2.0", "a100"), ("b", "1.2.0", ""), ("c", "1.3.0", "a100")):
        cluster.node(name, replace(recorded(gpu(name, 0)), gpushare=version, config=config))
    cluster.node("d", recorded(gpu("d", 0)))
    cluster.plain("e", 15, 1)
    lines = [node_line(each.use) for each in pictured(cluster).nodes.values()]
    assert [(each.config, each.daemon) for each in lines] == [
        ("a100", "1.2.0"),
        ("no file: the defaults", "1.2.0"),
        ("a100", "1.3.0"),
        ("unknown", "unknown"),
        ("none", ""),
    ]
    told = "The daemons have different versions, as during an upgrade: "
    assert f"{told}1.2.0 on 2 nodes, 1.3.0 on 1 node, unknown on 1 node." in await NodesPage(pictured(cluster)).all("")
    for name in ("c", "d"):
        cluster.account.remove_node(name)
    assert told not in await NodesPage(pictured(cluster)).all("")


def test_a_config_of_any_length_is_short_on_the_page() -> None:
    """Whoever may write the annotation of a Node cannot fill the page with a name."""
    cluster = Cluster()
    cluster.node("a", replace(recorded(gpu("a", 0)), gpushare="1" * 10_000, config="c" * 10_000))
    line = node_line(pictured(cluster).nodes["a"].use)
    assert (len(line.config), len(line.daemon)) == (253, 253)


async def test_a_page_has_200_nodes_and_says_how_many_more() -> None:
    """Any number in the address leads to a page."""
    cluster = Cluster()
    for number in range(450):
        cluster.node(f"n{number:03}", recorded(gpu(f"n{number:03}", 0)))
    page = NodesPage(pictured(cluster))
    assert (await page.all("")).count('<th scope="row">') == 200
    assert "Page 1 of 3; 250 more nodes" in await page.all("0")
    last = await page.all("99999")
    assert ("Page 3 of 3<" in last, last.count('<th scope="row">'), "Next" in last) == (True, 50, False)
    assert "Page 1 of 3" in await page.all("9" * 5000)


async def test_a_changed_node_has_a_new_line() -> None:
    """Lines are kept for the next page; one of a node that changed, or that is gone, is not shown again."""
    cluster = Cluster()
    cluster.node("a", recorded(gpu("a", 0)))
    picture = pictured(cluster)
    page = NodesPage(picture)
    assert "0 of 15 GiB" in await page.all("")
    cluster.pod("new", 6, "a", on=0)
    picture.refresh(cluster.account, ClusterClaims())
    assert "6 of 15 GiB" in await page.all("")
    cluster.account.remove_node("a")
    picture.refresh(cluster.account, ClusterClaims())
    assert "0 nodes with GPUs" in await page.all("")
