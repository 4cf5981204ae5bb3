"""A cluster that changes at random: pages show what `gpushare inspect -o json` shows at the same moment."""

import json
import random
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from html.parser import HTMLParser
from typing import Any

import pytest

from gpushare_plugin.claims.claim import AllocatedDevice
from gpushare_plugin.claims.cluster import ClusterClaims, HeldByClaim, OfferedDevices
from gpushare_plugin.claims.device import Capacity, Device, DeviceTaint
from gpushare_plugin.core.effect import IN_EFFECT, not_in_effect, unknown
from gpushare_plugin.core.prepared_claim import ClaimId, ClaimUser
from gpushare_plugin.ledger.annotations import LIMITS, write_limits
from gpushare_plugin.ledger.node_record import GpuRecord
from gpushare_plugin.observe.cluster.by_claim import with_claims
from gpushare_plugin.observe.metrics.scraped import usage_of
from gpushare_plugin.observe.parts import encode
from gpushare_plugin.web.faults import SeenFaults
from gpushare_plugin.web.node_page import NodePage
from gpushare_plugin.web.pages import Pages
from gpushare_plugin.web.picture import Picture
from gpushare_plugin.web.query import Query
from gpushare_plugin.web.use import UseReading
from gpushare_plugin.web.viewer import EVERYTHING
from tests.unit.claims.node import DRIVER
from tests.unit.ledger.objects import uuid
from tests.unit.observe.cluster.clusters import Cluster, gpu, recorded
from tests.unit.web.measured import GIB, gpu_lines, page

NODES = [f"node-{number}" for number in range(4)]
GPUS = 3
NAMES = [f"name-{number}" for number in range(12)]
MIB = 1 << 20

Object = dict[str, Any]


class RandomCluster:
    """A cluster of which one thing changes at a time."""

    def __init__(self, seed: int) -> None:
        """Start empty."""
        self.cluster, self.claims = Cluster(), ClusterClaims()
        self._rng = random.Random(seed)  # noqa: S311 - no secret

    @property
    def json(self) -> Object:
        """What `gpushare inspect -o json` prints."""
        found: Object = json.loads(encode(with_claims(self.cluster.report, self.claims)))
        return found

    def change(self) -> None:
        """Change something."""
        pick = self._rng.choice
        steps = [self._node, self._pod, self._pod, self._slice, self._claim, self._claim, self._gone, self._unknown]
        pick(steps)(pick(NODES), pick(NAMES))

    def _node(self, node: str, _name: str) -> None:
        record = recorded(*(self._gpu(node, index) for index in range(self._rng.randint(1, GPUS))))
        chance = self._rng.random
        self.cluster.node(node, record, ready=chance() < 0.8, unschedulable=chance() < 0.2)

    def _gpu(self, node: str, index: int) -> GpuRecord:
        kind = self._rng.choice(["shared", "shared", "faulty", "cordoned", "claims"])
        if kind == "claims":
            return gpu(node, index, 0, resource=None, mode=None, by_claim=True)
        reason = {"faulty": "XID 79", "cordoned": "cordoned"}.get(kind)
        return gpu(node, index, healthy=reason is None, reason=reason)

    def _pod(self, node: str, name: str) -> None:
        where: Object = self._rng.choice([{}, {"on": self._index}, {"promise": self._index}])
        if "promise" in where and uuid(self._index, node) not in self._shared(node):
            return
        effect = self._rng.choice([None, IN_EFFECT, not_in_effect("no client"), unknown("no right")])
        written = effect and ((LIMITS, write_limits({"main": {uuid(self._index, node): effect}})),)
        self.cluster.pod(
            name,
            self._rng.randint(1, 9),
            node,
            namespace=self._rng.choice(["red", "blue"]),
            written=written or (),
            **where,
        )

    def readings(self) -> Mapping[str, UseReading]:
        """Return what is read of a node now."""
        node, used = self._rng.choice(NODES), self._rng.randrange(3) * 8 * GIB
        measured = UseReading(usage_of(page(*gpu_lines(node, self._rng.randrange(GPUS), used))))
        return {node: self._rng.choice([measured, UseReading(problem="no answer")])}

    @property
    def _index(self) -> int:
        """The index of the GPU that the number of changes has come to; the same within one change."""
        return len(self.cluster.account.pods) % GPUS

    def _shared(self, node: str) -> set[str]:
        return {name for offer in self.cluster.account.node_named(node).offers.values() for name in offer.names}

    def _slice(self, node: str, _name: str) -> None:
        taints = [(), (), (DeviceTaint("gpushare/fault", "", "NoSchedule"),)]
        capacities = {"memory": Capacity(15360 * MIB)}
        devices = tuple(
            Device(f"gpu-{index}", uuid(index, node), self._rng.random() < 0.7, {"way": "memory"}, capacities, taint)
            for index, taint in enumerate(self._rng.choices(taints, k=self._rng.randint(0, GPUS)))
        )
        self.claims.put_slice(node, OfferedDevices(DRIVER, node, 1, devices))

    def _claim(self, node: str, name: str) -> None:
        held = [
            HeldByClaim(
                DRIVER,
                ClaimId(self._rng.choice(["red", "blue"]), name, name),
                AllocatedDevice("gpu", each, f"gpu-{self._rng.randrange(GPUS)}", name, {"memory": 1024 * MIB}),
                (ClaimUser(f"pod-of-{name}", "uid"),),
            )
            for each in self._rng.sample([node, *NODES], self._rng.randint(0, 2))
        ]
        self.claims.put_claim(name, tuple(held))

    def _gone(self, node: str, name: str) -> None:
        gone = [
            lambda: self.cluster.account.remove_node(node),
            lambda: self.cluster.account.remove_pod(name),
            lambda: self.claims.remove_slice(node),
            lambda: self.claims.remove_claim(name),
        ]
        self._rng.choice(gone)()

    def _unknown(self, _node: str, _name: str) -> None:
        self.claims.unknown = self._rng.choice(["", "", "you may not"])


