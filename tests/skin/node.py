"""What the daemon of a node writes to the API server, serves over HTTP and at its own socket, and logs."""

import asyncio
import contextlib
import json
import random
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from gpushare_plugin.testing.cluster import ApiServer
from gpushare_plugin.testing.kubelet import Container, EmbeddedKubelet, Pod
from gpushare_plugin.testing.ports import claim_port
from tests.process.daemon import Daemon, answer, running
from tests.skin.commands import run, told
from tests.skin.golden import Texts, as_json, masked, settled, unfolded
from tests.skin.logs import lines, undocumented
from tests.skin.pages import page

NODE = "gpu-1"
NODES, CONFIGMAPS, PODS, EVENTS = (
    "/api/v1/nodes",
    "/api/v1/namespaces/kube-system/configmaps",
    "/api/v1/namespaces/default/pods",
    "/api/v1/namespaces/default/events",
)
GPUS = """\
machine: Some Server
gpus:
- name: NVIDIA A10
  memory: 24GiB
  computeCapability: "8.6"
  numaNode: 0
  processes:
  - {pod: default/one, container: main, memory: 6GiB, utilization: 40}
  - {memory: 1GiB}
- {name: NVIDIA A10, memory: 24GiB, computeCapability: "8.6", numaNode: 0}
- {name: NVIDIA A100-SXM4-40GB, memory: 40GiB, mig: [3g.20gb, 1g.5gb]}
"""
FIRST, SECOND = "GPU-b3e4bb69-63b3-546f-b87a-a756dcc28ee4", "GPU-67ef22f3-21a9-5968-a43d-74c75281c431"
CONFIGS = {
    "memory": "sharing: {memory: {resources: [{name: aliyun.com/gpu-mem, placement: spread}]}}",
    "time-slicing": "sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}",
    "mps-replicas": "sharing: {mps: {resources: [{name: nvidia.com/gpu, devices: [0, 1], replicas: 4}]}}",
    "mps-sizes": "sharing: {mps: {sizes: [{devices: [0, 1], slices: [{size: 10gb, count: 2}]}]}}",
    "compute": "sharing: {memory: {resources: [{name: aliyun.com/gpu-mem, isolation: hami-core, compute: requested}]}}",
    "mig": "flags: {migStrategy: mixed}",
}
"""Named configs; the label of the Node chooses one."""
AFTER_PODS = "mps-sizes"
"""The first config after the pods and after what is recorded of Events, of which there are 25 at once at most."""
SIGNS = {
    "memory": '"aliyun.com/gpu-mem"',
    "time-slicing": '"time-slicing"',
    "mps-replicas": '"mps"',
    "mps-sizes": '"nvidia.com/gpu-10gb"',
    "compute": '"aliyun.com/gpu-core.percentage"',
    "mig": '"nvidia.com/mig-3g.20gb"',
}
"""What a Node has only with such a config."""
LABEL = "nvidia.com/device-plugin.config"
SHOWN = {
    "starting", "node_detected", "gpu_detected", "config_changed", "config_rejected", "allocated", "gpu_cordoned",
    "pod_over_limit", "stopping", "stopped",
}  # fmt: skip
"""Events of the log of which whole lines are kept; all are compared with the page."""


@dataclass(frozen=True, slots=True)
class _Node:
    """A node with everything that its daemon speaks to, and what is masked in what is seen of it."""

    server: ApiServer
    kubelet: EmbeddedKubelet
    daemon: Daemon
    port: int
    environment: Mapping[str, str]
    places: Mapping[str, object]

    def label(self, key: str, value: str | None) -> None:
        """Set a label of the Node, or remove it."""
        self.server.store.update(NODES, NODE, {("metadata", "labels", key): value})

    def shown(self) -> str:
        """Return the Node as the API server has it."""
        return masked(shown(self.server), **self.places)

    def pod(self, name: str) -> str:
        """Return what is on a pod."""
        (found,) = self.server.store.find(PODS, name)
        annotations = found["metadata"].get("annotations") or {}
        return masked(as_json({key: _read(value) for key, value in sorted(annotations.items())}), **self.places)

    def events(self) -> str:
        """Return the Events, without how often and when."""
        found = {told_of(each) for each in self.server.store.find(EVENTS) if not _passing(each)}
        return masked("".join(f"{each}\n" for each in sorted(found)), **self.places)


