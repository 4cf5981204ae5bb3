"""Who uses what: what it costs to look at it, and to be scraped, on a node full of containers."""

import asyncio
import subprocess
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import aiohttp

from benchmarks.daemon import A100, GPUS, Node, node, replicas
from benchmarks.effort import Effort
from benchmarks.figures import Figure, Goal, single
from benchmarks.processes import MeasuredProcess
from gpushare_plugin.testing.kubelet import AdmittedPod, Container, EmbeddedKubelet, Pod
from gpushare_plugin.testing.nvml import FakeProcess
from gpushare_plugin.testing.ports import claim_port

_CONTAINERS = 200
_LEAST_REPLICAS = 2
_SECONDS = 60.0
_SCRAPES = 4
"""One every 15 seconds."""
_RESOURCE = "nvidia.com/gpu"
_HIERARCHIES = ("/sys/fs/cgroup/pids", "/sys/fs/cgroup/unified", "/sys/fs/cgroup")
_LOOK_EVERY = 0.05


async def measure(effort: Effort) -> list[Figure]:
    """Measure a daemon with 8 GPUs and 200 containers, each with a process, that is scraped every 15 seconds."""
    count = GPUS * max(_LEAST_REPLICAS, round(_CONTAINERS * effort.share / GPUS))
    port = claim_port()
    options = ("--http-address", f"127.0.0.1:{port}", "--container-metrics", "true")
    with node(replicas(count)) as gpus, _processes(count) as children:
        async with EmbeddedKubelet(gpus.folder) as kubelet, gpus.daemon(*options) as process:
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
    return [
        single("usage: CPU", "% of a core", cpu, Goal("worst", 1), note=note),
        single("usage: memory for pods, looks and scrapes", "MiB", grown, Goal("worst", 15), note=note),
    ]


async def _watch(process: MeasuredProcess, port: int, effort: Effort) -> float:
    """Return the share of a core in percent."""
    began, cpu = time.perf_counter(), process.cpu_seconds()
    for _ in range(_SCRAPES):
        await asyncio.sleep(effort.seconds(_SECONDS) / _SCRAPES)
        await _page(port)
    return 100 * (process.cpu_seconds() - cpu) / (time.perf_counter() - began)


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
