"""Records what a real kube-scheduler decides about random pairs; run by hand.

    python -m tests.unit.ledger.record KUBECONFIG

It needs an API server and a kube-scheduler of a cluster without nodes and without a controller manager, which would
taint and remove nodes that have no kubelet; both with the feature gate TaintTolerationComparisonOperators. Every pair
has the cluster for itself: its node, the pods on it, and one pod that waits.
"""

import asyncio
import json
import re
import sys
from contextlib import suppress
from pathlib import Path

from gpushare_plugin.kube.client import Client, ClusterError
from tests.unit.ledger.pairs import OVERHEADS, Json, pairs

SEED, COUNT = 16, 400
RECORDED = Path(__file__).parent / "recorded" / "verdicts.json"
NAMESPACE = "gpushare-recording"
NODES, PODS = "/api/v1/nodes", f"/api/v1/namespaces/{NAMESPACE}/pods"
SEEN = 0.3
"""Seconds until the scheduler has certainly seen a node and its pods."""

_MERGE = "application/merge-patch+json"
_TAKEN = ("containers", "initContainers", "overhead", "resources")
_REQUIRED = ("nodeSelector", "affinity", "tolerations")
_CONTAINER = ("name", "resources", "ports", "restartPolicy")
_STATUS = ("name", "resources", "allocatedResources")
_STATUSES = ("containerStatuses", "initContainerStatuses")
_VERDICT = re.compile(r"0/1 nodes are available: (?P<reasons>.*?)\.( |$)")


async def record(kubeconfig: Path) -> None:
    """Write the verdict of each pair, one a line, with the version of the cluster."""
    async with Client(kubeconfig) as client:
        version = json.loads(await client.request("GET", "/version"))["gitVersion"]
        await _prepare(client)
        lines = []
        for number, pair in enumerate(pairs(SEED, COUNT)):
            try:
                recorded = await _judged(client, pair, f"pod-{number}")
            except ClusterError as error:
                if error.status != 422:
                    raise
                print(number, error)  # noqa: T201 - run by hand
                continue
            finally:
                await _clear(client)
            lines.append(json.dumps(recorded, separators=(",", ":")))
    head = json.dumps({"version": version, "seed": SEED})[1:-1]
    RECORDED.write_text('{%s, "pairs": [\n%s\n]}\n' % (head, ",\n".join(lines)))  # noqa: UP031 - has braces


async def _prepare(client: Client) -> None:
    meta = {"metadata": {"name": NAMESPACE}}
    accounts = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts"
    objects: list[tuple[str, Json]] = [("/api/v1/namespaces", meta), (accounts, {"metadata": {"name": "default"}})]
    for name, overhead in OVERHEADS.items():
        runtime = {"metadata": {"name": name}, "handler": name, "overhead": {"podFixed": overhead}}
        objects.append(("/apis/node.k8s.io/v1/runtimeclasses", runtime))
    for path, body in objects:
        with suppress(ClusterError):  # it is there already
            await client.request("POST", path, body=body)


async def _judged(client: Client, pair: Json, name: str) -> Json:
    """Return a pair as the API server stores it, with the verdict."""
    node = pair["node"]
    await client.request("POST", NODES, body=node)
    # The API server taints each new node, until a controller finds it ready.
    taints = {"spec": {"taints": node["spec"].get("taints", [])}}
    await client.request("PATCH", f"{NODES}/{node['metadata']['name']}", body=taints, content_type=_MERGE)
    occupants = [
        await _create(client, occupant, f"{name}-{number}", node["metadata"]["name"])
        for number, occupant in enumerate(pair["occupants"])
    ]
    await asyncio.sleep(SEEN)
    pod = await _create(client, pair["pod"], name)
    verdict = await _verdict(client, name, node["metadata"]["name"])
    return {"node": node, "occupants": occupants, "pod": pod, "verdict": verdict}


async def _create(client: Client, pod: Json, name: str, node: str | None = None) -> Json:
    """Create a pod, and return what is stored of the fields that matter."""
    spec = {**pod["spec"], **({"nodeName": node} if node else {})}
    for kind in ("containers", "initContainers"):
        spec[kind] = [{**container, "image": "none"} for container in spec.get(kind, ())]
    stored = json.loads(await client.request("POST", PODS, body={"metadata": {"name": name}, "spec": spec}))
    if status := pod.get("status"):
        more = {"ready": True, "restartCount": 0, "image": "none", "imageID": ""}
        full = {**status, **{kind: [each | more for each in status[kind]] for kind in _STATUSES if kind in status}}
        patched = await client.request("PATCH", f"{PODS}/{name}/status", body={"status": full}, content_type=_MERGE)
        stored = json.loads(patched)
    return _kept(stored)


def _kept(pod: Json) -> Json:
    """Return the fields of a stored pod that matter."""
    spec = _picked(pod["spec"], _TAKEN if "nodeName" in pod["spec"] else _TAKEN + _REQUIRED)
    for kind in ("containers", "initContainers"):
        if kind in spec:
            spec[kind] = [_picked(container, _CONTAINER) for container in spec[kind]]
    if "tolerations" in spec:  # those that the API server adds concern taints that no node here has
        spec["tolerations"] = [each for each in spec["tolerations"] if "tolerationSeconds" not in each]
    status = _picked(pod["status"], ("conditions", "resources", "allocatedResources", *_STATUSES))
    for kind in _STATUSES:
        if kind in status:
            status[kind] = [_picked(each, _STATUS) for each in status[kind]]
    return {"spec": spec, "status": status} if any(kind in status for kind in _STATUSES) else {"spec": spec}


def _picked(fields: Json, names: tuple[str, ...]) -> Json:
    return {name: fields[name] for name in names if fields.get(name)}


async def _verdict(client: Client, pod: str, node: str) -> str:
    """Return `fits`, or the reasons of kube-scheduler."""
    found: Json = {}
    for _ in range(200):
        found = json.loads(await client.request("GET", f"{PODS}/{pod}"))
        if bound := found["spec"].get("nodeName"):
            if bound != node:
                raise SystemExit(f"{pod} is on {bound}, {node} expected")
            return "fits"
        for condition in found["status"].get("conditions", ()):
            if match := _VERDICT.match(condition.get("message", "")):
                return match["reasons"]
        await asyncio.sleep(0.05)
    raise SystemExit(f"no verdict about {pod}: {found['status']}")


async def _clear(client: Client) -> None:
    """Remove the node and every pod."""
    for path in (PODS, NODES):
        for found in (await client.list(path))[0]:
            query = {"gracePeriodSeconds": "0"}
            await client.request("DELETE", f"{path}/{found['metadata']['name']}", query)


if __name__ == "__main__":
    asyncio.run(record(Path(sys.argv[1])))
