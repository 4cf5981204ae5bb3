"""The map: what a tile says of a GPU."""

import re
from itertools import product
from typing import get_args

from hypothesis import given
from hypothesis import strategies as st

from gpushare_plugin.claims.claim import AllocatedDevice
from gpushare_plugin.claims.cluster import ClusterClaims, HeldByClaim, OfferedDevices
from gpushare_plugin.claims.device import Capacity, Device
from gpushare_plugin.core.prepared_claim import ClaimId
from gpushare_plugin.ledger.node import GPU_MEMORY
from gpushare_plugin.ledger.node_record import ResourceRecord
from gpushare_plugin.observe.cluster.by_claim import with_claims
from gpushare_plugin.observe.cluster.report import NodeUse
from gpushare_plugin.web.colors import COLORS, MORE, ViewersColors, colors_of
from gpushare_plugin.web.markup import RowStyle, row
from gpushare_plugin.web.tiles import OTHERS, Color, Size, classes, grouped, reason_for, tiles
from gpushare_plugin.web.viewer import EVERYTHING, Viewer
from tests.unit.claims.node import DRIVER
from tests.unit.ledger.objects import uuid
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
    assert (held.gpu, held.held, held.promised) == ("0", 40, False)
    assert (promised.gpu, promised.held, promised.promised) == ("1", 60, True)
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
    assert faulty.in_words == "0 of 15 GiB; unhealthy: XID 79"


def test_a_node_that_is_not_ready_marks_all_its_gpus() -> None:
    """No new pod gets a GPU of the node."""
    cluster = Cluster()
    cluster.node("a", recorded(gpu("a", 0), gpu("a", 1)), ready=False)
    assert [classes(each, "held") for each in tiles(node(cluster), EVERYTHING)] == ["h0 bad", "h0 bad"]


def test_the_colour_is_of_the_namespace_that_holds_most() -> None:
    """The namespace with most units gives the colour."""
    cluster = Cluster()
    cluster.node("a", recorded(gpu("a", 0)))
    cluster.pod("small", 2, "a", on=0, namespace="red")
    cluster.pod("large", 5, "a", on=0, namespace="blue")
    (tile,) = tiles(node(cluster), EVERYTHING)
    assert tile.namespaces == ("blue", "red")
    colors = colors_of(["blue", "red"], EVERYTHING)
    assert classes(tile, "namespace", colors) == f"h10 {colors.of('blue')}"


@given(st.lists(st.text(min_size=1), unique=True, max_size=20), st.data())
def test_no_two_namespaces_that_hold_most_are_alike(ranked: list[str], data: st.DataObject) -> None:
    """The others share a pattern; colours stay while namespaces come and go, and nobody learns of others."""
    colors = colors_of(ranked, EVERYTHING)
    assert len({colors.of(each) for each in ranked[:COLORS]}) == min(len(ranked), COLORS)
    assert {colors.of(each) for each in ranked[COLORS:]} <= {MORE}
    assert len(ranked) > 4 or {colors.of(each) for each in ranked} <= {"c0", "c1", "c2", "c3"}
    assert colors.more == max(0, len(ranked) - COLORS)
    largest = data.draw(st.permutations(ranked[:COLORS]))
    assert colors_of([*largest, *ranked[COLORS:]], EVERYTHING) == colors
    gone = ViewersColors()
    for several in (ranked, ranked[:-1], ["", *ranked[:-1]]):
        later = gone.of(several, EVERYTHING)
        assert {name: later.of(name) for name in ranked[:-1][: COLORS - 1]}.items() <= colors.classes.items()
        assert len(set(later.classes.values())) == min(len(several), COLORS)
    seen = ranked[::2]
    assert colors_of(ranked, Viewer("alice", frozenset(seen))) == colors_of(seen, EVERYTHING)


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
    groups = grouped(tiles(node(cluster), EVERYTHING), "model", "")
    assert {name: [tile.gpu for tile in several] for name, several in groups.items()} == {"L4": ["1"], "T4": ["0", "2"]}


def claimed(namespace: str) -> NodeUse:
    """Return a node whose one GPU a claim of a namespace has, while the node still offers units of the GPU."""
    cluster, claims = Cluster(), ClusterClaims()
    cluster.node("a", recorded(gpu("a", 0)))
    device = Device(
        "gpu-0", uuid(0, "a"), shared=True, attributes={"way": "memory"}, capacities={"memory": Capacity(15 << 30)}
    )
    claims.put_slice("s", OfferedDevices(DRIVER, "a", 1, (device,)))
    share = AllocatedDevice("gpu", "a", "gpu-0", "share", {"memory": 3 << 30})
    claims.put_claim("uid", (HeldByClaim(DRIVER, ClaimId(namespace, "their-claim", "uid"), share),))
    (only,) = with_claims(cluster.report, claims).nodes
    return only


def test_claims_fill_tiles_and_have_no_name_for_others() -> None:
    """What claims have counts; the reason why the GPU has no free units names only claims that may be seen."""
    found, stranger = claimed("blue"), Viewer("alice", frozenset({"red"}))
    (tile,) = tiles(found, EVERYTHING)
    assert (tile.gpu, tile.held, tile.namespaces) == ("0", 20, ("blue",))
    assert tile.in_words == "0 of 15 GiB, 3072 of 15360 MiB; held by claims"
    (unit,) = found.resources[0].gpus
    assert reason_for(unit.reason, EVERYTHING) == "held by claims: blue/their-claim"
    assert reason_for(unit.reason, stranger) == "held by claims"
    assert [each.namespaces for each in tiles(found, stranger)] == [(OTHERS,)]


def test_nothing_of_a_row_is_markup_but_ours() -> None:
    """The kind of a resource is in the classes of a tile: whoever can write a kind, or a name, runs nothing."""
    attack = '"><script>alert(1)</script>'
    cluster = Cluster()
    cluster.node(attack, recorded(gpu(attack, 0), kinds=(ResourceRecord(name=GPU_MEMORY, kind=attack),)))
    cluster.pod("pod", 3, attack, on=0, namespace=attack)
    several = list(tiles(node(cluster), EVERYTHING))
    for color, size in product(get_args(Color), get_args(Size)):
        made = row(attack, attack, several, RowStyle(color, colors_of([attack], EVERYTHING), size))
        assert made.count("<") == len(re.findall("</?(?:tr|th|td|a)[ >]", made))
        assert made.count('"') == 2 * len(re.findall('="', made))
        assert "script>" not in made
