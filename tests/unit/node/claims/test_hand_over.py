"""A GPU belongs to the device plugin or to claims, and goes from one to the other when nobody can have it twice."""

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from gpushare_plugin.base.published import Published
from gpushare_plugin.base.tasks import beside, end
from gpushare_plugin.claims.claim import AllocatedClaim, AllocatedDevice, ClaimRefusedError
from gpushare_plugin.core.prepared_claim import ClaimId, PreparedClaim, PreparedDevice
from gpushare_plugin.kubelet.claim_files import GIVEN_VERSION, LARGEST_CLAIM_FILE
from gpushare_plugin.node.claims.given import UNKNOWN, GivenFile, NewerFileError
from gpushare_plugin.node.claims.hand_over import LONGEST_PAUSE, LOOK_EVERY, WITHDRAWN_SECONDS, HandOver
from gpushare_plugin.node.claims.records import UnreadableRecord
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
        self.claims: tuple[AllocatedClaim, ...] = ()
        self.released = 0
        self.lists = 0
        self.reads = 0

    @asynccontextmanager
    async def still(self) -> AsyncIterator[Collection[PreparedClaim] | None]:
        """Yield the prepared claims."""
        yield self.prepared

    async def allocated(self, claim_id: ClaimId) -> AllocatedClaim:
        """Return an allocated claim."""
        self.reads += 1
        for each in self.claims:
            if each.id == claim_id:
                return each
        raise ClaimRefusedError("not-found", f"claim {claim_id.label} does not exist")

    async def all_allocated(self) -> Iterable[AllocatedClaim]:
        """Return the allocated claims."""
        self.lists += 1
        return self.claims

    async def leave(self, hand_over: HandOver) -> None:
        """Let GPUs leave."""

        def count() -> None:
            self.released += not hand_over.standing.value.gpus

        await hand_over.run(self.shown, lambda uuid: uuid, self.still, self, count)


def holding(uuid: str) -> PreparedClaim:
    """Return a claim that is prepared on a GPU."""
    return PreparedClaim(claim_id("holder"), (PreparedDevice("gpu", "node", uuid, uuid, "memory"),))


def allocated(name: str) -> AllocatedClaim:
    """Return a claim that is allocated the first GPU."""
    return AllocatedClaim(claim_id(name), (AllocatedDevice("gpu", "node", FIRST),))


def test_a_gpu_belongs_to_claims_when_no_pod_holds_a_unit(tmp_path: Path) -> None:
    """The file says so before claims can get the GPU; until then the reason is told."""
    hand_over, file = HandOver(GivenFile(tmp_path)), GivenFile(tmp_path)
    assert offered(hand_over.hold_back(given_by_claim(0), {})) == {SECOND}
    hand_over.settle({FIRST, SECOND})
    assert (hand_over.standing.value.offered, file.read().gpus, hand_over.waits_for_pods) == ({}, {}, True)
    assert hand_over.waiting == {FIRST: "is given by claim when its pods end"}
    hand_over.hold_back(given_by_claim(0), {})
    hand_over.settle({SECOND})
    assert hand_over.standing.value.offered.keys() == file.read().gpus.keys() == {FIRST}
    assert hand_over.waiting == {}


def test_a_file_that_cannot_be_written_keeps_the_gpu_from_claims(tmp_path: Path) -> None:
    """A daemon that started anew would not know of the GPU otherwise."""
    (tmp_path / "plugins").write_text("no directory")
    hand_over = HandOver(GivenFile(tmp_path / "plugins"))
    hand_over.hold_back(given_by_claim(0), {})
    hand_over.settle(frozenset())
    assert hand_over.standing.value.offered == {}


