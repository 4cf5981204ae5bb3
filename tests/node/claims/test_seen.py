"""People see claims beside units: `gpushare list`, with pods and limits."""

import json
from pathlib import Path
from typing import Any

from gpushare_plugin.core.effect import unknown
from gpushare_plugin.ledger.annotations import LIMITS, write_limits
from gpushare_plugin.testing.kubelet import ClaimEntry, Container, Pod
from tests.node.claims.node import DRIVER, ClaimNode, claim_node
from tests.unit.kube.cluster import NODE
from tests.waiting import until

HAMI = "{memory: {resources: [{name: aliyun.com/gpu-mem, isolation: hami-core}]}}"
OFTEN = "{}\nhealth: {rescanSeconds: 1}"


async def claims(node: ClaimNode) -> list[dict[str, Any]]:
    """Return the claims in the JSON of `gpushare list`."""
    found: list[dict[str, Any]] = json.loads(await node.listed("-o", "json"))["claims"]
    return found


async def test_a_claim_is_listed_with_its_pod_and_its_limit(short_path: Path) -> None:
    """The claim is there once it is prepared, its container once the usage was looked at, and nothing at the end."""
    async with claim_node(short_path) as node, node.serving(HAMI, OFTEN) as daemon:
        await node.devices(daemon, 1)
        assert await claims(node) == []
        pod = node.pod("pod", {"memory": "10Gi", "compute": "30"})
        node.scheduler.schedule(pod)
        await node.kubelet.admit(pod)
        (claim,) = await claims(node)
        assert (claim["namespace"], claim["claim"], claim["request"]) == ("default", "pod", "gpu")
        assert (claim["gpu"], claim["uuid"], claim["way"]) == ("0", node.nvml.gpus[0].uuid, "memory")
        assert (claim["memoryMiB"], claim["computePercent"], claim["isolation"]) == (10240, 30, "hami-core")
        assert (claim["memoryLimitMiB"], claim["computeLimitPercent"]) == (10240, 30)
        assert (claim["state"], claim["pods"]) == ("prepared", ["pod"])

        async def uses() -> list[dict[str, Any]]:
            return [use for each in await claims(node) for use in each["uses"]]

        await until(uses)
        (use,) = await uses()
        assert (use["pod"], use["container"], use["memoryLimitMiB"]) == ("pod", "main", 10240)
        table = await node.listed()
        assert "10240 MiB" in table
        assert "30 %" in table
        assert "10240 MiB, 30 %" in await node.listed("-o", "wide")
        await node.kubelet.end(pod)
        assert await claims(node) == []


async def test_a_claim_itself_says_whether_its_limit_is_in_effect(short_path: Path) -> None:
    """People who read the claim see what `gpushare list` shows on the node, with what is missing to know more."""
    async with claim_node(short_path) as node, node.serving(HAMI, OFTEN) as daemon:
        await node.devices(daemon, 1)
        pod = node.pod("pod", {"memory": "10Gi"})
        node.scheduler.schedule(pod)
        await node.kubelet.admit(pod)

        def condition() -> dict[str, Any]:
            (entry,) = node.claim(pod)["status"].get("devices") or [{}]
            return dict((entry.get("conditions") or [{}])[0])

        found = await until(condition)
        assert (found["type"], found["status"], found["reason"]) == ("LimitInEffect", "Unknown", "Unknown")
        assert found["message"] == "unknown: no process of the container uses the GPU"


async def test_a_pod_says_whether_the_limit_of_its_claim_is_in_effect(short_path: Path) -> None:
    """As of a pod with units, where the daemon follows pods: in an annotation, beside which nothing else is written."""
    async with claim_node(short_path) as node:
        node.configure(HAMI, OFTEN)
        async with node.daemon("--follow-pods", "true") as daemon:
            await node.devices(daemon, 1)
            pod = node.pod("pod", {"memory": "10Gi"})
            pods, meta = "/api/v1/namespaces/default/pods", {"name": pod.name, "uid": pod.uid}
            spec = {"nodeName": NODE, "containers": [{"name": "main"}]}
            node.server.store.create(pods, {"metadata": meta, "spec": spec, "status": {"phase": "Pending"}})
            node.scheduler.schedule(pod)
            await node.kubelet.admit(pod)

            def annotations() -> dict[str, str]:
                (found,) = node.server.store.find(pods, pod.name)
                return dict(found["metadata"].get("annotations") or {})

            effect = unknown("no process of the container uses the GPU")
            expected = {LIMITS: write_limits({"main": {node.nvml.gpus[0].uuid: effect}})}
            await until(lambda: annotations() == expected, lambda: str(annotations()))


async def test_a_pod_that_comes_to_a_prepared_claim_later_becomes_known(short_path: Path) -> None:
    """The kubelet makes no call for it: the daemon sees its container, and reads in the claim which pod it is."""
    async with claim_node(short_path) as node, node.serving(HAMI, OFTEN) as daemon:
        await node.devices(daemon, 1)
        first = node.pod("first", {"memory": "10Gi"})
        second = Pod("second", [Container("main", claims=[ClaimEntry("gpu")])], claims=first.claims)
        for pod in (first, second):
            node.scheduler.schedule(pod)
            await node.kubelet.admit(pod)
        await daemon.logged("claim_prepared")
        (record,) = (node.root / "plugins" / DRIVER / "claims").glob("*.json")

        def users() -> dict[str, str]:
            return dict(json.loads(record.read_text())["claim"]["users"])

        await until(lambda: users() == {"first": first.uid, "second": second.uid}, lambda: str(users()))
        assert len(daemon.events("claim_prepared")) == 1


async def test_containers_with_a_request_each_are_listed_by_request(short_path: Path) -> None:
    """Each request has its own row, for the same pod."""
    async with claim_node(short_path) as node, node.serving(HAMI) as daemon:
        await node.devices(daemon, 1)
        pod = node.pod_of_requests("pod", {"small": "10Gi", "large": "20Gi"})
        node.scheduler.schedule(pod)
        await node.kubelet.admit(pod)
        found = {each["request"]: (each["memoryMiB"], each["pods"]) for each in await claims(node)}
        assert found == {"small": (10240, ["pod"]), "large": (20480, ["pod"])}
