"""What a node's own token can write at its worst: a record that names resources of others, and numbers in labels."""

import json
from pathlib import Path

import msgspec
import pytest

from gpushare_plugin.kube.client import NODES
from gpushare_plugin.kube.nodes import node_of
from gpushare_plugin.kube.objects import ApiNode
from gpushare_plugin.ledger.cluster import ClusterAccount
from gpushare_plugin.ledger.node_record import GPUS_ANNOTATION, NodeRecord, ResourceRecord, encode
from gpushare_plugin.ledger.request import ContainerRequest, PodRequest
from gpushare_plugin.slices.wanted import WANTED_SLICES
from gpushare_plugin.testing.cluster import ApiServer
from tests.attacks.unseen import HOSTILE, assert_seen
from tests.attacks.work import work
from tests.process.daemon import gpushare
from tests.unit.extender.extenders import MEMORY, Json, a_pod, annotations, extender, node, plain_node
from tests.unit.ledger.objects import gpu_record

CARD = "rdma/hca"


def _with_cards(found: Json) -> Json:
    """Return a Node where another device plugin serves network cards."""
    found["status"]["allocatable"][CARD] = "4"
    return found


def _hostile(*resources: str, kind: str = "replicas") -> Json:
    """Return a Node whose record says that its GPUs are in resources of others."""
    gpus = tuple(gpu_record(index, 100, resource=name, unit_mib=0) for index, name in enumerate(resources))
    record = NodeRecord(gpus=gpus, resources=tuple(ResourceRecord(name=name, kind=kind) for name in resources))
    return {"metadata": {"name": "hostile", "annotations": {GPUS_ANNOTATION: encode(record)}}, "status": {}}


@pytest.mark.parametrize("kind", ["replicas", "memory", "gpus", "none that is known"])
async def test_a_record_speaks_of_its_own_node_alone(tmp_path: Path, kind: str) -> None:
    """Pods that ask for what a hostile record names are placed on all other nodes as before, and are bound there."""
    async with ApiServer() as server:
        unreadable = _with_cards(node("later", 16))
        unreadable["metadata"]["annotations"][GPUS_ANNOTATION] = '{"version": 2}'
        others = [_with_cards(node("ours", 16)), _with_cards(plain_node("aliyuns", 32, 2)), unreadable]
        for each in (*others, _hostile(CARD, kind=kind)):
            server.store.create(NODES, each)
        names = ("ours", "aliyuns", "later")
        async with extender(server, tmp_path) as asking:
            await asking.knows("hostile")
            for number, name in enumerate(names):
                asked = a_pod(server, f"card-{number}", {CARD: "2"})
                assert await asking.fits(asked, *names) == list(names)
                assert await asking.scores(asked, *names) == dict.fromkeys(names, 0)
                assert await asking.bind(asked, name) == ""
            both = a_pod(server, "both", {CARD: "2", MEMORY: "5"})
            assert await asking.fits(both, *names) == ["ours", "aliyuns"]
            assert await asking.bind(both, "ours") == ""


GPU = "nvidia.com/gpu"


def _many(count: int, units: int, kind: str, closeness: tuple[tuple[int, ...], ...] | None = None) -> Json:
    """Return a Node whose record says that it has so many GPUs with so many units each."""
    gpus = tuple(gpu_record(index, units, resource=GPU, unit_mib=0) for index in range(count))
    placement = "distributed" if kind == "replicas" else None
    resources = (ResourceRecord(name=GPU, kind=kind, policy=placement),)
    annotation = encode(NodeRecord(gpus=gpus, resources=resources, closeness=closeness))
    status = {"allocatable": {GPU: str(count * units)}}
    return {"metadata": {"name": "hostile", "annotations": {GPUS_ANNOTATION: annotation}}, "status": status}


def test_work_is_linear_in_what_a_record_offers() -> None:
    """Twice as many GPUs, with twice as many replicas to choose, are twice the work at most."""

    def choose(count: int) -> None:
        account = ClusterAccount()
        account.put_node(node_of(msgspec.convert(_many(count, 4, "replicas"), ApiNode)))
        request = PodRequest((ContainerRequest("main", "app", ((GPU, 2 * count),)),))
        assert sum(share.units for share in account.place(request, "hostile").shares) == 2 * count

    choose(50)
    assert work(lambda: choose(400)) <= 2.2 * work(lambda: choose(200)) + 500


def _listed_twice() -> Json:
    """Return a Node whose record lists one GPU twice, with units of the same resource."""
    hostile = _many(2, 2, "replicas")
    annotations = hostile["metadata"]["annotations"]
    twice = msgspec.json.decode(annotations[GPUS_ANNOTATION])
    twice["gpus"][1]["uuid"] = twice["gpus"][0]["uuid"] = "GPU-one"
    annotations[GPUS_ANNOTATION] = msgspec.json.encode(twice).decode()
    return hostile


