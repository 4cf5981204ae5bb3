"""The faults of GPUs that the pages have seen."""

from datetime import UTC, datetime, timedelta

from gpushare_plugin.base.structs import replace
from gpushare_plugin.claims.cluster import ClusterClaims
from gpushare_plugin.observe.cluster.report import ResourceUse
from gpushare_plugin.web.faults import MOST_ENDED, MOST_NODES, SeenFaults
from gpushare_plugin.web.node_page import NodePage
from gpushare_plugin.web.picture import Picture
from gpushare_plugin.web.viewer import EVERYTHING
from tests.unit.observe.cluster.clusters import Cluster, gpu, recorded
from tests.unit.web.test_random_cluster import Words

START = datetime(2026, 1, 1, tzinfo=UTC)


class Seen:
    """A cluster whose faults are seen, one minute after the other."""

    def __init__(self) -> None:
        """Begin with no node."""
        self.cluster, self.picture, self.faults = Cluster(), Picture(), SeenFaults()
        self.now = START

    def node(self, name: str, *reasons: str | None) -> None:
        """Set the GPUs of a node, each with the reason why the GPU is faulty."""
        gpus = [gpu(name, index, healthy=not why, reason=why) for index, why in enumerate(reasons)]
        self.cluster.node(name, recorded(*gpus))

    def look(self) -> None:
        """Take in the cluster as it is, and let a minute pass."""
        self.picture.refresh(self.cluster.account, ClusterClaims())
        self.faults.take(self.picture.nodes, self.now)
        self.now += timedelta(minutes=1)


def test_a_fault_has_its_beginning_its_newest_reason_and_its_end() -> None:
    """Of a fault that was there at the first look, the beginning is not known."""
    seen = Seen()
    for reasons in ((None, "XID 48"), ("XID 79", "XID 48"), ("XID 79: it needs a reset", None)):
        seen.node("a", *reasons)
        seen.look()
    first, second = seen.faults.of("a")
    assert (first.gpu, first.fault, first.reason) == ("0", "unhealthy", "XID 79: it needs a reset")
    assert (first.began, first.was_there, first.ended) == (START + timedelta(minutes=1), False, None)
    assert (second.gpu, second.began, second.was_there) == ("1", START, True)
    assert (second.ended, second.vanished) == (START + timedelta(minutes=2), False)
    assert seen.faults.since == START


def test_cordons_are_no_faults_and_faults_of_several_resources_are_one() -> None:
    """People cordon; a GPU that is in two resources has one fault."""
    seen = Seen()
    seen.node("a", "cordoned by annotation gpushare/unhealthy-gpus")
    both = [gpu("b", 0, healthy=False, reason="XID 79"), gpu("b", 0, 100, resource="cores", healthy=False)]
    seen.cluster.node("b", recorded(*both))
    seen.look()
    assert (len(seen.faults.of("a")), len(seen.faults.of("b"))) == (0, 1)


def test_a_gpu_that_is_not_listed_any_more_is_not_told_to_be_healthy() -> None:
    """The fault ended because nobody says more of the GPU; also with the whole node."""
    seen = Seen()
    seen.node("a", "XID 79", "XID 79")
    seen.look()
    seen.node("a", "XID 79")
    seen.look()
    assert [(each.gpu, each.vanished) for each in seen.faults.of("a")] == [("0", False), ("1", True)]
    page = Words(NodePage(seen.picture, seen.faults).one("a", EVERYTHING) or "").found
    assert "Faults of GPUs that the node does not list any more" in page
    assert "2026-01-01 00:01:00 UTC, when the node stopped listing the GPU" in page
    seen.cluster.account.remove_node("a")
    seen.look()
    assert [each.ended is not None and each.vanished for each in seen.faults.of("a")] == [True, True]


def test_the_page_of_a_node_has_the_faults_of_each_gpu() -> None:
    """Time, reason and end, and since when faults are seen at all."""
    seen = Seen()
    for why in ("XID 48", None, "XID 79"):
        seen.node("a", why)
        seen.look()
    page = Words(NodePage(seen.picture, seen.faults).one("a", EVERYTHING) or "").found
    start = page.index("Faults of GPU 0")
    assert page[start + 6 : start + 16] == [
        *("0", "unhealthy", "XID 79", "2026-01-01 00:02:00 UTC", "now"),
        *("0", "unhealthy", "XID 48", "before 2026-01-01 00:00:00 UTC", "2026-01-01 00:01:00 UTC"),
    ]
    assert any(each.startswith("Faults are those seen since 2026-01-01 00:00:00 UTC") for each in page)


def test_what_is_kept_is_bounded() -> None:
    """A GPU whose faults come and go for years, and nodes that come and go, do not fill the memory."""
    seen = Seen()
    seen.node("a", None)
    seen.look()
    (node,) = seen.picture.nodes.values()
    faulty = replace(node, use=replace(node.use, resources=(_faulty(node.use.resources[0]),)))
    for _ in range(MOST_ENDED + 10):
        seen.faults.take({"a": faulty}, START)
        seen.faults.take({"a": node}, START)
    assert len(seen.faults.of("a")) == MOST_ENDED
    for number in range(MOST_NODES):
        seen.faults.take({f"n{number}": faulty}, START)
    seen.faults.take({}, START)
    assert seen.faults.of("a") == []
    assert len(seen.faults.of("n0")) == 1


def _faulty(use: ResourceUse) -> ResourceUse:
    return replace(use, gpus=tuple(replace(each, reason="unhealthy: XID 79") for each in use.gpus))
