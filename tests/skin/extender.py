"""kube-scheduler's extender protocol, what the extender writes, and what it serves besides."""

import json
from pathlib import Path
from typing import Any

import aiohttp

from gpushare_plugin.testing.cluster import ApiServer
from gpushare_plugin.testing.ports import claim_port
from tests.process.daemon import comes_to_answer, process
from tests.skin.cluster import LEASES, NODES, PODS, create, pods, uid
from tests.skin.golden import Texts, as_json, masked, unfolded
from tests.skin.logs import lines, undocumented
from tests.skin.pages import page
from tests.waiting import until

SLICES = "/apis/discovery.k8s.io/v1/namespaces/kube-system/endpointslices"
ALL = ["memory-1", "memory-2", "replicas", "whole", "slices", "aliyun", "cpu", "unknown"]
ASKED = ("small", "slice", "large", "important", "several", "two-gpus", "spread", "by-hami", "without")
"""Pods for which all nodes are filtered and scored."""
SHOWN = {"starting", "clients_not_verified", "leading", "pod_bound", "stopping", "stopped"}


async def recorded(folder: Path) -> Texts:
    """Return the answers to requests, and what is on objects after that."""
    port, probes = claim_port(), claim_port()
    async with ApiServer() as server:
        create(server)
        environment = {
            "KUBECONFIG": str(server.kubeconfig(folder / "kubeconfig")),
            "POD_NAME": "extender-0",
            "POD_UID": uid(100),
            "POD_IP": "192.0.2.1",
            "SERVICE_NAME": "gpushare-extender",
        }
        options = ("--listen-address", f"127.0.0.1:{port}", "--probe-address", f"127.0.0.1:{probes}")
        async with process("extender", *options, "--cordon-nodes", "aliyun", environment=environment) as daemon:
            await comes_to_answer(probes, "/readyz", (200, "ok\n"))
            await until(lambda: server.store.find(SLICES, "gpushare-extender"))
            texts = await _told(server, port, probes)
            assert await daemon.stop() == 0
            texts["extender/log.txt"] = lines(daemon.log, SHOWN, port=port, probes=probes)
            assert undocumented(daemon.log) == []
    return {name: masked(text, folder=folder) for name, text in texts.items()}


async def _told(server: ApiServer, port: int, probes: int) -> Texts:
    texts = Texts()
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
        by_name = {each["metadata"]["name"]: each for each in pods()}
        for name in ASKED:
            request = {"Pod": by_name[name], "NodeNames": ALL}
            answers = {verb: await _post(session, f"/{verb}", request) for verb in ("filter", "prioritize")}
            texts[f"extender/pod-{name}.json"] = as_json(answers)
        texts["extender/filter-objects.json"] = as_json(await _objects(server, session, by_name["small"]))
        texts["extender/preempt.json"] = as_json(await _preempted(session, by_name["important"]))
        texts["extender/bind.json"] = as_json(await _bound(session))
        texts["extender/refusals.json"] = as_json(await _refusals(session, by_name["small"]))
        texts["extender/aliyun.json"] = as_json(
            {each: await _get(session, f"/gpushare-scheduler/{each}") for each in READ}
        )
    for name in ("small", "several", "two-gpus"):
        (found,) = server.store.find(PODS, name)
        shown = {"annotations": found["metadata"].get("annotations"), "node": found["spec"].get("nodeName")}
        texts[f"extender/bound-{name}.json"] = as_json(unfolded(json.dumps(shown)))
    (lease,), (slices,) = server.store.find(LEASES, "gpushare-extender"), server.store.find(SLICES, "gpushare-extender")
    texts["extender/lease.json"] = as_json(_written(lease))
    texts["extender/endpoint-slice.json"] = as_json(_written(slices)).replace(str(port), "<port>")
    texts["extender/metrics.txt"] = await page(probes)
    return texts


READ = ("version", "inspect", "inspect/memory-1", "inspect/unknown")
"""What Aliyun's tools read."""


