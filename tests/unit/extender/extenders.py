"""Extenders for tests: each serves real HTTP and follows an API server; what they promised is counted from its pods."""

import asyncio
import io
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from gpushare_plugin.extender.binder import BinderTiming
from gpushare_plugin.extender.service import ExtenderSettings, serve
from gpushare_plugin.kube.client import NODES
from gpushare_plugin.kube.lease import LeaseTiming
from gpushare_plugin.ledger.node_record import GPUS_ANNOTATION, NodeRecord, ResourceRecord, encode
from gpushare_plugin.observe.http.certificates import Certificates
from gpushare_plugin.testing.cluster import ApiServer
from tests.unit.kube.cluster import QUICK
from tests.unit.ledger.objects import gpu_record, uuid
from tests.waiting import until

MEMORY = "aliyun.com/gpu-mem"
PROMISE, ALLOCATION = "gpushare/promise", "gpushare/allocation"
PODS, ALL_PODS = "/api/v1/namespaces/team/pods", "/api/v1/pods"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
LEASE = "gpushare-extender"

Json = dict[str, Any]

PATIENT = BinderTiming(binding=20.0)
"""A Binding may take as long as it does on a busy machine."""
LEASED = LeaseTiming(duration=30, deadline=25.0, retry=0.05)
"""A Lease that lasts longer than any test, and is tried for often."""


def node(name: str, *units: int, sick: Iterable[int] = (), policy: str | None = None) -> Json:
    """Return a Node whose daemon shares the memory of one GPU for each number of units; its config names a policy."""
    gpus = tuple(
        gpu_record(index, size, uuid=uuid(index, name), healthy=index not in sick) for index, size in enumerate(units)
    )
    resources = (ResourceRecord(name=MEMORY, kind="memory", policy=policy or "binpack"),)
    record = NodeRecord(gpus=gpus, resources=resources, policy=policy)
    return {
        "metadata": {"name": name, "annotations": {GPUS_ANNOTATION: encode(record)}},
        "status": {"allocatable": {MEMORY: str(sum(units))}},
    }


def plain_node(name: str, units: int, count: int) -> Json:
    """Return a Node of Aliyun's device plugin, without a record."""
    capacity = {MEMORY: str(units), "aliyun.com/gpu-count": str(count)}
    return {"metadata": {"name": name}, "status": {"capacity": capacity, "allocatable": capacity}}


def pod(name: str, units: int | Mapping[str, str], **metadata: Any) -> Json:
    """Return a pod that asks for units of memory, or for other resources; `metadata` is more of that."""
    limits = {MEMORY: str(units)} if isinstance(units, int) else dict(units)
    container = {"name": "main", "image": "i", "resources": {"limits": limits}}
    meta = {"name": name, "namespace": "team", **metadata}
    return {"metadata": meta, "spec": {"containers": [container]}, "status": {"phase": "Pending"}}


def create(server: ApiServer, body: Json) -> Json:
    """Create a pod."""
    return server.store.create(PODS, body)


def a_pod(server: ApiServer, name: str, units: int | Mapping[str, str] = 5, **metadata: Any) -> Json:
    """Create a pod; see `pod`."""
    return create(server, pod(name, units, **metadata))


def annotations(server: ApiServer, name: str) -> dict[str, str]:
    """Return those of a pod."""
    found: dict[str, str] = server.store.find(PODS, name)[0]["metadata"].get("annotations", {})
    return found


def gpu_of(server: ApiServer, name: str) -> str:
    """Return the one GPU that a bound pod is promised."""
    shares = json.loads(annotations(server, name)[PROMISE])["containers"]["main"]
    ((gpu, _),) = shares[MEMORY].items()
    return str(gpu)


def promised(server: ApiServer) -> Counter[tuple[str, str]]:
    """Return the units of memory that bound pods are promised by node and GPU: a plain count of what the pods say."""
    units: Counter[tuple[str, str]] = Counter()
    for found in server.store.find(ALL_PODS):
        where = found["spec"].get("nodeName")
        text = found["metadata"].get("annotations", {}).get(PROMISE)
        if where and text and found["status"]["phase"] not in {"Succeeded", "Failed"}:
            for resources in json.loads(text)["containers"].values():
                for gpu, amount in resources[MEMORY].items():
                    units[where, gpu] += amount
    return units


def assert_none_promised_twice(server: ApiServer) -> None:
    """No GPU is promised for more than it has, by the Nodes and pods of the API server alone."""
    sizes = {
        (found["metadata"]["name"], gpu["uuid"]): gpu["units"]
        for found in server.store.find(NODES)
        if (text := found["metadata"].get("annotations", {}).get(GPUS_ANNOTATION))
        for gpu in json.loads(text)["gpus"]
    }
    over = {gpu: (units, sizes.get(gpu)) for gpu, units in promised(server).items() if units > sizes.get(gpu, 0)}
    assert over == {}


