"""A simulated cluster with everything that the dashboard shows, as its programs serve it and Prometheus scrapes it."""

from collections.abc import Iterator, Mapping

from prometheus_client.parser import text_string_to_metric_families as parse_text

from generators.recorded import PRICE
from gpushare_plugin.base.memory import MIB
from gpushare_plugin.base.structs import replace
from gpushare_plugin.core.claim_state import ClaimState
from gpushare_plugin.core.effect import not_in_effect
from gpushare_plugin.core.gpu import FailedGpu, Inventory
from gpushare_plugin.core.prepared_claim import ClaimId, PreparedClaim, PreparedDevice
from gpushare_plugin.core.resource import Durations, Standing
from gpushare_plugin.core.snapshot import ConfigStanding
from gpushare_plugin.core.usage import ContainerUsage, GpuUsage, Process, Stowaway, Usage
from gpushare_plugin.observe.exposition import exposition, extender_exposition, partitioner_exposition
from gpushare_plugin.observe.metrics.extender import ExtenderCounts, ExtenderView
from gpushare_plugin.observe.metrics.node import View
from gpushare_plugin.observe.metrics.partitioner import PartitionerCounts, PartitionerView
from tests.monitoring.tools import braced
from tests.nodes import a_gpu, a_mig_node, a_node
from tests.snapshots import snapshot
from tests.unit.sharing.settings import GPU_MEM, memory, time_slicing

GIB = 1024**3
EVERY = 15
"""Seconds between two scrapes."""
SCRAPES = 20
BOUNDS = (0.01, 0.1)
"""Seconds: the buckets of the kubelet's calls here."""


CLUSTER, CROWD = "here", "crowd"
"""The clusters: one whose figures are known, and one of many nodes, teams and models."""
MANY = 30
"""Nodes of the second cluster."""
RATED = 4
"""Scrapes of the second cluster, as many as a rate needs."""
A100, L4 = "NVIDIA A100-SXM4-40GB", "NVIDIA L4"
PRICES = {A100: 4.0, L4: 1.0}
"""What a GPU of a model costs by the hour."""
REPLICAS = "nvidia.com/gpu"
MIG_LARGE, MIG_SMALL = "nvidia.com/mig-3g.20gb", "nvidia.com/mig-1g.5gb"
FIRST, SECOND = a_gpu(0).uuid, a_gpu(1).uuid
MIG = a_mig_node(("3g.20gb", "1g.5gb"))

Labels = Mapping[str, str]


def took(calls: int) -> Durations:
    """Return so many calls of some 50 ms each."""
    return Durations(BOUNDS, (0, calls, 0), 0.05 * calls)


def standing(scrape: int) -> Standing:
    """Return a resource for which the kubelet called once before each scrape, and was refused once."""
    calls = {("Allocate", "OK"): took(scrape)}
    return Standing(registered=True, allocations=scrape, refusals={"Allocate": scrape}, calls=calls)


def shared(scrape: int) -> View:
    """Return a node of two GPUs by memory; one is in use, also by who should not, and one is faulty."""
    trainer = ContainerUsage("team", "trainer", "main", "uid", FIRST, GPU_MEM, 16, 16 * GIB, 20 * GIB, 0.5, 1)
    trainer = replace(trainer, effect=not_in_effect("it escaped"))
    usage = Usage(
        (
            GpuUsage(FIRST, 40 * GIB, 30 * GIB, 0.75, (Process(3), Process(7)), stowaways=(Stowaway(FIRST, 7),)),
            GpuUsage(SECOND, 40 * GIB, 0, 0.0, ()),
        ),
        (trainer,),
        held={(GPU_MEM, FIRST): 16},
    )
    made = replace(
        snapshot(memory(), 40960, 40960),
        unhealthy={SECOND: "XID 79"},
        waiting={FIRST: "pods hold it"},
        standings={GPU_MEM: standing(scrape)},
        config=ConfigStanding("config.yaml", 1.0),
        usage=usage,
        isolations_in_use={FIRST: "hami-core", SECOND: "hami-core"},
    )
    errors = {"server": 2 * scrape, "conflict": 0}
    return View(made, container_metrics=True, xids={(SECOND, "79"): 2}, api_errors=errors)


