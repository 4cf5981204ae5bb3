"""A cluster of programs of either build: an API server, nodes, and a scheduler that asks whichever extender leads."""

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import aiohttp

from gpushare_plugin.testing.cluster import ApiServer
from gpushare_plugin.testing.cluster.verbs import bind
from tests.cluster.tasks import alongside
from tests.upgrade.worker import NODES, PAUSE, PODS, Json, Pods, Worker

ENDED = frozenset({"Succeeded", "Failed"})


class Cluster:
    """The objects of an API server, and who works on them.

    `extenders` are the ports of those that are asked, whichever of them leads; without any, pods are bound wherever
    the sum of what is free suffices.
    """

    def __init__(self, server: ApiServer, workers: Sequence[Worker], seed: int) -> None:
        """Have these nodes; the seed is for what the scheduler draws."""
        self.server = server
        self.workers = {worker.name: worker for worker in workers}
        self._pods = Pods(server)
        for worker in workers:
            worker.pods = self._pods
        self.extenders: list[int] = []
        self.places_pods = True
        """Whether the scheduler places pods; without, they wait, whatever is made for them."""
        self._rng = random.Random(seed)  # noqa: S311 - no secret
        self._number = 0

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Run kubelets and scheduler."""
        async with (
            aiohttp.ClientSession() as http,
            alongside(*(each.work() for each in self.workers.values()), self._schedule(http)),
        ):
            yield

    @property
    def pods(self) -> list[Json]:
        """All pods, the oldest first."""
        return self._pods()

    def create(self, *limits: Mapping[str, int], labels: Mapping[str, str] | None = None) -> Json:
        """Create a pod with a container for each of these limits."""
        self._number += 1
        texts = [{name: str(units) for name, units in each.items()} for each in limits]
        containers = [
            {"name": f"main-{number}", "image": "i", "resources": {"limits": each, "requests": each}}
            for number, each in enumerate(texts)
        ]
        metadata = {"name": f"pod-{self._number}", "labels": dict(labels or {})}
        pod = {"metadata": metadata, "spec": {"containers": containers}, "status": {"phase": "Pending"}}
        return self.server.store.create(PODS, pod)

    def delete(self, pod: Json) -> None:
        """Delete a pod, as its owner does: one that is bound is ended by its kubelet."""
        name = pod["metadata"]["name"]
        if not pod["spec"].get("nodeName"):
            self.server.store.delete(PODS, name)
        else:
            now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            self.server.store.patch(PODS, name, {"metadata": {"deletionTimestamp": now}})

    def replace_failed(self) -> None:
        """Create each pod that was not admitted again, as its controller does."""
        for pod in self.pods:
            if pod["status"]["phase"] == "Failed" and not pod["metadata"].get("deletionTimestamp"):
                self.delete(pod)
                limits = [
                    {k: int(v) for k, v in each["resources"]["limits"].items()} for each in pod["spec"]["containers"]
                ]
                self.create(*limits, labels=pod["metadata"]["labels"])

    async def _schedule(self, http: aiohttp.ClientSession) -> None:
        """Schedule one pod after another, as kube-scheduler does, until cancelled."""
        while True:
            for pod in self.pods if self.places_pods else ():
                if not pod["spec"].get("nodeName") and (roomy := list(self._roomy(pod))):
                    with contextlib.suppress(aiohttp.ClientError):  # the extender is being exchanged
                        await self._place(http, pod, roomy)
            await asyncio.sleep(PAUSE)

    def _roomy(self, pod: Json) -> Iterator[str]:
        """Yield the nodes that have room for a pod by the sums of what they have and what their pods asked for."""
        used: dict[str, Counter[str]] = {name: Counter() for name in self.workers}
        for each in self.pods:
            if (node := each["spec"].get("nodeName")) and each["status"]["phase"] not in ENDED:
                used[node] += asked(each)
        for node in self.server.store.find(NODES):
            name, there = node["metadata"]["name"], node["status"].get("allocatable") or {}
            if all(used[name][each] + units <= int(there.get(each, 0)) for each, units in asked(pod).items()):
                yield name

    async def _place(self, http: aiohttp.ClientSession, pod: Json, roomy: list[str]) -> None:
        """Bind a pod where an extender says, or anywhere; one that nobody places now is tried again later."""
        if not self.extenders:
            self._bind(pod, self._rng.choice(roomy))
            return
        for port in self.extenders:
            url = f"http://127.0.0.1:{port}"
            async with http.post(f"{url}/filter", json={"Pod": pod, "NodeNames": roomy}) as answer:
                filtered = await answer.json()
            if filtered.get("Error") or not filtered.get("NodeNames"):
                continue
            async with http.post(f"{url}/prioritize", json={"Pod": pod, "NodeNames": filtered["NodeNames"]}) as answer:
                scores = await answer.json()
            node = max(scores, key=lambda each: each["Score"])["Host"]
            metadata = pod["metadata"]
            asked_for = {"PodName": metadata["name"], "PodNamespace": metadata["namespace"], "PodUID": metadata["uid"]}
            self._note(pod, node)
            async with http.post(f"{url}/bind", json={**asked_for, "Node": node}) as answer:
                await answer.read()
            return

    def _bind(self, pod: Json, node: str) -> None:
        """Bind a pod as kube-scheduler itself does."""
        self._note(pod, node)
        name = pod["metadata"]["name"]
        bind(self.server.store, PODS, name, {"metadata": {"name": name}, "target": {"kind": "Node", "name": node}})

    def _note(self, pod: Json, node: str) -> None:
        worker = self.workers[node]
        worker.bound[pod["metadata"]["uid"]] = worker.disturbances


def asked(pod: Json) -> Counter[str]:
    """Return what a pod asks for of each resource."""
    found: Counter[str] = Counter()
    for container in pod["spec"]["containers"]:
        found.update({name: int(units) for name, units in container["resources"]["limits"].items()})
    return found
