"""Tests of `gpushare_plugin.observe.metrics.node`: what is scraped from a daemon beside an embedded kubelet."""

import asyncio
import re
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from prometheus_client import Metric as Family
from prometheus_client.openmetrics import parser as openmetrics_parser
from prometheus_client.parser import text_string_to_metric_families as parse_text

from generators.metrics_table import PAGE
from gpushare_plugin import __version__
from gpushare_plugin.base.errors import NoGpuLibraryError
from gpushare_plugin.base.structs import replace
from gpushare_plugin.config.sources.choice import Configs
from gpushare_plugin.core.effect import IN_EFFECT, Effect, not_in_effect, unknown
from gpushare_plugin.core.gpu import FailedGpu
from gpushare_plugin.core.health import GpuEvent
from gpushare_plugin.core.resource import Durations, Standing
from gpushare_plugin.core.snapshot import Snapshot
from gpushare_plugin.core.usage import ContainerUsage, GpuUsage, Owner, Process, Usage
from gpushare_plugin.node import daemon as app
from gpushare_plugin.node.news.counts import MOST_XIDS, XidCounts
from gpushare_plugin.node.news.news import GpuEventReported
from gpushare_plugin.observe.exposition import exposition
from gpushare_plugin.observe.metrics.extender import EXTENDER_METRICS
from gpushare_plugin.observe.metrics.metric import Metric
from gpushare_plugin.observe.metrics.node import METRICS, MOST_CONTAINERS, View
from gpushare_plugin.observe.metrics.partitioner import PARTITIONER_METRICS
from gpushare_plugin.observe.metrics.web import WEB_METRICS
from gpushare_plugin.testing.kubelet import AdmissionError, Container, EmbeddedKubelet, Pod
from gpushare_plugin.testing.ports import claim_port
from tests.node.living import QUICK, Life, living
from tests.nodes import Cards, a_gpu, a_mig_node, a_node
from tests.process.daemon import answer, running
from tests.snapshots import snapshot
from tests.unit.core.claimed import claim, device, with_claims
from tests.unit.sharing.settings import GPU_MEM, memory, planned, time_slicing
from tests.waiting import PATIENCE, until

LOOK_EVERY = 0.02
"""Seconds between scrapes while something is waited for."""

GIB = 1024**3
TWO = replace(a_node(8192, 16384), driver_version="570.86.15", cuda_version=(12, 8))
FIRST, SECOND = (gpu.uuid for gpu in TWO.cards)
GPU = "nvidia.com/gpu"
CALL = "GetPreferredAllocation"

LABELS = {
    "index",
    "uuid",
    "product",
    "mode",
    "isolation",
    "wanted",
    "state",
    "resource",
    "call",
    "version",
    "driver_version",
    "cuda_version",
} | {
    "reason",
    "xid",
    "method",
    "code",
    "name",
}
"""Labels whose values are never more than there are GPUs and resources; no free text is among them."""
CONTAINER_LABELS = {"namespace", "pod", "container"}
"""Labels whose values are as many as containers hold GPUs; only metrics that are asked for have them."""

OPENMETRICS = "application/openmetrics-text; version=1.0.0"
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)

CONTAINER_METRICS = ("units", "memory_limit_bytes", "memory_used_bytes", "utilization_ratio", "over_limit")
"""The metrics of a container, without what their names begin with."""

Samples = dict[tuple[str, ...], float]
"""Values by the values of the labels, these in the order of the labels' names."""
Scrape = dict[str, Samples]


def samples(families: Iterable[Family]) -> Scrape:
    """Return the values of each metric, a metric without any included."""
    seen: Scrape = {}
    for family in families:
        seen.setdefault(family.name, {})
        for sample in family.samples:
            labels = tuple(sample.labels[name] for name in sorted(sample.labels))
            assert labels not in seen.setdefault(sample.name, {}), "each series is there once"
            seen[sample.name][labels] = sample.value
    return seen


def parse_openmetrics(text: str) -> list[Family]:
    """Read a page of the other format."""
    return list(openmetrics_parser.text_string_to_metric_families(text))  # type: ignore[no-untyped-call] # it has none


def scraped(life: Life) -> Scrape:
    """Return the metrics of a node that is not served over HTTP."""
    standings = {name: session.standing for name, session in life.node.sessions.items()}
    return samples(parse_text(exposition(View(replace(life.node.snapshot.value, standings=standings)), "")[1].decode()))


class Target:
    """A daemon's metrics, as they are scraped."""

    def __init__(self, port: int) -> None:
        """Scrape at this port."""
        self.port = port

    async def page(self, accept: str = "") -> tuple[str, str]:
        """Return content type and text."""
        url = f"http://127.0.0.1:{self.port}/metrics"
        async with aiohttp.ClientSession() as session, session.get(url, headers={"Accept": accept}) as response:
            assert response.status == 200
            return response.headers["Content-Type"], await response.text()

    async def scrape(self) -> Scrape:
        """Return the current metrics."""
        return samples(parse_text((await self.page())[1]))

    async def until(self, condition: Callable[[Scrape], object]) -> Scrape:
        """Scrape until the condition holds, and return that scrape."""
        seen: Scrape = {}

        async def scraped() -> bool:
            nonlocal seen
            seen = await self.scrape()
            return bool(condition(seen))

        await until(scraped, lambda: seen)
        return seen


