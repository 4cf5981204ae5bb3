"""A small kube-scheduler: a queue with backoff, the sum of each node's resources, and extenders if there are some.

Extenders are asked as in kubernetes 1.36, pkg/scheduler/schedule_one.go, `findNodesThatPassExtenders` and
`prioritizeNodes`: one after another filters, and an error of one counts, unless the entry is ignorable; all prioritize,
and errors never count.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Self

import aiohttp

from gpushare_plugin.base.backoff import Backoff
from gpushare_plugin.kube.client import NODES, Client, ClusterError
from gpushare_plugin.kube.collection import Gone, Put
from tests.cluster.objects import ALL_PODS, Object, amounts, has_ended, objects
from tests.cluster.tasks import alongside

FIRST_BACKOFF, LONGEST_BACKOFF = 0.05, 0.5
"""Seconds; those of kube-scheduler are 1 and 10."""


@dataclass(frozen=True)
class Entry:
    """An entry of `extenders` in a KubeSchedulerConfiguration."""

    url: str
    filter: str = "filter"
    prioritize: str = "prioritize"
    bind: str = "bind"
    managed: frozenset[str] | None = None
    """The resources of pods that the extender is asked about; None for all pods."""
    ignorable: bool = False
    weight: int = 1

    @classmethod
    def of(cls, entry: Object, url: str) -> Self:
        """Return an entry of a configuration, with the extender at another address."""
        verbs = {verb: entry.get(f"{verb}Verb", "") for verb in ("filter", "prioritize", "bind")}
        managed = frozenset(each["name"] for each in entry.get("managedResources") or ()) or None
        return cls(url, managed=managed, ignorable=entry.get("ignorable", False), weight=entry["weight"], **verbs)

    def concerns(self, asked: Counter[str]) -> bool:
        """Return whether the extender is asked about a pod that asks for these resources."""
        return self.managed is None or not self.managed.isdisjoint(asked)


class Cache:
    """Nodes and pods as the scheduler knows them, with the pods that it has assumed on a node."""

    def __init__(self) -> None:
        """Know nothing yet."""
        self.nodes: dict[str, Object] = {}
        self.pods: dict[str, Object] = {}
        self.amounts: dict[str, Counter[str]] = {}
        self.assumed: dict[str, str] = {}
        self.refused: dict[str, Collection[str]] = {}
        """Nodes that a pod may not have, for reasons that nobody else knows."""

    def put(self, pod: Object) -> None:
        """Take a pod as it is now; one that is bound is assumed no more."""
        uid = pod["metadata"]["uid"]
        self.pods[uid] = pod
        if uid not in self.amounts:
            self.amounts[uid] = amounts(pod)
        if pod["spec"].get("nodeName"):
            self.assumed.pop(uid, None)

    def remove(self, uid: str) -> None:
        """Forget a pod."""
        self.pods.pop(uid, None)
        self.amounts.pop(uid, None)
        self.assumed.pop(uid, None)

    def roomy(self, pod: Object) -> list[str]:
        """Return the nodes that are not cordoned and have room by their sums: all that kube-scheduler looks at here."""
        used: dict[str, Counter[str]] = {name: Counter() for name in self.nodes}
        for uid, each in self.pods.items():
            node = each["spec"].get("nodeName") or self.assumed.get(uid)
            if node in used and not has_ended(each):
                used[node] += self.amounts[uid]
        asked = self.amounts[pod["metadata"]["uid"]]
        return [
            name
            for name, node in self.nodes.items()
            if not (node.get("spec") or {}).get("unschedulable")
            and name not in self.refused.get(pod["metadata"]["uid"], ())
            and all(
                used[name][resource] + units <= int((node["status"].get("allocatable") or {}).get(resource, 0))
                for resource, units in asked.items()
            )
        ]


class Scheduler:
    """Schedules one pod after another, and binds beside that."""

    def __init__(self, client: Client, extenders: Sequence[Entry], rng: random.Random) -> None:
        """Ask these extenders; `rng` decides among equals."""
        self.cache = Cache()
        self.failures: list[str] = []
        """Each pod that could not be scheduled or bound at first, and why."""
        self._client = client
        self._extenders = extenders
        self._rng = rng
        self._queue: asyncio.Queue[str] = asyncio.Queue()
        self._backoffs: dict[str, Backoff] = {}

    async def run(self) -> None:
        """Schedule until cancelled."""
        async with (
            aiohttp.ClientSession() as session,
            alongside(self._follow_nodes(), self._follow_pods()) as tasks,
        ):
            while True:
                uid = await self._queue.get()
                pod = self.cache.pods.get(uid)
                if pod is None or pod["spec"].get("nodeName") or pod["metadata"].get("deletionTimestamp"):
                    continue
                if (node := await self._choose(session, pod)) is None:
                    tasks.create_task(self._later(uid))
                else:
                    self.cache.assumed[uid] = node
                    tasks.create_task(self._bind(session, pod, node))

    async def _choose(self, session: aiohttp.ClientSession, pod: Object) -> str | None:
        """Return the node for a pod, None where none can take it now."""
        roomy = self.cache.roomy(pod)
        if not roomy:
            self._failed(pod, "no node has room by its sum")
            return None
        asked: dict[str, Any] = {"Pod": pod, "Nodes": None, "NodeNames": roomy}
        entries = self._asked_about(pod)
        for entry in entries:
            if not entry.filter:
                continue
            filtered = await self._post(session, entry, entry.filter, asked)
            if filtered.get("Error") and entry.ignorable:
                continue
            if filtered.get("Error") or not filtered.get("NodeNames"):
                self._failed(pod, filtered.get("Error") or f"{filtered}")
                return None
            asked["NodeNames"] = filtered["NodeNames"]
        total: Counter[str] = Counter(dict.fromkeys(asked["NodeNames"], 0))
        for entry in entries:
            scores = await self._post(session, entry, entry.prioritize, asked) if entry.prioritize else []
            if isinstance(scores, list):
                total.update({each["Host"]: entry.weight * each["Score"] for each in scores})
        best = max(total.values())
        return self._rng.choice([name for name, score in total.items() if score == best])

    def _asked_about(self, pod: Object) -> list[Entry]:
        """Return the extenders that are asked about a pod."""
        amounts = self.cache.amounts[pod["metadata"]["uid"]]
        return [entry for entry in self._extenders if entry.concerns(amounts)]

    async def _bind(self, session: aiohttp.ClientSession, pod: Object, node: str) -> None:
        metadata = pod["metadata"]
        asked = {
            "PodName": metadata["name"],
            "PodNamespace": metadata["namespace"],
            "PodUID": metadata["uid"],
            "Node": node,
        }
        if error := await self._refused(session, pod, asked):
            self.cache.assumed.pop(metadata["uid"], None)
            self._failed(pod, error)
            await self._later(metadata["uid"])

    async def _refused(self, session: aiohttp.ClientSession, pod: Object, asked: Object) -> str | None:
        """Bind a pod through an extender, or without one as kube-scheduler does; return why it is not bound."""
        if binder := next((entry for entry in self._asked_about(pod) if entry.bind), None):
            error: str | None = (await self._post(session, binder, binder.bind, asked))["Error"]
            return error
        metadata = {"name": asked["PodName"], "namespace": asked["PodNamespace"], "uid": asked["PodUID"]}
        binding = {"metadata": metadata, "target": {"kind": "Node", "name": asked["Node"]}}
        try:
            path = f"/api/v1/namespaces/{asked['PodNamespace']}/pods/{asked['PodName']}/binding"
            await self._client.request("POST", path, body=binding)
        except ClusterError as error:
            return str(error)
        return None

    async def _post(self, session: aiohttp.ClientSession, entry: Entry, verb: str, asked: Object) -> Any:
        try:
            async with session.post(f"{entry.url}/{verb}", json=asked) as response:
                if response.status != 200:
                    return {"Error": f"{verb}: {response.status}: {await response.text()}"}
                return await response.json()
        except aiohttp.ClientError as error:
            return {"Error": f"{verb}: {error}"}

    def _failed(self, pod: Object, why: str) -> None:
        self.failures.append(f"{pod['metadata']['name']}: {why}")

    async def _later(self, uid: str) -> None:
        """Try again after a pause, longer each time."""
        backoff = self._backoffs.setdefault(uid, Backoff(first=FIRST_BACKOFF, most=LONGEST_BACKOFF))
        await asyncio.sleep(backoff.next())
        self._queue.put_nowait(uid)

    async def _follow_nodes(self) -> None:
        async for change in objects(self._client, NODES):
            match change:
                case Put(node):
                    self.cache.nodes[node["metadata"]["name"]] = node
                case Gone(name=name):
                    self.cache.nodes.pop(name, None)

    async def _follow_pods(self) -> None:
        async for change in objects(self._client, ALL_PODS):
            match change:
                case Put(pod):
                    new = pod["metadata"]["uid"] not in self.cache.pods
                    self.cache.put(pod)
                    if new and not pod["spec"].get("nodeName"):
                        self._queue.put_nowait(pod["metadata"]["uid"])
                case Gone(uid=uid):
                    self.cache.remove(uid)
