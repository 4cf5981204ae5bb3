"""What namespaces have of GPUs, now and over time."""

import csv
import io
import re
from collections.abc import Mapping
from pathlib import Path

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare_plugin.claims.cluster import ClusterClaims
from gpushare_plugin.observe.cluster.report import GpuUse, NodeUse, PodUse, ResourceUse
from gpushare_plugin.testing.cluster import ApiServer
from gpushare_plugin.web.held import NOTHING, WHOLE, HeldAmounts, held_by_namespace, sizes
from gpushare_plugin.web.picture import Picture, PicturedNode
from gpushare_plugin.web.teams import KEPT, MOST_IDLE, Teams
from gpushare_plugin.web.teams_page import COLUMNS, TeamsPage
from gpushare_plugin.web.tiles import OTHERS
from gpushare_plugin.web.viewer import EVERYTHING, Viewer
from tests.unit.observe.cluster.clusters import Cluster, gpu, recorded
from tests.unit.web.test_random_cluster import RandomCluster, uses_of
from tests.unit.web.visited import a_cluster, asked, visited

NOTHING_KNOWN = sizes(None)
NAMESPACES = ("red", "blue", "green")
AMOUNTS = st.dictionaries(
    st.sampled_from(NAMESPACES),
    st.builds(HeldAmounts, st.integers(1, 5 * WHOLE), st.integers(0, 80_000)),
)
STEPS = st.lists(st.tuples(st.integers(0, 10_000).map(float), st.sampled_from("ab"), st.none() | AMOUNTS), max_size=30)


def holding(held: Mapping[str, HeldAmounts]) -> PicturedNode:
    """Return a node of which namespaces have something."""
    return PicturedNode(using(), "", held, 0, 1)


def using(*resources: ResourceUse, name: str = "a") -> NodeUse:
    """Return a node with resources."""
    return NodeUse(name=name, address="", ready=True, cordoned=False, recorded=True, resources=resources)


def resource(name: str, kind: str, unit: str, *gpus: GpuUse, unplaced: tuple[PodUse, ...] = ()) -> ResourceUse:
    """Return a resource."""
    return ResourceUse(resource=name, kind=kind, unit=unit, gpus=gpus, unplaced=unplaced)


def used(uuid: str, units: int, **by_pod: int) -> GpuUse:
    """Return a GPU of which pods of the namespace `red` have units."""
    pods = tuple(PodUse(namespace="red", pod=name, units=count, state="allocated") for name, count in by_pod.items())
    return GpuUse(index=0, uuid=uuid, units=units, allocated=sum(by_pod.values()), free=0, pods=pods)


@given(STEPS)
def test_hours_are_the_sum_over_all_moments(steps: list[tuple[float, str, Mapping[str, HeldAmounts] | None]]) -> None:
    """Whatever nodes come, change and go: what a namespace held in each interval, times its length, added up."""
    teams, nodes, now = Teams(), dict[str, Mapping[str, HeldAmounts]](), 0.0
    gpus, mib = dict.fromkeys(NAMESPACES, 0.0), dict.fromkeys(NAMESPACES, 0.0)
    shown: dict[str, PicturedNode] = {}
    for seconds, name, held in steps:
        for each in NAMESPACES:
            gpus[each] += seconds * sum(node.get(each, NOTHING).gpus for node in nodes.values())
            mib[each] += seconds * sum(node.get(each, NOTHING).mib for node in nodes.values())
        now += seconds
        for several in (nodes, shown):
            several.pop(name, None)
        if held is not None:
            nodes[name], shown[name] = held, PicturedNode(using(), "", held, 0, 1)
        teams.take(shown, now)
    found = {team.name: team for team in teams.seen_by(EVERYTHING, now)}
    assert set(found) == {namespace for _, _, held in steps for namespace in held or ()}
    for name, team in found.items():
        assert team.held.gpus == sum(node.get(name, NOTHING).gpus for node in nodes.values())
        assert team.gpu_seconds == pytest.approx(gpus[name])
        assert team.mib_seconds == pytest.approx(mib[name])


