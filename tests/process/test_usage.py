"""Tests of who uses what, end to end: processes in real cgroups, a stand-in for NVML, an embedded kubelet, the command.

Where this machine does not let a test make cgroups, or shows it other process IDs than those of the host, the same is
tested with file trees: `tests/unit/gpus/nvml/test_usage.py` and `tests/node/test_usage.py`.
"""

import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse_text

from gpushare_plugin.testing.cluster import ApiServer
from gpushare_plugin.testing.cluster.rbac import Permission, granted
from gpushare_plugin.testing.kubelet import AdmittedPod, Container, EmbeddedKubelet, Pod
from gpushare_plugin.testing.nvml import FakeGpu, FakeNvml, FakeProcess
from gpushare_plugin.testing.ports import claim_port
from tests.chart.rendering import objects
from tests.node.promises import in_api
from tests.process.cgroups import Start, in_cgroups
from tests.process.daemon import answer, running
from tests.unit.kube.cluster import NODE, a_node
from tests.unit.sharing.settings import GPU_MEM

CONFIG = """\
version: v1
health: {{rescanSeconds: 1}}
overuse: {{action: {action}, graceSeconds: 0.5}}
sharing: {{memory: {{resources: [{{name: aliyun.com/gpu-mem}}]}}}}
"""
GPU = FakeGpu(memory_mib=16384)
PODS = "/api/v1/namespaces/default/pods"
BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"


@pytest.fixture
def start() -> Iterator[Start]:
    """Start processes in cgroups as the kubelet and a container runtime name them; all end with the test."""
    with in_cgroups() as begin:
        yield begin


def container(pod: AdmittedPod | Pod) -> str:
    """Return the cgroup of the first container of a pod, as the driver cgroupfs has it."""
    uid = pod.uid if isinstance(pod, Pod) else pod.pod.uid
    return f"kubepods/burstable/pod{uid}/{'0123456789abcdef' * 4}"


def an_ended_process() -> int:
    """Return the ID of a process that has ended."""
    with subprocess.Popen(["true"]) as child:  # noqa: S607 - any program that ends
        child.wait()
    return child.pid


def a_pod(name: str, units: int) -> Pod:
    """Return a pod of one container."""
    return Pod(name, [Container("main", {GPU_MEM: units})])


def written(kubelet: EmbeddedKubelet, action: str) -> Path:
    """Write the config file."""
    file = kubelet.plugin_directory.parent / "config.yaml"
    file.write_text(CONFIG.format(action=action))
    return file


async def scraped(port: int) -> Mapping[str, Mapping[tuple[str, ...], float]]:
    """Return the values of each metric by its labels, these in the order of their names."""
    page = (await answer(port, "/metrics"))[1]
    return {
        sample.name: {
            tuple(each.labels[name] for name in sorted(each.labels)): each.value
            for each in family.samples
            if each.name == sample.name
        }
        for family in parse_text(page)
        for sample in family.samples
    }


