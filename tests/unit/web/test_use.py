"""What pages say of the use of GPUs."""

import asyncio
from datetime import UTC, datetime

import aiohttp
import pytest
from aiohttp import web

from gpushare_plugin.base.structs import replace
from gpushare_plugin.claims.cluster import ClusterClaims
from gpushare_plugin.core.usage import GpuUsage, Usage
from gpushare_plugin.ledger.node_record import ResourceRecord
from gpushare_plugin.observe.cluster.limits import ContainerLimit
from gpushare_plugin.observe.http.connections import listening
from gpushare_plugin.observe.metrics.scraped import usage_of
from gpushare_plugin.web.colors import NO_COLORS
from gpushare_plugin.web.faults import SeenFaults
from gpushare_plugin.web.following import FollowedPicture
from gpushare_plugin.web.interest import LASTING, MOST, Interest, Interests
from gpushare_plugin.web.node_page import NodePage
from gpushare_plugin.web.pages import Pages
from gpushare_plugin.web.paging import interest_of, updates
from gpushare_plugin.web.picture import Picture
from gpushare_plugin.web.query import Query
from gpushare_plugin.web.server import LIMITS
from gpushare_plugin.web.teams import Teams
from gpushare_plugin.web.teams_page import TeamsPage
from gpushare_plugin.web.tiles import OTHERS, classes, tiles
from gpushare_plugin.web.updates import stream
from gpushare_plugin.web.use import Level, UsedParts, UseReading, held_use, holders_of, used_parts
from gpushare_plugin.web.viewer import EVERYTHING, Viewer
from tests.unit.ledger.objects import uuid
from tests.unit.observe.cluster.clusters import MEMORY, Cluster, gpu, recorded
from tests.unit.web.measured import GIB, container_lines, gpu_lines, page

ALICE = Viewer("alice", frozenset({"red"}))
BY_USE = Query(color="use")
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def a_picture() -> tuple[Cluster, Picture]:
    """Return a node with a pod of `red` and a pod of `blue` on one GPU of 15 GiB, 5 GiB each."""
    cluster, picture = Cluster(), Picture()
    cluster.node("a", recorded(gpu("a", 0), gpu("a", 1)))
    cluster.pod("red-pod", 5, "a", on=0, namespace="red")
    cluster.pod("blue-pod", 5, "a", on=0, namespace="blue")
    picture.refresh(cluster.account, ClusterClaims())
    return cluster, picture


def measured(*more: str, red: int = 2 * GIB) -> UseReading:
    """Return what the daemon of the node says of both pods, and more lines."""
    lines = [
        *gpu_lines("a", 0, 8 * GIB),
        *container_lines("a", 0, "red-pod", "red", memory_used_bytes=red, utilization_ratio=0.25, limit_in_effect=1),
        *container_lines("a", 0, "blue-pod", "blue", memory_used_bytes=6 * GIB, limit_in_effect=0),
    ]
    return UseReading(usage_of(page(*lines, *more)))


@pytest.mark.parametrize(
    ("memory", "compute", "level"),
    [
        (None, None, "unknown"),
        (0.0, None, "idle"),
        (None, 0.04, "idle"),
        (0.05, 0.0, "low"),
        (0.0, 0.4, "medium"),
        (0.7, 0.1, "high"),
        (0.9, 0.0, "full"),
        (1.0, 1.0, "full"),
    ],
)
def test_the_larger_part_is_the_level(memory: float | None, compute: float | None, level: Level) -> None:
    """A GPU of which nobody knows anything is unknown, and never idle."""
    assert UsedParts(memory, compute).level == level


def test_mig_instances_of_a_card_are_used_together() -> None:
    """Their memory adds up; without the figures of one of them, the memory is unknown."""
    one, two = GpuUsage("one", 10, 5), GpuUsage("two", 30, 5)
    assert used_parts(Usage((one, two)), {"one", "two"}) == UsedParts(0.25)
    assert used_parts(Usage((one, replace(two, memory_used=None))), {"one", "two"}) == UsedParts()
    assert used_parts(Usage((one,)), {"one", "two"}) == UsedParts()