async def _objects(server: ApiServer, session: aiohttp.ClientSession, pod: dict[str, Any]) -> Any:
    """Filter whole Nodes, as a kube-scheduler asks that is not configured with `nodeCacheCapable`; return names."""
    nodes = [each for name in ("memory-1", "cpu") for each in server.store.find(NODES, name)]
    answer = await _post(session, "/gpushare-scheduler/filter", {"Pod": pod, "Nodes": {"items": nodes}})
    answer["body"]["Nodes"]["items"] = [each["metadata"]["name"] for each in answer["body"]["Nodes"]["items"]]
    return answer


async def _preempted(session: aiohttp.ClientSession, pod: dict[str, Any]) -> Any:
    """Ask which victims suffice: those that kube-scheduler found on two nodes."""
    victims = {
        "memory-1": {"Pods": [{"UID": uid(1)}, {"UID": uid(2)}], "NumPDBViolations": 0},
        "aliyun": {"Pods": [{"UID": uid(4)}], "NumPDBViolations": 1},
    }
    by_uid = {"Pod": pod, "NodeNameToVictims": None, "NodeNameToMetaVictims": victims}
    whole = {
        name: {**each, "Pods": [found for found in pods() if {"UID": found["metadata"]["uid"]} in each["Pods"]]}  # type: ignore[operator]
        for name, each in victims.items()
    }
    by_object = {"Pod": pod, "NodeNameToVictims": whole, "NodeNameToMetaVictims": None}
    return {
        "by UID": await _post(session, "/preempt", by_uid),
        "by object": await _post(session, "/preempt", by_object),
    }


async def _bound(session: aiohttp.ClientSession) -> Any:
    """Bind pods, one of them twice and one where it does not fit."""
    asked = [
        ("small", uid(8), "memory-1"),
        ("small", uid(8), "memory-1"),
        ("several", uid(12), "memory-2"),
        ("two-gpus", uid(13), "whole"),
        ("large", uid(10), "memory-1"),
        ("gone", uid(99), "memory-1"),
        ("spread", uid(98), "memory-1"),
        ("spread", uid(14), "cpu"),
        ("spread", uid(14), "nowhere"),
    ]
    return [
        {
            "asked": f"{name} on {node}",
            **await _post(
                session, "/bind", {"PodName": name, "PodNamespace": "team", "PodUID": identity, "Node": node}
            ),
        }
        for name, identity, node in asked
    ]


async def _refusals(session: aiohttp.ClientSession, pod: dict[str, Any]) -> Any:
    """Ask what is no request of kube-scheduler."""
    wrong = {
        "no JSON": b"{",
        "no pod": b"{}",
        "a pod of another form": b'{"Pod": {"spec": {"containers": 1}}, "NodeNames": ["memory-1"]}',
        "too many nodes": json.dumps({"Pod": pod, "NodeNames": ["n"] * 20_000}).encode(),
    }
    told = {what: await _post(session, "/filter", body) for what, body in wrong.items()}
    told["no such page"] = await _post(session, "/sort", b"{}")
    told["another method"] = await _get(session, "/filter")
    return told


async def _post(session: aiohttp.ClientSession, path: str, body: Any) -> dict[str, Any]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with session.post(path, data=data, headers={"Content-Type": "application/json"}) as response:
        return await _answer(response)


async def _get(session: aiohttp.ClientSession, path: str) -> dict[str, Any]:
    async with session.get(path) as response:
        return await _answer(response)


async def _answer(response: aiohttp.ClientResponse) -> dict[str, Any]:
    text = await response.text()
    body = json.loads(text) if "json" in response.content_type else text
    return {"status": response.status, "type": response.content_type, "body": body}


def _written(found: dict[str, Any]) -> dict[str, Any]:
    """Return an object without what the API server adds."""
    added = {"uid", "resourceVersion", "creationTimestamp", "managedFields"}
    return {**found, "metadata": {key: value for key, value in found["metadata"].items() if key not in added}}
