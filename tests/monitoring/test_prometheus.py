"""Tests with the real Prometheus, which scrapes a simulated node, an extender and a partitioner as monitors make it."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import pytest_asyncio
from prometheus_client.parser import text_string_to_metric_families as parse_text

from generators import recorded
from generators.dashboard.rows import ROWS
from gpushare_plugin.base.structs import Struct
from gpushare_plugin.core.health import GpuEvent
from gpushare_plugin.core.usage import GpuUsage, Owner, Process
from gpushare_plugin.kube.client import NODES
from gpushare_plugin.observe.exposition import exposition
from gpushare_plugin.testing.cluster import ApiServer
from gpushare_plugin.testing.kubelet import EmbeddedKubelet
from gpushare_plugin.testing.ports import claim_port
from tests.chart.rendering import objects
from tests.monitoring.test_alerts import FILE, PAGE, RULES
from tests.monitoring.tools import Ask, as_grafana_asks, prometheus, promtool, result, tool
from tests.nodes import Cards
from tests.unit.extender.extenders import a_pod, extender, node
from tests.unit.observe.test_metrics import FIRST, GIB, HOSTILE, SECOND, TWO, Target, pod, target, view
from tests.unit.partitioner.partitioners import (
    create_node,
    create_pod,
    messages,
    offer,
    partitioner,
    slices,
)
from tests.unit.sharing.settings import GPU_MEM, memory
from tests.waiting import until

MAY_BE_BLANK = {
    "Errors of the API server",
    "Alerts that fire",
    "Cost of an hour",
    *(panel.title for panel in ROWS["Claims"]),
}
"""Panels of what is there with an API server only, which the node of these tests has not (claims, too), of prices, and
of alerts that have waited for long enough."""

MONITORS = ("PodMonitor", "ServiceMonitor")
"""Each scrapes the same node under its own name, so that what one of them shows is told from the other's."""

QUERIES_WITH_DCGM = [
    query
    for block in re.findall(r"^```\n(# .*?)^```", (PAGE.parent / "metrics.md").read_text(), re.MULTILINE | re.DOTALL)
    for query in block.split("\n\n")
]

COUNTED = (
    "gpushare_call_duration_seconds_count",
    "gpushare_refusals_total",
    "gpushare_extender_requests_total",
    "gpushare_partitioner_slices_taken_back_total",
)
"""What rates are made of."""

ON_CONTAINERS = "gpushare_container_memory_used_bytes / gpushare_container_memory_limit_bytes"


class FaultyCards(Cards):
    """GPUs of which one runs a program that fails, and one is faulty itself."""

    def watch_events(self, report: Callable[[GpuEvent], None], beat: Callable[[], None]) -> None:
        """Report both once."""
        beat()
        report(GpuEvent(FIRST, 13, "XID 13"))
        report(GpuEvent(SECOND, 79, "XID 79"))


def simulated() -> FaultyCards:
    """Return GPUs that are used by a pod, which uses too much, and by a process that is in none."""
    cards = FaultyCards(TWO)
    owner = Owner(pod="default/pod", container="main")
    processes = Process(1, "python", 4 * GIB, 0.5, owner), Process(2, "miner", GIB)
    cards.samples = (GpuUsage(FIRST, 8 * GIB, 5 * GIB, 0.75, processes), GpuUsage(SECOND, 16 * GIB, 0, 0.0, ()))
    return cards


class Scraped(Struct, frozen=True):
    """The ports at which the parts of the chart are scraped; `ask_extender` has the extender judge a pod."""

    ports: Mapping[str, int]
    ask_extender: Callable[[], Awaitable[object]]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scraped(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scraped]:
    """Run all programs for all tests here: a pod has GPUs of the daemon, the extender was asked about another one."""
    tool("prometheus")
    async with AsyncExitStack() as stack:
        # Paths of Unix sockets end at 107 characters.
        sockets = Path(stack.enter_context(TemporaryDirectory(dir="/tmp", prefix="gs-")))
        kubelet = await stack.enter_async_context(EmbeddedKubelet(sockets))
        server = await stack.enter_async_context(ApiServer())
        server.store.create(NODES, node("n0", 16))
        probes = claim_port()
        folder, address = tmp_path_factory.mktemp("extender"), f"127.0.0.1:{probes}"
        extending = await stack.enter_async_context(extender(server, folder, probe_address=address))
        ask_extender = partial(extending.comes_to_fit, a_pod(server, "one", 2), "n0")
        limited = memory(isolation="hami-core")
        daemon = await stack.enter_async_context(target(kubelet, simulated(), container_metrics=True, sharing=limited))
        await kubelet.wait_for(lambda seen: seen.allocatable() == {GPU_MEM: 8})
        await kubelet.admit(pod(3))
        await ask_extender()
        await daemon.until(lambda seen: seen["gpushare_container_units"])
        of_partitioner = await partitioning(stack, server, folder)
        yield Scraped({"node-daemon": daemon.port, "extender": probes, "partitioner": of_partitioner}, ask_extender)


