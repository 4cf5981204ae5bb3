"""Tests of `gpushare_plugin.kube.lease`: one leads at a time, and stops saying so before another begins.

Times of the Lease pass on a clock that the tests move; attempts follow each other quickly.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpushare_plugin.kube.client import Client
from gpushare_plugin.kube.lease import Election, LeaseTiming
from gpushare_plugin.testing.cluster import ApiServer, Permission
from gpushare_plugin.testing.cluster.server import Refusal
from tests.clock import Clock
from tests.logs import logged
from tests.unit.kube.cluster import QUICK
from tests.waiting import until

LEASES = "/apis/coordination.k8s.io/v1/namespaces/gpushare/leases"
TIMING = LeaseTiming(duration=15, deadline=10.0, retry=0.005)


@dataclass
class Candidate:
    """A candidate with an API server of its own, of one control plane."""

    election: Election
    server: ApiServer
    clock: Clock
    task: asyncio.Task[None]

    async def end(self) -> None:
        """End it as a signal does."""
        self.task.cancel()
        await asyncio.wait([self.task])

    def leads(self) -> bool:
        """Return whether it leads, by the clock."""
        return self.election.leads

    def says_it_leads(self) -> bool:
        """Return what it has published."""
        return bool(self.election.leading.value)

    def attempts(self) -> int:
        """Return how many requests it has made to take or renew the Lease; those of its watch are none."""
        return sum(each.verb not in {"list", "watch"} for each in self.server.asked)

    async def attempts_again(self) -> None:
        """Wait until it has tried again, whole attempts from now."""
        before = self.attempts()
        await until(lambda: self.attempts() > before + 3)


@pytest.fixture
async def first() -> AsyncIterator[ApiServer]:
    """Run the API server that has the objects."""
    async with ApiServer() as running:
        yield running


@asynccontextmanager
async def candidate(
    first: ApiServer, folder: Path, identity: str, clock: Clock, timing: LeaseTiming = TIMING
) -> AsyncIterator[Candidate]:
    """Run a candidate whose own API server can go away."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(ApiServer(store=first.store))
        client = await stack.enter_async_context(Client(server.kubeconfig(folder / identity), QUICK))
        election = Election(client, "gpushare", "extender", identity, timing=timing, clock=clock)
        made = Candidate(election, server, clock, asyncio.create_task(election.run()))
        try:
            yield made
        finally:
            await made.end()


def lease(server: ApiServer) -> Any:
    """Return what the Lease says."""
    return server.store.find(LEASES, "extender")[0]["spec"]


async def test_the_first_candidate_leads(first: ApiServer, tmp_path: Path) -> None:
    """A Lease that does not exist is made, and renewed for as long as its holder runs."""
    async with candidate(first, tmp_path, "a", Clock()) as a:
        assert not a.leads()
        await until(a.says_it_leads)
        assert a.leads()
        assert lease(first) == lease(first) | {"holderIdentity": "a", "leaseDurationSeconds": 15, "leaseTransitions": 0}
        renewed = lease(first)["renewTime"]
        a.clock.now += 9
        await until(lambda: lease(first)["renewTime"] != renewed)
        await until(lambda: a.election.seconds_left == 10)
        assert a.election.holder == "a"


async def test_another_candidate_waits_while_the_lease_is_renewed(first: ApiServer, tmp_path: Path) -> None:
    """While the Lease is renewed, nobody else takes it, however long that lasts and wherever its own clock is."""
    async with candidate(first, tmp_path, "a", Clock()) as a:
        await until(a.leads)
        async with candidate(first, tmp_path, "b", Clock(5e9)) as b:
            for _ in range(5):
                await a.attempts_again()
                await b.attempts_again()
                b.clock.now += 14
            assert (a.leads(), b.leads(), b.election.holder) == (True, False, "a")


async def test_a_clean_end_hands_over_at_once(first: ApiServer, tmp_path: Path) -> None:
    """A leader that ends releases the Lease, and the other one leads without waiting."""
    async with candidate(first, tmp_path, "a", Clock()) as a:
        await until(a.leads)
        async with candidate(first, tmp_path, "b", Clock()) as b:
            await b.attempts_again()
            await a.end()
            assert not a.leads()
            assert not a.says_it_leads()
            await until(b.says_it_leads)
            assert lease(first)["leaseTransitions"] == 1


