"""Tests of `gpushare_plugin.sharing.ways.table`: what it takes to add a way of sharing.

The way added here cuts each GPU into two halves. Everything it is stands in this module.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from gpushare_plugin.base.errors import Path, PlacementError
from gpushare_plugin.config.effective import EffectiveConfig
from gpushare_plugin.config.findings import Findings
from gpushare_plugin.config.schema.sections import AllDevices, Config, DeviceList, Devices
from gpushare_plugin.core.chooser import Request
from gpushare_plugin.core.gpu import Gpu
from gpushare_plugin.core.grant import Allocation, Grant
from gpushare_plugin.core.resource import Resource, Units
from gpushare_plugin.core.unit import Form
from gpushare_plugin.sharing.isolation.layer import Isolation
from gpushare_plugin.sharing.plan import Plan, plan
from gpushare_plugin.sharing.ways.injection import Injection
from gpushare_plugin.sharing.ways.table import WAYS
from gpushare_plugin.sharing.ways.way import Entry, MakeWay, NodeFacts, by_place
from gpushare_plugin.testing.kubelet import Container, EmbeddedKubelet, Pod
from tests.nodes import a_gpu, a_node
from tests.unit.kubelet.serving import running

HALF = "example.com/half-gpu"
ALL = AllDevices()


class HighestFree:
    """Chooses one half, of the GPU with the highest index that has one."""

    def choose(self, request: Request) -> Mapping[str, int]:
        """Refuse requests for several."""
        free = [uuid for uuid, gpu in request.gpus.items() if gpu.free]
        if request.size > 1 or not free:
            raise PlacementError(f"{request.resource}: {request.size} halves requested, {len(free)} GPUs have one")
        return {max(free, key=lambda uuid: request.gpus[uuid].index): 1}


@dataclass(frozen=True)
class HalfGranter:
    """Tells the container what half of its GPU's memory is."""

    injection: Injection

    def grant(self, allocation: Allocation) -> Grant:
        """Return the GPU and the amount."""
        (allocated,) = allocation.gpus
        grant = self.injection.grant([allocated.gpu])
        grant.environment["HALF_MIB"] = str(allocated.gpu.memory_mib // allocated.of)
        return grant


class Halves:
    """Shares the GPUs of one entry, each in halves."""

    section: Path = ("sharing", "halves")

    def __init__(self, node: NodeFacts, findings: Findings, devices: Devices = ALL) -> None:
        """Have one entry that asks for these devices."""
        self.injection, self.findings = node.injection, findings
        self.entries = [
            Entry(
                path=(*self.section, "devices"),
                name=HALF,
                devices=devices,
                candidates=node.inventory.cards,
                isolations=(Isolation(),),
                containers=lambda _gpu: 2,
            )
        ]

    def resources(self, unclaimed: Mapping[Gpu, str]) -> list[Resource]:  # noqa: ARG002 - halves are asked for
        """Advertise one resource; a GPU of an odd size cannot be halved."""
        (entry,) = self.entries
        for gpu in entry.gpus:
            if gpu.memory_mib % 2:
                self.findings.problem(
                    entry.path, f"{gpu.description} has {gpu.memory_mib} MiB, an even number expected"
                )
        units = {gpu: Form.replica(gpu.uuid).units(gpu.uuid, None, (0, 1)) for gpu in by_place(entry.gpus)}
        return [Resource(HALF, Units(units), HighestFree(), HalfGranter(self.injection))]


WITH_HALVES: tuple[MakeWay, ...] = (Halves, *WAYS)


def planned(*memory_mib: int, ways: tuple[MakeWay, ...] = WITH_HALVES) -> Plan:
    """Return what a node with such GPUs does when these are the ways to share."""
    return plan(EffectiveConfig(Config()), a_node(*memory_mib), ways=ways)


def test_a_new_way_is_one_module_and_one_line_in_the_table() -> None:
    """From settings to a container: advertised, chosen by its own rule, granted by its own."""
    (resource,) = planned(40960, 15000).resources
    assert (resource.name, resource.units_of) == (HALF, {a_gpu(0).uuid: 2, a_gpu(1).uuid: 2})
    chosen = resource.prefer(list(resource.units), [], 1)
    assert chosen == [f"{a_gpu(1).uuid}::0"]
    assert resource.allocate(chosen).environment == {"NVIDIA_VISIBLE_DEVICES": a_gpu(1).uuid, "HALF_MIB": "7500"}
    with pytest.raises(PlacementError, match="2 halves requested"):
        resource.prefer(list(resource.units), [], 2)


def test_a_new_way_finds_its_own_problems() -> None:
    """Its problems stand beside all others."""
    (problem,) = planned(40960, 15001).problems
    assert (problem.path, "GPU 1" in problem.message) == (("sharing", "halves", "devices"), True)


def test_a_new_way_shares_a_node_with_the_others() -> None:
    """What it does not ask for is still whole."""

    def one_gpu_in_halves(node: NodeFacts, findings: Findings) -> Halves:
        return Halves(node, findings, DeviceList(("0",)))

    halves, whole = planned(40960, 40960, ways=(one_gpu_in_halves, *WAYS)).resources
    assert (halves.name, list(halves.gpus)) == (HALF, [a_gpu(0).uuid])
    assert (whole.name, list(whole.gpus)) == ("nvidia.com/gpu", [a_gpu(1).uuid])


async def test_the_kubelet_hands_out_what_a_new_way_shares(kubelet: EmbeddedKubelet) -> None:
    """Nothing between the plan and a pod knows which ways there are."""
    async with running(kubelet.plugin_directory, *planned(40960, 15000).resources):
        await kubelet.wait_for(lambda node: node.allocatable().get(HALF) == 4)
        admitted = await kubelet.admit(Pod("pod", [Container("main", {HALF: 1})]))
    assert admitted.containers["main"].environment["HALF_MIB"] == "7500"