async def partitioning(stack: AsyncExitStack, server: ApiServer, folder: Path) -> int:
    """Run a partitioner that made a slice and took it back, and refused another; return the port of its metrics."""
    create_node(server, "sliced", 40)
    port = claim_port()
    await stack.enter_async_context(partitioner(server, folder / "partitioner", probe_address=f"127.0.0.1:{port}"))
    create_pod(server, "takes", "10gb")
    create_pod(server, "large", "50gb")
    await until(lambda: slices(server, "sliced") and messages(server, "takes") and messages(server, "large"))
    offer(server, "sliced", 40)
    waited = "gpushare_partitioner_pod_wait_duration_seconds_count 1.0"
    await until(partial(_shows, port, waited))
    server.store.update(NODES, "sliced", {("spec", "unschedulable"): True})
    await until(lambda: any(each.startswith("SliceTakenBack") for each in messages(server, "takes")))
    return port


async def _shows(port: int, line: str) -> bool:
    return line in (await Target(port).page())[1]


def scrape_config(kind: str, port: int, part: str) -> dict[str, Any]:
    """Return how Prometheus' operator has a port of one pod scraped for a monitor of this kind."""
    programs = {name: {"enabled": True} for name in ("scheduler", "partitioning", "mps")}
    values = {kind[0].lower() + kind[1:]: {"enabled": True}, **programs}
    (monitor,) = (
        each
        for each in objects(values)
        if each["kind"] == kind and each["spec"]["selector"]["matchLabels"]["app.kubernetes.io/component"] == part
    )
    ((endpoint,),) = (each for key, each in monitor["spec"].items() if key.lower().endswith("endpoints"))
    assert endpoint["relabelings"] == [{"sourceLabels": ["__meta_kubernetes_pod_node_name"], "targetLabel": "node"}]
    job = f"{monitor['metadata']['namespace']}/{monitor['metadata']['name']}"
    labels = {"namespace": "kube-system", "pod": f"{part}-1", "container": part, "endpoint": endpoint["port"]}
    of_service = {"service": monitor["metadata"]["name"]} if kind == "ServiceMonitor" else {}
    static = {"targets": [f"127.0.0.1:{port}"], "labels": {**labels, **of_service, "node": kind, "job": job}}
    return {
        "job_name": f"{kind}/{part}",
        "honor_labels": endpoint["honorLabels"],
        "metrics_path": endpoint["path"],
        "static_configs": [static],
    }


async def has_rates(ask: Ask, counter: str) -> bool:
    """Whether all series of a counter have two values, for both monitors."""
    counts = await result(ask, f"count_over_time({counter}[1m])")
    monitors = {each["metric"]["node"] for each in counts}
    return monitors == set(MONITORS) and all(float(each["value"][1]) > 1 for each in counts)


@pytest.mark.asyncio(loop_scope="module")
async def test_scraped_metrics_fill_every_panel_and_rule(scraped: Scraped, tmp_path: Path) -> None:
    """With either monitor no panel is blank, no query and no rule is an error; what is wrong makes alerts."""
    scrapes = [scrape_config(kind, port, part) for kind in MONITORS for part, port in scraped.ports.items()]
    often = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
    config = {"global": often, "rule_files": [str(FILE), *map(str, recorded.files())], "scrape_configs": scrapes}
    async with prometheus(tmp_path, **config) as ask:

        async def has_all() -> bool:
            # A rate takes two values, and requests between them.
            await scraped.ask_extender()
            return all([await has_rates(ask, name) for name in COUNTED]) and len(await result(ask, ON_CONTAINERS)) == 2

        await until(has_all)
        blank: list[tuple[str, str]] = []

        async def is_drawn() -> bool:
            # On a busy machine a scrape can fail, and what it would have shown is missing until the next one.
            blank[:] = await blank_panels(ask)
            return not blank

        await until(is_drawn, lambda: f"blank: {blank}")
        for name, _ in recorded.dcgm():
            await until(partial(result, ask, f'{name}{{Hostname="PodMonitor"}}'))
        for query in QUERIES_WITH_DCGM:
            await result(ask, query)
        await until(partial(alerts_are_pending, ask))


async def blank_panels(ask: Ask) -> list[tuple[str, str]]:
    """Return the panels that show nothing, by the monitor and their title."""
    return [
        (kind, panel.title)
        for kind in MONITORS
        for panels in ROWS.values()
        for panel in panels
        if panel.title not in MAY_BE_BLANK
        and not any([await result(ask, as_grafana_asks(query.promql, node=kind)) for query in panel.queries])
    ]


async def alerts_are_pending(ask: Ask) -> bool:
    """Whether every rule was evaluated without an error, and alerts wait for what is wrong on the node, twice."""
    rules = [rule for group in (await ask("rules"))["data"]["groups"] for rule in group["rules"]]
    assert {rule["name"] for rule in rules if rule["type"] == "alerting"} == set(RULES)
    assert {rule["name"]: rule["lastError"] for rule in rules if rule.get("lastError")} == {}
    if any(rule["health"] != "ok" for rule in rules):
        return False
    raised = {
        rule["name"]: {alert["labels"].get("node") for alert in rule["alerts"]} for rule in rules if rule.get("alerts")
    }
    return all(raised.get(name) == set(MONITORS) for name in ("GpuFaulty", "GpuOverused"))


@pytest.mark.asyncio(loop_scope="module")
async def test_pages_keep_to_the_rules_of_promtool(scraped: Scraped) -> None:
    """`promtool check metrics` finds nothing on pages of all three programs; the official parser reads them."""
    pages = [(await Target(port).page())[1] for port in scraped.ports.values()]
    for page in (*pages, exposition(view(HOSTILE), "")[1].decode()):
        assert any(family.samples for family in parse_text(page) if family.name.startswith("gpushare_"))
        assert await asyncio.to_thread(promtool, "check", "metrics", given=page.encode()) == ""