def test_namespaces_that_a_viewer_may_not_see_are_a_sum() -> None:
    """The largest first, and all others last, with the hours until now."""
    teams, half = Teams(), WHOLE // 2
    held = {"red": HeldAmounts(half, 512), "blue": HeldAmounts(WHOLE, 1024), "green": HeldAmounts(half, 256, half, 256)}
    teams.take({"a": holding(held)}, 0)
    assert [each.name for each in teams.seen_by(EVERYTHING, 0)] == ["blue", "red", "green"]
    red, others = teams.seen_by(Viewer("alice", frozenset({"red"})), 7200)
    assert (red.name, red.gpu_hours, red.gib_hours) == ("red", 1.0, 1.0)
    assert (others.name, others.held, others.gpu_hours) == (OTHERS, HeldAmounts(WHOLE + half, 1280, half, 256), 3.0)


def test_namespaces_that_are_gone_for_long_leave_their_hours() -> None:
    """So that memory is bounded, by time and by number, and no hour is lost; those that hold something stay."""
    teams = Teams()
    teams.take({"a": holding({"old": HeldAmounts(WHOLE), "kept": HeldAmounts(WHOLE)})}, 0)
    teams.take({"a": holding({"kept": HeldAmounts(WHOLE)})}, 3600)
    teams.take({}, KEPT)
    assert {each.name for each in teams.seen_by(EVERYTHING, KEPT)} == {"old", "kept"}
    teams.take({}, KEPT + 3601)
    _, others = teams.seen_by(EVERYTHING, KEPT + 3601)
    assert (others.name, others.gpu_hours) == (OTHERS, 1.0)
    many = {f"team-{number}": HeldAmounts(WHOLE) for number in range(MOST_IDLE + 5)}
    teams.take({"a": holding(many)}, KEPT + 3602)
    teams.take({}, KEPT + 3603)
    assert len(teams.seen_by(EVERYTHING, KEPT + 3603)) == MOST_IDLE + 1


def test_memory_and_compute_of_a_gpu_are_one_part() -> None:
    """The larger one counts; the parts of a pod on several GPUs add up."""
    memory = resource("memory", "memory", "GiB", used("x", 10, train=5), used("y", 10, train=1))
    compute = resource("compute", "cores", "%", used("x", 100, train=80), used("y", 100))
    assert held_by_namespace(using(memory, compute), NOTHING_KNOWN) == {"red": HeldAmounts(900_000, 6144)}