@pytest.mark.parametrize(
    ("hostile", "asked", "why"),
    [
        (_listed_twice(), 3, "GPU 'GPU-one' found twice in 'nvidia.com/gpu', once allowed"),
        (_many(2, 2**20, "replicas"), 2**21, "2,097,152 units of 'nvidia.com/gpu' found, at most 262,144"),
        (_many(2, 1, "gpus", tuple((9,) * row for row in range(1, 257))), 1, "257 cards found, at most 256"),
    ],
)
async def test_a_record_of_what_no_node_has_is_not_followed(
    tmp_path: Path, hostile: Json, asked: int, why: str
) -> None:
    """No kubelet takes a list of so many units, and no machine has so many cards: pods go to other nodes."""
    async with ApiServer() as server:
        ours = _many(1, 8, "replicas")
        ours["metadata"]["name"] = "ours"
        for each in (hostile, ours):
            server.store.create(NODES, each)
        async with extender(server, tmp_path) as asking:
            await asking.knows("hostile")
            answer = await asking.filter(a_pod(server, "many", {GPU: str(asked)}), "hostile")
            assert why in str(answer["FailedAndUnresolvableNodes"]["hostile"])
            assert await asking.fits(a_pod(server, "few", {GPU: "1"}), "ours", "hostile") == ["ours"]


@pytest.mark.parametrize(
    ("label", "gpus"), [("0" * 62 + "2", 2), ("0" * 10 + "2", 2), ("0" * 9 + "1999", None), ("0" * 63, None)]
)
async def test_a_number_of_gpus_is_judged_by_all_its_digits(tmp_path: Path, label: str, gpus: int | None) -> None:
    """Whatever zeros it begins with, it means the number that it is, or is refused in words."""
    async with ApiServer() as server:
        server.store.create(NODES, node("ours", 16, 16))
        async with extender(server, tmp_path) as asking:
            await asking.knows("ours")
            asked = a_pod(server, "several", 20, labels={"aliyun.com/gpu-count": label})
            answer = await asking.filter(asked, "ours")
            if gpus is None:
                assert "a number of GPUs from 1 to 256 expected" in str(answer["FailedAndUnresolvableNodes"])
            else:
                assert answer["NodeNames"] == ["ours"]
                assert await asking.bind(asked, "ours") == ""
                assert (
                    annotations(server, "several")["scheduler.framework.gpushare.allocation"] == '{"0":{"0":10,"1":10}}'
                )


def _unseen_node() -> Json:
    """Return a Node that says, wherever it can say something, what no terminal may be told."""
    sick = gpu_record(0, 16, healthy=False, product=HOSTILE, reason=f"driver: {HOSTILE}")
    gpus = (sick, gpu_record(1, 0, resource="", product=HOSTILE, reason=HOSTILE))
    shared = ResourceRecord(name=MEMORY, kind="memory", policy="binpack")
    record = NodeRecord(gpus=gpus, resources=(shared,), notices=(HOSTILE,), partitioning="mps")
    annotations = {GPUS_ANNOTATION: encode(record), WANTED_SLICES: HOSTILE}
    status = {"addresses": [{"type": "InternalIP", "address": HOSTILE}], "allocatable": {MEMORY: "16"}}
    return {"metadata": {"name": "hostile", "annotations": annotations}, "status": status}


@pytest.mark.parametrize("options", [(), ("-d",), ("-o", "wide"), ("-o", "json")], ids=" ".join)
async def test_text_of_a_node_reaches_no_terminal_as_it_is(tmp_path: Path, options: tuple[str, ...]) -> None:
    """`inspect` shows what its record and its address say, with an escape for what would not be seen."""
    async with ApiServer() as server:
        server.store.create(NODES, _unseen_node())
        environment = {"KUBECONFIG": str(server.kubeconfig(tmp_path / "config"))}
        done = await gpushare("inspect", *options, environment=environment)
        assert (done.status, done.errors) == (0, "")
        assert_seen(done.output)
        if "json" in options:
            assert json.loads(done.output)["nodes"][0]["notices"][-1] == HOSTILE


async def test_text_of_a_node_is_explained_as_text(tmp_path: Path) -> None:
    """`explain` and the extender's answer, which becomes an Event, have an escape for what would not be seen."""
    async with ApiServer() as server:
        server.store.create(NODES, _unseen_node())
        asked = a_pod(server, "waits")
        async with extender(server, tmp_path) as asking:
            await asking.knows("hostile")
            answer = await asking.filter(asked, "hostile")
            assert_seen(str(answer["FailedAndUnresolvableNodes"]["hostile"]), repeated=False)
        environment = {"KUBECONFIG": str(server.kubeconfig(tmp_path / "config"))}
        done = await gpushare("explain", "waits", "-n", "team", environment=environment)
        assert done.status == 0
        assert_seen(done.output)
        assert_seen(done.errors, repeated=False)