async def test_an_end_before_the_answer_hands_over_at_once(first: ApiServer, tmp_path: Path) -> None:
    """Who ends after it has asked for the Lease, and before it knows that it has it, does not leave it to time."""
    async with candidate(first, tmp_path, "a", Clock()) as a:
        while not first.store.find(LEASES, "extender"):  # noqa: ASYNC110 - before the answer is read
            await asyncio.sleep(0)
        await a.end()
        assert not a.says_it_leads()
    assert lease(first)["holderIdentity"] == ""


async def test_a_leader_without_a_server_stops_first(first: ApiServer, tmp_path: Path) -> None:
    """A leader that cannot renew says so in time, and the other one leads once the Lease has run out."""
    async with candidate(first, tmp_path, "a", Clock()) as a:
        await until(a.says_it_leads)
        async with candidate(first, tmp_path, "b", a.clock) as b:
            await b.attempts_again()
            await a.server.stop()
            await b.attempts_again()
            a.clock.now += 9.9
            await b.attempts_again()
            assert (a.leads(), b.leads()) == (True, False)
            a.clock.now += 0.2
            assert not a.leads()
            await until(lambda: not a.says_it_leads())
            await b.attempts_again()
            assert not b.leads()
            a.clock.now += 5
            await until(b.says_it_leads)
            assert not a.leads()
            await a.server.start()
            await a.attempts_again()
            assert (a.leads(), a.election.holder) == (False, "b")


async def test_a_process_that_was_stopped_knows_at_once_that_it_leads_no_more(first: ApiServer, tmp_path: Path) -> None:
    """The answer of `leads` depends on the clock alone, not on a task that has to run first."""
    async with candidate(first, tmp_path, "a", Clock()) as a:
        await until(a.leads)
        a.clock.now += 10
        assert (a.leads(), a.election.seconds_left) == (False, 0.0)
        await until(a.leads)


async def test_a_lapse_begins_another_term(first: ApiServer, tmp_path: Path) -> None:
    """Renewals continue a term; a leader whose time was over for a moment, and another may have led, has another."""
    async with candidate(first, tmp_path, "a", Clock()) as a:
        await until(a.says_it_leads)
        a.clock.now += 9
        await until(lambda: a.election.seconds_left == 10)
        assert (a.election.term, a.election.leading.value) == (1, 1)
        a.clock.now += 10
        assert a.election.term == 0
        await until(lambda: a.election.leading.value == 2)
        assert a.election.term == 2


async def test_a_leader_that_was_late_does_not_name_itself(first: ApiServer, tmp_path: Path) -> None:
    """After a pause the Lease still has the name of its holder; the log says that it could not renew in time."""
    with logged() as events:
        async with candidate(first, tmp_path, "a", Clock()) as a:
            await until(a.says_it_leads)
            a.clock.now += 10
            await until(lambda: a.election.leading.value == 2)
    reasons = [each["reason"] for each in events if each["event"] == "leadership_lost"]
    assert reasons == ["this process could not renew the Lease in time"]


async def test_many_candidates_never_lead_together(first: ApiServer, tmp_path: Path) -> None:
    """Candidates that start at once, and try at once when the Lease runs out, never lead together."""
    async with AsyncExitStack() as stack:
        clock = Clock()
        candidates = [
            await stack.enter_async_context(candidate(first, tmp_path, name, clock)) for name in ("a", "b", "c")
        ]
        for _ in range(3):
            await until(lambda: any(each.says_it_leads() for each in candidates))
            (leader,) = [each for each in candidates if each.leads()]
            await leader.end()
            candidates.remove(leader)
            assert len([each for each in candidates if each.leads()]) <= 1


async def test_a_lease_that_somebody_deletes_is_made_again(first: ApiServer, tmp_path: Path) -> None:
    """The leader goes on, and whoever knew it gives it the time that it had."""
    async with candidate(first, tmp_path, "a", Clock()) as a:
        await until(a.leads)
        async with candidate(first, tmp_path, "b", Clock()) as b:
            await until(lambda: b.election.holder == "a")
            first.store.delete(LEASES, "extender")
            await until(lambda: first.store.find(LEASES, "extender"))
            await b.attempts_again()
            assert (lease(first)["holderIdentity"], b.leads()) == ("a", False)


