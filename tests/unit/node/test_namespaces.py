"""Tests of `gpushare_plugin.node.gpus.namespaces`: which MPS namespaces containers need, by what they hold."""

import asyncio
from collections.abc import Iterable
from pathlib import Path

from gpushare_plugin.config.schema.names import CORES
from gpushare_plugin.core.holding import Holding, Holdings
from gpushare_plugin.core.namespaces import ContainerNamespace, namespace_name
from gpushare_plugin.core.resource import Resource
from gpushare_plugin.gpus.exchange import read_message
from gpushare_plugin.mps.exchange import MpsRoot, MpsSettings
from gpushare_plugin.node.gpus.mps_needs import NodeMps
from gpushare_plugin.node.gpus.namespaces import namespaces
from gpushare_plugin.node.news.news import News
from gpushare_plugin.sharing.isolation.mps import UnderMps
from tests.nodes import a_node
from tests.unit.sharing.settings import GPU_MEM, memory, planned

NODE = a_node(40960, 40960)
FIRST, SECOND = (gpu.uuid for gpu in NODE.cards)
BY_NAMESPACES = UnderMps(None, protocol=3)
BOTH = {FIRST: BY_NAMESPACES, SECOND: BY_NAMESPACES}


def resources(*, sharing: dict[str, object]) -> dict[str, Resource]:
    """Return what the node offers with protocol 3."""
    return {each.name: each for each in planned(NODE, sharing=sharing, flags={"mpsProtocol": 3}).resources}


def held(resource: Resource, count: int, container: str = "main", *, uid: str = "pod", gpu: str = FIRST) -> Holding:
    """Return units of a resource in the hands of a container, as the kubelet's checkpoint tells them."""
    ids = frozenset(unit.id for unit in resource.units.of(gpu)[:count])
    return Holding("", "", container, resource.name, ids, uid)


def expected(*limits: tuple[Iterable[str], int, int | None]) -> dict[str, ContainerNamespace]:
    """Return namespaces by the units, MiB and percentage of containers."""
    made = (ContainerNamespace(namespace_name(ids), mib, percentage) for ids, mib, percentage in limits)
    return {each.name: each for each in made}


def test_every_container_has_one() -> None:
    """Containers of one pod and of several, init containers too; units of no other isolation count."""
    offered = resources(sharing=memory(isolation="mps"))
    one, two = held(offered[GPU_MEM], 4), held(offered[GPU_MEM], 10, "init")
    other = held(offered[GPU_MEM], 8, gpu=SECOND, uid="other")
    holdings = (one, two, other, Holding("", "", "main", "nvidia.com/gpu", frozenset({"GPU-elsewhere"}), "pod"))
    limits = ((one.ids, 4096, 10), (two.ids, 10240, 25), (other.ids, 8192, 20))
    assert namespaces(holdings, offered, BOTH, {}) == expected(*limits)
    assert namespaces(holdings, offered, {FIRST: BY_NAMESPACES}, {}) == expected(*limits[:2])


def test_requested_compute_is_that_of_the_same_container() -> None:
    """Whichever of the two the record tells first; without compute there is no limit of it."""
    offered = resources(sharing=memory(isolation="mps", compute="requested"))
    one, other = held(offered[GPU_MEM], 4), held(offered[GPU_MEM], 6, "other")
    compute = held(offered[CORES], 30)
    for holdings in ((one, compute, other), (compute, one, other)):
        assert namespaces(holdings, offered, BOTH, {}) == expected((one.ids, 4096, 30), (other.ids, 6144, None))


def test_units_that_are_no_longer_offered_keep_their_limits() -> None:
    """The unit of memory changed in the config: the limits are as before, or what the IDs say where that is lost."""
    before = resources(sharing=memory(isolation="mps"))
    now = resources(sharing=memory(isolation="mps", unit="2GiB"))
    one = held(before[GPU_MEM], 4)
    known = expected((one.ids, 4096, 10))
    assert namespaces((one,), now, BOTH, known) == known
    assert namespaces((one,), now, BOTH, {}) == expected((one.ids, 4096, None))
    assert namespaces((one,), {}, BOTH, {}) == expected((one.ids, 4096, None))


def test_replicas_of_before_have_the_limit_of_their_mode() -> None:
    """The ID of a replica tells no memory; the GPU keeps the mode of its replicas until they are free."""
    replicas = resources(sharing={"mps": {"resources": [{"name": "nvidia.com/gpu", "replicas": 4}]}})
    one = held(replicas["nvidia.com/gpu"], 1)
    assert namespaces((one,), replicas, BOTH, {}) == expected((one.ids, 10240, 25))
    assert namespaces((one,), {}, {FIRST: UnderMps(20480, protocol=3)}, {}) == expected((one.ids, 20480, None))
    assert namespaces((one,), {}, BOTH, {}) == {}


async def test_an_older_record_takes_no_namespace_away(tmp_path: Path) -> None:
    """However slowly it is read: the container that only a newer record has keeps its namespace."""
    plan = planned(NODE, sharing=memory(isolation="mps"), flags={"mpsProtocol": 3})
    offered = {each.name: each for each in plan.resources}
    one, two = held(offered[GPU_MEM], 4), held(offered[GPU_MEM], 10, "other")
    records: list[Holdings] = [(one,), (one, two)]
    slow = asyncio.Event()

    async def recorded() -> Holdings:
        record = records.pop(0)
        if len(record) == 1:
            await slow.wait()
        return record

    root = MpsRoot(tmp_path / "mps")
    mps = NodeMps(root, lambda: None, News(), recorded)
    mps.want(plan, dict(BOTH), NODE)
    async with asyncio.TaskGroup() as tasks:
        for _ in range(2):
            tasks.create_task(mps.follow(offered))
        for _ in range(20):
            await asyncio.sleep(0)  # all that does not wait for the slow record goes on
        slow.set()
    wanted = read_message(root.wanted, MpsSettings)
    assert wanted is not None
    assert {each.name for each in wanted.namespaces} == {namespace_name(one.ids), namespace_name(two.ids)}