def shown(server: ApiServer) -> str:
    """Return the Node as the API server has it: what its daemon writes to it."""
    (found,) = server.store.find(NODES, NODE)
    labels, annotations = (found["metadata"].get(each) or {} for each in ("labels", "annotations"))
    status = found.get("status") or {}
    data = {
        "labels": dict(sorted(labels.items())),
        "annotations": {key: _read(value) for key, value in sorted(annotations.items())},
        "status": {**status, "conditions": list(map(_in_order, status.get("conditions", ())))},
    }
    return re.sub(r'(gfd\.timestamp": )"\d+"', r'\1"<seconds>"', as_json(data))


def _read(value: str) -> Any:
    """Return the value of an annotation, as data where it is JSON."""
    return unfolded(value) if value[:1] in {"{", "["} else value


def told_of(found: Mapping[str, Any]) -> str:
    """Return what an Event says; which GPUs were told together, and in which order, depends on the moment."""
    about = found["involvedObject"]
    message = re.sub(r"^(GPU|MIG)-[^:]*: ", "<GPUs>: ", found["message"])
    source = " ".join(f"{key}={value}" for key, value in sorted((found.get("source") or {}).items()))
    kind = f"{found['type']} {found['reason']} {about['kind']} {about['name']}"
    return f"{kind} {source} reportingComponent={found.get('reportingComponent')}\n  {message}"


def _passing(found: Mapping[str, Any]) -> bool:
    """Return whether it depends on the moment that there is such an Event: what lasts for less than a second."""
    return found["reason"] == "SharingModePending" or "process 1 (simulated)" in found["message"]


def _in_order(condition: Mapping[str, Any]) -> dict[str, Any]:
    """Return a condition with the GPUs of its message in order, which have none."""
    begin, first, rest = re.split(r"(GPU \d+ \()", f"{condition['message']}GPU 0 (", maxsplit=1)
    gpus = sorted(re.split(r", (?=GPU \d+ \()", (first + rest).removesuffix("GPU 0 (")))
    return {**condition, "message": begin + ", ".join(gpus)}


async def recorded(folder: Path) -> Texts:
    """Return what is seen of a node under several configs, then with pods, cordons and too much memory in use."""
    texts = Texts()
    async with _running(folder) as node:
        for name in CONFIGS:
            if name == AFTER_PODS:
                await _label_of_no_config(node, texts)
                node.label(LABEL, "memory")
                await _with_pods(node, texts)
            node.label(LABEL, name)
            texts[f"node/{name}.json"] = await settled(node.shown, f"node/{name}.json", SIGNS[name])
        await _partitioned(node, texts)
        assert await node.daemon.stop() == 0
        texts["node/log.txt"] = lines(node.daemon.log, SHOWN, **node.places)
        texts["node/after-the-end.json"] = node.shown()
        texts["node/cleanup.txt"] = told(await run("cleanup", environment=node.environment))
        texts["node/after-cleanup.json"] = node.shown()
        assert undocumented(node.daemon.log) == []
    return texts


@contextlib.asynccontextmanager
async def _running(folder: Path) -> AsyncIterator[_Node]:
    """Run the daemon of a node with all that can be turned on."""
    configs = folder / "configs"
    configs.mkdir()
    for name, text in CONFIGS.items():
        (configs / name).write_text(f"version: v1\noveruse: {{graceSeconds: 0.1}}\n{text}\n")
    (folder / "gpus.yaml").write_text(GPUS)
    port = claim_port()
    async with ApiServer() as server, EmbeddedKubelet(folder, rng=random.Random(1)) as kubelet:  # noqa: S311 - no secret
        server.store.update(NODES, NODE, {("metadata", "labels", "kubernetes.io/hostname"): NODE}, "kubelet")
        environment = {
            "NODE_NAME": NODE,
            "KUBECONFIG": str(server.kubeconfig(folder / "kubeconfig")),
            "DEVICE_PLUGIN_PATH": str(kubelet.plugin_directory),
            "POD_RESOURCES_SOCKET": str(kubelet.pod_resources_socket),
            "CONFIG_DIRECTORY": str(configs),
            "DEFAULT_CONFIG": "memory",
            "SIMULATE": str(folder / "gpus.yaml"),
            "MPS_ROOT": str(folder / "mps"),
            "MIG_ROOT": str(folder / "mig"),
        }
        on = ("follow-pods", "events", "partitioning", "container-metrics", "hami-metrics", "aliyun-metrics")
        options = [text for each in on for text in (f"--{each}", "true")]
        async with running(kubelet, *options, "--http-address", f"127.0.0.1:{port}", environment=environment) as daemon:
            yield _Node(server, kubelet, daemon, port, environment, {"folder": folder, "port": port})


