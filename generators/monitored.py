"""A simulated cluster under a real Prometheus: daemons, kubelets, an extender, a partitioner, and pods with GPUs.

Only what there is no GPU for is simulated: the GPUs and the processes on them (`--simulate`), the kubelets and the API
server. Daemons, extender and partitioner are the real ones, in this process.
"""

import asyncio
import contextlib
import math
import random
import shutil
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import yaml

from generators import alerts_page, claimed, partitioned
from generators.recorded import COST_FILE, price_rules
from gpushare_plugin.config.sources.choice import Configs
from gpushare_plugin.core.health import GpuEvent
from gpushare_plugin.extender.service import ExtenderSettings, serve
from gpushare_plugin.gpus.simulated import SimulatedSource
from gpushare_plugin.kube.client import NODES
from gpushare_plugin.kube.names import UNHEALTHY_GPUS
from gpushare_plugin.node import daemon as node
from gpushare_plugin.testing.cluster import ApiServer
from gpushare_plugin.testing.kubelet import AdmissionError, AdmittedPod, Container, EmbeddedKubelet, Pod
from gpushare_plugin.testing.ports import claim_port

MEMORY, REPLICAS = "aliyun.com/gpu-mem", "nvidia.com/gpu"
SECONDS = 90
"""How long pods come and go."""

_GIB, _CARDS, _CARD_GIB = 1 << 30, 2, 40
_SHARING: Mapping[str, Any] = {
    "node-a": {"memory": {"resources": [{"name": MEMORY, "isolation": "hami-core"}]}},
    "node-b": {"timeSlicing": {"resources": [{"name": REPLICAS, "replicas": 4}]}},
}
_PRICES = {"NVIDIA A100-SXM4-40GB": 3.0}
_PODS = "/api/v1/namespaces/team/pods"
_PATIENCE = 60.0

Ask = Callable[..., Any]
"""Asks Prometheus' API: the path below `/api/v1/`, and the query; returns the data of the answer."""


class Work(NamedTuple):
    """What a pod holds and uses: GiB and per cent around these; it comes and goes at these seconds."""

    node: str
    pod: str
    units: int
    gib: float
    percent: int
    comes: int = 0
    goes: int = SECONDS


WORK = (
    Work("node-a", "trainer", 24, 21, 45),
    Work("node-a", "search", 8, 6, 18, 15),
    Work("node-a", "chat", 16, 12, 30, 8),
    Work("node-a", "notebook", 4, 3, 6, 20, 70),
    Work("node-a", "greedy", 4, 9, 14, 40),
    Work("node-b", "video", 1, 11, 60),
    Work("node-b", "ocr", 1, 7, 20, 12),
    Work("node-b", "render", 1, 16, 45, 30, 75),
)
_TOO_MUCH = Pod("too-large", [Container("main", {MEMORY: _CARD_GIB + 1})])
"""More than one GPU has; the second of them is free when it comes."""


class _Cards(SimulatedSource):
    """Simulated GPUs, on the first of which a program fails."""

    def watch_events(self, report: Callable[[GpuEvent], None], beat: Callable[[], None]) -> None:
        beat()
        report(GpuEvent(self.read().cards[0].uuid, 13, "XID 13"))


