"""Tests of `gpushare_plugin.node.claims.users`: pods that came to a claim later, and how often a claim is read."""

from pathlib import Path

import pytest

from gpushare_plugin.base.structs import replace
from gpushare_plugin.claims.claim import AllocatedClaim, ClaimRefusedError
from gpushare_plugin.core.prepared_claim import ClaimId, ClaimUser
from gpushare_plugin.core.usage import GpuUsage, Owner, Process, Usage
from gpushare_plugin.node.claims.users import AGAIN_AFTER, ClaimUsers
from tests.unit.node.claims.claims import GPU, Claims, claim_id, share

FIRST = claim_id("first")
USER, LATER = (ClaimUser(f"pod-{name}", f"uid-{name}") for name in ("first", "later"))


class Node:
    """A node with a prepared claim, in the hands of a test."""

    def __init__(self, folder: Path) -> None:
        """Know of a claim that no daemon has prepared yet."""
        self.claims = Claims(folder, share("first", 10))
        self.preparation = self.claims.daemon()
        self.now = 0.0
        self.fails = False
        self.users = ClaimUsers(self.preparation, self.find, lambda: self.now)

    async def find(self, id_: ClaimId) -> AllocatedClaim:
        """Read a claim, unless the API server is away."""
        found = await self.claims.find(id_)
        if self.fails:
            raise ClaimRefusedError("api", "the API server is away")
        return found

    async def look(self, *uids: str, after: float = 0.0) -> int:
        """Look at the processes of these pods on the GPU of the claim; return how often the claim was read."""
        before = len(self.claims.asked)
        self.now += after
        processes = tuple(Process(7, "python", owner=Owner(uid)) for uid in uids)
        self.users.learn(Usage((GpuUsage(GPU, processes=processes),), held={}))
        await self.users.look()
        return len(self.claims.asked) - before

    def known(self) -> tuple[ClaimUser, ...]:
        """Return the pods that the claim is known to have."""
        return self.preparation.prepared.value[0].users


@pytest.fixture
async def node(tmp_path: Path) -> Node:
    """Prepare the claim for a pod, and let another pod come."""
    made = Node(tmp_path)
    await made.preparation.prepare([FIRST])
    made.claims.allocated[FIRST] = replace(share("first", 10), users=(USER, LATER))
    return made


async def test_a_claim_is_read_once_for_each_stranger(node: Node) -> None:
    """A stranger that has nothing to do with the claim is not asked about again, and nobody without one."""
    assert await node.look() == 0
    assert node.known() == (USER,)
    assert await node.look(LATER.uid, "foreign") == 1
    assert node.known() == (USER, LATER)
    assert await node.look("foreign", after=AGAIN_AFTER) == 0
    assert await node.look("foreign", "another", after=AGAIN_AFTER) == 1


async def test_a_claim_is_read_at_most_once_in_a_minute(node: Node) -> None:
    """Processes of foreign pods come and go; what came meanwhile is asked about later."""
    assert await node.look("foreign") == 1
    assert [await node.look(f"foreign-{number}", after=1) for number in range(20)] == [0] * 20
    assert await node.look() == 0
    assert await node.look("last", after=AGAIN_AFTER) == 1


async def test_a_claim_that_could_not_be_read_is_read_later(node: Node) -> None:
    """An API server that is away costs one attempt in a minute."""
    node.fails = True
    assert await node.look(LATER.uid) == 1
    assert await node.look(LATER.uid, after=1) == 0
    node.fails = False
    assert await node.look(LATER.uid, after=AGAIN_AFTER) == 1
    assert node.known() == (USER, LATER)


async def test_a_claim_that_is_gone_is_not_asked_about_again(node: Node) -> None:
    """The claim may have been deleted by force while the pod still runs."""
    node.claims.allocated.clear()
    assert await node.look(LATER.uid) == 1
    assert await node.look(LATER.uid, after=AGAIN_AFTER) == 0
    assert node.known() == (USER,)


async def test_nothing_follows_while_the_kubelet_does_not_show_who_holds_claims(node: Node) -> None:
    """Everybody would look like a stranger."""
    strange = GpuUsage(GPU, processes=(Process(7, "python", owner=Owner(LATER.uid)),))
    before = len(node.claims.asked)
    node.users.learn(Usage((strange,), held=None))
    await node.users.look()
    assert len(node.claims.asked) == before