@pytest.mark.parametrize("status", [0, 403, 409, 429, 500])
async def test_a_failed_renewal_is_tried_again(first: ApiServer, tmp_path: Path, status: int) -> None:
    """One failure is not the end of leading, also where the write was done and only its answer got lost."""
    async with candidate(first, tmp_path, "a", Clock()) as a:
        await until(a.leads)
        a.server.refusals.append(Refusal(status, verb="patch", times=2, carried_out=status in {0, 500}))
        a.clock.now += 5
        await until(lambda: a.election.seconds_left == 10)
        assert lease(first)["leaseTransitions"] == 0


async def test_a_lease_that_cannot_be_understood_is_not_taken(first: ApiServer, tmp_path: Path) -> None:
    """A Lease that cannot be understood is not taken."""
    first.store.create(LEASES, {"metadata": {"name": "extender"}, "spec": {"leaseDurationSeconds": "many"}})
    async with candidate(first, tmp_path, "a", Clock()) as a:
        await a.attempts_again()
        assert not a.leads()
        first.store.patch(LEASES, "extender", {"spec": {"leaseDurationSeconds": None}})
        await until(a.leads)


async def test_labels_and_owners_of_a_lease_stay(first: ApiServer, tmp_path: Path) -> None:
    """Labels and owners of a Lease that somebody made before are left alone."""
    first.store.create(LEASES, {"metadata": {"name": "extender", "labels": {"team": "a"}}, "spec": {}})
    async with candidate(first, tmp_path, "a", Clock()) as a:
        await until(a.leads)
        (found,) = first.store.find(LEASES, "extender")
        assert found["metadata"]["labels"] == {"team": "a"}
        assert found["spec"]["leaseTransitions"] == 1


@pytest.mark.parametrize("watches", [True, False])
async def test_a_candidate_needs_no_more_than_five_rights(first: ApiServer, tmp_path: Path, *, watches: bool) -> None:
    """A candidate reads, creates, patches and watches the Lease, no more; it leads also where it cannot watch."""
    verbs = {"get", "create", "patch", *(("list", "watch") if watches else ())}
    first.permissions = [Permission(verb, "leases", "gpushare", group="coordination.k8s.io") for verb in verbs]
    async with Client(first.kubeconfig(tmp_path / "kubeconfig"), QUICK) as client:
        election = Election(client, "gpushare", "extender", "a", timing=TIMING)
        task = asyncio.create_task(election.run())
        await until(lambda: election.leads)
        await until(lambda: {"patch", "watch" if watches else "list"} <= {each.verb for each in first.asked})
        task.cancel()
        await asyncio.wait([task])
    assert lease(first)["holderIdentity"] == ""
    refused = {each.verb for each in first.asked if each.status not in {200, 201, 404, 409}}
    assert refused == (set() if watches else {"list"})


SELDOM = LeaseTiming(duration=15, deadline=10.0, retry=3600.0)
"""Of a candidate that does not look because time has passed."""


async def test_a_lease_that_is_left_is_taken_at_once(first: ApiServer, tmp_path: Path) -> None:
    """The watch shows the candidate that nobody holds the Lease any more; it does not wait for its next attempt."""
    async with candidate(first, tmp_path, "a", Clock()) as a:
        await until(a.says_it_leads)
        async with candidate(first, tmp_path, "b", Clock(), SELDOM) as b:
            await until(lambda: b.election.holder == "a" and b.server.watches.open)
            await a.end()
            await until(b.says_it_leads)


async def test_a_lease_that_runs_out_is_taken_in_that_moment(first: ApiServer, tmp_path: Path) -> None:
    """A candidate counts from the last renewal, which the watch shows it, and makes its attempt when that is over."""
    spec = {"holderIdentity": "dead", "leaseDurationSeconds": 1, "renewTime": "2026-01-01T00:00:00.000000Z"}
    first.store.create(LEASES, {"metadata": {"name": "extender"}, "spec": spec})
    async with Client(first.kubeconfig(tmp_path / "kubeconfig"), QUICK) as client:
        election = Election(client, "gpushare", "extender", "b", timing=SELDOM)
        task = asyncio.create_task(election.run())
        await until(lambda: election.holder == "dead" and first.watches.open)
        renewed_at = time.monotonic()
        first.store.patch(LEASES, "extender", {"spec": {"renewTime": "2026-01-01T00:00:01.000000Z"}})
        await until(lambda: election.leads)
        assert time.monotonic() - renewed_at >= 1
        task.cancel()
        await asyncio.wait([task])