@asynccontextmanager
async def target(
    kubelet: EmbeddedKubelet, cards: Cards, *, container_metrics: bool = False, **sections: object
) -> AsyncIterator[Target]:
    """Run a daemon in this process, with these GPUs and this config, and scrape it."""
    file = kubelet.plugin_directory.parent / "config.yaml"
    file.write_text(yaml.safe_dump({"version": "v1", "health": QUICK, **sections}))
    port = claim_port()
    address = f"127.0.0.1:{port}"
    daemon = app.Daemon(
        Configs(file=file),
        lambda _: cards,
        kubelet.plugin_directory,
        kubelet.pod_resources_socket,
        http_address=address,
        container_metrics=container_metrics,
    )
    task = asyncio.create_task(app.serve(daemon))
    try:
        await answer(port, "/healthz")
        yield Target(port)
    finally:
        task.cancel()
        await asyncio.wait([task], timeout=PATIENCE)


def pod(count: int, resource: str = GPU_MEM, name: str = "pod") -> Pod:
    """Return a pod of one container."""
    return Pod(name, [Container("main", {resource: count})])


# ---------------------------------------------------------------------- values


async def test_a_node_has_all_its_series(kubelet: EmbeddedKubelet) -> None:
    """Versions, GPUs with memory and health, their units, and how the resource stands: these series, no others."""
    async with target(kubelet, Cards(TWO), sharing=memory(unit="512MiB")) as daemon:
        seen = await daemon.until(
            lambda seen: seen["gpushare_resource_registered"] == {(GPU_MEM,): 1} and seen["gpushare_usage_age_seconds"]
        )
    assert seen.pop("gpushare_usage_age_seconds")[()] >= 0
    assert abs(seen.pop("gpushare_config_last_reload_success_timestamp_seconds")[()] - time.time()) < PATIENCE
    assert seen.pop("gpushare_registrations_total")[GPU_MEM,] >= 1
    assert seen.pop("gpushare_registration_failures_total")[GPU_MEM,] >= 0
    assert set(seen.pop("gpushare_gpu_units_used").values()) <= {0}
    calls = {name: seen.pop(f"gpushare_call_duration_seconds_{name}") for name in ("bucket", "count", "sum")}
    assert calls["count"][("OK", "GetDevicePluginOptions", GPU_MEM)] >= 1
    assert {name: values for name, values in seen.items() if name.startswith("gpushare_") and values} == {
        "gpushare_build_info": {(__version__,): 1},
        "gpushare_driver_info": {("12.8", "570.86.15"): 1},
        "gpushare_gpu_info": {
            ("0", "memory", TWO.cards[0].name, FIRST): 1,
            ("1", "memory", TWO.cards[1].name, SECOND): 1,
        },
        "gpushare_gpu_memory_bytes": {("0", FIRST): 8 * GIB, ("1", SECOND): 16 * GIB},
        "gpushare_gpu_healthy": {("0", FIRST): 1, ("1", SECOND): 1},
        "gpushare_gpu_unhealthy": {
            (index, reason, uuid): 0
            for index, uuid in (("0", FIRST), ("1", SECOND))
            for reason in ("fault", "mps", "cordon")
        },
        "gpushare_gpu_waiting": {("0", FIRST): 0, ("1", SECOND): 0},
        "gpushare_gpus_unresponsive": {(): 0},
        "gpushare_gpu_units_allocatable": {("0", GPU_MEM, FIRST): 16, ("1", GPU_MEM, SECOND): 32},
        "gpushare_gpu_units": {("0", GPU_MEM, FIRST): 16, ("1", GPU_MEM, SECOND): 32},
        "gpushare_gpu_unit_memory_bytes": {("0", GPU_MEM, FIRST): GIB / 2, ("1", GPU_MEM, SECOND): GIB / 2},
        "gpushare_resource_registered": {(GPU_MEM,): 1},
        "gpushare_allocations_total": {(GPU_MEM,): 0},
        "gpushare_refusals_total": {("Allocate", GPU_MEM): 0, (CALL, GPU_MEM): 0, ("PreStartContainer", GPU_MEM): 0},
        "gpushare_config_info": {("config.yaml",): 1},
        "gpushare_config_last_reload_successful": {(): 1},
        "gpushare_notices": {(): 0},
        "gpushare_log_lines_dropped_total": {(): 0},
    }
    assert seen["process_open_fds"][()] > 0
    assert seen["process_cpu_seconds_total"][()] > 0


async def test_a_node_without_gpus_has_a_page(kubelet: EmbeddedKubelet) -> None:
    """A node without GPUs has its version and a warning, until the GPUs respond."""
    cards = Cards(TWO)
    cards.trouble = NoGpuLibraryError("Driver Not Loaded")
    async with target(kubelet, cards, flags={"failOnInitError": False}, sharing=memory()) as daemon:
        seen = await daemon.scrape()
        assert seen["gpushare_notices"] == {(): 1}
        assert seen["gpushare_build_info"] == {(__version__,): 1}
        for name in ("gpushare_driver_info", "gpushare_gpu_info", "gpushare_resource_registered"):
            assert seen[name] == {}
        cards.trouble = None
        seen = await daemon.until(lambda seen: seen["gpushare_resource_registered"] == {(GPU_MEM,): 1})
        assert seen["gpushare_notices"] == {(): 0}


