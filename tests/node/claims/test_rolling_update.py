"""One daemon follows another while pods come and go: no claim is refused, and no ResourceSlice is written."""

import asyncio
from itertools import count
from pathlib import Path

from gpushare_plugin.testing.kubelet import Pod
from tests.node.claims.node import DRIVER, ClaimNode, claim_node

HAMI = "{memory: {resources: [{name: aliyun.com/gpu-mem, isolation: hami-core}]}}"


async def stream(node: ClaimNode, started: list[Pod]) -> None:
    """Let pods in and end them, one after the other, until cancelled."""
    for number in count():
        pod = node.pod(f"pod{number}", {"memory": "40Gi"})
        node.scheduler.schedule(pod)
        await node.kubelet.admit(pod)
        started.append(pod)
        await node.kubelet.end(pod)
        node.scheduler.release(pod)


async def test_pods_start_throughout_a_rolling_update(short_path: Path) -> None:
    """The daemon that stands by prepares claims at once, what one daemon prepared the other gives back."""
    async with claim_node(short_path) as node, node.serving(HAMI) as old:
        await node.devices(old, 1)
        stays = node.pod("stays", {"memory": "40Gi"})
        node.scheduler.schedule(stays)
        await node.kubelet.admit(stays)
        started: list[Pod] = []
        asked = len(node.server.asked)
        pods = asyncio.create_task(stream(node, started))
        async with node.daemon("--stand-by", "true") as new:
            await new.logged("standing_by")
            await new.logged("dra_plugin_registered")
            before = len(started)
            await new.until(lambda: len(started) > before + 2, "pods by the daemon that stands by")
            assert new.events("claim_prepared")
            assert await old.stop() == 0
            await new.logged("taking_over")
            before = len(started)
            await new.until(lambda: len(started) > before + 2, "pods after the update")
            assert DRIVER in node.kubelet.connected_drivers
            assert not pods.done(), pods
            pods.cancel()
            await asyncio.wait([pods])
            await node.kubelet.end(stays)
            verbs = {each.verb for each in node.server.asked[asked:] if each.resource == "resourceslices"}
            assert verbs <= {"list", "watch", "get"}
            assert not [*old.events("claim_refused"), *new.events("claim_refused")]
