"""Who uses what: what looks, scrapes and Events cost on a node full of containers, and what they add to `Allocate`."""

import asyncio
import subprocess
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import aiohttp

from benchmarks.daemon import A100, GPUS, Answers, Node, bare_server, connected, node, replicas
from benchmarks.effort import Effort
from benchmarks.figures import Figure, Goal, Summary, single
from benchmarks.kubelet.plugin import allocation, milliseconds, undisturbed, unit_ids
from benchmarks.processes import MeasuredProcess
from gpushare_plugin.kube.client import NODES
from gpushare_plugin.testing.cluster import ApiServer
from gpushare_plugin.testing.kubelet import AdmittedPod, Container, EmbeddedKubelet, Pod
from gpushare_plugin.testing.nvml import FakeProcess
from gpushare_plugin.testing.ports import claim_port

_CONTAINERS = 200
_LEAST_REPLICAS = 2
_SECONDS = 60.0
_ALLOCATING_SECONDS = 45.0
_SCRAPE_EVERY = 15.0
_ALL = ("container-metrics", "hami-metrics", "aliyun-metrics", "events")
_NODE = "gpu-1"
_RESCAN_SECONDS = 30.0
"""What it is by default."""
_RESOURCE = "nvidia.com/gpu"
_HIERARCHIES = ("/sys/fs/cgroup/pids", "/sys/fs/cgroup/unified", "/sys/fs/cgroup")
_LOOK_EVERY = 0.05
_US = 1000.0


async def measure(effort: Effort) -> list[Figure]:
    """Measure a daemon with 8 GPUs and 200 containers, each with a process, that is scraped every 15 seconds.

    All metrics are on, and Events.
    """
    count = GPUS * max(_LEAST_REPLICAS, round(_CONTAINERS * effort.share / GPUS))
    port = claim_port()
    # Looks come every ten seconds; of less effort, as often as the GPUs themselves are looked at.
    often = 1.0 if effort.share < 1 else _RESCAN_SECONDS
    with node(replicas(count, rescanSeconds=often)) as gpus, _processes(count) as children:
        async with (
            ApiServer() as server,
            EmbeddedKubelet(gpus.folder) as kubelet,
            gpus.daemon(*_options(gpus, server, port)) as process,
        ):
            await process.outlives(kubelet.wait_for(lambda found: found.allocatable().get(_RESOURCE) == count))
            before = process.memory().resident
            pods = [
                await kubelet.admit(Pod(f"pod-{number}", [Container("main", {_RESOURCE: 1})]))
                for number in range(count)
            ]
            with _cgroups(pods, children) as note:
                _show(gpus, pods, children)
                await process.outlives(_shown(port, count))
                cpu = await _watch(process, port, effort)
                grown = process.memory().resident - before
                endpoint = gpus.plugin_directory / kubelet.registrations[-1].endpoint
                taken, least = await _allocations(gpus, process, endpoint, port, effort)
    return [
        Figure(
            "usage: Allocate meanwhile",
            "µs",
            Summary.of(taken),
            Summary.of(least),
            (Goal("p99", 2.0, of_floor=True),),
            note=note,
        ),
        single("usage: CPU", "% of a core", cpu, Goal("worst", 1), note=note),
        single("usage: memory for pods, looks and scrapes", "MiB", grown, Goal("worst", 15), note=note),
    ]


def _options(gpus: Node, server: ApiServer, port: int) -> list[str]:
    """Return what turns everything on, for a node of this API server."""
    server.store.update(NODES, _NODE, {("metadata", "labels", "kubernetes.io/hostname"): _NODE}, "kubelet")
    kubeconfig = str(server.kubeconfig(gpus.folder / "kubeconfig"))
    on = [part for option in _ALL for part in (f"--{option}", "true")]
    return ["--http-address", f"127.0.0.1:{port}", "--node-name", _NODE, "--kubeconfig", kubeconfig, *on]


async def _watch(process: MeasuredProcess, port: int, effort: Effort) -> float:
    """Return the share of a core in percent."""
    began, cpu = time.perf_counter(), process.cpu_seconds()
    await _scrape(port, effort, _SECONDS)
    return 100 * (process.cpu_seconds() - cpu) / (time.perf_counter() - began)


