"""Tests of the proof of limits by the driver: an embedded kubelet, the stand-in for NVML, and trees of cgroups."""

from pathlib import Path

import pytest

from gpushare_plugin.base.memory import MIB
from gpushare_plugin.core.driver_limits import NO_LIMIT, DriverLimits, MemoryLimit
from gpushare_plugin.core.effect import IN_EFFECT, Effect
from gpushare_plugin.core.snapshot import Snapshot
from gpushare_plugin.gpus.nvml.gpus import NvmlSource
from gpushare_plugin.gpus.nvml.memory_limits import NvmlMemoryLimits
from gpushare_plugin.node.news.news import LimitInEffect, LimitNotInEffect
from gpushare_plugin.testing.cgroups import CgroupTree, PodCgroups
from gpushare_plugin.testing.kubelet import Container, EmbeddedKubelet, Pod
from gpushare_plugin.testing.nvml import DRIVER_WITH_LIMITS, FakeGpu, FakeNvml
from tests.node.proven import ProvenNode, proven
from tests.shown import ShownProcesses
from tests.snapshots import snapshot
from tests.unit.gpus.conftest import Node
from tests.unit.gpus.conftest import describe as describe  # noqa: PLC0414 - a fixture
from tests.unit.sharing.settings import GPU_MEM, memory

FIRST, SECOND = "a" * 64, "b" * 64
CARD = FakeGpu(memory_mib=8192, reserved_mib=0)
ABLE = DriverLimits(agent=True)
TWO_GIB = MemoryLimit(2048 * MIB)


class LimitedNode:
    """A node under `isolation: driver` with one GPU of 8 GiB, whose limits a test sets as a hook or an agent would."""

    def __init__(self, nvml: FakeNvml, folder: Path, *, backend: str) -> None:
        """Describe the cgroups of the node, and read its GPU."""
        self.nvml = nvml
        regions = nvml.regions if backend == "dmem" else None
        controllers = ("cpu", "memory", "pids", *(("dmem",) if backend == "dmem" else ("misc",)))
        self.tree = CgroupTree(folder / "cgroup", controllers, regions)
        self.kubepods = PodCgroups(self.tree)
        self.limits = NvmlMemoryLimits(folder, folder, folder)
        self.source = NvmlSource(folder, folder, folder)  # whose processes are unknown, as without hostPID
        self.inventory = self.source.read()
        self.uuid = self.inventory.cards[0].uuid

    def made(self, added: str | None = None, **entry: object) -> Snapshot:
        """Return the node as shared by memory, with more keys of the entry, or with memory `added` to each share."""
        more = {"driverLimits": {"additionalMemory": added}} if added else {}
        shared = memory(isolation="driver", **entry)
        return snapshot(shared, inventory=self.inventory, driver_limits=ABLE, **more)  # type: ignore[arg-type] # a section

    def cgroup(self, pod: Pod, container_id: str = FIRST) -> Path:
        """Make the cgroup of a container."""
        return self.kubepods.container(pod.uid, container_id)


@pytest.fixture(params=["misc", "dmem"])
def limited(describe: Node, tmp_path: Path, request: pytest.FixtureRequest) -> LimitedNode:
    """Describe a node with each backend of the driver."""
    nvml = describe([CARD], driver_version=DRIVER_WITH_LIMITS, limit_backend=request.param)
    return LimitedNode(nvml, tmp_path / "node", backend=request.param)


async def admitted(node: ProvenNode, name: str = "pod", container_id: str = FIRST, units: int = 2) -> Pod:
    """Start a pod of one container, whose ID the API server has."""
    pod = Pod(name, [Container("main", {GPU_MEM: units})])
    await node.kubelet.admit(pod)
    node.container_ids = {**node.container_ids, ("default", name, "main"): container_id}
    return pod


async def effects(node: ProvenNode) -> dict[str, Effect | None]:
    """Look, and return the effect of the limit of each pod."""
    return {each.pod: each.effect for each in await node.usages()}


def told(node: ProvenNode) -> list[type]:
    """Return what the last look told of limits."""
    return [type(each) for each in node.heard if isinstance(each, LimitInEffect | LimitNotInEffect)]


async def test_a_limit_that_the_driver_reports_is_in_effect(
    kubelet: EmbeddedKubelet, shown: ShownProcesses, limited: LimitedNode
) -> None:
    """The driver reports the promised limit, and its own count is what the container uses, without hostPID."""
    async with proven(kubelet, shown, limited.made(), source=limited.source, cgroups=limited.tree.root) as node:
        cgroup = limited.cgroup(await admitted(node))
        limited.limits.set(limited.uuid, cgroup, TWO_GIB)
        assert limited.nvml.allocate(0, cgroup, 1000)
        (usage,) = await node.usages()
        assert (usage.effect, usage.used, usage.processes) == (IN_EFFECT, 1000 * MIB, None)
        assert told(node) == []


@pytest.mark.parametrize("way", ["removed", "raised", "driver reloaded"])
async def test_a_limit_changed_behind_our_back_is_reported_within_one_look(
    kubelet: EmbeddedKubelet, shown: ShownProcesses, limited: LimitedNode, way: str
) -> None:
    """The look after the change tells that the limit is not in effect, and the look after its return that it is."""
    async with proven(kubelet, shown, limited.made(), source=limited.source, cgroups=limited.tree.root) as node:
        changed, other = limited.cgroup(await admitted(node)), limited.cgroup(await admitted(node, "b", SECOND), SECOND)
        for cgroup in (changed, other):
            limited.limits.set(limited.uuid, cgroup, TWO_GIB)
        assert await effects(node) == {"pod": IN_EFFECT, "b": IN_EFFECT}
        if way == "driver reloaded":
            limited.nvml.reload_driver(limited.tree.root)
            limited.limits.set(limited.uuid, other, TWO_GIB)
        else:
            limited.limits.set(limited.uuid, changed, NO_LIMIT if way == "removed" else MemoryLimit(8192 * MIB))
        found = await effects(node)
        assert (found["b"], (found["pod"] or IN_EFFECT).state) == (IN_EFFECT, "not in effect")
        assert told(node) == [LimitNotInEffect]
        limited.limits.set(limited.uuid, changed, TWO_GIB)
        assert await effects(node) == {"pod": IN_EFFECT, "b": IN_EFFECT}
        assert told(node) == [LimitInEffect]