class Words(HTMLParser):
    """The words of a page, those that only screen readers and the pointer get included."""

    def __init__(self, page: str) -> None:
        """Read a page."""
        super().__init__()
        self.found: list[str] = []
        self.feed(page)

    def handle_starttag(self, _tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take in the words that a link has instead of text."""
        self.handle_data(dict(attrs).get("aria-label") or "")

    def handle_data(self, data: str) -> None:
        """Take in words between tags."""
        if words := " ".join(data.split()):
            self.found.append(words)


def uses_of(node: Object) -> Iterator[tuple[Object, Object]]:
    """Yield each GPU of a node in JSON with its resource."""
    for use in (*node["resources"], *node["givenByClaim"]):
        yield from ((use, each) for each in use["gpus"])


def tiles_of(node: Object) -> dict[str, list[str]]:
    """Return what tiles have to say of a node in JSON: the GPUs by name, with an amount for each resource."""
    known = [*node["notOffered"], *(each for _, each in uses_of(node))]
    names: dict[str, str] = {each["uuid"]: str(each["index"]) for each in known if each["index"] >= 0}
    found: dict[str, list[str]] = {names.get(each["uuid"], each["uuid"]): [] for each in known}
    for use, each in uses_of(node):
        amount = f"{each['allocated']} of {each['units']} {use['unit']}"
        found[names.get(each["uuid"]) or each["uuid"]].append(amount)
    return found


def said_by(words: list[str], node: str) -> dict[str, list[str]]:
    """Return what the tiles of a node say, in the form of `tiles_of`."""
    row = words[words.index(node) + 1 :]
    end = next((place for place, each in enumerate(row) if not each.startswith("GPU ")), len(row))
    found = {}
    for each in row[:end]:
        name, _, said = each.removeprefix("GPU ").partition(": ")
        amounts = said.partition("; ")[0]
        found[name] = [] if amounts == "not offered" else amounts.split(", ")
    return found


def check_node(page: str, node: Object) -> None:
    """Check that the page of a node names every pod and claim, with its units."""
    words = Words(page).found
    for use, each in uses_of(node):
        (caption,) = {
            said for said in words if said.startswith(f"{use['resource']} of") and f" {each['uuid']}: " in said
        }
        assert f"{each['allocated']} of {each['units']} {use['unit']}, {each['free']} free" in caption
        for pod in each["pods"]:
            drift = ", drift: the pod has other units than it was promised" * pod["drift"]
            row = [pod["namespace"], pod["pod"], str(pod["units"]), pod["state"] + drift]
            row.append("; ".join(each["effect"] for each in pod["limits"]) or "unknown")
            assert any(words[place : place + len(row)] == row for place in range(len(words)))
        for claim in each["claims"]:
            row = [claim["namespace"], claim["claim"], claim["request"], ", ".join(claim["pods"]), *amounts(claim)]
            row = [cell for cell in row if cell]
            assert any(words[place : place + len(row)] == row for place in range(len(words)))


def amounts(claim: Object) -> list[str]:
    """Return what a claim has of a GPU, as `gpushare inspect` shows it: a dash for what the claim has none of."""
    units = {"memoryMiB": " MiB", "shares": "", "computePercent": " %"}
    return ["-" if claim[key] is None else f"{claim[key]}{unit}" for key, unit in units.items()]


@pytest.mark.parametrize("seed", range(5))
async def test_pages_show_what_the_report_has(seed: int) -> None:
    """After every change: the picture is the report, and the map and the nodes have the amounts of the report."""
    made, picture, faults = RandomCluster(seed), Picture(), SeenFaults()
    pages, node_page = Pages(picture), NodePage(picture, faults)
    for _ in range(80):
        made.change()
        picture.refresh(made.cluster.account, made.claims)
        picture.take_readings(made.readings())
        faults.take(picture.nodes, datetime(2026, 1, 1, tzinfo=UTC))
        report = with_claims(made.cluster.report, made.claims)
        assert tuple(each.use for each in picture.nodes.values()) == report.nodes
        nodes = made.json["nodes"]
        page = "".join(await pages.map(Query(), EVERYTHING))
        words = Words(page).found
        assert {each["name"]: said_by(words, each["name"]) for each in nodes} == {
            each["name"]: tiles_of(each) for each in nodes
        }
        assert ("Claims are not shown: you may not" in words) == bool(made.claims.unknown)
        for node in nodes:
            check_node(node_page.one(node["name"], EVERYTHING) or "", node)


@pytest.mark.parametrize("query", [Query(), Query(color="use")], ids=["held", "use"])
@pytest.mark.parametrize("seed", range(5))
def test_rows_that_are_sent_make_an_old_page_a_new_one(seed: int, query: Query) -> None:
    """An open page in which the changed rows are replaced is the page that a person would load now."""
    made, picture = RandomCluster(seed), Picture()
    pages, rows, seen, replaced = Pages(picture), dict[str, str](), 0, 0
    for _ in range(150):
        made.change()
        picture.refresh(made.cluster.account, made.claims)
        picture.take_readings(made.readings())
        fresh = {
            row.id: str(row.markup) for node in picture.nodes.values() for row in pages.rows(node, query, EVERYTHING)
        }
        if picture.whole_changed > seen:
            rows = fresh
        for node in picture.changed_since(seen, with_use=query.shows_use):
            rows |= {row.id: str(row.markup) for row in pages.rows(node, query, EVERYTHING)}
            replaced += 1
        assert rows == fresh
        seen = picture.revision.value
    assert replaced