def test_a_limit_that_the_node_has_written_counts_before_the_metrics() -> None:
    """The annotation has a reason; without both, the limit is unknown."""
    holders = holders_of(measured().usage)
    written = ContainerLimit(container="main", gpu=uuid(0, "a"), state="unknown", effect="unknown: no right")
    red = ("red", ["red-pod"], uuid(0, "a"))
    assert held_use(holders, *red, [written]).limit == "unknown: no right"
    assert held_use(holders, *red, []).limit == "in effect"
    assert held_use({}, *red, []).limit == "unknown"
    assert held_use(holders, *red, []).memory == "main: 2.0 GiB"
    assert held_use(holders, "blue", ["blue-pod"], uuid(0, "a"), []).compute == "main: unknown"


def test_a_tile_has_the_use_as_colour_and_in_words() -> None:
    """With and without figures; pods of other namespaces, and pods that only the metrics name, are on no tile."""
    cluster, _ = a_picture()
    (node,) = cluster.report.nodes
    stranger = container_lines("a", 0, "secret", "red", memory_used_bytes=GIB)
    used, other = tiles(node, ALICE, measured(*stranger).usage)
    assert (classes(used, "use"), classes(other, "use")) == ("h14 u-medium", "h0 u-unknown")
    assert used.used.in_words == "used: 50 % of memory, 50 % of compute"
    assert used.users == ("red/red-pod: memory main: 2.0 GiB, compute main: 25 %, limit in effect",)
    (_, stolen) = tiles(node, ALICE, Usage((GpuUsage(uuid(1, "a"), 10, 10),)))
    assert classes(stolen, "use") == "h1 u-full"
    assert [classes(each, "use") for each in tiles(node, ALICE)] == ["h14 u-unknown", "h0 u-unknown"]


async def test_no_page_names_pods_of_other_namespaces() -> None:
    """Whatever a daemon says of them; whoever may see them finds the figures on map and node."""
    _, picture = a_picture()
    secret = container_lines("a", 1, "secret", "green", container="hidden", memory_used_bytes=GIB)
    picture.take_readings({"a": measured(*secret), "elsewhere": measured()})
    faults, teams = SeenFaults(), Teams()
    faults.take(picture.nodes, NOON)
    teams.take(picture.nodes, 0)
    shown = {}
    for viewer in (ALICE, EVERYTHING):
        node = NodePage(picture, faults).one("a", viewer) or ""
        team = TeamsPage(picture, teams)
        shown[viewer.name] = "".join(
            [*await Pages(picture).map(BY_USE, viewer), node, team.all("", viewer), team.csv(viewer).text]
        )
    assert not {each for each in ("blue", "secret", "hidden", "green") if each in shown["alice"]}
    assert "main: 2.0 GiB" in shown["alice"]
    assert "not in effect: the log of the node&#39;s daemon says why" in shown[""]
    assert not {each for each in ("secret", "hidden", "green") if each in shown[""]}


def test_what_is_not_measured_is_unknown_on_the_page_of_a_node() -> None:
    """Without readings, the page says so, and no figure is 0."""
    _, picture = a_picture()
    faults = SeenFaults()
    faults.take(picture.nodes, NOON)
    shown = NodePage(picture, faults).one("a", EVERYTHING) or ""
    assert (
        "The use of the GPUs is unknown: it is not read, because gpushare web was started without --daemon-metrics"
        in shown
    )
    assert shown.count("<td>unknown</td><td>unknown</td><td>unknown</td>") == 2
    assert "0.0 GiB" not in shown


def test_use_is_added_up_while_it_is_known() -> None:
    """Two hours of which the second is measured: half of the use is unknown, and what `blue` borrows wastes nothing."""
    cluster, picture = a_picture()
    teams = Teams()
    teams.take(picture.nodes, 0)
    picture.take_readings({"a": measured()})
    teams.take(picture.nodes, 3600)
    picture.take_readings({"a": UseReading(problem="gone")})
    teams.take(picture.nodes, 7200)
    found = {each.name: each for each in teams.seen_by(EVERYTHING, 9000)}
    red, blue = found["red"], found["blue"]
    assert (red.gib_hours, red.used_hours, red.wasted_hours, red.unknown_part) == (12.5, 2.0, 3.0, 0.6)
    assert (blue.used_hours, blue.wasted_hours) == (6.0, 0.0)
    assert [each.used_hours for each in teams.seen_by(ALICE, 9000) if each.name == OTHERS] == [6.0]
    cluster.pod("new", 1, "a", on=1, namespace="new")
    picture.refresh(cluster.account, ClusterClaims())
    teams.take(picture.nodes, 9000)
    assert next(each for each in teams.seen_by(EVERYTHING, 9000) if each.name == "new").used_hours is None


