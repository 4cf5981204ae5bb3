"""Tests of `gpushare_plugin.node.gpus.namespaces`: which MPS namespaces containers need, by what they hold."""

import asyncio
from collections.abc import Iterable
from pathlib import Path

import pytest

from gpushare_plugin.base.errors import PlacementError
from gpushare_plugin.config.schema.names import CORES
from gpushare_plugin.core.holding import Holding, Holdings
from gpushare_plugin.core.namespaces import ContainerNamespace, namespace_name
from gpushare_plugin.core.resource import Resource
from gpushare_plugin.gpus.exchange import read_message
from gpushare_plugin.mps.exchange import MpsRoot, MpsSettings
from gpushare_plugin.mps.link import MADE_WITHIN
from gpushare_plugin.node.gpus.mps_needs import NodeMps
from gpushare_plugin.node.gpus.namespaces import namespaces
from gpushare_plugin.node.news.news import News
from gpushare_plugin.sharing.isolation.mps import UnderMps
from tests.nodes import a_node
from tests.skipping import SkippingLoop
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


PLAN = planned(NODE, sharing=memory(isolation="mps"), flags={"mpsProtocol": 3})
MEM = next(each for each in PLAN.resources if each.name == GPU_MEM)


class Record:
    """The kubelet's record in the hands of a test: each read takes the next of `contents`, once `slow` is set."""

    def __init__(self, *contents: Holdings | None) -> None:
        """Have these contents one after the other; the last one stays."""
        self.contents = list(contents)
        self.slow = asyncio.Event()
        self.reads = 0

    async def read(self) -> Holdings | None:
        """Read the record."""
        self.reads += 1
        found = self.contents.pop(0) if len(self.contents) > 1 else self.contents[0]
        await self.slow.wait()
        return found

    def followed(self, folder: Path) -> NodeMps:
        """Return a node under MPS that reads the record."""
        resources = {each.name: each for each in PLAN.resources}
        mps = NodeMps(MpsRoot(folder / "mps"), lambda: None, News(), self.read, lambda: resources)
        mps.want(PLAN, dict(BOTH), NODE)
        return mps


async def all_wait() -> None:
    """Let everything go on that waits for nothing."""
    for _ in range(20):
        await asyncio.sleep(0)


def requested(folder: Path) -> set[str]:
    """Return the names of the namespaces that are requested from `gpushare mps`."""
    wanted = read_message(MpsRoot(folder / "mps").wanted, MpsSettings)
    assert wanted is not None
    return {each.name for each in wanted.namespaces}


async def test_an_older_record_takes_no_namespace_away(tmp_path: Path) -> None:
    """However slowly it is read: the container that only a newer record has keeps its namespace."""
    one, two = held(MEM, 4), held(MEM, 10, "other")
    record = Record((one,), (one, two))
    mps = record.followed(tmp_path)
    async with asyncio.TaskGroup() as tasks:
        for _ in range(2):
            tasks.create_task(mps.follow())
            await all_wait()
        record.slow.set()
    assert requested(tmp_path) == {namespace_name(one.ids), namespace_name(two.ids)}


async def test_containers_that_start_together_share_a_read(tmp_path: Path) -> None:
    """All of them wait for a read that began after they did, and one read serves all."""
    one, two = held(MEM, 4), held(MEM, 10, "other")
    record = Record((one,), (one, two))
    mps = record.followed(tmp_path)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(mps.follow())
        await all_wait()  # the read has begun
        for _ in range(10):
            tasks.create_task(mps.follow())
        await all_wait()
        record.slow.set()
    assert record.reads == 2
    assert requested(tmp_path) == {namespace_name(one.ids), namespace_name(two.ids)}


async def test_a_read_without_a_result_serves_nobody(tmp_path: Path) -> None:
    """One that was cancelled, and one of an unreadable record: the next container reads again."""
    one = held(MEM, 4)
    record = Record((), None, (one,))
    mps = record.followed(tmp_path)
    cancelled = asyncio.create_task(mps.follow())
    await all_wait()
    others = [asyncio.create_task(mps.follow()) for _ in range(3)]
    await all_wait()
    cancelled.cancel()
    record.slow.set()
    await asyncio.gather(*others)
    assert record.reads == 3
    assert requested(tmp_path) == {namespace_name(one.ids)}


def test_containers_wait_for_record_and_namespace_in_all_as_long_as_for_one(tmp_path: Path) -> None:
    """A record that cannot be read in time leaves the namespaces requested by what was allocated."""

    async def start() -> list[BaseException | None]:
        mps = Record(()).followed(tmp_path)
        starting = (mps.before_start(MEM, [unit.id]) for unit in MEM.units.of(FIRST)[:10])
        found = await asyncio.gather(*starting, return_exceptions=True)
        assert asyncio.get_running_loop().time() == pytest.approx(MADE_WITHIN, abs=0.1)
        return found

    with asyncio.Runner(loop_factory=SkippingLoop) as runner:
        refusals = runner.run(start())
    assert all(isinstance(each, PlacementError) for each in refusals)
    assert requested(tmp_path) == {namespace_name([unit.id]) for unit in MEM.units.of(FIRST)[:10]}