@pytest.mark.parametrize("place", ["driver", "copy"])
@pytest.mark.parametrize("damage", ["removed", "torn", "another GPU"])
def test_a_file_that_somebody_changes_under_a_running_daemon_is_written_again(
    tmp_path: Path, damage: str, place: str
) -> None:
    """Claims are prepared by what the file says, and the next daemon knows only the file, or only its copy."""
    hand_over, cluster = HandOver(GivenFile(tmp_path / "driver", tmp_path / "copy")), Cluster()
    file = GivenFile(tmp_path / place)
    hand_over.hold_back(given_by_claim(0), {})
    hand_over.settle(frozenset())

    async def mend() -> None:
        async with beside(cluster.leave(hand_over)) as leaving:
            match damage:
                case "removed":
                    file.path.unlink()
                case "torn":
                    file.path.write_text('{"gpus')
                case _:
                    file.write({SECOND: UNKNOWN})
            await asyncio.sleep(2 * LOOK_EVERY)
            assert file.read().gpus.keys() == {FIRST}
            assert file.read().trouble == ""
            end(leaving)

    with asyncio.Runner(loop_factory=SkippingLoop) as runner:
        runner.run(mend())


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
        cluster.claims = (allocated("late"),)

    async def leave() -> None:
        async with beside(cluster.leave(hand_over)) as leaving:
            assert offered(hand_over.hold_back(given_by_claim(), {})) == {SECOND}
            hand_over.settle(frozenset())
            assert hand_over.standing.value.offered == {}
            assert hand_over.standing.value.claimed.keys() == {FIRST}
            await asyncio.sleep(10 * WITHDRAWN_SECONDS)
            assert offered(hand_over.hold_back(given_by_claim(), {})) == {SECOND}
            assert hand_over.waiting[FIRST].startswith(("leaves the claims", "belongs to claims"))
            cluster.prepared, cluster.claims = (), ()
            cluster.shown.publish(frozenset())
            if holder == "resource slice":
                await asyncio.sleep(WITHDRAWN_SECONDS - LOOK_EVERY)
            assert cluster.released == 0
            await asyncio.sleep(2 * LOOK_EVERY + (LONGEST_PAUSE if holder == "allocated claim" else 0))
            assert cluster.released == 1
            assert offered(hand_over.hold_back(given_by_claim(), {})) == {FIRST, SECOND}
            assert GivenFile(tmp_path).read().gpus == {}
            end(leaving)

    with asyncio.Runner(loop_factory=SkippingLoop) as runner:
        runner.run(leave())


def test_a_gpu_leaves_only_when_the_last_of_its_claims_is_gone(tmp_path: Path) -> None:
    """Where the claim that was known to keep the GPU is gone, another claim may have the GPU."""
    hand_over, cluster = HandOver(GivenFile(tmp_path)), Cluster()
    hand_over.hold_back(given_by_claim(0), {})
    hand_over.settle(frozenset())
    cluster.shown.publish(frozenset())
    cluster.claims = (allocated("one"), allocated("other"))

    async def leave() -> None:
        async with beside(cluster.leave(hand_over)) as leaving:
            hand_over.hold_back(given_by_claim(), {})
            await asyncio.sleep(10 * WITHDRAWN_SECONDS)
            assert "default/other" in hand_over.waiting[FIRST]
            cluster.claims = (allocated("one"),)
            await asyncio.sleep(2 * LOOK_EVERY + LONGEST_PAUSE)
            assert "default/one" in hand_over.waiting[FIRST]
            cluster.claims = ()
            await asyncio.sleep(2 * LOOK_EVERY + LONGEST_PAUSE)
            assert hand_over.standing.value.gpus == {}
            end(leaving)

    with asyncio.Runner(loop_factory=SkippingLoop) as runner:
        runner.run(leave())


def test_the_claims_of_the_cluster_are_not_read_again_and_again(tmp_path: Path) -> None:
    """A claim can stay allocated for ever, and a cluster has many: only that claim is read, and less and less often."""
    hand_over, cluster = HandOver(GivenFile(tmp_path)), Cluster()
    hand_over.hold_back(given_by_claim(0, 1), {})
    hand_over.settle(frozenset())
    cluster.shown.publish(frozenset({SECOND}))
    cluster.claims = (allocated("late"),)

    async def leave() -> None:
        async with beside(cluster.leave(hand_over)) as leaving:
            hand_over.hold_back(given_by_claim(), {})
            hand_over.settle(frozenset())
            await asyncio.sleep(3600)
            assert cluster.lists == 1
            assert 3600 / LONGEST_PAUSE <= cluster.reads + 5 <= 3600 / LONGEST_PAUSE + 10
            assert hand_over.standing.value.gpus.keys() == {FIRST, SECOND}
            cluster.shown.publish(frozenset())
            await asyncio.sleep(WITHDRAWN_SECONDS + 2 * LOOK_EVERY)
            assert hand_over.standing.value.gpus.keys() == {FIRST}
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
    GivenFile(tmp_path).path.unlink()
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


NEWER = {"version": GIVEN_VERSION + 1, "since": "today"}
UNNAMED = UnreadableRecord(Path("/claims/uid.json"), "was written by a newer version of gpushare", newer=True)


