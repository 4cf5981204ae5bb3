"""People see claims beside units: `gpushare list`, with pods and limits."""

import json
from pathlib import Path
from typing import Any

from tests.node.claims.node import ClaimNode, claim_node
from tests.process.daemon import gpushare
from tests.waiting import until

HAMI = "{memory: {resources: [{name: aliyun.com/gpu-mem, isolation: hami-core}]}}"
OFTEN = "{}\nhealth: {rescanSeconds: 1}"


async def listed(node: ClaimNode, *arguments: str) -> str:
    """Return what `gpushare list` prints."""
    return (await gpushare("list", "--device-plugin-path", node.kubelet.plugin_directory, *arguments)).output


async def claims(node: ClaimNode) -> list[dict[str, Any]]:
    """Return the claims in the JSON of `gpushare list`."""
    found: list[dict[str, Any]] = json.loads(await listed(node, "-o", "json"))["claims"]
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
        assert (claim["state"], claim["pods"]) == ("prepared", ["pod"])

        async def uses() -> list[dict[str, Any]]:
            return [use for each in await claims(node) for use in each["uses"]]

        await until(uses)
        (use,) = await uses()
        assert (use["pod"], use["container"], use["memoryLimitMiB"]) == ("pod", "main", 10240)
        table = await listed(node)
        assert "10240 MiB" in table
        assert "30 %" in table
        await node.kubelet.end(pod)
        assert await claims(node) == []


async def test_containers_with_a_request_each_are_listed_by_request(short_path: Path) -> None:
    """Each request has its own row, for the same pod."""
    async with claim_node(short_path) as node, node.serving(HAMI) as daemon:
        await node.devices(daemon, 1)
        pod = node.pod_of_requests("pod", {"small": "10Gi", "large": "20Gi"})
        node.scheduler.schedule(pod)
        await node.kubelet.admit(pod)
        found = {each["request"]: (each["memoryMiB"], each["pods"]) for each in await claims(node)}
        assert found == {"small": (10240, ["pod"]), "large": (20480, ["pod"])}
