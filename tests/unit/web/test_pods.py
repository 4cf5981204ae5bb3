"""The page of the pods that hold GPUs, those that hold most first."""

import re

from gpushare_plugin.claims.cluster import ClusterClaims
from gpushare_plugin.core.usage import ContainerUsage, Usage
from gpushare_plugin.web.held import HeldAmounts, holdings, sizes
from gpushare_plugin.web.interest import Interest
from gpushare_plugin.web.picture import Picture
from gpushare_plugin.web.pods import HeldPod, PodsPage, interest_of_pods, pods_of
from gpushare_plugin.web.use import UseReading
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
    assert words[row : row + 7] == ["large", "a", "GPU 1: 9 GiB", "0.60", "9.0", "unknown", "unknown"]
    assert "Use is unknown: it is not read, because gpushare web was started without --daemon-metrics" in words
    assert "GPU 0: 6 GiB, promised" in words
    assert "secret" not in await page.all({"namespace": "red"}, EVERYTHING)
    assert re.findall(">(large|small|secret)<", await page.all({"node": "b"}, EVERYTHING)) == ["secret"]
    assert re.findall(">(large|small|secret)<", await page.all({"pod": "ar"}, EVERYTHING)) == ["large"]
    alice = Viewer("alice", frozenset({"red"}))
    seen = await page.all({}, alice)
    assert "1 more pod in other namespaces" in seen
    assert ("secret" in seen, "blue" in seen) == (False, False)
    asked, other = [(await page.all({"pod": name}, alice)).replace(name, "") for name in ("secret", "nobody")]
    assert asked == other
    assert "No pod that meets all filters" in asked


async def test_the_most_unused_memory_is_first_where_asked() -> None:
    """By what is known not to be used; whoever is not known is last."""
    cluster = Cluster()
    cluster.node("a", recorded(gpu("a", 0), gpu("a", 1)))
    for name, units, gpu_ in (("large", 9, 1), ("idle", 6, 0), ("unseen", 7, 0)):
        cluster.pod(name, units, "a", on=gpu_, namespace="red")
    picture = pictured(cluster)
    containers = [
        ContainerUsage("red", name, "main", "uid", uuid(index, "a"), "aliyun.com/gpu-mem", units=1, used=used << 30)
        for name, index, used in (("large", 1, 8), ("idle", 0, 1))
    ]
    picture.take_readings({"a": UseReading(Usage(containers=tuple(containers)))})
    words = Words(await PodsPage(picture).all({"order": "waste"}, EVERYTHING)).found
    assert [each for each in words if each in {"large", "idle", "unseen"}] == ["idle", "large", "unseen"]
    assert "5.0 GiB" in words


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
    assert interest_of_pods({"node": "a"}) == Interest("a", whole_name=True)
    assert (found.name, found.claim, found.words) == ("no pod", "their-claim/gpu", (f"GPU {uuid(0, 'a')}: 3072 MiB",))


def test_equal_amounts_on_several_gpus_are_one_line() -> None:
    """A pod that has eight GPUs is no higher than the others."""
    words = ("GPU 0: 80 GiB", "GPU 1: 80 GiB", "GPU 2: 40 GiB", "3 GiB on unknown GPUs")
    made = HeldPod("red", ("pod",), "", "a", words, HeldAmounts())
    assert made.holds == ["GPUs 0, 1: 80 GiB each", "GPU 2: 40 GiB", "3 GiB on unknown GPUs"]