@pytest.mark.parametrize(
    "torn", [b'{"gpus"', b"", b"[]", b'{"version": 1, "gpus": 5}', b" " * (LARGEST_CLAIM_FILE + 1)]
)
def test_a_damaged_file_keeps_every_gpu_without_units_until_nobody_knows_a_claim(tmp_path: Path, torn: bytes) -> None:
    """Units of a GPU that pods hold show that the GPU is the device plugin's; people are told; the file is mended."""
    file, cluster = GivenFile(tmp_path), Cluster()
    file.path.write_bytes(torn)
    hand_over = HandOver(file)
    assert offered(hand_over.hold_back(given_by_claim(), {}, frozenset({SECOND}))) == {SECOND}
    assert [str(file.path) in each for each in hand_over.notices] == [True]
    assert hand_over.waiting == {FIRST: "may belong to claims"}
    hand_over.settle(frozenset({SECOND}))
    assert HandOver(file).hold_back(given_by_claim(), {}).resources
    cluster.shown.publish(frozenset())
    cluster.claims = (allocated("allocated"),)

    async def leave() -> None:
        async with beside(cluster.leave(hand_over)) as leaving:
            await asyncio.sleep(10 * WITHDRAWN_SECONDS)
            assert offered(hand_over.hold_back(given_by_claim(), {}, frozenset({SECOND}))) == {SECOND}
            assert "default/allocated" in hand_over.waiting[FIRST]
            cluster.claims = ()
            await asyncio.sleep(2 * LOOK_EVERY + LONGEST_PAUSE)
            assert offered(hand_over.hold_back(given_by_claim(), {}, frozenset({SECOND}))) == {FIRST, SECOND}
            assert (hand_over.notices, hand_over.waiting, file.read().trouble) == ((), {}, "")
            end(leaving)

    with asyncio.Runner(loop_factory=SkippingLoop) as runner:
        runner.run(leave())


@pytest.mark.parametrize(
    ("content", "kept"),
    [
        ({**NEWER, "gpus": {FIRST: {"way": "memory", "isolation": "mps", "parts": 3}}}, {FIRST}),
        ({**NEWER, "gpus": {FIRST: ["another", "form"]}}, {FIRST}),
        ({**NEWER, "gpus": {}}, set[str]()),
        ({**NEWER, "gpus": [FIRST]}, {FIRST, SECOND}),
        (NEWER, {FIRST, SECOND}),
    ],
)
def test_a_file_of_a_newer_version_stays_and_keeps_the_gpus_that_it_could_name(
    tmp_path: Path, content: object, kept: set[str]
) -> None:
    """The names count where they can be read; no GPU comes or goes, since the file could not say so."""
    file, cluster = GivenFile(tmp_path), Cluster()
    file.path.write_bytes(msgspec.json.encode(content))
    hand_over = HandOver(file)
    cluster.shown.publish(frozenset())

    async def stay() -> None:
        async with beside(cluster.leave(hand_over)) as leaving:
            assert offered(hand_over.hold_back(given_by_claim(), {})) == {FIRST, SECOND} - kept
            hand_over.settle(frozenset())
            await asyncio.sleep(10 * WITHDRAWN_SECONDS)
            assert offered(hand_over.hold_back(given_by_claim(), {})) == {FIRST, SECOND} - kept
            assert [str(file.path) in each for each in hand_over.notices] == [True]
            assert all(str(file.path) in hand_over.waiting[uuid] for uuid in kept)
            hand_over.hold_back(given_by_claim(1), {})
            hand_over.settle(frozenset())
            assert hand_over.standing.value.offered == {}
            assert msgspec.json.decode(file.path.read_bytes()) == content
            file.path.unlink()
            hand_over.hold_back(given_by_claim(), {})
            hand_over.settle(frozenset())
            await asyncio.sleep(WITHDRAWN_SECONDS + 2 * LOOK_EVERY)
            assert offered(hand_over.hold_back(given_by_claim(), {})) == {FIRST, SECOND}
            assert hand_over.notices == ()
            end(leaving)

    with asyncio.Runner(loop_factory=SkippingLoop) as runner:
        runner.run(stay())


@pytest.mark.parametrize(
    ("record", "kept"),
    [(UNNAMED, {FIRST, SECOND}), (msgspec.structs.replace(UNNAMED, claim=holding(FIRST)), {FIRST})],
)
def test_a_record_that_cannot_be_read_keeps_the_gpus_that_it_could_name(
    tmp_path: Path, record: UnreadableRecord, kept: set[str]
) -> None:
    """Where the file names the GPUs of claims, the GPU of the record is one of them."""
    hand_over = HandOver(GivenFile(tmp_path), unreadable=[record])
    assert offered(hand_over.hold_back(given_by_claim(), {})) == {FIRST, SECOND} - kept
    GivenFile(tmp_path).write({SECOND: UNKNOWN})
    named = HandOver(GivenFile(tmp_path), unreadable=[record])
    assert offered(named.hold_back(given_by_claim(), {})) == (set[str]() if record.claim else {FIRST})