async def test_a_gpu_that_fails_is_unhealthy_until_it_recovers(kubelet: EmbeddedKubelet) -> None:
    """Its health goes to 0 and back to 1; its units, and those of the other GPU, stay."""
    cards = Cards(TWO)
    units = {("0", GPU_MEM, FIRST): 8, ("1", GPU_MEM, SECOND): 16}
    async with target(kubelet, cards, sharing=memory()) as daemon:
        await daemon.until(lambda seen: seen["gpushare_gpu_healthy"] == {("0", FIRST): 1, ("1", SECOND): 1})
        cards.inventory = replace(TWO, cards=TWO.cards[1:], failed=(FailedGpu(0, "GPU is lost", FIRST, lost=True),))
        seen = await daemon.until(lambda seen: seen["gpushare_gpu_healthy"] == {("0", FIRST): 0, ("1", SECOND): 1})
        assert seen["gpushare_gpus_unresponsive"] == {(): 1}
        assert seen["gpushare_gpu_units"] == units
        assert seen["gpushare_gpu_units_allocatable"] == {("0", GPU_MEM, FIRST): 0, ("1", GPU_MEM, SECOND): 16}
        assert [labels for labels, value in seen["gpushare_gpu_unhealthy"].items() if value] == [("0", "fault", FIRST)]
        await kubelet.wait_for(lambda seen: seen.allocatable() == {GPU_MEM: 16})
        cards.inventory = TWO
        seen = await daemon.until(lambda seen: seen["gpushare_gpu_healthy"] == {("0", FIRST): 1, ("1", SECOND): 1})
        assert seen["gpushare_gpus_unresponsive"] == {(): 0}
        assert seen["gpushare_gpu_units"] == units


async def test_a_gpu_that_is_gone_is_counted(kubelet: EmbeddedKubelet) -> None:
    """It has no series of its own any more, so that labels do not pile up, but it counts as unresponsive."""
    cards = Cards(TWO)
    async with target(kubelet, cards, sharing=memory()) as daemon:
        await daemon.until(lambda seen: len(seen["gpushare_gpu_healthy"]) == 2)
        cards.inventory = replace(TWO, cards=TWO.cards[1:])
        seen = await daemon.until(lambda seen: seen["gpushare_gpu_healthy"] == {("1", SECOND): 1})
        assert seen["gpushare_gpus_unresponsive"] == {(): 1}
        assert seen["gpushare_gpu_units"] == {("1", GPU_MEM, SECOND): 16}


async def test_a_kubelet_that_restarts_is_visible(kubelet: EmbeddedKubelet) -> None:
    """Registered goes to 0 and back to 1, and the counters go on from where they were."""
    async with target(kubelet, Cards(TWO), sharing=memory()) as daemon:
        await kubelet.wait_for(lambda seen: seen.allocatable() == {GPU_MEM: 24})
        await kubelet.admit(pod(5))
        await kubelet.stop()
        await daemon.until(lambda seen: seen["gpushare_resource_registered"] == {(GPU_MEM,): 0})
        await kubelet.start()
        seen = await daemon.until(lambda seen: seen["gpushare_resource_registered"] == {(GPU_MEM,): 1})
        assert seen["gpushare_allocations_total"] == {(GPU_MEM,): 1}


async def test_every_answer_to_a_request_for_units_is_counted_once(kubelet: EmbeddedKubelet) -> None:
    """Every container that gets its units, and every one that does not, by the call that failed."""
    sliced = time_slicing({"name": GPU, "replicas": 4, "devices": [1]}, failRequestsGreaterThanOne=True)
    async with target(kubelet, Cards(TWO), sharing=memory(devices=[0]) | sliced) as daemon:
        await kubelet.wait_for(lambda seen: seen.allocatable() == {GPU_MEM: 8, GPU: 4})
        for number in range(3):
            await kubelet.admit(pod(2, name=f"pod-{number}"))
        await kubelet.admit(Pod("two", [Container(name, {GPU: 1}) for name in ("a", "b")]))
        with pytest.raises(AdmissionError):
            await kubelet.admit(pod(2, GPU, "greedy"))
        seen = await daemon.scrape()
    assert seen["gpushare_allocations_total"] == {(GPU_MEM,): 3, (GPU,): 2}
    assert sum(seen["gpushare_refusals_total"].values()) == 1
    assert seen["gpushare_refusals_total"]["Allocate", GPU] == 1


async def test_failed_preferences_are_counted(kubelet: EmbeddedKubelet) -> None:
    """More than any one GPU has left fails before Allocate is called, and is counted as that."""
    async with target(kubelet, Cards(TWO), sharing=memory()) as daemon:
        await kubelet.wait_for(lambda seen: seen.allocatable() == {GPU_MEM: 24})
        with pytest.raises(AdmissionError):
            await kubelet.admit(pod(20))
        seen = await daemon.scrape()
    assert seen["gpushare_refusals_total"] == {
        ("Allocate", GPU_MEM): 0,
        (CALL, GPU_MEM): 1,
        ("PreStartContainer", GPU_MEM): 0,
    }
    assert seen["gpushare_allocations_total"] == {(GPU_MEM,): 0}