class _Machine:
    """A node: its daemon, its kubelet, and the file of its GPUs."""

    def __init__(self, name: str, folder: Path, server: ApiServer) -> None:
        folder.mkdir()
        self.name, self.port = name, claim_port()
        self.kubelet = EmbeddedKubelet(folder, rng=random.Random(0))  # noqa: S311 - the same for each picture
        self.file = folder / "gpus.yaml"
        self.use({}, 0)
        config = folder / "config.yaml"
        config.write_text(yaml.safe_dump({"version": "v1", "health": {"rescanSeconds": 1}, "sharing": _SHARING[name]}))
        self.daemon = node.Daemon(
            Configs(file=config),
            lambda _: _Cards(self.file),
            self.kubelet.plugin_directory,
            self.kubelet.pod_resources_socket,
            http_address=f"127.0.0.1:{self.port}",
            membership=node.Membership(name, server.kubeconfig(folder / "kubeconfig"), cordon_configmap=False),
            container_metrics=True,
        )

    def use(self, running: Mapping[str, AdmittedPod], second: int) -> None:
        """Write which processes the GPUs have now."""
        cards = []
        for number in range(_CARDS):
            uuid = f"GPU-{number}0000000-0000-4000-8000-{self.name.encode().hex():0>12}"
            processes = list(_processes(uuid, running, second))
            if (self.name, number) == ("node-b", 1) and second > SECONDS // 2:
                processes.append({"memory": "2GiB", "utilization": 5})
            memory = f"{_CARD_GIB}GiB"
            cards.append({"memory": memory, "name": "NVIDIA A100-SXM4-40GB", "uuid": uuid, "processes": processes})
        new = self.file.with_suffix(".new")
        new.write_text(yaml.safe_dump({"gpus": cards}))
        new.replace(self.file)


def _processes(uuid: str, running: Mapping[str, AdmittedPod], second: int) -> Iterator[dict[str, Any]]:
    """Yield the process of each pod that holds units of a card."""
    for number, (work, pod) in enumerate((each, running[each.pod]) for each in WORK if each.pod in running):
        ids = [id_ for held in pod.containers["main"].device_ids.values() for id_ in held]
        if any(id_.removeprefix("GPU-")[:8] == uuid[4:12] for id_ in ids):
            wave = math.sin(second / (5 + number) + number)
            used = {"memory": f"{round(1024 * work.gib * (1 + wave / 10))}MiB"}
            percent = round(work.percent * (1 + wave / 4))
            yield {"pod": f"default/{work.pod}", "container": "main", "utilization": percent, **used}


@contextlib.asynccontextmanager
async def scraped(folder: Path) -> AsyncIterator[Ask]:
    """Run the cluster for its time, with a scrape each second, and yield what asks Prometheus about it."""
    async with contextlib.AsyncExitStack() as stack:
        server = await stack.enter_async_context(ApiServer())
        tasks = await stack.enter_async_context(_tasks())
        machines = []
        for name in _SHARING:
            server.store.create(NODES, {"metadata": {"name": name}, "status": {"allocatable": {MEMORY: "80"}}})
            machines.append(machine := _Machine(name, folder / name, server))
            await stack.enter_async_context(machine.kubelet)
            tasks.append(asyncio.create_task(node.serve(machine.daemon)))
        extender = await _extender(server, folder, tasks)
        for machine in machines:
            await machine.kubelet.wait_for(lambda seen: any(seen.allocatable().values()))
        of_cluster = {"extender": extender[1], "partitioner": partitioned.start(server, folder, tasks)}
        by_claim = await stack.enter_async_context(claimed.claim_node(server, folder, tasks))
        ports = {machine.name: machine.port for machine in machines} | {claimed.NODE: by_claim.port}
        ask = await stack.enter_async_context(_prometheus(folder, ports, of_cluster))
        living = [
            *map(_live, machines),
            _schedule(server, extender[0]),
            partitioned.live(server, SECONDS),
            by_claim.live(SECONDS),
        ]
        await asyncio.gather(*living)
        yield ask


@contextlib.asynccontextmanager
async def _tasks() -> AsyncIterator[list["asyncio.Task[None]"]]:
    tasks: list[asyncio.Task[None]] = []
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _extender(server: ApiServer, folder: Path, tasks: list["asyncio.Task[None]"]) -> tuple[int, int]:
    """Run an extender; return the ports of its requests and of its metrics."""
    port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    probes = claim_port()
    extender = ExtenderSettings(
        "127.0.0.1:0",
        "kube-system",
        probe_address=f"127.0.0.1:{probes}",
        kubeconfig=server.kubeconfig(folder / "kubeconfig"),
        started=port.set_result,
    )
    tasks.append(asyncio.create_task(serve(extender)))
    return await port, probes