@dataclass
class Asking:
    """A client of one extender, as kube-scheduler is."""

    http: aiohttp.ClientSession
    server: ApiServer
    port: int

    async def post(self, path: str, body: Any) -> Any:
        """Return the JSON that is answered; what is none is returned as status and text."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self.http.post(path, data=io.BytesIO(data)) as response:
            if response.content_type != "application/json":
                return response.status, await response.text()
            return await response.json()

    async def get(self, path: str) -> tuple[int, str]:
        """Return status and text of a page."""
        async with self.http.get(path) as response:
            return response.status, await response.text()

    async def filter(self, asked: Json, *names: str) -> Json:
        """Return the answer to a filter by names."""
        found: Json = await self.post("/filter", {"Pod": asked, "NodeNames": list(names)})
        return found

    async def fits(self, asked: Json, *names: str) -> list[str]:
        """Return the names of the nodes where a pod fits."""
        found = await self.filter(asked, *names)
        assert not found.get("Error"), found
        fitting: list[str] = found["NodeNames"]
        return fitting

    async def scores(self, asked: Json, *names: str) -> dict[str, int]:
        """Return the scores of nodes."""
        answer = await self.post("/prioritize", {"Pod": asked, "NodeNames": list(names)})
        return {each["Host"]: each["Score"] for each in answer}

    async def bind(self, asked: Json, where: str) -> str:
        """Return why a pod was not bound; empty where it was."""
        metadata = asked["metadata"]
        body = {"PodName": metadata["name"], "PodNamespace": metadata["namespace"], "PodUID": metadata["uid"]}
        answer = await self.post("/bind", {**body, "Node": where})
        assert isinstance(answer, dict), answer
        error: str = answer["Error"]
        return error

    async def used(self) -> Counter[tuple[str, str]]:
        """Return the units of each GPU that the extender counts as used, by node and GPU of the tests' names."""
        status, text = await self.get("/gpushare-scheduler/inspect")
        assert status == 200, text
        return +Counter(
            {
                (each["name"], uuid(gpu["id"], each["name"])): gpu["usedGPU"]
                for each in json.loads(text)["nodes"]
                for gpu in each["devs"]
            }
        )

    async def agrees(self) -> None:
        """Wait until the extender counts just what the API server's pods say, and so has nothing else promised."""
        used: Counter[tuple[str, str]] = Counter()

        async def agreed() -> bool:
            nonlocal used
            used = await self.used()
            return used == promised(self.server)

        await until(agreed, lambda: f"it counts {used}, and its pods say {promised(self.server)}")

    async def ready(self) -> None:
        """Wait until it answers from a complete account."""

        async def answered() -> bool:
            return (await self.get("/inspect"))[0] == 200

        await until(answered)

    async def knows(self, name: str) -> None:
        """Wait until it knows a node."""

        async def known() -> bool:
            return (await self.get(f"/inspect/{name}"))[0] == 200

        await until(known)

    async def comes_to_fit(self, asked: Json, *names: str) -> None:
        """Wait until a pod fits on each of these nodes."""

        async def fitting() -> bool:
            return await self.fits(asked, *names) == list(names)

        await until(fitting)

    async def comes_not_to_fit(self, asked: Json, *names: str) -> None:
        """Wait until a pod fits on none of these nodes."""

        async def unfit() -> bool:
            return await self.fits(asked, *names) == []

        await until(unfit)


@dataclass
class Extending(Asking):
    """A client of an extender in this process, and the extender."""

    task: asyncio.Task[None]

    async def end(self) -> None:
        """Stop the extender as a signal does."""
        self.task.cancel()
        with suppress(asyncio.CancelledError):
            await self.task


@asynccontextmanager
async def extender(server: ApiServer, folder: Path, *, wait: bool = True, **options: Any) -> AsyncIterator[Extending]:
    """Run an extender, from when it is ready; at the end nothing of it is left running."""
    before = asyncio.all_tasks()
    port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    certificates: Certificates | None = options.get("certificates")
    settings: dict[str, Any] = {
        "address": "127.0.0.1:0",
        "namespace": "kube-system",
        "kubeconfig": server.kubeconfig(folder / "kubeconfig"),
        "lease_timing": LEASED,
        "binder_timing": PATIENT,
        "client_timing": QUICK,
        "started": port.set_result,
    }
    made = ExtenderSettings(**settings | options)
    task = asyncio.create_task(serve(made))
    try:
        await asyncio.wait((task, port), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            await task
        scheme = "https" if certificates else "http"
        async with aiohttp.ClientSession(f"{scheme}://127.0.0.1:{await port}") as http:
            asking = Extending(http, server, await port, task)
            if wait:
                await asking.ready()
            yield asking
            assert not task.done() or task.cancelled()
            await asking.end()
    finally:
        task.cancel()
        await asyncio.wait([task])
    left = [each for each in asyncio.all_tasks() - before if _is_extenders(each)]
    assert left == []


def _is_extenders(task: asyncio.Task[Any]) -> bool:
    """Return whether a task runs code of an extender, not of the API server or a test."""
    code = getattr(task.get_coro(), "cr_code", None)
    return code is not None and any(f"gpushare_plugin/{part}" in code.co_filename for part in ("extender/", "kube/"))
