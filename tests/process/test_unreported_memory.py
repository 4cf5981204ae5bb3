"""Tests of a node with a GPU that does not report its memory, end to end: a stand-in for NVML, a kubelet, a cluster."""

import json
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse_text

from gpushare_plugin.ledger.node_record import GPUS_ANNOTATION, NodeRecord, decode
from gpushare_plugin.testing.cluster import ApiServer, granted
from gpushare_plugin.testing.kubelet import Container, EmbeddedKubelet, Pod
from gpushare_plugin.testing.nvml import GB10, FakeGpu, FakeNvml
from gpushare_plugin.testing.ports import claim_port
from tests.chart.rendering import objects
from tests.process.daemon import admit, answer, gpushare, running
from tests.unit.kube.cluster import NODE, a_node, written
from tests.unit.sharing.settings import GPU_MEM
from tests.waiting import until

WHOLE = "nvidia.com/gpu"
BY_MEMORY = "version: v1\nsharing: {memory: {resources: [{name: aliyun.com/gpu-mem, unit: 2GiB}]}}\n"
SIZED = BY_MEMORY + "unreportedMemory: [{pattern: NVIDIA GB10, size: 96GiB}]\n"
WORDS = "leaves out GPU 0 ({}, NVIDIA GB10): it does not report its memory"


@pytest.fixture
def node() -> Iterator[FakeNvml]:
    """Describe a GB10 and a card that reports its memory."""
    with FakeNvml([GB10, FakeGpu(memory_mib=16384, used_mib=100)]) as described:
        yield described


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    """Run an API server that knows the daemon by the chart's rules."""
    async with ApiServer(granted(objects(), "gpushare")) as started:
        a_node(started)
        yield started


def recorded(server: ApiServer) -> NodeRecord:
    """Return what the annotation of the Node says, no GPUs before there is one."""
    text = written(server).annotations.get(GPUS_ANNOTATION)
    return NodeRecord(gpus=()) if text is None else decode(text)


async def scraped(port: int) -> Mapping[str, Mapping[str, float]]:
    """Return the values of the metrics of GPUs, by the index of the GPU."""
    page = (await answer(port, "/metrics"))[1]
    return {
        family.name: {each.labels["index"]: each.value for each in family.samples if "index" in each.labels}
        for family in parse_text(page)
    }


async def test_a_gb10_is_offered_whole_and_by_memory_with_a_size(
    node: FakeNvml, server: ApiServer, kubelet: EmbeddedKubelet, short_path: Path
) -> None:
    """Everybody reads that the memory is unknown and why, nobody a zero; an edit of the config adds the units."""
    port, file = claim_port(), short_path / "config.yaml"
    file.write_text(BY_MEMORY)
    options: list[str | Path] = ["--http-address", f"127.0.0.1:{port}", "--config-file", file, "--node-name", NODE]
    options += ["--kubeconfig", server.kubeconfig(short_path / "kubeconfig"), "--cordon-configmap", "false"]
    options += ["--pod-resources-socket", kubelet.pod_resources_socket]
    uuid = node.gpus[0].uuid
    async with running(kubelet, *options, environment=node.environment) as daemon:
        await daemon.advertises(kubelet, {GPU_MEM: 8, WHOLE: 1})
        words = WORDS.format(uuid)
        await daemon.until(lambda: any(words in each["reason"] for each in daemon.events("warning")), words)
        assert await daemon.logged("gpu_detected", index=0, memory_mib=None)
        assert daemon.events("gpu_left_out") == []

        await until(lambda: recorded(server).notices)
        record = recorded(server)
        assert [(gpu.memory_mib, gpu.resource, gpu.healthy) for gpu in record.gpus] == [
            (0, WHOLE, True),
            (16384, GPU_MEM, True),
        ]
        assert [words in notice for notice in record.notices] == [True]
        await until(lambda: written(server).labels.get("nvidia.com/gpu.product"))
        assert "nvidia.com/gpu.memory" not in written(server).labels

        pod = Pod("whole", [Container("main", {WHOLE: 1})])
        started = (await kubelet.admit(pod)).containers["main"]
        assert started.environment == {"NVIDIA_VISIBLE_DEVICES": uuid}

        async def looked() -> bool:
            return "1" in (await scraped(port))["gpushare_gpu_memory_used_bytes"]

        await until(looked)
        seen = await scraped(port)
        assert seen["gpushare_gpu_memory_bytes"] == {"1": 16384 << 20}
        assert seen["gpushare_gpu_memory_used_bytes"] == {"1": 100 << 20}
        assert seen["gpushare_gpu_healthy"] == {"0": 1, "1": 1}
        assert seen["gpushare_gpu_utilization_ratio"] == {"0": 0, "1": 0}

        table = await gpushare("list", "--device-plugin-path", kubelet.plugin_directory)
        data = await gpushare("list", "--device-plugin-path", kubelet.plugin_directory, "-o", "json")
        assert table.output.splitlines()[1].split()[:6] == ["0", "NVIDIA", "GB10", "-", "-", WHOLE]
        assert any(line.startswith("Warning: ") and words in line for line in table.output.splitlines())
        assert [gpu["memoryMiB"] for gpu in json.loads(data.output)["gpus"]] == [None, 16384]

        kubelet.delete(pod)
        file.write_text(SIZED)
        await daemon.advertises(kubelet, {GPU_MEM: 8 + 48, WHOLE: 0})
        await until(lambda: [gpu.memory_mib for gpu in recorded(server).gpus] == [98304, 16384])
        assert (await scraped(port))["gpushare_gpu_memory_bytes"] == {"0": 96 << 30, "1": 16384 << 20}
        by_memory = await admit(kubelet, GPU_MEM, 30, "second")
        assert by_memory.environment["NVIDIA_VISIBLE_DEVICES"] == uuid
        assert by_memory.environment["GPUSHARE_MEMORY_LIMIT_MIB"] == str(60 * 1024)


async def test_check_config_says_that_a_size_is_missing(node: FakeNvml, short_path: Path) -> None:
    """The config is valid, with a warning; with a size there is none."""
    file = short_path / "config.yaml"
    for text, warnings in ((BY_MEMORY, 1), (SIZED, 0)):
        file.write_text(text)
        done = await gpushare("check-config", file, environment=node.environment)
        assert done.status == 0
        lines = [line for line in done.output.splitlines() if ": warning: " in line]
        assert [WORDS.format(node.gpus[0].uuid) in line for line in lines] == [True] * warnings