async def _label_of_no_config(node: _Node, texts: Texts) -> None:
    node.label(LABEL, "memry")
    texts["node/wrong-label.json"] = await settled(node.shown, "node/wrong-label.json", "no config")


async def _partitioned(node: _Node, texts: Texts) -> None:
    """Cut a GPU as the partitioner wants it, and another one as a person does."""
    wanted = json.dumps({"version": 1, "gpus": {FIRST: {"10gb": 2}}})
    changes: dict[tuple[str, ...], str | None] = {
        ("metadata", "labels", LABEL): None,
        ("metadata", "labels", "nos.nebuly.com/gpu-partitioning"): "mps",
        ("metadata", "annotations", "gpushare/wanted-slices"): wanted,
        ("metadata", "annotations", "nos.nebuly.com/spec-gpu-1-20gb"): "1",
    }
    node.server.store.update(NODES, NODE, changes)
    texts["node/partitioned.json"] = await settled(node.shown, "node/partitioned.json", '"slices"')


async def _with_pods(node: _Node, texts: Texts) -> None:
    """Admit two pods, of which the first was promised a GPU and uses too much; cordon the other GPU; then end both."""
    name = "aliyun.com/gpu-mem"
    await node.kubelet.wait_for(lambda seen: seen.allocatable().get(name) == 48)
    running_pods: list[Pod] = []
    promise = {"version": 1, "node": NODE, "time": "2026-01-01T00:00:00Z", "containers": {"main": {name: {FIRST: 3}}}}
    for number, (pod, units, annotations) in enumerate(
        (("one", 3, {"gpushare/promise": json.dumps(promise)}), ("two", 5, {})), start=1
    ):
        uid = f"{number:08x}-0000-4000-8000-{number:012x}"
        limits = {"limits": {name: str(units)}}
        node.server.store.create(
            PODS,
            {
                "metadata": {"name": pod, "uid": uid, "annotations": annotations},
                "spec": {"nodeName": NODE, "containers": [{"name": "main", "resources": limits}]},
                "status": {"phase": "Pending"},
            },
        )
        admitted = await node.kubelet.admit(Pod(pod, [Container("main", {name: units})], uid=uid))
        running_pods.append(admitted.pod)
        texts[f"node/pod-{pod}.json"] = await settled(
            partial(node.pod, pod), f"node/pod-{pod}.json", "gpushare/allocation"
        )
    await node.daemon.logged("pod_over_limit", pod="default/one")
    node.server.store.update(CONFIGMAPS, f"unhealthy-gpu-{NODE}", {("data", "gpus"): "1"})
    texts["node/cordoned.json"] = await settled(node.shown, "node/cordoned.json", "cordoned by")
    texts["node/events.txt"] = await settled(node.events, "node/events.txt", "GpuCordoned")
    await _served(node, texts)
    for each in running_pods:
        node.kubelet.delete(each)
        node.server.store.delete(PODS, each.name)
    node.server.store.delete(CONFIGMAPS, f"unhealthy-gpu-{NODE}")


async def _served(node: _Node, texts: Texts) -> None:
    """Ask the daemon itself, as people, programs and probes do."""
    socket = Path(node.environment["DEVICE_PLUGIN_PATH"]) / "gpushare/node.sock"
    reader, writer = await asyncio.open_unix_connection(socket)
    document = await reader.read()
    writer.close()
    texts["node/socket.json"] = masked(as_json(json.loads(document)), **node.places)
    for file, *more in (("list.txt",), ("list-wide.txt", "-o", "wide"), ("list.json", "-o", "json")):
        texts[f"node/{file}"] = told(await run("list", *more, environment=node.environment), node.places)
    for probe in ("healthz", "readyz"):
        status, text = await answer(node.port, f"/{probe}")
        texts[f"node/{probe}.txt"] = f"{status} {text}"
    texts["node/metrics.txt"] = await page(node.port, **node.places)