async def test_ways_of_sharing_are_visible(kubelet: EmbeddedKubelet) -> None:
    """Each GPU has its mode and its units, and only memory units have a size."""
    shared = memory(devices=[0]) | time_slicing({"name": GPU, "replicas": 4, "devices": [1], "rename": f"{GPU}.shared"})
    async with living(kubelet, Cards(a_node(8192, 8192, 8192)), sharing=shared) as life:
        seen = scraped(life)
    modes = {labels[:2] for labels in seen["gpushare_gpu_info"]}
    assert modes == {("0", "memory"), ("1", "time-slicing"), ("2", "exclusive")}
    units = {labels[:2]: count for labels, count in seen["gpushare_gpu_units"].items()}
    assert units == {("0", GPU_MEM): 8, ("1", f"{GPU}.shared"): 4, ("2", GPU): 1}
    assert seen["gpushare_gpu_unit_memory_bytes"] == {("0", GPU_MEM, a_gpu(0).uuid): GIB}


async def test_instances_are_gpus_of_their_own(kubelet: EmbeddedKubelet) -> None:
    """A MIG instance has its number, its memory and its health, which its fault takes from its card as well."""
    node = a_mig_node(("3g.20gb", "1g.5gb"))
    patient = QUICK | {"probeSeconds": 3600, "rescanSeconds": 3600}
    async with living(kubelet, Cards(node), flags={"migStrategy": "mixed"}, health=patient) as life:
        seen = scraped(life)
        assert {(index, mode, product) for index, mode, product, _ in seen["gpushare_gpu_info"]} == {
            ("0", "none", node.cards[0].name),
            ("0:0", "exclusive", f"{node.cards[0].name} MIG 3g.20gb"),
            ("0:1", "exclusive", f"{node.cards[0].name} MIG 1g.5gb"),
        }
        instance = node.instances[1].mig
        assert instance is not None
        life.node.event(GpuEvent(node.cards[0].uuid, 56, "XID 56", instance.gpu_instance, instance.compute_instance))
        healthy = {index: value for (index, _), value in scraped(life)["gpushare_gpu_healthy"].items()}
        assert healthy == {"0": 0, "0:0": 1, "0:1": 0}


async def test_a_resource_that_is_no_longer_offered_has_no_series(kubelet: EmbeddedKubelet) -> None:
    """A resource that a new config removes leaves no series behind, and a rejected config is a warning."""
    async with living(kubelet, Cards(TWO), sharing=memory()) as life:
        await life.healthy({GPU_MEM: 24})
        await life.reload(sharing=memory(name="example.com/mem"))
        await life.healthy({"example.com/mem": 24})
        seen = scraped(life)
        for name, values in seen.items():
            assert not [labels for labels in values if GPU_MEM in labels], name
        assert seen["gpushare_notices"] == {(): 0}
        await life.reload(sharing=memory(devices=[7]))
        assert scraped(life)["gpushare_notices"][()] >= 1
        assert scraped(life)["gpushare_config_last_reload_successful"] == {(): 0}
        assert scraped(life)["gpushare_allocations_total"] == {("example.com/mem",): 0}


async def test_calls_are_counted_by_method_and_code(kubelet: EmbeddedKubelet) -> None:
    """A histogram has each call once, those that were refused under their code."""
    async with target(kubelet, Cards(TWO), sharing=memory()) as daemon:
        await kubelet.wait_for(lambda seen: seen.allocatable() == {GPU_MEM: 24})
        await kubelet.admit(pod(1))
        seen = await daemon.until(lambda seen: seen["gpushare_call_duration_seconds_count"])
        assert seen["gpushare_call_duration_seconds_count"]["OK", "Allocate", GPU_MEM] == 1
        assert seen["gpushare_call_duration_seconds_bucket"]["OK", "+Inf", "Allocate", GPU_MEM] == 1
        assert seen["gpushare_call_duration_seconds_sum"]["OK", "Allocate", GPU_MEM] > 0


def test_causes_and_errors_have_few_labels() -> None:
    """A GPU that MPS does not serve is not faulty; XIDs and errors of the API server are counted by kind."""
    uuid, reason = a_gpu(0).uuid, "not served by MPS: it crashed"
    made = replace(
        view("A100").snapshot, unhealthy={uuid: reason}, unserved={uuid: reason}, under_mps=frozenset({uuid})
    )
    seen = on_page(View(made, xids={(uuid, "79"): 2, ("", "62"): 1}, api_errors={"server": 3}))
    assert seen["gpushare_gpu_unhealthy"] == {
        ("0", cause, uuid): cause == "mps" for cause in ("fault", "mps", "cordon")
    }
    assert seen["gpushare_gpu_mps_served"] == {("0", uuid): 0}
    assert seen["gpushare_gpu_xid_errors_total"] == {("0", uuid, "79"): 2, ("", "", "62"): 1}
    assert seen["gpushare_api_errors_total"] == {("server",): 3}


def test_clients_of_mps_are_counted_where_gpus_are_shared_through_it() -> None:
    """Elsewhere MPS is none of our business, and where the driver does not say it there is no number."""
    uuid, other = a_gpu(0).uuid, a_gpu(1).uuid
    made = replace(
        view("A100").snapshot,
        inventory=a_node(8192, 8192),
        under_mps=frozenset({uuid}),
        usage=Usage((GpuUsage(uuid, mps_clients=3), GpuUsage(other, mps_clients=2))),
    )
    assert on_page(View(made))["gpushare_gpu_mps_clients"] == {("0", uuid): 3}
    unknown = replace(made, usage=Usage((GpuUsage(uuid),)))
    assert on_page(View(unknown))["gpushare_gpu_mps_clients"] == {}


