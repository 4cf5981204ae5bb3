"""The picture of a cluster: what is made anew, and what counts as changed."""

from gpushare_plugin.claims.cluster import ClusterClaims
from gpushare_plugin.web.picture import Picture
from tests.unit.observe.cluster.clusters import Cluster, gpu, recorded


def changed(picture: Picture, since: int) -> list[str]:
    """Return the names of the nodes that changed after a revision."""
    return [each.use.name for each in picture.changed_since(since)]


def test_only_a_node_whose_pods_changed_is_made_anew() -> None:
    """The picture of any other node is the same object, so that nothing of it is made or sent again."""
    cluster, picture = Cluster(), Picture()
    cluster.node("a", recorded(gpu("a", 0)))
    cluster.node("b", recorded(gpu("b", 0)))
    picture.refresh(cluster.account, ClusterClaims())
    before, first = dict(picture.nodes), picture.revision.value
    cluster.pod("new", 3, "b", on=0)
    picture.refresh(cluster.account, ClusterClaims())
    assert picture.nodes["a"] is before["a"]
    assert changed(picture, first) == ["b"]
    assert picture.whole_changed == first


def test_a_refresh_without_a_change_is_no_revision() -> None:
    """Pages are told nothing."""
    cluster, picture = Cluster(), Picture()
    cluster.node("a", recorded(gpu("a", 0)))
    picture.refresh(cluster.account, ClusterClaims())
    before = picture.revision.value
    picture.refresh(cluster.account, ClusterClaims())
    assert picture.revision.value == before


def test_nodes_that_come_and_go_are_noticed() -> None:
    """Pages that show all nodes have to be loaded again."""
    cluster, picture = Cluster(), Picture()
    cluster.node("b", recorded(gpu("b", 0)))
    picture.refresh(cluster.account, ClusterClaims())
    cluster.node("a", recorded(gpu("a", 0)))
    picture.refresh(cluster.account, ClusterClaims())
    assert (list(picture.nodes), picture.whole_changed) == (["a", "b"], 2)
    cluster.account.remove_node("b")
    picture.refresh(cluster.account, ClusterClaims())
    assert (list(picture.nodes), picture.whole_changed) == (["a"], 3)
