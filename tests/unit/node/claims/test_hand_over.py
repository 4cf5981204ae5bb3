"""A GPU belongs to the device plugin or to claims, and goes from one to the other when nobody can have it twice."""

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gpushare_plugin.base.published import Published
from gpushare_plugin.base.tasks import beside, end
from gpushare_plugin.claims.claim import AllocatedClaim, AllocatedDevice
from gpushare_plugin.core.prepared_claim import PreparedClaim, PreparedDevice
from gpushare_plugin.node.claims.given import GivenFile
from gpushare_plugin.node.claims.hand_over import LOOK_EVERY, WITHDRAWN_SECONDS, HandOver
from gpushare_plugin.sharing.plan import Plan
from tests.nodes import a_gpu, a_node
from tests.skipping import SkippingLoop
from tests.unit.node.claims.claims import claim_id
from tests.unit.sharing.settings import memory, planned

TWO = a_node(40960, 40960)
FIRST, SECOND = a_gpu(0).uuid, a_gpu(1).uuid


def given_by_claim(*devices: int, **memory_settings: object) -> Plan:
    """Return a plan that gives these GPUs by claim."""
    return planned(TWO, sharing=memory(**memory_settings), dra={"devices": [*devices]} if devices else None)


def offered(plan: Plan) -> set[str]:
    """Return the GPUs whose units a plan offers."""
    return {uuid for each in plan.resources for uuid in each.gpus}


class Cluster:
    """What the API server and the records say."""

    def __init__(self) -> None:
        """No claim, and no ResourceSlice yet."""
        self.shown: Published[frozenset[str] | None] = Published(None)
        self.prepared: tuple[PreparedClaim, ...] | None = ()
        self.allocated: tuple[AllocatedClaim, ...] = ()
        self.released = 0

    @asynccontextmanager
    async def still(self) -> AsyncIterator[Collection[PreparedClaim] | None]:
        """Yield the prepared claims."""
        yield self.prepared

    async def all_allocated(self) -> Iterable[AllocatedClaim]:
        """Return the allocated claims."""
        return self.allocated

    async def leave(self, hand_over: HandOver) -> None:
        """Let GPUs leave."""

        def count() -> None:
            self.released += not hand_over.standing.value.gpus

        await hand_over.run(self.shown, lambda uuid: uuid, self.still, self.all_allocated, count)


def holding(uuid: str) -> PreparedClaim:
    """Return a claim that is prepared on a GPU."""
    return PreparedClaim(claim_id("holder"), (PreparedDevice("gpu", "node", uuid, uuid, "memory"),))


def test_a_gpu_belongs_to_claims_when_no_pod_holds_a_unit(tmp_path: Path) -> None:
    """The file says so before claims can get the GPU; until then the reason is told."""
    hand_over, file = HandOver(GivenFile(tmp_path)), GivenFile(tmp_path)
    assert offered(hand_over.hold_back(given_by_claim(0), {})) == {SECOND}
    hand_over.settle({FIRST, SECOND})
    assert (hand_over.standing.value.offered, file.read(), hand_over.waits_for_pods) == ({}, {}, True)
    assert hand_over.waiting == {FIRST: "is given by claim when its pods end"}
    hand_over.hold_back(given_by_claim(0), {})
    hand_over.settle({SECOND})
    assert hand_over.standing.value.offered.keys() == file.read().keys() == {FIRST}
    assert hand_over.waiting == {}


def test_a_file_that_cannot_be_written_keeps_the_gpu_from_claims(tmp_path: Path) -> None:
    """A daemon that started anew would not know of the GPU otherwise."""
    (tmp_path / "plugins").write_text("no directory")
    hand_over = HandOver(GivenFile(tmp_path / "plugins"))
    hand_over.hold_back(given_by_claim(0), {})
    hand_over.settle(frozenset())
    assert hand_over.standing.value.offered == {}


