"""From a daemon that cannot give GPUs by claim to one that does, and back: no unit and no claim is lost."""

import json
from pathlib import Path

import pytest

from gpushare_plugin.testing.kubelet import Container, Pod
from gpushare_plugin.testing.nvml import FakeGpu
from tests.node.claims.node import CARD, DRIVER, ClaimNode, claim_node
from tests.node.claims.traffic import pods_come_and_go
from tests.upgrade.builds import Build

HAMI = "{memory: {resources: [{name: aliyun.com/gpu-mem, isolation: hami-core}]}}"
GPU_MEM = "aliyun.com/gpu-mem"
SECOND = FakeGpu(memory_mib=81920, reserved_mib=0)


def run(node: ClaimNode, build: Build) -> None:
    """Have the next daemons of a node be of a build."""
    node.environment |= build.environment


async def claimed(node: ClaimNode) -> Pod:
    """Start a pod that has a share of a GPU by claim."""
    pod = node.pod("claimed", {"memory": "10Gi"})
    node.scheduler.schedule(pod)
    await node.kubelet.admit(pod)
    return pod


@pytest.mark.long
async def test_claims_come_with_an_upgrade_and_go_before_a_downgrade(short_path: Path, old: Build, new: Build) -> None:
    """A pod keeps its units throughout, and a claim its GPU until the claim ends.

    An old daemon with section `dra` in its config ends before it offers a GPU that a claim has.
    """
    async with claim_node(short_path, CARD, SECOND) as node:
        run(node, old)
        async with node.serving(HAMI, dra=None) as daemon:
            await daemon.advertises(node.kubelet, {GPU_MEM: 160})
            await node.kubelet.admit(Pod("units", [Container("main", {GPU_MEM: 2})]))
            held = node.kubelet.held(GPU_MEM)
        run(node, new)
        async with node.serving(HAMI, dra=None) as daemon:
            await daemon.advertises(node.kubelet, {GPU_MEM: 160})
            assert not list((node.root / "plugins").iterdir())
        async with node.serving(HAMI) as daemon:
            await node.devices(daemon, 1)
            pod = await claimed(node)
            assert node.kubelet.held(GPU_MEM) == held
        run(node, old)
        async with node.daemon() as daemon:
            assert await daemon.ended() == 1
            assert "dra" in str(daemon)
        run(node, new)
        async with node.serving(HAMI, dra=None) as daemon:
            await daemon.until(lambda: not node.published, "no device in ResourceSlices")
            await node.kubelet.wait_for(lambda kubelet: kubelet.allocatable() == {GPU_MEM: 80})
            await node.kubelet.end(pod)
            node.scheduler.release(pod)
            await daemon.advertises(node.kubelet, {GPU_MEM: 160})
            assert node.left == set()
        run(node, old)
        async with node.daemon() as daemon:
            await daemon.advertises(node.kubelet, {GPU_MEM: 160})
            assert node.kubelet.held(GPU_MEM) == held


@pytest.mark.parametrize("first", ["with_claims", "new"])
async def test_daemons_of_two_builds_serve_claims_side_by_side(
    short_path: Path, with_claims: Build, new: Build, first: str
) -> None:
    """In an update and in a roll-back, no pod is refused, and each build goes on with the claims of the other build."""
    before, after = (with_claims, new) if first == "with_claims" else (new, with_claims)
    async with claim_node(short_path) as node:
        run(node, before)
        async with node.serving(HAMI) as one:
            await node.devices(one, 1)
            before.check_running(one)
            pod = await claimed(node)
            run(node, after)
            async with node.daemon("--stand-by", "true") as other:
                async with pods_come_and_go(node) as started:
                    await other.logged("standing_by")
                    after.check_running(other)
                    await other.logged("dra_plugin_registered")
                    number = len(started)
                    await other.until(lambda: len(started) > number + 2, "pods beside the other daemon")
                    assert await one.stop() == 0
                    await other.logged("taking_over")
                    number = len(started)
                    await other.until(lambda: len(started) > number + 2, "pods after the other daemon")
                assert not [*one.events("claim_refused"), *other.events("claim_refused")]
                assert other.events("claim_prepared")
                large = node.pod("large", {"memory": "80Gi"})
                node.scheduler.release(pod)
                node.scheduler.schedule(large)
                assert "default/claimed" in await node.refused(large)
                await node.kubelet.end(pod)
                await node.kubelet.admit(large)
                await node.kubelet.end(large)
                assert node.left == set()


async def test_the_record_of_a_newer_version_is_left_alone_and_named(short_path: Path) -> None:
    """Its claim is refused in words until the newer version is back; other claims are prepared meanwhile."""
    async with claim_node(short_path) as node:
        async with node.serving(HAMI) as daemon:
            await node.devices(daemon, 1)
            pod = await claimed(node)
        (record,) = (node.root / "plugins" / DRIVER / "claims").glob("*.json")
        before, newer = record.read_text(), json.dumps({**json.loads(record.read_text()), "version": 2})
        record.write_text(newer)
        await node.kubelet.restart()
        async with node.daemon() as daemon:
            told = await daemon.logged("claim_record_unreadable", path=str(record))
            assert "newer version" in told["reason"]
            await node.devices(daemon, 1)
            assert "newer version" in await node.refused(pod)
            other = node.pod("other", {"memory": "10Gi"})
            node.scheduler.schedule(other)
            await node.kubelet.admit(other)
            await node.kubelet.end(other)
        assert record.read_text() == newer
        record.write_text(before)
        async with node.daemon() as daemon:
            await node.kubelet.wait_for(lambda kubelet: DRIVER in kubelet.connected_drivers)
            await node.kubelet.admit(pod)
            await node.kubelet.end(pod)
            assert node.left == set()
