"""What the extender answers about one pod, and binds, given a cluster as the API server shows it."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any, TypeVar, cast

import msgspec
from structlog.testing import capture_logs

from gpushare_plugin.extender import answers
from gpushare_plugin.extender.binder import Binder, BinderTiming, NotBoundError
from gpushare_plugin.extender.follower import Handover
from gpushare_plugin.extender.protocol import Arguments, PreemptionArguments, decode, encode
from gpushare_plugin.kube.client import Client, ClusterError
from gpushare_plugin.kube.identity import ObjectIdentity
from gpushare_plugin.kube.nodes import node_of
from gpushare_plugin.kube.objects import ApiNode, ApiPod
from gpushare_plugin.kube.pods import pod_of
from gpushare_plugin.kube.scheduling.budgets import PodDisruptionBudget, budget
from gpushare_plugin.ledger.cluster import ClusterAccount
from gpushare_plugin.ledger.disruption import Disruptions

Json = dict[str, Any]
T = TypeVar("T")

_TIMES = "ALIYUN_COM_GPU_MEM_ASSUME_TIME"
"""Says nothing but when; our promise says that, too."""


def decide(asked: Json) -> Json:
    """Return what the extender answers: to filter, prioritize and preempt, and which GPUs it binds to."""
    with capture_logs():
        return asyncio.run(_decided(asked))


async def _decided(asked: Json) -> Json:
    extender = _Extender(asked)
    pods = asked["asked"]
    verdict: Json = {}
    if earlier := [await extender.bind(pods[number], node) for number, node in asked["earlier"]]:
        verdict["earlier"] = earlier
    verdict |= extender.answer(pods[0], asked["about"], as_objects=asked["as_objects"])
    if asked["proposed"]:
        verdict["preempt"] = await extender.preempt(pods[0], asked["proposed"], as_objects=asked["proposed_as_objects"])
    verdict["bind"] = bound = {}
    for node in asked["bind"]:
        bound[node] = await extender.bind(pods[0], node, asked["gone"])
        if isinstance(bound[node], dict):
            break
    for change in asked["changes"]:
        extender.see(change)
    verdict["next"] = extender.answer(pods[-1], asked["about"], as_objects=False)
    return verdict


class _Extender:
    """An extender that leads, and knows the whole cluster."""

    def __init__(self, asked: Json) -> None:
        self._account = ClusterAccount(asked["policy"])
        self._disruptions = Disruptions()
        self._cordons: Mapping[str, str] = asked["cordons"]
        self._nodes: Json = {}
        for node in asked["nodes"]:
            self.see({"node": node})
        for pod in asked["pods"]:
            self.see({"pod": pod})
        for each in asked["budgets"] or ():
            self._disruptions.put_budget(budget(_read(each, PodDisruptionBudget)))
        self._disruptions.counted = asked["budgets"] is not None
        self._api = _Api()
        timing = BinderTiming(binding=3600.0)  # no verdict depends on how busy the machine is
        handover = cast("Handover", _Complete())
        self._binder = Binder(cast("Client", self._api), self._account, lambda: handover, timing, asked["schedulers"])
        self._binder.open(lambda: 3600.0)

    def see(self, change: Json) -> None:
        """Take in what the watch shows."""
        match change:
            case {"node": node}:
                name = node["metadata"]["name"]
                self._nodes[name] = node
                self._account.put_node(node_of(_read(node, ApiNode), self._cordons.get(name, "")))
            case {"gone node": name}:
                self._account.remove_node(name)
            case {"gone pod": uid}:
                self._account.remove_pod(uid)
            case {"pod": pod}:
                self._account.put_pod(pod_of(_read(pod, ApiPod), evictable=True))

    def answer(self, pod: Json, names: list[str], *, as_objects: bool) -> Json:
        """Return which nodes fit, why others do not, and the scores."""
        nodes = [self._nodes.get(name, {"metadata": {"name": name}}) for name in names]
        about = {"Nodes": {"items": nodes}} if as_objects else {"NodeNames": names}
        body = json.dumps({"Pod": pod, **about}).encode()
        found = json.loads(encode(answers.filter_nodes(self._account, decode(body, Arguments))))
        if as_objects:
            found["NodeNames"] = [each["metadata"]["name"] for each in found.pop("Nodes")["items"]]
        scores = json.loads(encode(answers.prioritize(self._account, decode(body, Arguments))))
        return {"filter": found, "prioritize": {each["Host"]: each["Score"] for each in scores}}

    async def preempt(self, pod: Json, proposed: Json, *, as_objects: bool) -> Json:
        """Return whom to evict on each node, and how many violations that is."""
        body: Json = {"Pod": pod}
        if as_objects:
            body["NodeNameToVictims"] = {
                node: {
                    "Pods": [{"metadata": {"uid": uid}} for uid in each["uids"]],
                    "NumPDBViolations": each["violations"],
                }
                for node, each in proposed.items()
            }
        else:
            body["NodeNameToMetaVictims"] = {
                node: {"Pods": [{"UID": uid} for uid in each["uids"]], "NumPDBViolations": each["violations"]}
                for node, each in proposed.items()
            }
        request = decode(json.dumps(body).encode(), PreemptionArguments)
        answer = json.loads(encode(await answers.preempt(self._account, self._disruptions, request)))
        return {
            node: [[each["UID"] for each in victims["Pods"] or ()], victims["NumPDBViolations"]]
            for node, victims in answer["NodeNameToMetaVictims"].items()
        }

    async def bind(self, pod: Json, node: str, gone: str = "") -> Json | str:
        """Return the annotations that a pod was bound with, but for times, or why it was not bound."""
        metadata = pod["metadata"]
        self._api.shown = {} if gone == "pod" else {"pod": pod}
        if gone == "other pod":
            self._api.shown = {"pod": {**pod, "metadata": {**metadata, "uid": "another"}}}
        if gone != "node" and node in self._nodes:
            self._api.shown["node"] = self._nodes[node]
        self._api.bound.clear()
        try:
            await self._binder.bind(ObjectIdentity(metadata["namespace"], metadata["name"], metadata["uid"]), node)
        except NotBoundError as error:
            return str(error)
        return _without_times(self._api.bound[0]) if self._api.bound else {"was bound": node}


def _read(found: Json, kind: type[T]) -> T:
    return msgspec.json.decode(json.dumps(found), type=kind)


def _without_times(annotations: Mapping[str, str]) -> Json:
    found = {key: value for key, value in annotations.items() if key != _TIMES}
    if "gpushare/promise" in found:
        promise = json.loads(found["gpushare/promise"])
        assert promise.pop("time")
        found["gpushare/promise"] = promise
        assert ("ALIYUN_COM_GPU_MEM_IDX" in found) == (_TIMES in annotations)
    return found


class _Complete:
    """A term in which the watch has shown everything."""

    async def complete_on(self, node: str) -> None:
        """Wait for nothing."""

    def bound(self, uid: str) -> None:
        """Note nothing."""


class _Api:
    """An API server that shows one pod and one Node, and binds whatever it is told to."""

    def __init__(self) -> None:
        self.shown: Json = {}
        self.bound: list[Mapping[str, str]] = []

    async def request(self, method: str, path: str, _query: object = None, body: Any = None) -> bytes:
        """Answer as a server does."""
        if method == "POST":
            self.bound.append(body["metadata"]["annotations"])
            return b"{}"
        kind = "node" if "/nodes/" in path else "pod"
        if kind not in self.shown:
            raise ClusterError(f"{method} {path}: 404", 404)
        return json.dumps(self.shown[kind]).encode()