def test_a_change_of_pods_keeps_what_is_known_of_use() -> None:
    """The held parts are made anew with the figures that were read, and only maps by use change with the use."""
    cluster, picture = a_picture()
    first = picture.revision.value
    picture.take_readings({"a": measured()})
    assert (picture.held_changed, picture.revision.value) == (first, first + 1)
    assert not list(picture.changed_since(first))
    assert [each.use.name for each in picture.changed_since(first, with_use=True)] == ["a"]
    picture.take_readings({"a": measured()})
    assert picture.revision.value == first + 1
    cluster.pod("third", 2, "a", on=0, namespace="red")
    picture.refresh(cluster.account, ClusterClaims())
    red = picture.nodes["a"].held["red"]
    assert (red.mib, red.measured_mib, red.used_mib) == (7168, 5120, 2048)


def test_maps_by_another_colour_do_not_change_with_the_use() -> None:
    """The row of the map by use is made anew, and that of another map is the same object."""
    _, picture = a_picture()
    pages = Pages(picture)
    before = {query.color: pages.rows(picture.nodes["a"], query, EVERYTHING) for query in (BY_USE, Query())}
    picture.take_readings({"a": measured()})
    assert pages.rows(picture.nodes["a"], Query(), EVERYTHING) is before["held"]
    (row,) = pages.rows(picture.nodes["a"], BY_USE, EVERYTHING)
    assert "used: 50 % of memory" in row.markup


async def test_a_change_of_use_reaches_the_pages_that_show_use() -> None:
    """Whoever looks at the use of the node loads the page again; a page about anything else is told of nothing."""
    cluster, _ = a_picture()
    shown = FollowedPicture()
    picture = shown.picture
    picture.refresh(cluster.account, ClusterClaims())
    before = picture.revision.value
    picture.take_readings({"a": measured()})

    async def told(address: str) -> str:
        """Return the first event of the stream at an address."""

        async def answer(request: web.BaseRequest) -> web.StreamResponse:
            return await stream(request, shown, Pages(picture), EVERYTHING, {})

        async with (
            listening("127.0.0.1:0", answer, LIMITS) as port,
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{port}{address}") as events,
        ):
            return (await events.content.readuntil(b"\n\n")).decode()

    key = Pages(picture).legend_key(BY_USE, NO_COLORS)
    nodes, one = updates(before), updates(before, Interest("a", whole_name=True))
    assert "event: rows\ndata: {}" in await told(nodes)
    assert not shown.interests.now(asyncio.get_running_loop().time())
    assert "event: load" in await told(one)
    assert "event: rows\ndata: {}" in await told(f"/updates?since={before}")
    assert "used: 50 % of memory" in await told(f"/updates?color=use&since={before}&colors={key}")
    assert set(shown.interests.now(asyncio.get_running_loop().time())) == {Interest("a", whole_name=True), Interest()}


def test_a_gpu_in_two_resources_has_one_line_about_its_use() -> None:
    """Memory and compute of a GPU are tables of their own."""
    cluster, picture = Cluster(), Picture()
    compute = ResourceRecord(name="cores", kind="cores", policy="binpack")
    gpus = (gpu("a", 0), gpu("a", 0, 100, resource="cores"))
    cluster.node("a", recorded(*gpus, kinds=(MEMORY, compute)))
    picture.refresh(cluster.account, ClusterClaims())
    picture.take_readings({"a": measured()})
    faults = SeenFaults()
    faults.take(picture.nodes, NOON)
    page_of_node = NodePage(picture, faults).one("a", EVERYTHING) or ""
    assert (page_of_node.count("used: 50 % of memory"), page_of_node.count("<caption>")) == (1, 2)


def test_interests_end_and_are_bounded() -> None:
    """A page counts as open for a time, and many addresses are no more than some interests."""
    interests, one, part = Interests(), Interest("gpu-1", whole_name=True), Interest("gpu-1")
    interests.show(one, 0)
    interests.show(None, 0)
    assert interests.now(LASTING - 1) == [one]
    assert not interests.now(LASTING)
    assert [each.takes("gpu-10") for each in (one, part, Interest())] == [False, True, True]
    for number in range(2 * MOST):
        interests.show(Interest(str(number)), 0)
    assert len(interests.now(0)) == MOST
    assert interest_of({"use": "node", "node": "gpu-1"}) == one
    assert interest_of({"use": "other"}) is None