def test_xids_are_counted_without_end() -> None:
    """Whatever a driver makes up, the series of XIDs are bounded, and none is lost."""
    xids = XidCounts()
    for xid in range(MOST_XIDS + 5):
        xids.count(GpuEventReported(GpuEvent(FIRST, xid, "an error"), "ignore"))
    assert (len(xids.counts), xids.counts["", "other"]) == (MOST_XIDS + 1, 5)


def test_gauges_have_the_names_of_hami_on_request() -> None:
    """Under both names of HAMi, with its labels and units; containers only where they have metrics."""
    uuid = a_gpu(0).uuid
    one = ContainerUsage("team", "pod-0", "main", "uid", uuid, GPU_MEM, 2, 2 * GIB, GIB, 0.5, 1)
    usage = Usage((GpuUsage(uuid, 8 * GIB, 3 * GIB, 0.25),), (one,), held={(GPU_MEM, uuid): 2})
    made = replace(view("A100").snapshot, usage=usage)
    assert not any("hami" in name or "GPU" in name for name in on_page(View(made)))
    seen = on_page(View(made, hami_metrics=True, container_metrics=True, node="n1"))
    gpu, holder = ("0", "NVIDIA-A100", uuid, "n1"), ("main", uuid, "team", "pod-0", "0")
    assert seen["hami_gpu_memory_limit_bytes"] == seen["GPUDeviceMemoryLimit"] == {gpu: 8 * GIB}
    assert seen["GPUDeviceMemoryAllocated"] == {("100", *gpu): 2 * GIB}
    assert seen["GPUDeviceSharedNum"] == {gpu: 1}
    assert seen["nodeGPUOverview"] == {("100", "0", "8192", "NVIDIA-A100", uuid, "n1"): 2 * GIB}
    assert seen["nodeGPUMemoryPercentage"] == {gpu: 0.25}
    assert seen["HostGPUMemoryUsage"] == {gpu: 3 * GIB}
    assert seen["HostCoreUtilization"] == {gpu: 25}
    assert seen["hami_vgpu_memory_used_bytes"] == {("main", uuid, "team", "pod-0", "0"): GIB}
    assert list(seen["vGPU_device_memory_limit_in_bytes"].values()) == [2 * GIB]
    assert list(seen["Device_memory_desc_of_container"].values()) == [GIB]
    assert seen["hami_container_device_utilization_ratio"] == {holder: 50}
    assert seen["gpushare_gpu_units_used"] == {("0", GPU_MEM, uuid): 2}


def test_gauges_have_the_names_of_aliyun_on_request() -> None:
    """With its labels and units; containers only where they have metrics."""
    uuid = a_gpu(0).uuid
    one = ContainerUsage("team", "pod-0", "main", "uid", uuid, GPU_MEM, 2, 2 * GIB, GIB, 0.5, 1)
    made = replace(view("A100").snapshot, usage=Usage((GpuUsage(uuid),), (one,), held={(GPU_MEM, uuid): 2}))
    assert not any("DCGM" in name for name in on_page(View(made)))
    seen = on_page(View(made, aliyun_metrics=True, container_metrics=True, node="n1"))
    gpu = ("n1", uuid, "nvidia0", "0", "A100")
    assert seen["DCGM_CUSTOM_ALLOCATE_MODE"] == {("n1",): 2}
    assert seen["DCGM_CUSTOM_DEV_FB_TOTAL"] == {("570.86.15", *gpu): 8192}
    assert seen["DCGM_CUSTOM_DEV_FB_ALLOCATED"] == {("570.86.15", *gpu): 0.25}
    holder = ("share", "main", "team", "n1", "pod-0", *gpu[1:])
    assert seen["DCGM_CUSTOM_CONTAINER_MEM_ALLOCATED"] == {holder: 2048}
    assert seen["DCGM_CUSTOM_PROCESS_MEM_USED"] == {holder: 1024}
    assert seen["DCGM_CUSTOM_PROCESS_SM_UTIL"] == {holder: 50}


def test_a_gpu_of_unknown_memory_has_no_gauge_of_memory() -> None:
    """Under any name an unknown amount is absent, not zero; units, health and what containers use are there."""
    inventory = replace(a_node(0, 8192, name="NVIDIA GB10"), driver_version="580.173.02")
    first, second = (gpu.uuid for gpu in inventory.cards)
    held = {("nvidia.com/gpu", first): 1}
    one = ContainerUsage("team", "pod-0", "main", "uid", first, "nvidia.com/gpu", 1, None, GIB, 0.5, 1)
    usage = Usage((GpuUsage(first, utilization=0.5), GpuUsage(second, 8 * GIB, GIB, 0.25)), (one,), held=held)
    made = Snapshot(inventory=inventory, resources=planned(inventory).resources, usage=usage)
    seen = on_page(View(made, hami_metrics=True, aliyun_metrics=True, container_metrics=True, node="n1"))
    for name in ("gpushare_gpu_memory_bytes", "gpushare_gpu_memory_used_bytes"):
        assert seen[name].keys() == {("1", second)}
    for name in ("GPUDeviceMemoryLimit", "nodeGPUMemoryPercentage", "HostGPUMemoryUsage", "DCGM_CUSTOM_DEV_FB_TOTAL"):
        assert len(seen[name]) == 1
        assert all(second in labels for labels in seen[name])
    assert seen["gpushare_container_memory_limit_bytes"] == {}
    assert list(seen["gpushare_container_memory_used_bytes"].values()) == [GIB]
    assert seen["gpushare_gpu_healthy"] == {("0", first): 1, ("1", second): 1}
    assert seen["gpushare_gpu_utilization_ratio"] == {("0", first): 0.5, ("1", second): 0.25}


