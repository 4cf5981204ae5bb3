"""What a partitioner decides about a cluster as the API server shows it: once, and again when time has passed."""

import asyncio
import json
from datetime import datetime
from typing import Any, TypeVar

import msgspec
from structlog.testing import capture_logs

from gpushare_plugin.kube.collection import Gone
from gpushare_plugin.kube.events.event import Event
from gpushare_plugin.kube.nodes import judged_node
from gpushare_plugin.kube.objects import ApiNode, ApiPod
from gpushare_plugin.observe.metrics.partitioner import PartitionerCounts
from gpushare_plugin.partition.decide import Decisions
from gpushare_plugin.partition.decide import decide as decided
from gpushare_plugin.partitioner.known import Known
from gpushare_plugin.partitioner.reports import Reports
from gpushare_plugin.slices.wanted import encode

Json = dict[str, Any]
T = TypeVar("T")

_WANTED = "gpushare/wanted-slices"


def decide(asked: Json) -> Json:
    """Return what is wanted of each node whose annotation changes, and what people are told, of both rounds."""
    with capture_logs():
        return asyncio.run(_decide(asked))


async def _decide(asked: Json) -> Json:
    partitioner = _Partitioner(asked)
    with partitioner.known.losses.noted():
        first = await partitioner.round(asked["now"])
        for node in first["wanted"]:
            partitioner.see({"node": partitioner.annotated(node, first["wanted"][node])})
        for change in asked["again"]["changes"]:
            partitioner.see(change)
        return {**first, "again": await partitioner.round(asked["again"]["now"])}


class _Partitioner:
    """A partitioner that leads."""

    def __init__(self, asked: Json) -> None:
        self._policy, self._patience, self._avoided = asked["policy"], asked["patience"], set(asked["avoided"])
        self.known = Known(self._policy)
        self._events: list[Event] = []
        self._reports = Reports(self._events.append, PartitionerCounts())
        self._nodes: dict[str, Json] = {}
        for node in asked["nodes"]:
            self.see({"node": node})
        for pod in asked["pods"]:
            self.see({"pod": pod})

    def see(self, change: Json) -> None:
        """Take in what the watch shows."""
        match change:
            case {"node": node}:
                self._nodes[node["metadata"]["name"]] = node
                self.known.put_node(judged_node(_read(node, ApiNode)))
            case {"gone node": name}:
                self.known.remove_node(Gone(name, "", ""))
            case {"pod": pod}:
                self.known.put_pod(_read(pod, ApiPod))
            case {"gone pod": uid}:
                self.known.remove_pod(Gone(f"p{uid}", "team", uid))

    def annotated(self, name: str, wanted: Json) -> Json:
        """Return a Node as it is once that is written."""
        metadata = self._nodes[name]["metadata"]
        annotations = {**metadata["annotations"], _WANTED: json.dumps(wanted)}
        return {**self._nodes[name], "metadata": {**metadata, "resourceVersion": "2", "annotations": annotations}}

    async def round(self, time: str) -> Json:
        """Decide once, as if everything can be written."""
        now = datetime.fromisoformat(time)
        known = self.known
        self._events.clear()
        self._reports.report_lost(known.lost())
        rules = known.rules(now, self._patience, self._policy, self._avoided)
        decisions = decided(known.nodes, known.waiting, now, rules)
        self._reports.report(decisions, decisions.changes.keys(), known)
        refusals = asyncio.create_task(self._reports.report_refusals())
        for _ in range(2 * len(decisions.refused) + 4):
            await asyncio.sleep(0)
        refusals.cancel()
        return {
            "wanted": {name: json.loads(encode(wanted)) for name, wanted in decisions.changes.items()},
            **_told(decisions),
            "events": [f"{each.reason} {each.regarding.name}: {each.message}" for each in self._events],
        }


def _told(decisions: Decisions) -> Json:
    found: Json = {
        "kept": {
            uid: [each.node, [[one.gpu, one.slice] for one in each.kept], list(each.how)]
            for uid, each in decisions.assigned.items()
        },
        "offered": {uid: [each.node, each.until.isoformat()] for uid, each in decisions.elsewhere.items()},
        "next": decisions.next_at and decisions.next_at.isoformat(),
        "left out": {each.node: each.reason for each in decisions.left_out},
        "broken": [each.pod.uid for each in decisions.broken],
    }
    return {key: value for key, value in found.items() if value}


def _read(found: Json, kind: type[T]) -> T:
    return msgspec.json.decode(json.dumps(found), type=kind)