@pytest.mark.parametrize("holder", ["resource slice", "prepared claim", "record", "allocated claim"])
def test_a_gpu_leaves_when_no_claim_can_have_it(tmp_path: Path, holder: str) -> None:
    """Its units stay away until the last of those is gone that could use the GPU, and a late claim is still served."""
    hand_over, cluster = HandOver(GivenFile(tmp_path)), Cluster()
    hand_over.hold_back(given_by_claim(0), {})
    hand_over.settle(frozenset())
    cluster.shown.publish(frozenset({FIRST}) if holder == "resource slice" else frozenset())
    if holder == "prepared claim":
        cluster.prepared = (holding(FIRST),)
    if holder == "record":
        cluster.prepared = None
    if holder == "allocated claim":
        cluster.allocated = (AllocatedClaim(claim_id("late"), (AllocatedDevice("gpu", "node", FIRST),)),)

    async def leave() -> None:
        async with beside(cluster.leave(hand_over)) as leaving:
            assert offered(hand_over.hold_back(given_by_claim(), {})) == {SECOND}
            hand_over.settle(frozenset())
            assert hand_over.standing.value.offered == {}
            assert hand_over.standing.value.claimed.keys() == {FIRST}
            await asyncio.sleep(10 * WITHDRAWN_SECONDS)
            assert offered(hand_over.hold_back(given_by_claim(), {})) == {SECOND}
            assert hand_over.waiting[FIRST].startswith(("leaves the claims", "belongs to claims"))
            cluster.prepared, cluster.allocated = (), ()
            cluster.shown.publish(frozenset())
            if holder == "resource slice":
                await asyncio.sleep(WITHDRAWN_SECONDS - LOOK_EVERY)
            assert cluster.released == 0
            await asyncio.sleep(2 * LOOK_EVERY)
            assert cluster.released == 1
            assert offered(hand_over.hold_back(given_by_claim(), {})) == {FIRST, SECOND}
            assert GivenFile(tmp_path).read() == {}
            end(leaving)

    with asyncio.Runner(loop_factory=SkippingLoop) as runner:
        runner.run(leave())


def test_a_daemon_that_starts_with_another_config_knows_who_has_the_gpu(tmp_path: Path) -> None:
    """The file, and without it the claims that are prepared, keep the GPU from the device plugin."""
    hand_over = HandOver(GivenFile(tmp_path))
    hand_over.hold_back(given_by_claim(0), {})
    hand_over.settle(frozenset())
    restarted = HandOver(GivenFile(tmp_path))
    assert offered(restarted.hold_back(given_by_claim(), {})) == {SECOND}
    GivenFile(tmp_path).path.write_text('{"gpus"')
    without_file = HandOver(GivenFile(tmp_path), [holding(SECOND)])
    assert offered(without_file.hold_back(given_by_claim(), {})) == {FIRST}
    without_file.hold_back(given_by_claim(1), {})
    without_file.settle(frozenset())
    assert without_file.standing.value.offered.keys() == {SECOND}


def test_a_gpu_that_is_to_be_shared_in_another_way_leaves_first(tmp_path: Path) -> None:
    """While it leaves, its mode stays the one that its claims have; then claims get it in the other way."""
    hand_over, cluster = HandOver(GivenFile(tmp_path)), Cluster()
    before, after = given_by_claim(0, isolation="mps"), given_by_claim(0)
    hand_over.hold_back(before, {})
    hand_over.settle(frozenset())
    cluster.shown.publish(frozenset())

    async def leave() -> None:
        async with beside(cluster.leave(hand_over)) as leaving:
            plan = hand_over.hold_back(after, {})
            hand_over.settle(frozenset())
            assert plan.modes[FIRST] == before.modes[FIRST]
            assert hand_over.standing.value.claimed[FIRST].isolation == "mps"
            assert hand_over.standing.value.offered == {}
            await asyncio.sleep(WITHDRAWN_SECONDS + 2 * LOOK_EVERY)
            assert FIRST not in hand_over.hold_back(after, {}).modes
            hand_over.settle(frozenset())
            assert hand_over.standing.value.offered[FIRST].isolation == "none"
            end(leaving)

    with asyncio.Runner(loop_factory=SkippingLoop) as runner:
        runner.run(leave())


def test_units_of_a_card_keep_its_instances_from_claims(tmp_path: Path) -> None:
    """A card and its MIG instances are never given at the same time."""
    hand_over = HandOver(GivenFile(tmp_path))
    parts = {FIRST: "GPU-card"}
    hand_over.hold_back(given_by_claim(0), parts)
    hand_over.settle({"GPU-card"})
    assert hand_over.standing.value.offered == {}
    hand_over.settle({SECOND})
    assert hand_over.standing.value.offered.keys() == {FIRST}