def with_mig() -> View:
    """Return a node whose one card is divided into two MIG instances; a pod has one, and uses half of the card."""
    held = MIG.instances[0]
    slicer = ContainerUsage(
        "team", "slicer", "main", "uid", held.uuid, MIG_LARGE, 1, held.memory_mib * MIB, 4 * GIB, None, 1
    )
    usage = Usage(
        (GpuUsage(MIG.cards[0].uuid, memory_used=20 * GIB), GpuUsage(held.uuid, memory_used=4 * GIB)),
        (slicer,),
        held={(MIG_LARGE, held.uuid): 1},
    )
    made = snapshot({}, inventory=MIG, flags={"migStrategy": "mixed"})
    standing_ = ConfigStanding("mig.yaml", 1.0, refused=True)
    return View(replace(made, usage=usage, config=standing_), container_metrics=True)


def under_mps() -> View:
    """Return a node of two GPUs under MPS: one is held by a pod that computes nothing, one is not served."""
    sleeper = ContainerUsage("batch", "sleeper", "main", "uid", FIRST, GPU_MEM, 30, 30 * GIB, 10 * GIB, 0.0, 2)
    usage = Usage(
        (
            GpuUsage(FIRST, 40 * GIB, 10 * GIB, 0.0, (Process(3), Process(7)), mps_clients=2),
            GpuUsage(SECOND, 40 * GIB, 0, 0.0, (), mps_clients=0),
        ),
        (sleeper,),
        held={(GPU_MEM, FIRST): 30},
    )
    made = snapshot(memory(isolation="mps"), 40960, 40960)
    silent = {SECOND: "the MPS control daemon does not answer"}
    return View(replace(made, usage=usage, unserved=silent, unhealthy=silent), container_metrics=True)


def in_turns() -> View:
    """Return a node of two smaller GPUs in time slices: a pod holds two of four replicas, and the other is cordoned."""
    notebook = ContainerUsage("team", "notebook", "main", "uid", FIRST, REPLICAS, 2, None, 6 * GIB, 0.25, 1)
    usage = Usage(
        (GpuUsage(FIRST, 24 * GIB, 6 * GIB, 0.25, (Process(3),)), GpuUsage(SECOND, 24 * GIB, 0, 0.0, ())),
        (notebook,),
        held={(REPLICAS, FIRST): 2},
    )
    inventory = a_node(24576, 24576, name="NVIDIA L4")
    made = snapshot(time_slicing({"name": REPLICAS, "replicas": 4}), inventory=inventory)
    return View(replace(made, usage=usage, cordoned={SECOND: "maintenance"}), container_metrics=True)


def unobserved() -> View:
    """Return a node of which nothing is known but what it offers; another GPU of it does not respond."""
    inventory = Inventory(a_node(40960).cards, failed=(FailedGpu(1, "GPU is lost"),))
    return View(snapshot(time_slicing({"name": REPLICAS, "replicas": 4}), inventory=inventory))


def by_claim(scrape: int) -> View:
    """Return a node that gives two GPUs by claim: two claims have shares of one; a call and a refusal each scrape."""
    made = snapshot(memory(unit="GiB", isolation="mps"), 40960, 40960, dra={})
    shares = (share(FIRST, 10240), share(FIRST, 20480), replace(share(SECOND, 0), admin_access=True))
    claims = ClaimState(
        "gpu.gpushare.io",
        tuple(PreparedClaim(ClaimId("team", str(number), str(number)), (each,)) for number, each in enumerate(shares)),
        trouble="a gate is off",
        calls={("NodePrepareResources", "OK"): took(scrape)},
        refusals={"no-room": scrape},
        slices_written=2 * scrape,
        slices_mended=scrape,
    )
    pods = (
        ContainerUsage("team", "limited", "main", "0", FIRST, "claim:gpu", 1, 10 * GIB, 2 * GIB, 0.25, 1),
        ContainerUsage("batch", "unlimited", "main", "1", FIRST, "claim:gpu", 1, None, 1 * GIB, 0.25, 1),
    )
    usage = Usage((GpuUsage(FIRST, 40 * GIB), GpuUsage(SECOND, 40 * GIB)), pods)
    return View(replace(made, claims=claims, usage=usage), container_metrics=True)


def share(gpu: str, memory_mib: int) -> PreparedDevice:
    """Return a share of a GPU."""
    return PreparedDevice("gpu", "claims", gpu.lower(), gpu, "memory", memory_mib=memory_mib, shares=1)


def extender(scrape: int) -> tuple[ExtenderView, ExtenderCounts]:
    """Return an extender that placed three pods before each scrape, refused one, and has promised two."""
    counts = ExtenderCounts()
    counts.requests.labels("filter", "done").inc(3 * scrape)
    counts.requests.labels("bind", "refused").inc(scrape)
    counts.refusals.labels("no_room").inc(scrape)
    for _ in range(3 * scrape):
        counts.durations.labels("filter", "200").observe(0.05)
    return ExtenderView(leads=True, ready=True, nodes=3, promises=2, cache_age=5.0), counts