async def _live(machine: _Machine) -> None:
    """Let pods come, use their GPUs, and go."""
    running: dict[str, AdmittedPod] = {}
    for second in range(SECONDS):
        for work in (each for each in WORK if each.node == machine.name):
            if second == work.comes:
                resource = next(iter(machine.kubelet.allocatable()))
                running[work.pod] = await machine.kubelet.admit(
                    Pod(work.pod, [Container("main", {resource: work.units})])
                )
            if second == work.goes:
                machine.kubelet.delete(running.pop(work.pod).pod)
        if machine.name == "node-a" and second in {3, 4, 6}:
            with contextlib.suppress(AdmissionError):
                await machine.kubelet.admit(_TOO_MUCH)
        machine.use(running, second)
        await asyncio.sleep(1)


async def _schedule(server: ApiServer, port: int) -> None:
    """Have a pod placed each second; every sixth asks for more than there is. Cordon a GPU in between."""
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as http:
        for second in range(SECONDS):
            if second == 2 * SECONDS // 3:
                server.store.patch(NODES, "node-b", {"metadata": {"annotations": {UNHEALTHY_GPUS: "1"}}})
            limits = {MEMORY: "100" if second % 6 == 5 else "1"}  # noqa: PLR2004 - the last of six
            containers = [{"name": "main", "image": "i", "resources": {"limits": limits}}]
            body = {"metadata": {"name": f"pod-{second}", "namespace": "team"}, "spec": {"containers": containers}}
            pod = server.store.create(_PODS, body)
            asked = {"Pod": pod, "NodeNames": list(_SHARING)}
            async with http.post("/filter", json=asked) as response:
                fitting = (await response.json())["NodeNames"] if response.ok else None
            if fitting:
                async with http.post("/prioritize", json=asked):
                    pass
                meta = pod["metadata"]
                names = {"PodName": meta["name"], "PodNamespace": meta["namespace"], "PodUID": meta["uid"]}
                async with http.post("/bind", json={**names, "Node": fitting[0]}):
                    pass
            await asyncio.sleep(1)


@contextlib.asynccontextmanager
async def _prometheus(folder: Path, of_nodes: Mapping[str, int], of_cluster: Mapping[str, int]) -> AsyncIterator[Ask]:
    """Run Prometheus, which scrapes the port of each node, and those of programs that are of none."""
    program = shutil.which("prometheus")
    if program is None:
        raise SystemExit("there is no prometheus: install it (Debian, Ubuntu: apt-get install prometheus)")
    scrapes = [
        {
            "job_name": name,
            "honor_labels": True,
            "static_configs": [
                {"targets": [f"127.0.0.1:{port}"], "labels": {"node": name if name in of_nodes else ""}}
            ],
        }
        for name, port in (*of_nodes.items(), *of_cluster.items())
    ]
    config = folder / "prometheus.yaml"
    often = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    rules = folder / "prices.yaml"
    rules.write_text(yaml.safe_dump({"groups": [{"name": "prices", "rules": price_rules(_PRICES)}]}))
    files = [str(rules), str(COST_FILE), str(alerts_page.RULES)]
    config.write_text(yaml.safe_dump({"global": often, "rule_files": files, "scrape_configs": scrapes}))
    address = f"127.0.0.1:{claim_port()}"
    options = (f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address={address}", "--log.level=error")
    process = await asyncio.create_subprocess_exec(program, f"--config.file={config}", *options)
    try:
        async with aiohttp.ClientSession(f"http://{address}/") as http:

            async def ask(path: str, **query: str) -> Any:
                async with http.get(f"/api/v1/{path}", params=query) as response:
                    return (await response.json())["data"]

            await _ready(http)
            yield ask
    finally:
        process.terminate()
        await process.wait()


async def _ready(http: aiohttp.ClientSession) -> None:
    async with asyncio.timeout(_PATIENCE):
        while True:
            with contextlib.suppress(aiohttp.ClientError):
                async with http.get("/-/ready") as response:
                    if response.ok:
                        return
            await asyncio.sleep(0.1)
