"""The longest pauses of extender and partitioner, beside the worst that tenants and clients of the port send."""

import asyncio
import contextlib
import gzip
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from functools import partial

import aiohttp

from benchmarks.cluster.extender import Cluster, Extender, cluster, extender
from benchmarks.cluster.objects import MEMORY, Object, a_pod
from benchmarks.cluster.tenant import hostile_pods
from benchmarks.cluster.wire import encoded
from benchmarks.effort import Effort
from benchmarks.figures import Figure, Goal, Summary
from benchmarks.kubelet.plugin import milliseconds
from benchmarks.processes import python
from gpushare_plugin.config.directives import PARTITIONING
from gpushare_plugin.extender.bodies import LARGEST_REQUEST
from gpushare_plugin.extender.protocol import MOST_NODES, MOST_VALUES_OF_A_POD
from gpushare_plugin.kube.client import NODES
from gpushare_plugin.ledger.node_record import GPUS_ANNOTATION, GpuRecord, NodeRecord
from gpushare_plugin.ledger.node_record import encode as encode_record
from gpushare_plugin.testing.ports import claim_port

_NODES, _PARTITIONED = 1000, 200
_PODS, _REQUESTS = 54, 20
_SETTLED = 5.0
"""Seconds after a load in which what it left is still looked for."""
_LOOK_EVERY = 0.02
_LONGEST = Goal("worst", 2000)
_TENANTS_PODS = "/api/v1/namespaces/tenant/pods"
_SLICE = {"nvidia.com/gpu-10gb": "1"}

Load = Callable[[], Awaitable[object]]


async def measure(effort: Effort) -> list[Figure]:
    """Measure how long requests that need no work wait while each load is on."""
    async with cluster(effort.times(_NODES)) as of:
        async with extender(of) as ready, aiohttp.ClientSession(f"http://127.0.0.1:{ready.caller.port}") as session:
            loads: dict[str, Load] = {
                "pods of a tenant": partial(_pods, of, effort.times(_PODS), {MEMORY: "1"}),
                **_requests(of, ready, session, effort.times(_REQUESTS)),
            }
            answered = partial(_get, session, "/version")
            figures = [await _beside(f"extender, {name}", answered, load, effort) for name, load in loads.items()]
        async with _partitioner(of, effort.times(_PARTITIONED)) as session:
            pods = partial(_pods, of, effort.times(_PODS), _SLICE)
            answered = partial(_get, session, "/healthz")
            figures.append(await _beside("partitioner, pods of a tenant", answered, pods, effort))
    return figures


async def _beside(name: str, answered: Load, load: Load, effort: Effort) -> Figure:
    """Return how long a request waits that needs no work, while a load is on and afterwards."""
    waits = list[float]()

    async def look() -> None:
        while True:
            waits.append(await milliseconds(answered))
            await asyncio.sleep(_LOOK_EVERY)

    looking = asyncio.create_task(look())
    await load()
    await asyncio.sleep(effort.seconds(_SETTLED))
    looking.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await looking
    waits.append(await milliseconds(answered))
    return Figure(f"pauses of the {name}", "ms", Summary.of(waits), goals=(_LONGEST,))


async def _get(session: aiohttp.ClientSession, path: str) -> None:
    async with session.get(path) as response:
        await response.read()


async def _pods(of: Cluster, count: int, asked: Mapping[str, str]) -> None:
    """Create the worst pods of a tenant, and delete them."""
    pods = hostile_pods(count, asked)
    for pod in pods:
        await of.client.request("POST", _TENANTS_PODS, body=pod)
    for pod in pods:
        await of.client.request("DELETE", f"{_TENANTS_PODS}/{pod['metadata']['name']}")


def _requests(of: Cluster, ready: Extender, session: aiohttp.ClientSession, times: int) -> Mapping[str, Load]:
    """Return the loads of those who reach the port; each sends so many requests at once."""
    pod = a_pod("asked", {MEMORY: 1})
    bodies = {
        "compressed requests": gzip.compress(bytes(LARGEST_REQUEST)),
        "a million names": encoded({"Pod": pod, "NodeNames": [f"n{number}" for number in range(1_000_000)]}),
        "as many names as are taken": encoded({"Pod": pod, "NodeNames": [f"n{each}" for each in range(MOST_NODES)]}),
        "every node": encoded({"Pod": pod, "NodeNames": list(of.names)}),
        "a pod of as many values as are taken": _many_containers(MOST_VALUES_OF_A_POD),
        "a pod of too many values": _many_containers(LARGEST_REQUEST // 64),
    }
    headers = {"compressed requests": {"Content-Encoding": "gzip"}}

    async def send(name: str) -> None:
        async with session.post("/filter", data=bodies[name], headers=headers.get(name)) as response:
            await response.read()

    async def send_all(name: str) -> None:
        await asyncio.gather(*(send(name) for _ in range(times)), return_exceptions=True)

    async def hang_up() -> None:
        for _ in range(times):
            _, writer = await asyncio.open_connection("127.0.0.1", ready.caller.port)
            writer.write(b"POST /filter HTTP/1.1\r\nHost: x\r\nContent-Length: 10000000\r\n\r\n" + bytes(8_000_000))
            with contextlib.suppress(ConnectionError):
                await writer.drain()
            writer.close()

    return {**{name: partial(send_all, name) for name in bodies}, "clients that hang up": hang_up}


def _many_containers(count: int) -> bytes:
    """Return a request about a pod with so many containers, each of which asks for another resource."""
    containers = [{"resources": {"limits": {f"a.example/{number:06d}": "1"}}} for number in range(count)]
    return encoded({"Pod": {"spec": {"containers": containers}}, "NodeNames": []})


@contextlib.asynccontextmanager
async def _partitioner(of: Cluster, nodes: int) -> AsyncIterator[aiohttp.ClientSession]:
    """Run a partitioner of so many nodes, and call its port for probes."""
    for node in _partitioned(nodes):
        await of.client.request("POST", NODES, body=node)
    port = claim_port()
    options = ("--kubeconfig", of.kubeconfig, "--probe-address", f"127.0.0.1:{port}")
    async with (
        python("-m", "gpushare_plugin", "partition", *options, output=of.folder / "partitioner.log") as process,
        aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session,
    ):
        await process.outlives(_becomes_ready(session))
        yield session


def _partitioned(count: int) -> Iterator[Object]:
    """Yield Nodes with eight GPUs that are divided under MPS and not cut yet."""
    room = {"cpu": "64", "memory": "512Gi", "pods": "250"}
    for number in range(count):
        name = f"partitioned-{number}"
        gpus = tuple(
            GpuRecord(index=index, uuid=f"GPU-{name}-{index}", product="A", memory_mib=40960) for index in range(8)
        )
        record = encode_record(NodeRecord(gpus=gpus, resources=(), partitioning="mps"))
        metadata = {"name": name, "labels": {PARTITIONING: "mps"}, "annotations": {GPUS_ANNOTATION: record}}
        yield {"metadata": metadata, "status": {"capacity": room, "allocatable": room}}


async def _becomes_ready(session: aiohttp.ClientSession) -> None:
    while True:
        with contextlib.suppress(aiohttp.ClientConnectorError):
            async with session.get("/readyz") as response:
                if response.ok:
                    return
        await asyncio.sleep(_LOOK_EVERY)