@pytest.mark.parametrize(("held", "gpu", "mode"), [(None, 0, None), ({}, 0, 0), ({"r": 1}, 0, 2), ({"r": 1}, 1, 1)])
def test_the_mode_of_a_node_for_aliyun_follows_from_what_pods_hold(
    held: dict[str, int] | None, gpu: int, mode: int | None
) -> None:
    """Nobody holds a GPU, whole GPUs are held, or shares; not known is none of them."""
    inventory = a_node(8192, 8192)
    resources = planned(inventory, sharing=memory(devices=[0])).resources
    on = a_gpu(gpu).uuid
    using = tuple(ContainerUsage("t", "p", "c", "u", on, "r", 1, GIB) for _ in held or ())
    usage = Usage(containers=using, held=None if held is None else {(name, on): 1 for name in held})
    seen = on_page(View(Snapshot(inventory=inventory, resources=resources, usage=usage), aliyun_metrics=True))
    assert list(seen["DCGM_CUSTOM_ALLOCATE_MODE"].values()) == ([] if mode is None else [mode])


def on_page(shown: View) -> Scrape:
    """Return what is on the page of a node."""
    return samples(parse_text(exposition(shown, "")[1].decode()))


# ---------------------------------------------------------------------- who uses what


async def test_a_scrape_shows_the_usage_of_the_last_look(kubelet: EmbeddedKubelet) -> None:
    """A scrape shows the last look at GPUs and containers; NVML is not asked for it."""
    cards = Cards(TWO)
    owner, stranger = Owner(pod="default/pod", container="main"), Process(2, "miner", GIB)
    first = GpuUsage(FIRST, 8 * GIB, 5 * GIB, 0.75, (Process(1, "python", 4 * GIB, 0.5, owner), stranger))
    cards.samples = (first, GpuUsage(SECOND, 16 * GIB, unknown="no host PIDs"))
    async with target(kubelet, cards, container_metrics=True, sharing=memory(devices=[0])) as daemon:
        await kubelet.wait_for(lambda seen: seen.allocatable() == {GPU_MEM: 8, GPU: 1})
        await kubelet.admit(pod(3))
        seen = await daemon.until(lambda seen: seen["gpushare_container_units"])
    zero, one = ("0", FIRST), ("1", SECOND)
    assert seen["gpushare_gpu_memory_used_bytes"] == {zero: 5 * GIB}
    assert seen["gpushare_gpu_utilization_ratio"] == {zero: 0.75}
    assert seen["gpushare_gpu_usage_known"] == {zero: 1, one: 0}
    assert seen["gpushare_gpu_processes"] == {zero: 2}
    assert seen["gpushare_gpu_containers_over_limit"] == {zero: 1}
    holder = ("main", "0", "default", "pod", GPU_MEM, FIRST)
    assert {name: seen[f"gpushare_container_{name}"] for name in CONTAINER_METRICS} == {
        "units": {holder: 3},
        "memory_limit_bytes": {holder: 3 * GIB},
        "memory_used_bytes": {holder: 4 * GIB},
        "utilization_ratio": {holder: 0.5},
        "over_limit": {holder: 1},
    }
    assert seen["gpushare_containers_left_out"] == {(): 0}


def test_containers_are_counted_by_whether_their_limit_is_in_effect() -> None:
    """Each GPU under an isolation has a number for each state; a container of which nothing is known has no gauge."""
    late, broken = Effect("in effect since", seconds=3.0), not_in_effect("it escaped")
    found = (IN_EFFECT, IN_EFFECT, late, broken, unknown("nobody knows"), None)
    usage = Usage(
        containers=tuple(replace(using(number), effect=effect) for number, effect in enumerate(found)),
        held={(GPU_MEM, FIRST): 6},
    )
    made = Snapshot(inventory=TWO, resources=planned(TWO).resources, usage=usage, isolations_in_use={FIRST: "mps"})
    seen = on_page(View(made, container_metrics=True))
    assert seen["gpushare_gpu_container_limits"] == {
        ("0", state, FIRST): count
        for state, count in (("in_effect", 2), ("in_effect_since", 1), ("not_in_effect", 1), ("unknown", 1))
    }
    gauges = seen["gpushare_container_limit_in_effect"]
    assert {labels[3]: value for labels, value in gauges.items()} == {"pod-0": 1, "pod-1": 1, "pod-2": 1, "pod-3": 0}
    assert on_page(View(replace(made, isolations_in_use={})))["gpushare_gpu_container_limits"] == {}


def test_containers_have_metrics_only_if_asked_for() -> None:
    """Names of pods are many; what they use together is there in any case."""
    made = replace(view("A100").snapshot, usage=Usage(containers=(using(0),), age=3))
    seen = samples(parse_text(exposition(View(made), "")[1].decode()))
    assert [name for name, values in seen.items() if name.startswith("gpushare_container") and values] == []
    assert seen["gpushare_usage_age_seconds"] == {(): 3}


