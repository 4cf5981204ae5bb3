"""`Allocate` while units retire: the kubelet is asked every two seconds who holds them."""

import asyncio
import signal
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Self

import grpc

from benchmarks.daemon import GPUS, Answers, Serving, bare_server, node, replicas, serving
from benchmarks.effort import Effort
from benchmarks.figures import Figure, Goal, Summary
from benchmarks.kubelet.plugin import allocation, milliseconds, undisturbed, unit_ids
from gpushare_plugin.kubelet.api import podresources_pb2 as api

_UNITS = 64_000
_RETIRING = 80
"""Units that the new config take away, as many of each GPU; a pod holds one of each GPU's."""
_OWN_POD = ("kube-system", "gpushare")
_SECONDS = 12.0
_PAUSE = 0.002
_MOST_MS = 20.0


async def measure(effort: Effort) -> list[Figure]:
    """Measure the calls of some seconds, the worst of which meets a look at what pods hold."""
    seconds = effort.seconds(_SECONDS)
    own = ("--pod-namespace", _OWN_POD[0], "--pod-name", _OWN_POD[1])
    with node(replicas(_UNITS)) as gpus:
        async with _Kubelet(gpus.pod_resources_socket) as kubelet, serving(gpus, *own) as daemon:
            ids = unit_ids(daemon.first_list)
            answer = await daemon.plugin.calls.Allocate(allocation(ids[:1]))
            kubelet.hold(id_ for id_ in ids if id_.endswith(f"::{_UNITS // GPUS - 1}"))
            gpus.configure(replicas(_UNITS - _RETIRING))
            daemon.process.process.send_signal(signal.SIGHUP)
            await daemon.process.outlives(daemon.lists.next())
            taken = await _ask(daemon, ids[0], seconds)
            async with bare_server(gpus, Answers(allocate=answer.SerializeToString())) as floor:
                least = await _ask(floor, ids[0], seconds)
    return [
        Figure(
            f"Allocate, {_RETIRING} of {_UNITS:,} units retire",
            "ms",
            Summary.of(taken),
            Summary.of(least),
            (Goal("p99", _MOST_MS), Goal("worst", 2.0, of_floor=True)),
        )
    ]


class _Kubelet:
    """Tells who holds what, from memory."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._answer = b""

    async def __aenter__(self) -> Self:
        self.hold(())
        self._socket.parent.mkdir()
        self._server = grpc.aio.server()
        handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(self._list)
        self._server.add_registered_method_handlers("v1.PodResourcesLister", {"List": handler})
        self._server.add_insecure_port(f"unix:{self._socket}")
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop(grace=None)

    def hold(self, ids: Iterable[str]) -> None:
        """Have one pod hold these units, beside the daemon's own, which holds none."""
        devices = [api.ContainerDevices(resource_name="nvidia.com/gpu", device_ids=ids)]
        containers = [api.ContainerResources(name="main", devices=devices)]
        namespace, name = _OWN_POD
        pods = [api.PodResources(name=name, namespace=namespace), api.PodResources(name="pod", containers=containers)]
        self._answer = api.ListPodResourcesResponse(pod_resources=pods).SerializeToString()

    async def _list(self, _request: bytes, _context: object) -> bytes:
        return self._answer


async def _ask(asked: Serving, unit: str, seconds: float) -> list[float]:
    """Allocate a unit again and again for so long; return the milliseconds of each call."""
    request = allocation([unit])
    taken: list[float] = []
    with undisturbed():
        end = time.perf_counter() + seconds
        while not taken or time.perf_counter() < end:
            taken.append(await milliseconds(lambda: asked.plugin.calls.Allocate(request)))
            await asyncio.sleep(_PAUSE)
    return taken