async def _scrape(port: int, effort: Effort, seconds: float) -> None:
    """Scrape every 15 seconds for so long."""
    for _ in range(round(seconds / _SCRAPE_EVERY)):
        await asyncio.sleep(effort.seconds(_SCRAPE_EVERY))
        await _page(port)


async def _allocations(
    gpus: Node, process: MeasuredProcess, endpoint: Path, port: int, effort: Effort
) -> tuple[list[float], list[float]]:
    """Call `Allocate` of the daemon and of a bare server in turns, beside scrapes; return the microseconds of both."""
    async with connected(process, endpoint) as daemon:
        request = allocation(unit_ids(daemon.first_list)[:1])
        answer = await daemon.plugin.calls.Allocate(request)
        answers = Answers(allocate=answer.SerializeToString(), devices=daemon.first_list)
        async with bare_server(gpus, answers) as floor:
            taken: tuple[list[float], list[float]] = ([], [])
            scraping = asyncio.create_task(_scrape(port, effort, _ALLOCATING_SECONDS))
            with undisturbed():
                while not scraping.done():
                    for asked, each in zip((daemon, floor), taken, strict=True):
                        each.append(_US * await milliseconds(partial(asked.plugin.calls.Allocate, request)))
            await scraping
            return taken


async def _shown(port: int, count: int) -> None:
    """Wait until every container has its metrics."""
    while (await _page(port)).count("\ngpushare_container_units{") < count:  # noqa: ASYNC110 - another process changes it
        await asyncio.sleep(_LOOK_EVERY)


async def _page(port: int) -> str:
    try:
        async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/metrics") as response:
            return await response.text()
    except aiohttp.ClientConnectorError:  # it does not listen yet
        return ""


def _show(gpus: Node, pods: Sequence[AdmittedPod], children: Sequence["subprocess.Popen[bytes]"]) -> None:
    """Let NVML report a process of each pod on its GPU."""
    for index, gpu in enumerate(gpus.nvml.gpus):
        here = [
            FakeProcess(child.pid, 500, 10)
            for pod, child in zip(pods, children, strict=True)
            if any(id_.startswith(gpu.uuid) for id_ in pod.containers["main"].device_ids[_RESOURCE])
        ]
        gpus.nvml.replace_gpu(index, replace(A100, used_mib=500 * len(here), processes=tuple(here)))


@contextmanager
def _processes(count: int) -> Iterator[list["subprocess.Popen[bytes]"]]:
    """Start so many processes, which end with the context."""
    children = [subprocess.Popen(["sleep", "900"]) for _ in range(count)]  # noqa: S607 - any program that waits
    try:
        yield children
    finally:
        for child in children:
            child.kill()
        for child in children:
            child.wait()


@contextmanager
def _cgroups(pods: Sequence[AdmittedPod], children: Sequence["subprocess.Popen[bytes]"]) -> Iterator[str]:
    """Move each process into the cgroup of a container, and yield a note where that cannot be done."""
    root = next(filter(None, map(_made, _HIERARCHIES)), None)
    if root is None:
        yield "no cgroups here: the processes are the host's"
        return
    folders = [root / f"kubepods/pod{pod.pod.uid}/{uuid.uuid4().hex * 2}" for pod in pods]
    try:
        for folder, child in zip(folders, children, strict=True):
            folder.mkdir(parents=True)
            (folder / "cgroup.procs").write_text(str(child.pid))
        yield ""
    finally:
        home = root.parent / "cgroup.procs"
        for child in children:
            home.write_text(str(child.pid))
        for folder in folders:
            folder.rmdir()
            folder.parent.rmdir()
        (root / "kubepods").rmdir()
        root.rmdir()


def _made(hierarchy: str) -> Path | None:
    made = Path(hierarchy, f"gpushare-bench-{uuid.uuid4()}")
    with suppress(OSError):
        made.mkdir()
        if (made / "cgroup.procs").exists():
            return made
        made.rmdir()
    return None