def test_containers_with_metrics_are_bounded() -> None:
    """Of too many, those that use the most have series, and the others are counted."""
    crowd = tuple(using(number) for number in range(MOST_CONTAINERS + 7))
    made = View(replace(view("A100").snapshot, usage=Usage(containers=crowd)), container_metrics=True)
    seen = samples(parse_text(exposition(made, "")[1].decode()))
    used = seen["gpushare_container_memory_used_bytes"]
    assert (len(used), min(used.values())) == (MOST_CONTAINERS, 7)
    assert seen["gpushare_containers_left_out"] == {(): 7}


def using(number: int) -> ContainerUsage:
    """Return a container of a pod of its own that uses so many bytes."""
    uuid = a_gpu(0).uuid
    return ContainerUsage("team", f"pod-{number}", "main", f"uid-{number}", uuid, GPU_MEM, 1, GIB, number, 0.0, 1)


# ---------------------------------------------------------------------- formats


HOSTILE = 'A100 "quoted" \\ back\\nslash\nnew line{}=,# größer 中\r\x85\u2028'


async def test_a_hostile_name_arrives_as_it_is(kubelet: EmbeddedKubelet) -> None:
    """Whatever the name of a GPU is, it is the value of one label in one line."""
    cards = Cards(a_node(8192, name=HOSTILE))
    async with target(kubelet, cards, sharing=memory()) as daemon:
        await daemon.until(lambda seen: seen["gpushare_gpu_info"] == {("0", "memory", HOSTILE, a_gpu(0).uuid): 1})


def view(name: str) -> View:
    """Return the view of a node with one GPU of this name."""
    inventory = replace(a_node(8192, name=name), driver_version="570.86.15")
    resources = planned(inventory, sharing=memory()).resources
    standings = {GPU_MEM: Standing(registered=True, allocations=2, refusals={CALL: 0, "Allocate": 1})}
    return View(Snapshot(inventory=inventory, resources=resources, standings=standings))


@given(st.text())
@example(HOSTILE)
def test_any_name_fits_both_formats(name: str) -> None:
    """No name breaks a page or changes other values on it, for parsers as strict as Prometheus' own."""
    for accept, parse in (("", parse_text), (OPENMETRICS, parse_openmetrics)):
        _, body = exposition(view(name), accept)
        seen = samples(parse(body.decode()))
        assert seen["gpushare_gpu_info"] == {("0", "memory", name, a_gpu(0).uuid): 1}
        assert seen["gpushare_refusals_total"] == {("Allocate", GPU_MEM): 1, (CALL, GPU_MEM): 0}


async def test_the_format_is_the_requested_one(kubelet: EmbeddedKubelet) -> None:
    """Prometheus' text for a browser, OpenMetrics for who prefers it, with the same values."""
    async with target(kubelet, Cards(TWO), sharing=memory()) as daemon:
        await daemon.until(lambda seen: seen["gpushare_resource_registered"] == {(GPU_MEM,): 1})
        await daemon.until(lambda seen: seen["gpushare_gpu_units_used"])  # known only after the kubelet's first answer
        kind, text = await daemon.page("text/html,*/*;q=0.8")
        assert kind == "text/plain; version=0.0.4; charset=utf-8"
        kind, openmetrics = await daemon.page(OPENMETRICS)
        assert kind.startswith("application/openmetrics-text; version=1.0.0; charset=utf-8")
        kind, _ = await daemon.page(PROMETHEUS_3)
        assert kind.startswith("application/openmetrics-text; version=1.0.0; charset=utf-8")
    plain, other = samples(parse_text(text)), samples(parse_openmetrics(openmetrics))
    ours = {metric.name for metric in METRICS} - {"gpushare_usage_age_seconds"}  # of the moment
    assert {name: plain.get(name) for name in ours} == {name: other.get(name) for name in ours}


@given(st.text() | st.from_regex(r"(application/openmetrics-text|text/plain);version=[0-9x.]{0,9}(;escaping=\w+)?"))
@example("application/openmetrics-text;version=one")
@example("text/plain;version=1.x")
@example("application/openmetrics-text;version=2.x")
def test_no_accept_header_breaks_the_page(accept: str) -> None:
    """A header that means nothing gets a page, and is no defect of ours that fills the log."""
    kind, body = exposition(view("A100"), accept)
    parse = parse_openmetrics if kind.startswith("application/openmetrics-text") else parse_text
    assert sum(1 for _ in parse(body.decode())) > len(METRICS)


class Slow(str):
    """The name of a GPU whose page takes as long as the test wants."""

    __slots__ = ()
    begun = 0
    go_on = threading.Event()

    def replace(self, *arguments: Any, **options: Any) -> str:
        """Do late what the library does for each label of a page."""
        Slow.begun += 1
        assert Slow.go_on.wait(PATIENCE)
        return super().replace(*arguments, **options)


async def test_clients_that_hang_up_leave_one_page_to_be_made(kubelet: EmbeddedKubelet) -> None:
    """The page of a client that has gone is finished before another is started, and the next client gets its own."""
    async with target(kubelet, Cards(a_node(8192, name=Slow("A100"))), sharing=memory()) as daemon:
        await kubelet.wait_for(lambda node: node.allocatable() == {GPU_MEM: 8})
        for _ in range(5):
            _, writer = await asyncio.open_connection("127.0.0.1", daemon.port)
            writer.write(b"GET /metrics HTTP/1.1\r\nHost: node\r\n\r\n")
            await until(lambda: Slow.begun)
            writer.transport.abort()
            # Connections are taken in turn, so the one before was answered or given up when this one is answered.
            assert await answer(daemon.port, "/healthz") == (200, "ok\n")
        assert Slow.begun == 1
        Slow.go_on.set()
        assert list((await daemon.scrape())["gpushare_gpu_info"].values()) == [1]