def test_memory_of_whole_gpus_replicas_and_slices_is_that_of_the_record() -> None:
    """As far as the record has it; units without a known size have no memory."""
    record = recorded(
        gpu("a", 0, 1, uuid="x", memory_mib=40000, unit_mib=0, resource="whole"),
        gpu("a", 1, 1, uuid="y", memory_mib=40000, unit_mib=10000, resource="slice-10"),
        gpu("a", 1, 1, uuid="y", memory_mib=40000, unit_mib=20000, resource="slice-20"),
    )
    node = using(
        resource("whole", "gpus", "GPUs", used("x", 1, train=1)),
        resource("slice-10", "slices", "slices", used("y", 2, serve=1)),
        resource("slice-20", "slices", "slices", used("y", 1, serve=1)),
        resource("replicas", "replicas", "replicas", used("z", 4, idle=1)),
    )
    assert held_by_namespace(node, sizes(record)) == {"red": HeldAmounts(WHOLE + WHOLE * 3 // 4 + WHOLE // 4, 70000)}


def test_a_mig_instance_is_a_part_of_its_card() -> None:
    """By memory; without a record of the card, of all instances."""
    one = gpu("a", 0, 1, uuid="one", memory_mib=10000, unit_mib=0, resource="mig", profile="1g.10gb")
    three = gpu("a", 0, 1, uuid="three", memory_mib=30000, unit_mib=0, resource="mig-3g", profile="3g.30gb")
    node = using(resource("mig", "gpus", "GPUs", used("one", 1, small=1)))
    assert held_by_namespace(node, sizes(recorded(one, three))) == {"red": HeldAmounts(WHOLE // 4, 10000)}
    card = gpu("a", 0, 0, uuid="card", memory_mib=80000, resource=None)
    assert held_by_namespace(node, sizes(recorded(card, one, three))) == {"red": HeldAmounts(WHOLE // 8, 10000)}


def test_units_on_unknown_gpus_and_promises_count() -> None:
    """Unknown GPUs are taken for the largest; promised amounts are also counted apart."""
    pod = PodUse(namespace="blue", pod="lost", units=5, state="unplaced")
    promised = PodUse(namespace="red", pod="new", units=2, state="promised")
    card = GpuUse(index=0, uuid="x", units=10, allocated=2, promised=2, free=3, pods=(promised,))
    node = using(resource("memory", "memory", "GiB", card, unplaced=(pod,)))
    fifth = WHOLE // 5
    assert held_by_namespace(node, NOTHING_KNOWN) == {
        "red": HeldAmounts(fifth, 2048, fifth, 2048),
        "blue": HeldAmounts(WHOLE // 2, 5120),
    }


@pytest.mark.parametrize("seed", range(3))
def test_teams_have_the_memory_of_the_report(seed: int) -> None:
    """After every change of a random cluster: the sums by namespace of what `inspect -o json` shows."""
    made, picture, teams = RandomCluster(seed), Picture(), Teams()
    for step in range(80):
        made.change()
        picture.refresh(made.cluster.account, made.claims)
        teams.take(picture.nodes, step)
        expected: dict[str, int] = {}
        for node in made.json["nodes"]:
            pods = [pod for use in node["resources"] if use["gpus"] for pod in use["unplaced"]]
            pods += [pod for use in node["resources"] for each in use["gpus"] for pod in each["pods"]]
            amounts = [(pod["namespace"], pod["units"] * 1024) for pod in pods]
            claims = [claim for _, each in uses_of(node) for claim in each["claims"]]
            amounts += [(claim["namespace"], claim["memoryMiB"] or 0) for claim in claims]
            for namespace, mib in amounts:
                expected[namespace] = expected.get(namespace, 0) + mib
        found = {each.name: each.held.mib for each in teams.seen_by(EVERYTHING, step)}
        assert {name: mib for name, mib in found.items() if mib} == {name: mib for name, mib in expected.items() if mib}


def test_the_file_has_the_rows_of_the_page_without_formulas() -> None:
    """The same columns, `unknown` and not 0 for what nobody measured, and no name that a spreadsheet computes."""
    cluster, picture, teams = Cluster(), Picture(), Teams()
    cluster.node("a", recorded(gpu("a", 0), gpu("a", 1)))
    for index, name in enumerate(("=1+1", "@sum", "-x", "\tx", "plain")):
        cluster.pod(name, index + 1, "a", on=0 if index < 3 else 1, namespace=name)
    picture.refresh(cluster.account, ClusterClaims())
    teams.take(picture.nodes, 0)
    page = TeamsPage(picture, teams)
    header, *rows = csv.reader(io.StringIO(page.csv(EVERYTHING).text))
    assert tuple(header) == COLUMNS
    assert [row[0] for row in rows] == ["plain", r"'\tx", "'-x", "'@sum", "'=1+1"]
    assert rows[0][1:5] == ["0.33", "0.00", "5.0", "0.0"]
    assert {tuple(row[-6:]) for row in rows} == {("unknown", "unknown", "100 %", "unknown", "unknown", "0.0")}
    shown = page.all("", EVERYTHING)
    assert all(f'<th scope="col" role="columnheader">{column}</th>' in shown for column in COLUMNS)
    assert '<a href="/?namespace=plain">plain</a>' in shown
    assert "Use is unknown: it is not read, because gpushare web was started without --daemon-metrics" in shown
    limited = page.csv(Viewer("alice", frozenset({"plain"}))).text
    assert [row[0] for row in csv.reader(io.StringIO(limited))] == ["Namespace", "plain", OTHERS]
    others = page.all("", Viewer("alice", frozenset({"plain"})))
    assert f'<th scope="row" role="rowheader">{OTHERS}</th>' in others
    assert "sum" not in others


def test_large_numbers_have_thousands_on_the_page_alone() -> None:
    """A program that reads the file gets plain digits."""
    picture, teams = Picture(), Teams()
    teams.take({"a": holding({"red": HeldAmounts(1234 * WHOLE, 2345 * 1024)})}, 0)
    page = TeamsPage(picture, teams)
    assert {"1,234.00", "2,345.0"} <= set(re.findall("[0-9,.]+", page.all("", EVERYTHING)))
    assert "red,1234.00,0.00,2345.0," in page.csv(EVERYTHING).text


def test_who_uses_least_of_what_is_held_is_first_where_asked() -> None:
    """By the part of what is known to be used; whoever is not known is last and never 0, and the order stays."""
    picture, teams = Picture(), Teams()
    held = {
        "busy": HeldAmounts(3 * WHOLE, 1024, measured_mib=1024, used_mib=900),
        "idle": HeldAmounts(2 * WHOLE, 4096, measured_mib=4096, used_mib=512),
        "unseen": HeldAmounts(WHOLE, 1024),
    }
    teams.take({"a": holding(held)}, 0)
    page = TeamsPage(picture, teams)
    text = page.all("", EVERYTHING, "use")
    assert re.findall('href="/pods.namespace=(.*?)"', text) == ["idle", "busy", "unseen"]
    assert re.findall('href="/pods.namespace=(.*?)"', page.all("", EVERYTHING)) == ["busy", "idle", "unseen"]
    assert re.findall('class="bar (.*?)">(.*?)<', text) == [("h2", "12 %"), ("h18", "88 %")]
    *_, used, part, known = next(row for row in csv.reader(io.StringIO(page.csv(EVERYTHING).text)) if row[0] == "idle")
    assert (used, part, known) == ("0.5", "12 %", "4.0")


def test_a_part_of_what_is_held_is_called_a_part() -> None:
    """While the use of some memory is unknown, the page says of how much it is known, and why of no more."""
    picture, teams = Picture(), Teams()
    held = HeldAmounts(2 * WHOLE, 20 * 1024, measured_mib=2048, used_mib=1024)
    teams.take({"a": holding({"red": held})}, 0)
    text = TeamsPage(picture, teams).all("", EVERYTHING)
    assert "Use is known of 2.0 of 20.0 GiB held: it is not read" in text
    cells = re.findall('<td role="cell" data-label="([^"]+)"[^>]*>([^<]*)<', text)
    assert cells[1:5] == [
        ("GiB held", "20.0"),
        ("GiB with known use", "2.0"),
        ("GiB used now", "1.0"),
        ("Used of GiB held", "50 % of known"),
    ]


async def test_users_of_a_cluster_see_their_own_namespaces(tmp_path: Path) -> None:
    """On the page, in the file and among the nodes, no other namespace has a name; the file is no page."""
    async with ApiServer() as server:
        a_cluster(server)
        async with visited(server, tmp_path) as address:
            for path, seen in (
                ("/teams", "red"),
                ("/teams.csv", "red,0.20"),
                ("/pods", "red-pod"),
                ("/nodes", "6 of 30 GiB"),
            ):
                status, text = await asked(f"{address}{path}", "token-of-alice")
                assert (status, seen in text, "blue" in text) == (200, True, False), path
            assert "blue,0.20" in (await asked(f"{address}/teams.csv", "token-of-olga"))[1]
            headers = {"Authorization": "Bearer token-of-alice"}
            async with aiohttp.ClientSession(headers=headers) as session, session.get(f"{address}/teams.csv") as answer:
                assert answer.content_type == "text/csv"
                assert answer.headers["Content-Disposition"].startswith('attachment; filename="gpushare-teams-')
                assert "Content-Security-Policy" in answer.headers
