"""Tests of `gpushare_plugin.node.packing`."""

import asyncio

from gpushare_plugin.base.structs import replace
from gpushare_plugin.core.chooser import OneGpu
from gpushare_plugin.core.holding import Holding
from gpushare_plugin.core.resource import Resource
from gpushare_plugin.node.packing import FIRST_LESSON, NodePacking
from gpushare_plugin.packing.values import LINEAR, Values, part_values
from tests.nodes import a_node
from tests.unit.sharing.settings import GPU_MEM, memory, only, planned


def shared(*memory_gib: int, placement: str = "packing", unit: str = "1GiB") -> Resource:
    """Return the memory resource of a node with GPUs of these sizes, in GiB."""
    sharing = memory(placement=placement, unit=unit)
    return only(planned(a_node(*(size * 1024 for size in memory_gib)), sharing=sharing))


def ids(resource: Resource, gpu: int, first: int, count: int) -> list[str]:
    """Return the IDs of units of a GPU."""
    units = list(resource.units.by_gpu.values())[gpu]
    return [unit.id for unit in units[first : first + count]]


def values(packing: NodePacking, resource: Resource) -> Values:
    """Return what free pieces are worth to the chooser of a resource."""
    chooser = packing.following(resource).chooser
    assert isinstance(chooser, OneGpu)
    return chooser.values


async def learned(packing: NodePacking) -> None:
    """Wait until a lesson that is due is over."""
    over = asyncio.Event()
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        task = group.create_task(packing.learn(over.set))
        await over.wait()
        task.cancel()


async def test_a_node_learns_from_what_its_containers_get() -> None:
    """The sizes are percents of the GPU that a container is on; until the first lesson a piece is worth its size."""
    resource, packing = shared(20, 10), NodePacking()
    for number in range(FIRST_LESSON - 1):
        packing.see(resource, ids(resource, number % 2, 5 * (number // 4), 5))
    assert values(packing, resource) == LINEAR
    packing.see(resource, ids(resource, 1, 0, 8))
    await learned(packing)
    assert values(packing, resource) == part_values({25: 5, 50: 4, 80: 1})


async def test_containers_from_before_the_start_count_once() -> None:
    """An init container and the containers after it hold the same units; units of another config are left out."""
    before = shared(20, 20, unit="2GiB")
    resource, packing = replace(shared(20, 20), retired=before.units.by_id), NodePacking()

    def holding(pod: int, container: str, units: list[str], name: str = GPU_MEM) -> Holding:
        return Holding("default", f"pod-{pod}", container, name, frozenset(units), f"uid-{pod}")

    held = [holding(pod, "main", ids(resource, 0, pod // 2, (8, 12)[pod % 2])) for pod in range(FIRST_LESSON)]
    held += [holding(0, "init", ids(resource, 0, 0, 8)), holding(11, "main", ids(before, 0, 0, 9))]
    held += [holding(12, "main", ids(resource, 0, 0, 9), "example.com/other"), holding(13, "", ids(resource, 1, 0, 9))]
    packing.resume([resource], held)
    await learned(packing)
    # One more container with 40 percent would let each GPU of two such containers count.
    assert values(packing, resource) == part_values({40: 5, 60: 5}) != part_values({40: 6, 60: 5})


async def test_other_policies_learn_nothing() -> None:
    """A resource that is not packed keeps its chooser."""
    resource, packing = shared(20, placement="spread"), NodePacking()
    for number in range(2 * FIRST_LESSON):
        packing.see(resource, ids(resource, 0, number % 20, 1))
    assert packing.following(resource) is resource