async def test_the_library_is_imported_by_the_first_scrape_only(kubelet: EmbeddedKubelet, tmp_path: Path) -> None:
    """A daemon that is not scraped starts, answers probes and serves pods without it: it takes time and memory."""
    (tmp_path / "prometheus_client.py").write_text("raise SystemExit('prometheus_client was imported')")
    gpus = tmp_path / "gpus.yaml"
    gpus.write_text("gpus: [{memory: 16GiB}]\n")
    port = claim_port()
    environment = {"PYTHONPATH": str(tmp_path), "SIMULATE": str(gpus), "HTTP_ADDRESS": f"127.0.0.1:{port}"}
    async with running(kubelet, environment=environment) as daemon:
        await daemon.advertises(kubelet, {GPU_MEM: 16})
        assert await answer(port, "/healthz") == (200, "ok\n")
        await kubelet.admit(pod(5))


async def test_the_command_serves_metrics(kubelet: EmbeddedKubelet, tmp_path: Path) -> None:
    """`gpushare run --http-address` is all it takes."""
    gpus = tmp_path / "gpus.yaml"
    gpus.write_text("gpus: [{memory: 16GiB}]\n")
    port = claim_port()
    async with running(kubelet, "--simulate", gpus, "--http-address", f"127.0.0.1:{port}") as daemon:
        await daemon.advertises(kubelet, {GPU_MEM: 16})
        assert (await answer(port, "/healthz"))[0] == 200  # registering does not wait for it, so we do
        seen = await Target(port).scrape()
    assert list(seen["gpushare_gpu_units"].values()) == [16]


# ---------------------------------------------------------------------- names and documents


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_metrics_keep_to_the_conventions(metric: Metric[View]) -> None:
    """Each has our prefix, a help text of one line, labels of few values, and its type in either format."""
    assert re.fullmatch(r"gpushare(_[a-z]+)+", metric.name)
    assert re.fullmatch(r"[A-Z0-9][^\n|]+\.", metric.help)
    of_container = metric.name.startswith("gpushare_container_")
    assert set(metric.labels) <= LABELS | (CONTAINER_LABELS if of_container else set())
    assert (metric.type == "counter") == metric.name.endswith("_total")
    text, openmetrics = (exposition(view("A100"), accept)[1].decode() for accept in ("", OPENMETRICS))
    assert f"# HELP {metric.name} {metric.help}\n" in text
    assert f"# TYPE {metric.name} {'gauge' if metric.type == 'info' else metric.type}\n" in text
    assert f"# TYPE {re.sub('_(total|info)$', '', metric.name)} {metric.type}\n" in openmetrics


def test_names_of_metrics_are_unique() -> None:
    """No two metrics have one name."""
    assert len({metric.name for metric in METRICS}) == len(METRICS)


def test_metrics_that_documents_and_alerts_name_are_served() -> None:
    """Each metric that is served is explained there."""
    served = {
        metric.name for metrics in (METRICS, EXTENDER_METRICS, PARTITIONER_METRICS, WEB_METRICS) for metric in metrics
    }
    assert set(re.findall(r"\bgpushare_[a-z_]+", PAGE.read_text())) == served


def test_claims_are_counted_on_their_gpus() -> None:
    """A GPU that only claims can get counts without claims, too; reasons for refusals are there before the first."""
    made = snapshot(memory(), 8192, 8192, dra={})
    zero, one = (("0", made.inventory.gpus[0].uuid), ("1", made.inventory.gpus[1].uuid))
    made = with_claims(made, claim("mine", device(made, 2048)), claim("other", device(made, 1024), done=False))
    assert made.claims is not None
    calls = {("NodePrepareResources", "OK"): Durations((0.1, 1.0), (2, 0, 0), 0.1)}
    claims = replace(made.claims, calls=calls, refusals={"no-room": 3}, slices_written=5, slices_mended=1)
    found = on_page(View(replace(made, claims=claims)))
    assert found["gpushare_gpu_claims_prepared"] == {zero: 2, one: 0}
    assert found["gpushare_gpu_claimed_memory_bytes"] == {zero: 3 * GIB, one: 0}
    refusals = found["gpushare_claim_refusals_total"]
    assert (refusals["no-room",], refusals["api",]) == (3, 0)
    assert found["gpushare_claim_call_duration_seconds_count"] == {("OK", "NodePrepareResources"): 2}
    assert found["gpushare_resource_slices_published"] == {(): 1}
    assert found["gpushare_resource_slices_written_total"] == {(): 5}
    assert found["gpushare_resource_slices_mended_total"] == {(): 1}
    troubled = on_page(View(replace(made, claims=replace(claims, trouble="a gate is off"))))
    assert troubled["gpushare_resource_slices_published"] == {(): 0}


def test_a_node_without_claims_has_no_metrics_of_claims() -> None:
    """Where no GPU is given by claim, nothing about claims is on the page."""
    found = on_page(View(snapshot(memory(), 8192)))
    assert not [name for name, of in found.items() if of and ("claim" in name or "resource_slices" in name)]
