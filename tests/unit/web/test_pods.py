"""The page of the pods that hold GPUs, those that hold most first."""

import re

from gpushare_plugin.claims.cluster import ClusterClaims
from gpushare_plugin.web.held import holdings, sizes
from gpushare_plugin.web.picture import Picture
from gpushare_plugin.web.pods import PodsPage, pods_of
from gpushare_plugin.web.viewer import EVERYTHING, Viewer
from tests.unit.ledger.objects import uuid
from tests.unit.observe.cluster.clusters import Cluster, gpu, recorded
from tests.unit.web.test_random_cluster import Words
from tests.unit.web.test_tiles import claimed


def pictured(cluster: Cluster) -> Picture:
    """Return the picture of a cluster."""
    picture = Picture()
    picture.refresh(cluster.account, ClusterClaims())
    return picture


async def test_the_largest_pods_are_first_and_others_have_no_name() -> None:
    """With node, GPUs, units, use and age where known; a namespace or a node in the address chooses."""
    cluster = Cluster()
    cluster.node("a", recorded(gpu("a", 0), gpu("a", 1)))
    cluster.node("b", recorded(gpu("b", 0)))
    cluster.pod("small", 2, "a", on=0, namespace="red")
    cluster.pod("large", 9, "a", on=1, namespace="red")
    cluster.pod("secret", 6, "b", promise=0, namespace="blue")
    page = PodsPage(pictured(cluster))
    words = Words(await page.all({}, EVERYTHING)).found
    assert [each for each in words if each in {"small", "large", "secret"}] == ["large", "secret", "small"]
    row = words.index("large")
    assert words[row : row + 6] == ["large", "a", "GPU 1: 9 GiB", "0.60", "9.0", "unknown"]
    assert "GPU 0: 6 GiB, promised" in words
    assert "secret" not in await page.all({"namespace": "red"}, EVERYTHING)
    assert re.findall(">(large|small|secret)<", await page.all({"node": "b"}, EVERYTHING)) == ["secret"]
    seen = await page.all({}, Viewer("alice", frozenset({"red"})))
    assert "1 more pod in other namespaces" in seen
    assert ("secret" in seen, "blue" in seen) == (False, False)


async def test_a_page_has_100_pods_and_keeps_the_choice() -> None:
    """The links to other pages have the namespace."""
    cluster = Cluster()
    cluster.node("a", recorded(gpu("a", 0, 150)))
    for number in range(130):
        cluster.pod(f"pod-{number}", 1, "a", on=0, namespace="red")
    page = PodsPage(pictured(cluster))
    first = await page.all({"namespace": "red"}, EVERYTHING)
    assert ("Page 1 of 2; 30 more pods" in first, "/pods?namespace=red&amp;page=2" in first) == (True, True)
    assert (await page.all({"page": "2"}, EVERYTHING)).count("GPU 0: 1 GiB") == 30


def test_claims_are_among_them() -> None:
    """With the claim, and what of the GPU the claim has."""
    (found,) = pods_of("a", holdings(claimed("blue"), sizes(None)))
    assert (found.name, found.claim, found.words) == ("no pod", "their-claim/gpu", (f"GPU {uuid(0, 'a')}: 3072 MiB",))