def test_a_gpu_that_the_file_or_its_copy_names_belongs_to_claims(tmp_path: Path) -> None:
    """Either is enough: earlier versions wrote no copy, and a daemon without the DRA driver's directory has only it."""
    both = GivenFile(tmp_path / "driver", tmp_path / "copies" / "driver")
    both.write({FIRST: UNKNOWN})
    without_directory = GivenFile(tmp_path / "missing", tmp_path / "copies" / "driver")
    assert without_directory.read().gpus.keys() == GivenFile(tmp_path / "driver").read().gpus.keys() == {FIRST}
    GivenFile(tmp_path / "driver").write({SECOND: UNKNOWN})
    assert both.read().gpus.keys() == {FIRST, SECOND}
    both.write({})
    assert not [each for each in tmp_path.rglob("*") if each.is_file()]
    newer = GivenFile(tmp_path / "copies" / "driver").path
    newer.write_bytes(msgspec.json.encode({"version": GIVEN_VERSION + 1, "gpus": {FIRST: {}}}))
    with pytest.raises(NewerFileError, match=str(newer)):
        both.write({SECOND: UNKNOWN})
    assert both.read().gpus.keys() == {FIRST}


@pytest.mark.parametrize(
    ("content", "left"), [({"gpus": {FIRST: {"way": "memory", "isolation": "mps"}}}, {SECOND}), (5, set[str]())]
)
def test_gpus_of_other_dra_drivers_are_neither_offered_nor_given(
    tmp_path: Path, content: object, left: set[str]
) -> None:
    """A daemon can find the files of several names; a file that cannot be used may name every GPU without units."""
    own, other = GivenFile(tmp_path / "own"), GivenFile(tmp_path / "other.example.com")
    other.path.parent.mkdir()
    other.path.write_bytes(msgspec.json.encode(content))
    hand_over = HandOver(own, others=[other])
    assert offered(hand_over.hold_back(given_by_claim(), {})) == left
    assert "belongs to claims of the DRA driver other.example.com" in hand_over.waiting[FIRST]
    hand_over.hold_back(given_by_claim(0), {})
    hand_over.settle(frozenset())
    assert FIRST not in hand_over.standing.value.gpus
    other.path.unlink()
    hand_over.hold_back(given_by_claim(0), {})
    hand_over.settle(frozenset())
    assert hand_over.standing.value.offered.keys() == own.read().gpus.keys() == {FIRST}


def test_under_an_earlier_name_gpus_only_leave(tmp_path: Path) -> None:
    """The config gives its GPUs by claim under the new name, after the claims of the earlier one have ended."""
    GivenFile(tmp_path).write({FIRST: UNKNOWN})
    hand_over = HandOver(GivenFile(tmp_path), why_not=lambda: "dra.driver is another")
    assert offered(hand_over.hold_back(given_by_claim(0, 1), {})) == set()
    hand_over.settle(frozenset())
    assert hand_over.standing.value.gpus.keys() == {FIRST}
    assert hand_over.standing.value.offered == {}
    assert hand_over.notices == ("dra.driver is another",)


def test_gpus_stay_where_they_are_while_claims_cannot_be_served(tmp_path: Path) -> None:
    """Nobody gives their claims back, so no GPU comes or goes; without the file, any GPU may have claims."""
    GivenFile(tmp_path).write({FIRST: UNKNOWN})
    hand_over = HandOver(GivenFile(tmp_path), unserved="the API server is not used")
    assert offered(hand_over.hold_back(given_by_claim(), {})) == {SECOND}
    assert hand_over.waiting == {FIRST: "belongs to claims: the API server is not used"}
    hand_over.hold_back(given_by_claim(0, 1), {})
    hand_over.settle(frozenset())
    assert GivenFile(tmp_path).read().gpus.keys() == {FIRST}
    assert hand_over.waiting[SECOND] == "is not given by claim: the API server is not used"
    GivenFile(tmp_path).path.unlink()
    without_file = HandOver(GivenFile(tmp_path), unserved="the API server is not used")
    assert offered(without_file.hold_back(given_by_claim(), {}, frozenset({SECOND}))) == {SECOND}


def test_an_upgrade_from_a_build_without_the_copy_writes_the_copy(tmp_path: Path) -> None:
    """From then on, a daemon that sees only the copy keeps the GPU of claims from the device plugin."""
    GivenFile(tmp_path / "driver").write({FIRST: UNKNOWN})
    hand_over = HandOver(GivenFile(tmp_path / "driver", tmp_path / "copies"))
    hand_over.hold_back(given_by_claim(), {})
    hand_over.settle(frozenset())
    assert FIRST in GivenFile(tmp_path / "copies").read().gpus
