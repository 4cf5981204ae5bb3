"""The map: what a tile says of a GPU."""

from gpushare_plugin.observe.cluster.report import NodeUse
from gpushare_plugin.web.tiles import classes, color_of, grouped, tiles
from gpushare_plugin.web.viewer import EVERYTHING, Viewer
from tests.unit.observe.cluster.clusters import Cluster, gpu, recorded


def node(cluster: Cluster) -> NodeUse:
    """Return the one node of a cluster."""
    (only,) = cluster.report.nodes
    return only


def test_a_tile_is_filled_by_what_pods_hold() -> None:
    """Held and promised units fill the tile of their GPU alone, and a promise is seen."""
    cluster = Cluster()
    cluster.node("a", recorded(gpu("a", 0), gpu("a", 1)))
    cluster.pod("held", 6, "a", on=0)
    cluster.pod("promised", 9, "a", promise=1)
    held, promised = tiles(node(cluster), EVERYTHING)
    assert (held.index, held.held, held.promised) == (0, 40, False)
    assert (promised.index, promised.held, promised.promised) == (1, 60, True)
    assert classes(held, "held") == "h8"
    assert classes(promised, "held") == "h12 promised"
    assert held.in_words == "6 of 15 GiB"


def test_a_gpu_that_pods_cannot_get_is_marked() -> None:
    """A fault and a cordon have a border each, and words."""
    cluster = Cluster()
    cluster.node(
        "a", recorded(gpu("a", 0, healthy=False, reason="XID 79"), gpu("a", 1, healthy=False, reason="cordoned"))
    )
    faulty, cordoned = tiles(node(cluster), EVERYTHING)
    assert classes(faulty, "held") == "h0 bad"
    assert classes(cordoned, "held") == "h0 cordoned"
    assert faulty.in_words == "0 of 15 GiB; unhealthy"


def test_a_node_that_is_not_ready_marks_all_its_gpus() -> None:
    """No new pod gets a GPU of the node."""
    cluster = Cluster()
    cluster.node("a", recorded(gpu("a", 0), gpu("a", 1)), ready=False)
    assert [classes(each, "held") for each in tiles(node(cluster), EVERYTHING)] == ["h0 bad", "h0 bad"]


def test_the_colour_is_of_the_namespace_that_holds_most() -> None:
    """The namespace with most units gives the colour, which depends on its name alone."""
    cluster = Cluster()
    cluster.node("a", recorded(gpu("a", 0)))
    cluster.pod("small", 2, "a", on=0, namespace="red")
    cluster.pod("large", 5, "a", on=0, namespace="blue")
    (tile,) = tiles(node(cluster), EVERYTHING)
    assert tile.namespaces == ("blue", "red")
    assert classes(tile, "namespace") == f"h10 {color_of('blue')}"


def test_namespaces_that_a_viewer_may_not_see_have_no_name() -> None:
    """What they hold still counts."""
    cluster = Cluster()
    cluster.node("a", recorded(gpu("a", 0)))
    cluster.pod("mine", 2, "a", on=0, namespace="red")
    cluster.pod("secret", 5, "a", on=0, namespace="blue")
    (tile,) = tiles(node(cluster), Viewer("alice", frozenset({"red"})))
    assert (tile.held, tile.namespaces) == (46, ("other namespaces", "red"))


def test_gpus_of_a_node_stand_with_those_of_their_model() -> None:
    """A node of two models is in two groups."""
    cluster = Cluster()
    cluster.node("a", recorded(gpu("a", 0, product="T4"), gpu("a", 1, product="L4"), gpu("a", 2, product="T4")))
    groups = grouped(tiles(node(cluster), EVERYTHING), "model")
    assert {name: [tile.index for tile in several] for name, several in groups.items()} == {"L4": [1], "T4": [0, 2]}
