"""One daemon follows another while pods come and go: no claim is refused, and no ResourceSlice is written."""

from pathlib import Path

from tests.node.claims.node import DRIVER, claim_node
from tests.node.claims.traffic import pods_come_and_go

HAMI = "{memory: {resources: [{name: aliyun.com/gpu-mem, isolation: hami-core}]}}"


async def test_pods_start_throughout_a_rolling_update(short_path: Path) -> None:
    """The daemon that stands by prepares claims at once, what one daemon prepared the other gives back."""
    async with claim_node(short_path) as node, node.serving(HAMI) as old:
        await node.devices(old, 1)
        stays = node.pod("stays", {"memory": "40Gi"})
        node.scheduler.schedule(stays)
        await node.kubelet.admit(stays)
        asked = len(node.server.asked)
        async with node.daemon("--stand-by", "true") as new:
            async with pods_come_and_go(node) as started:
                await new.logged("standing_by")
                await node.connected(2)
                before = len(started)
                await new.until(lambda: len(started) > before + 2, "pods by the daemon that stands by")
                assert new.events("claim_prepared")
                assert await old.stop() == 0
                await new.logged("taking_over")
                before = len(started)
                await new.until(lambda: len(started) > before + 2, "pods after the update")
            assert DRIVER in node.kubelet.connected_drivers
            await node.kubelet.end(stays)
            verbs = {each.verb for each in node.server.asked[asked:] if each.resource == "resourceslices"}
            assert verbs <= {"list", "watch", "get"}
            assert not [*old.events("claim_refused"), *new.events("claim_refused")]