async def test_the_limit_of_an_ancestor_is_none_of_the_container(
    kubelet: EmbeddedKubelet, shown: ShownProcesses, limited: LimitedNode
) -> None:
    """Where the container's own cgroup has no limit, another size is not in effect, whoever the driver answers for."""
    async with proven(kubelet, shown, limited.made(), source=limited.source, cgroups=limited.tree.root) as node:
        cgroup = limited.cgroup(await admitted(node))
        limited.limits.set(limited.uuid, cgroup.parent, MemoryLimit(6144 * MIB))
        effect = (await effects(node))["pod"]
        assert effect is not None
        assert (effect.state, "instead of a hard limit of 2048 MiB" in effect.reason) == (
            "not in effect",
            True,
        )


async def test_no_limit_at_all_is_ambiguous_where_no_container_has_one(
    kubelet: EmbeddedKubelet, shown: ShownProcesses, describe: Node, tmp_path: Path
) -> None:
    """With the driver's own account, one answer means no limit and no such feature: others with limits tell which."""
    limited = LimitedNode(describe([CARD], driver_version=DRIVER_WITH_LIMITS), tmp_path / "node", backend="misc")
    async with proven(kubelet, shown, limited.made(), source=limited.source, cgroups=limited.tree.root) as node:
        pod, other = await admitted(node), await admitted(node, "b", SECOND)
        limited.cgroup(pod)
        cgroup = limited.cgroup(other, SECOND)
        assert {name: (each or IN_EFFECT).state for name, each in (await effects(node)).items()} == {
            "pod": "unknown",
            "b": "unknown",
        }
        limited.limits.set(limited.uuid, cgroup, TWO_GIB)
        assert await effects(node) == {
            "pod": Effect(
                "not in effect", "the driver knows no limit of the container, and knows limits of others on the GPU"
            ),
            "b": IN_EFFECT,
        }


async def test_what_a_container_was_given_under_another_rule_is_right(
    kubelet: EmbeddedKubelet, shown: ShownProcesses, limited: LimitedNode
) -> None:
    """A container keeps the limit that NVIDIA's hook set at its start, when the config adds memory to shares later."""
    async with proven(kubelet, shown, limited.made(), source=limited.source, cgroups=limited.tree.root) as node:
        cgroup = limited.cgroup(await admitted(node))
        limited.limits.set(limited.uuid, cgroup, TWO_GIB)
        node.made = limited.made("512MiB")
        (usage,) = await node.usages()
        assert (usage.limit, usage.effect) == (2560 * MIB, IN_EFFECT)
        limited.limits.set(limited.uuid, cgroup, MemoryLimit(2560 * MIB))
        assert await effects(node) == {"pod": IN_EFFECT}
        limited.limits.set(limited.uuid, cgroup, MemoryLimit(3072 * MIB))
        assert ((await effects(node))["pod"] or IN_EFFECT).state == "not in effect"


@pytest.mark.parametrize("burst", [2, "6GiB"])
async def test_a_burst_has_a_guaranteed_part(
    kubelet: EmbeddedKubelet, shown: ShownProcesses, limited: LimitedNode, burst: object
) -> None:
    """Where a share may borrow, both limits have to be right: the guaranteed part, and the most."""
    made = limited.made(burst=burst)
    async with proven(kubelet, shown, made, source=limited.source, cgroups=limited.tree.root) as node:
        cgroup = limited.cgroup(await admitted(node))
        hard = (4096 if burst == 2 else 6144) * MIB
        for limit, state in ((MemoryLimit(hard, 2048 * MIB), "in effect"), (MemoryLimit(hard), "not in effect")):
            limited.limits.set(limited.uuid, cgroup, limit)
            assert ((await effects(node))["pod"] or IN_EFFECT).state == state


async def test_what_is_missing_is_said(kubelet: EmbeddedKubelet, shown: ShownProcesses, limited: LimitedNode) -> None:
    """Without the ID of the container, or its cgroup, the effect is unknown, with what gives it."""
    async with proven(kubelet, shown, limited.made(), source=limited.source, cgroups=limited.tree.root) as node:
        await admitted(node)
        for ids, words in ((node.container_ids, "--cgroup-root"), ({}, "cluster.followPods")):
            node.container_ids = ids
            effect = (await effects(node))["pod"]
            assert effect is not None
            assert (effect.state, words in effect.reason) == ("unknown", True)


async def test_a_driver_that_is_too_old_enforces_nothing(
    kubelet: EmbeddedKubelet, shown: ShownProcesses, describe: Node, tmp_path: Path
) -> None:
    """After a change to a driver before 615, promised limits are not in effect, and the reason names the version."""
    limited = LimitedNode(describe([CARD], driver_version="610.43.02"), tmp_path / "node", backend="misc")
    async with proven(kubelet, shown, limited.made(), source=limited.source, cgroups=limited.tree.root) as node:
        limited.cgroup(await admitted(node))
        effect = (await effects(node))["pod"]
        assert effect is not None
        assert (effect.state, "Drivers from 615 on" in effect.reason) == ("not in effect", True)
