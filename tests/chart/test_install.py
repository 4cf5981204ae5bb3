"""From install to uninstall, in README's order: what the chart makes, between a kubelet and an API server."""

from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import yaml

from gpushare_plugin.config.directives import CONFIG
from gpushare_plugin.kube.client import NODES
from gpushare_plugin.kube.own_node.publisher import OwnedFields
from gpushare_plugin.testing.cluster import ApiServer, granted
from gpushare_plugin.testing.kubelet import Container, EmbeddedKubelet, Pod
from tests.chart.reading import extended, given
from tests.chart.rendering import ROOT, objects
from tests.process.daemon import Daemon, gpushare, running
from tests.unit.kube.cluster import NODE, a_node, label, written
from tests.waiting import until

GPU, GPU_MEM = "nvidia.com/gpu", "aliyun.com/gpu-mem"
CONFIGS = ROOT / "examples/configs"

INSTALLED: dict[str, Any] = {
    "image": {"repository": "registry.example.com/gpushare"},
    "simulate": {"gpus": [{"name": "NVIDIA A100-SXM4-40GB", "memory": "40GiB", "count": 2}]},
    "httpPort": None,
}
UPGRADED = {
    **INSTALLED,
    "config": {"map": {name: (CONFIGS / f"{name}.yaml").read_text() for name in ("memory", "time-slicing")}},
}
UPGRADED["config"]["default"] = "memory"

OWN_POD = {"metadata.namespace": "kube-system", "metadata.name": "gpushare-x", "spec.nodeName": NODE}
"""Fields of the daemon's pod, by their paths."""


async def test_a_share_is_kept_over_an_upgrade_and_nothing_is_left_in_the_end(
    kubelet: EmbeddedKubelet, short_path: Path
) -> None:
    """The share is served as installed, and its pod keeps it over a label, too."""
    async with ApiServer(granted(objects(INSTALLED), "gpushare")) as server:
        a_node(server)
        access: list[str | Path] = ["--kubeconfig", server.kubeconfig(short_path / "kubeconfig")]

        def pod_of(values: dict[str, Any], revision: str) -> AbstractAsyncContextManager[Daemon]:
            environment = given(values, short_path / revision, OWN_POD)
            sockets: list[str | Path] = ["--pod-resources-socket", kubelet.pod_resources_socket]
            return running(kubelet, *access, *sockets, environment=environment)

        await kubelet.admit(Pod("gpushare-x", [Container("gpushare", {})], namespace="kube-system"))
        async with pod_of(INSTALLED, "1") as daemon:
            await daemon.advertises(kubelet, {GPU_MEM: 80})
            await until(lambda: written(server).labels and written(server).capacity)
            sample = sample_pod()
            (started,) = (await kubelet.admit(sample)).containers.values()
            assert started.environment["GPUSHARE_MEMORY_LIMIT_MIB"] == "5120"
            assert started.environment["NVIDIA_VISIBLE_DEVICES"].startswith("GPU-")
            held = kubelet.allocated(GPU_MEM)

        async with pod_of(UPGRADED, "2") as daemon:
            await daemon.advertises(kubelet, {GPU_MEM: 80})
            assert kubelet.allocated(GPU_MEM) == held
            label(server, CONFIG, "time-slicing")
            await kubelet.wait_for(lambda node: node.allocatable().get(GPU) == 4)
            assert kubelet.allocated(GPU_MEM) == held
            kubelet.delete(sample)
            await kubelet.wait_for(lambda node: node.allocatable().get(GPU) == 8)

        server.permissions = granted(objects(UPGRADED), "gpushare-cleanup")
        (job,) = (each for each in objects(UPGRADED) if each["kind"] == "Job")
        (cleanup,) = job["spec"]["template"]["spec"]["containers"]
        assert (await gpushare(*cleanup["args"], *access)).status == 0
        assert written(server) == OwnedFields()
        (node,) = server.store.find(NODES, NODE)
        assert node["metadata"]["labels"] == {"kubernetes.io/hostname": NODE, CONFIG: "time-slicing"}
        await kubelet.wait_for(lambda node: set(node.allocatable().values()) == {0})


def sample_pod() -> Pod:
    """Return the well-known test pod, as the kubelet is asked to run it."""
    made = yaml.safe_load((ROOT / "examples/pods/gpu-player.yaml").read_text())
    containers = [Container(each["name"], extended(each)) for each in made["spec"]["containers"]]
    return Pod(made["metadata"]["name"], containers)