async def test_the_pod_that_uses_too_much_is_named(start: Start, kubelet: EmbeddedKubelet) -> None:
    """Processes are those of the right pods, and whoever is out of place is named; one that ended is nobody's."""
    first, second = a_pod("first", 2), a_pod("second", 4)
    stranger = Pod("stranger", [Container("main", {})])
    ended = an_ended_process()
    port = claim_port()
    with FakeNvml([GPU]) as node:
        options = ("--http-address", f"127.0.0.1:{port}", "--container-metrics", "true")
        files = ("--config-file", written(kubelet, "report"), "--pod-resources-socket", kubelet.pod_resources_socket)
        async with running(kubelet, *files, *options, environment=node.environment) as daemon:
            await daemon.advertises(kubelet, {GPU_MEM: 16})
            for pod in (first, second, stranger):
                await kubelet.admit(pod)
            pids = {pod.name: start(container(pod)) for pod in (first, second, stranger)} | {"host": start("")}
            used = {"first": 4096, "second": 1024, "stranger": 2048, "host": 512}
            processes = [
                FakeProcess(pids[name], mib, kind="mps" if name == "second" else "compute")
                for name, mib in used.items()
            ]
            node.replace_gpu(0, replace(GPU, used_mib=8000, processes=(*processes, FakeProcess(ended, 300))))
            uuid_ = node.gpus[0].uuid
            over = await daemon.logged("pod_over_limit", pod="default/first")
            assert (over["container"], over["used_mib"], over["limit_mib"], over["uuid"]) == ("main", 4096, 2048, uuid_)
            await daemon.logged("foreign_process_found", pid=pids["host"], owner="the host", used_mib=512)
            await daemon.logged("foreign_process_found", pid=pids["stranger"], owner=f"pod {stranger.uid}")
            seen = await scraped(port)
            holders = {pod: ("main", "0", "default", pod, GPU_MEM, uuid_) for pod in ("first", "second")}
            assert seen["gpushare_container_memory_used_bytes"] == {
                holders["first"]: 4096 << 20,
                holders["second"]: 1024 << 20,
            }
            assert seen["gpushare_gpu_foreign_processes"] == {("0", uuid_): 2}
            assert seen["gpushare_gpu_processes"] == {("0", uuid_): 4}
            node.replace_gpu(0, replace(GPU, processes=(FakeProcess(pids["first"], 2048),)))
            await daemon.logged("pod_within_limit", pod="default/first")
            assert len(daemon.events("pod_over_limit")) == 1
            assert not daemon.events("pod_evicted")


async def test_the_right_pod_is_evicted_and_a_budget_respected(
    start: Start, kubelet: EmbeddedKubelet, short_path: Path
) -> None:
    """With the rights of the chart, a pod over its limit is evicted, and one that a budget protects stays."""
    values: dict[str, Any] = {"usage": {"evict": True, "hostPID": True}}
    async with ApiServer(granted(objects(values), "gpushare")) as server:
        a_node(server)
        with FakeNvml([GPU, GPU]) as node:
            cluster = ("--node-name", NODE, "--kubeconfig", server.kubeconfig(short_path / "kubeconfig"))
            files = ("--config-file", written(kubelet, "evict"), "--pod-resources-socket", kubelet.pod_resources_socket)
            async with running(
                kubelet, *cluster, *files, "--cordon-configmap", "false", environment=node.environment
            ) as daemon:
                await daemon.advertises(kubelet, {GPU_MEM: 32})
                greedy, protected, modest = a_pod("greedy", 12), a_pod("protected", 12), a_pod("modest", 2)
                for pod in (greedy, protected, modest):
                    await kubelet.admit(pod)
                    server.store.create(PODS, in_api(pod))
                server.store.patch(PODS, "protected", {"metadata": {"labels": {"app": "web"}}})
                spec = {"selector": {"matchLabels": {"app": "web"}}}
                status = {"disruptionsAllowed": 0}
                server.store.create(BUDGETS, {"metadata": {"name": "web"}, "spec": spec, "status": status})
                processes = tuple(
                    FakeProcess(start(container(pod)), mib)
                    for pod, mib in ((greedy, 15000), (protected, 14000), (modest, 1000))
                )
                # Which GPU a pod holds is the kubelet's choice: on the other one its process is out of place.
                for index in (0, 1):
                    node.replace_gpu(index, replace(GPU, processes=processes))
                await daemon.logged("pod_evicted", pod="default/greedy")
                refused = await daemon.logged("eviction_refused", pod="default/protected")
                assert "PodDisruptionBudget" in refused["reason"]
                ending = {
                    pod["metadata"]["name"]
                    for pod in server.store.find(PODS)
                    if pod["metadata"].get("deletionTimestamp")
                }
                assert ending == {"greedy"}
                assert len([each for each in server.asked if each.resource == "pods/eviction"]) == 2
        assert Permission("create", "pods/eviction") in server.used