def partitioner(scrape: int) -> tuple[PartitionerView, PartitionerCounts]:
    """Return a partitioner that makes slices, takes some back, and has three pods wait."""
    counts = PartitionerCounts()
    counts.made.labels("10gb").inc(2 * scrape)
    counts.taken_back.labels("10gb").inc(scrape)
    counts.refusals.labels("no_room").inc(scrape)
    for _ in range(scrape):
        counts.waits.observe(0.3)
    return PartitionerView(leads=True, ready=True, waiting=3, longest_wait=42.0), counts


def scraped(scrape: int) -> Iterator[tuple[Labels, bytes]]:
    """Yield the pages of all programs of the cluster at one scrape, each with the labels of who is scraped."""
    for node, view in (
        ("shared", shared(scrape)),
        ("mig", with_mig()),
        ("mps", under_mps()),
        ("turns", in_turns()),
        ("unobserved", unobserved()),
        ("claims", by_claim(scrape)),
    ):
        yield {"cluster": CLUSTER, "node": node, "instance": f"{node}:8080"}, exposition(view, "")[1]
    yield {"cluster": CLUSTER, "instance": "extender:8081"}, extender_exposition(*extender(scrape), "")[1]
    standby = ExtenderView(leads=False, ready=False, nodes=3, cache_age=1.0), ExtenderCounts()
    yield {"cluster": CLUSTER, "instance": "standby:8081"}, extender_exposition(*standby, "")[1]
    yield {"cluster": CLUSTER, "instance": "partitioner:8082"}, partitioner_exposition(*partitioner(scrape), "")[1]


def crowd(scrape: int) -> Iterator[tuple[str, Labels, float]]:
    """Yield the samples of a cluster of many nodes, each with a model and a namespace of its own."""
    pages = {"shared": shared(scrape), "claims": by_claim(scrape), "mig": with_mig()}
    for kind, view in pages.items():
        for name, labels, value in parsed(exposition(view, "")[1]):
            for number in range(MANY):
                node = f"{kind}-{number}"
                own = {"product": f"model {number}"} if "product" in labels else {}
                own |= {"namespace": f"team-{number}"} if "namespace" in labels else {}
                yield name, {**labels, **own, "cluster": CROWD, "node": node, "instance": node}, value
    for name, labels, value in parsed(partitioner_exposition(*partitioner(scrape), "")[1]):
        for number in range(MANY if "slice" in labels else 1):
            own = {"slice": f"{number}gb"} if "slice" in labels else {}
            yield name, {**labels, **own, "cluster": CROWD}, value


def parsed(page: bytes) -> Iterator[tuple[str, Labels, float]]:
    """Yield name, labels and value of each sample of a page."""
    for family in parse_text(page.decode()):
        for each in family.samples:
            yield each.name, each.labels, each.value


def alerts() -> Iterator[tuple[str, Labels, float]]:
    """Yield what Prometheus itself knows of alerts: one fires, one does not yet."""
    gpu = {"cluster": CLUSTER, "node": "shared", "index": "1", "uuid": SECOND}
    yield "ALERTS", {**gpu, "alertname": "GpuFaulty", "severity": "critical", "alertstate": "firing"}, 1
    yield "ALERTS", {**gpu, "alertname": "GpuForeignProcess", "severity": "warning", "alertstate": "pending"}, 1
    yield "ALERTS", {**gpu, "alertname": "HostDown", "severity": "critical", "alertstate": "firing"}, 1


def prices() -> Iterator[tuple[str, Labels, float]]:
    """Yield what the recording rules say of prices."""
    for product, price in {**PRICES, **{f"model {number}": 1.0 for number in range(MANY)}}.items():
        yield PRICE, {"product": product}, price


def samples(end: float) -> Iterator[str]:
    """Yield what Prometheus has of all scrapes until `end`, in seconds since 1970, in the format of OpenMetrics."""
    for scrape in range(SCRAPES):
        at = end - EVERY * (SCRAPES - 1 - scrape)
        seen = [
            (name, {**of_target, **labels}, value)
            for of_target, page in scraped(scrape)
            for name, labels, value in parsed(page)
        ]
        many = crowd(scrape) if scrape >= SCRAPES - RATED else ()
        for name, labels, value in (*seen, *many, *alerts(), *prices()):
            yield f"{name}{braced(labels)} {value} {at}"
