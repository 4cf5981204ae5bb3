"""The extender as a process beside the API server of a large cluster, and the clients that call both."""

import asyncio
import contextlib
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from benchmarks.cluster.api_server import PODS
from benchmarks.cluster.objects import MEMORY, NAMESPACE, Object, a_pod, node_name
from benchmarks.cluster.wire import decoded, encoded
from benchmarks.processes import MeasuredProcess, python
from gpushare_plugin.kube.client import Client
from gpushare_plugin.testing.ports import claim_port

COME_AND_GO = 20.0
"""Pods a second that end while as many others start."""

_LOOK_EVERY = 0.01


@dataclass(frozen=True, slots=True)
class Cluster:
    """The API server of a cluster, as a process, and a client of it."""

    names: Sequence[str]
    folder: Path
    process: MeasuredProcess
    client: Client

    @property
    def kubeconfig(self) -> Path:
        """The kubeconfig of the API server."""
        return self.folder / "kubeconfig"

    @contextlib.contextmanager
    def busy(self) -> Iterator[None]:
        """Have pods come and go as long as the context lasts."""
        self.process.process.send_signal(signal.SIGUSR1)
        try:
            yield
        finally:
            self.process.process.send_signal(signal.SIGUSR2)

    async def create(self, pod: Object) -> Object:
        """Create a pod, and return it as the API server has it."""
        created: Object = decoded(await self.client.request("POST", PODS, body=pod))
        return created

    async def bind(self, pod: Object, node: str, annotations: Mapping[str, str]) -> None:
        """Bind a pod without the extender: what a Binding takes by itself."""
        metadata = {key: pod["metadata"][key] for key in ("name", "namespace", "uid")}
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {**metadata, "annotations": dict(annotations)},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        await self.client.request("POST", f"{PODS}/{metadata['name']}/binding", body=binding)

    async def annotations(self, pod: Object) -> dict[str, str]:
        """Return the annotations of a pod as they are now."""
        found = decoded(await self.client.request("GET", f"{PODS}/{pod['metadata']['name']}"))
        annotations: dict[str, str] = found["metadata"]["annotations"]
        return annotations


@contextlib.asynccontextmanager
async def cluster(nodes: int, rate: float = COME_AND_GO) -> AsyncIterator[Cluster]:
    """Run the API server of so many nodes with eight pods each, of which `rate` a second come and go at busy times."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="gs-") as folder:
        kubeconfig = Path(folder, "kubeconfig")
        async with python(
            *("-m", "benchmarks.cluster.api_server", kubeconfig, str(nodes), str(rate)),
            output=Path(folder, "api-server.log"),
        ) as process:
            await process.outlives(_there(kubeconfig))
            async with Client(kubeconfig) as client:
                yield Cluster(tuple(map(node_name, range(nodes))), Path(folder), process, client)


class Caller:
    """What calls an extender: one connection after another is kept, as kube-scheduler does."""

    def __init__(self, session: aiohttp.ClientSession, port: int) -> None:
        """Call by `session` what listens at `port`."""
        self._session = session
        self.port = port

    async def post(self, verb: str, body: bytes) -> bytes:
        """Return what a verb answers; raises RuntimeError for an error."""
        async with self._session.post(f"/{verb}", data=body) as response:
            answer = await response.read()
            if response.status != 200:  # noqa: PLR2004 - HTTP's success
                raise RuntimeError(f"{verb}: {response.status}: {answer.decode()[:500]}")
            return answer

    async def refused(self, pod: Object, node: str) -> str | None:
        """Bind a pod, or return why that was refused."""
        metadata = pod["metadata"]
        asked = {"PodName": metadata["name"], "PodNamespace": NAMESPACE, "PodUID": metadata["uid"], "Node": node}
        return decoded(await self.post("bind", encoded(asked))).get("Error") or None

    async def bind(self, pod: Object, node: str) -> None:
        """Bind a pod; raises RuntimeError where that is refused."""
        if refusal := await self.refused(pod, node):
            raise RuntimeError(f"bind: {refusal}")


@contextlib.asynccontextmanager
async def caller(port: int) -> AsyncIterator[Caller]:
    """Call what listens at a port of this machine."""
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
        yield Caller(session, port)


@dataclass(frozen=True, slots=True)
class Extender:
    """A ready extender, how many seconds after its start it was, and what calls it."""

    process: MeasuredProcess
    ready_after: float
    caller: Caller
    port: int


@contextlib.asynccontextmanager
async def extender(of: Cluster, *options: str) -> AsyncIterator[Extender]:
    """Run an extender with more options until it knows the cluster."""
    port = claim_port()
    started = time.perf_counter()
    async with (
        python(
            *("-m", "gpushare_plugin", "extender", "--kubeconfig", of.kubeconfig),
            *("--listen-address", f"127.0.0.1:{port}", *options),
            output=of.folder / "extender.log",
        ) as process,
        caller(port) as calls,
    ):
        await process.outlives(_ready(calls))
        yield Extender(process, time.perf_counter() - started, calls, port)


@contextlib.asynccontextmanager
async def constant(folder: Path, answers: Mapping[str, bytes]) -> AsyncIterator[Caller]:
    """Run the floor: a server that answers these bytes to these verbs."""
    _write(folder, answers)
    async with python("-m", "benchmarks.floors.constant", folder, output=folder.with_suffix(".log")) as process:
        await process.outlives(_there(folder / "port"))
        async with caller(int((folder / "port").read_text())) as calls:
            yield calls


def _write(folder: Path, answers: Mapping[str, bytes]) -> None:
    folder.mkdir(exist_ok=True)
    for verb, answer in answers.items():
        (folder / verb).write_bytes(answer)


async def _there(file: Path) -> None:
    while not file.exists():  # noqa: ASYNC110, ASYNC240 - another process makes it, and this one only waits
        await asyncio.sleep(_LOOK_EVERY)


async def _ready(calls: Caller) -> None:
    asked = encoded({"Pod": a_pod("first", {MEMORY: 1}), "NodeNames": []})
    while True:
        with contextlib.suppress(aiohttp.ClientConnectorError):
            if not decoded(await calls.post("filter", asked)).get("Error"):
                return
        await asyncio.sleep(_LOOK_EVERY)
