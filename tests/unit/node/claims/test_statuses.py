"""Tests of `gpushare_plugin.node.claims.statuses`: what a node writes into claims, and how often."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gpushare_plugin.base.published import Published
from gpushare_plugin.base.structs import replace
from gpushare_plugin.core.effect import IN_EFFECT, Effect, not_in_effect, unknown
from gpushare_plugin.core.prepared_claim import ClaimId, PreparedClaim, PreparedDevice
from gpushare_plugin.core.usage import ContainerUsage, Usage
from gpushare_plugin.kube.client import Client
from gpushare_plugin.kube.dra.claims import Claims
from gpushare_plugin.node.claims.statuses import BETWEEN_CLAIMS, MOST_ATTEMPTS, WITHIN, Statuses
from gpushare_plugin.testing.cluster import ApiServer
from gpushare_plugin.testing.cluster.server import Refusal
from tests.unit.kube.cluster import QUICK
from tests.unit.kube.dra.gpus import CLAIMS, DRIVER, NODE
from tests.unit.kube.dra.test_claims import RIGHTS, SHARE, claim, result
from tests.waiting import until

GIVEN = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25"}
DEVICE = PreparedDevice(
    "gpu", NODE, "gpu-0", "GPU-0", "memory", SHARE, 10240, percent=25, isolation="mps", environment=GIVEN
)
NOTHING_RUNS = unknown("no process of the container uses the GPU")
Object = dict[str, Any]


class Node:
    """A node with a claim, in the hands of a test."""

    def __init__(self, server: ApiServer, client: Client) -> None:
        """Prepare a claim."""
        self.server = server
        self.id: ClaimId = claim(server, result())
        self.now = 0.0
        self.prepared: Published[tuple[PreparedClaim, ...]] = Published((PreparedClaim(self.id, (DEVICE,)),))
        self._claims = Claims(client, DRIVER, NODE)
        self.statuses = self.daemon()

    def daemon(self) -> Statuses:
        """Return what a daemon that starts now writes with."""
        return Statuses(self._claims, self.prepared, lambda: self.now)

    def learn(self, effect: Effect | None, *, known: bool = True) -> None:
        """Look at the usage of the only container."""
        place = ("default", "pod", "main", "uid-of-pod", "GPU-0", "claim:claim", 1)
        found = ContainerUsage(*place, effect=effect, claimed=(DEVICE,))
        self.statuses.learn(Usage(containers=(found,), held={} if known else None))

    async def says(self, effect: Effect) -> Object:
        """Look, write, and return the condition."""
        self.learn(effect)
        await self.statuses.write()
        return self.condition

    @property
    def entry(self) -> Object:
        """The entry of the device."""
        (found,) = self.server.store.find(CLAIMS, "claim")
        (entry,) = found["status"]["devices"]
        return dict(entry)

    @property
    def condition(self) -> Object:
        """The condition of the device."""
        (found,) = self.entry["conditions"]
        return {name: found[name] for name in ("type", "status", "reason", "message")}

    @property
    def writes(self) -> int:
        """The number of writes."""
        return sum(each.verb == "patch" for each in self.server.asked)


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    """Have no other rights than those of the chart."""
    async with ApiServer(RIGHTS) as server, Client(server.kubeconfig(tmp_path / "kubeconfig"), QUICK) as client:
        server.dra.node = NODE
        yield Node(server, client)


async def test_a_claim_says_at_once_what_it_got_and_later_whether_the_limit_is_in_effect(node: Node) -> None:
    """Each of the four states has its reason, and the words say what is missing or wrong."""
    await node.statuses.write()
    assert node.entry["data"] == {"uuid": "GPU-0", "isolation": "mps", "limit": {"memory": "10Gi", "compute": 25}}
    assert "conditions" not in node.entry
    for effect, status, reason, message in (
        (NOTHING_RUNS, "Unknown", "Unknown", "unknown: no process of the container uses the GPU"),
        (IN_EFFECT, "True", "InEffect", "in effect"),
        (
            Effect("in effect since", seconds=83),
            "True",
            "InEffectSince",
            "in effect since 83 s after the start of the container",
        ),
        (not_in_effect("process 7 escaped"), "False", "NotInEffect", "not in effect: process 7 escaped"),
    ):
        node.now += WITHIN
        expected = {"type": "LimitInEffect", "status": status, "reason": reason, "message": message}
        assert await node.says(effect) == expected


@pytest.mark.parametrize(
    ("changes", "limit"),
    [
        ({"isolation": "none", "environment": {}, "percent": None}, None),
        ({"admin_access": True}, None),
        ({"isolation": "hami-core", "environment": {"CUDA_DEVICE_SM_LIMIT": "30"}, "percent": None}, (10, 30)),
        ({"isolation": "driver", "environment": {"CUDA_DEVICE_SM_LIMIT": "0"}, "percent": None}, (10, None)),
    ],
)
async def test_a_claim_says_the_limits_that_containers_were_given(
    node: Node, changes: Object, limit: tuple[int, int | None] | None
) -> None:
    """Not what only counts: a whole GPU and time slices have no limit, and compute by the config is one."""
    (before,) = node.prepared.value
    node.prepared.publish((replace(before, devices=(replace(DEVICE, **changes),)),))
    await node.statuses.write()
    found = node.entry["data"].get("limit")
    assert found == (
        None if limit is None else {"memory": f"{limit[0]}Gi", **({"compute": limit[1]} if limit[1] else {})}
    )


async def test_nothing_is_written_or_asked_where_nothing_changes(node: Node) -> None:
    """Nor while the kubelet does not show who holds claims; the condition stays then."""
    await node.says(IN_EFFECT)
    before = len(node.server.asked)
    for known in (True, False, True):
        node.now += WITHIN
        node.learn(IN_EFFECT if known else None, known=known)
        await node.statuses.write()
    assert len(node.server.asked) == before


async def test_a_claim_is_written_so_often_at_most(node: Node) -> None:
    """A program that starts and fails again and again makes no more writes; the last state is written later."""
    for number in range(20):
        node.now += 1
        node.learn(not_in_effect(f"process {number} escaped"))
        await node.statuses.write()
    assert node.writes == MOST_ATTEMPTS
    node.now = WITHIN + 1
    await node.statuses.write()
    assert node.condition["message"] == "not in effect: process 19 escaped"
    assert node.writes == MOST_ATTEMPTS + 1


async def test_a_daemon_that_starts_again_keeps_the_condition_until_it_knows_better(node: Node) -> None:
    """Before its first look at the usage it writes nothing, and afterwards only what is new."""
    await node.says(IN_EFFECT)
    before, node.statuses = node.writes, node.daemon()
    await node.statuses.write()
    assert await node.says(IN_EFFECT) == node.condition
    assert (node.writes, node.condition["status"]) == (before, "True")
    assert (await node.says(NOTHING_RUNS))["status"] == "Unknown"


async def test_a_status_is_written_later_when_the_api_server_does_not_answer(node: Node) -> None:
    """Also where already the claim cannot be read."""
    for verb in ("get", "patch"):
        node.server.refusals = [Refusal(500, verb, times=10)]
        node.learn(not_in_effect(verb))
        await node.statuses.write()
        node.server.refusals = []
        node.now += WITHIN
        await node.statuses.write()
        assert node.condition["message"] == f"not in effect: {verb}"


async def test_a_claim_that_is_gone_is_left_alone(node: Node) -> None:
    """Nothing is written into a claim of the same name, and nobody asks again."""
    node.server.store.delete(CLAIMS, "claim")
    claim(node.server, result())
    await node.statuses.write()
    node.now += WITHIN
    await node.statuses.write()
    assert [each.verb for each in node.server.asked] == ["get"]


async def test_claims_are_read_one_after_another_with_pauses(node: Node) -> None:
    """A daemon that starts again reads each of hundreds of claims once, and writes none that says what it should."""
    more = [PreparedClaim(claim(node.server, result(), name=f"claim-{number}"), (DEVICE,)) for number in range(4)]
    node.prepared.publish((*node.prepared.value, *more))
    await node.statuses.write()
    node.statuses = node.daemon()
    node.server.asked.clear()
    time = asyncio.get_running_loop().time
    begun = time()
    await node.statuses.write()
    assert time() - begun >= 4 * BETWEEN_CLAIMS
    assert [each.verb for each in node.server.asked] == ["get"] * 5


async def test_a_new_claim_does_not_wait_for_hundreds_of_others(node: Node) -> None:
    """What it got is written first, also where a pass over the others has begun."""
    others = [PreparedClaim(claim(node.server, result(), name=f"claim-{number}"), (DEVICE,)) for number in range(4)]
    node.prepared.publish((*node.prepared.value, *others))
    await node.statuses.write()
    node.learn(IN_EFFECT)
    task = asyncio.create_task(node.statuses.write())
    before = node.writes
    await until(lambda: node.writes > before)
    new = PreparedClaim(claim(node.server, result(), name="new"), (DEVICE,))
    node.prepared.publish((*node.prepared.value, new))
    await task
    done = node.writes
    await node.statuses.write()
    order = [each.name for each in node.server.asked if each.verb == "patch"]
    assert order[done] == "new"
    assert {*order[before:]} == {"claim", "new", *(each.id.name for each in others)}
    assert len(order) == before + 6


async def test_a_device_without_a_limit_gets_no_condition(node: Node) -> None:
    """Where no isolation limits a container, there is nothing to prove."""
    node.prepared.publish((PreparedClaim(node.id, (replace(DEVICE, isolation="none"),)),))
    node.learn(None)
    await node.statuses.write()
    assert node.entry["data"]["isolation"] == "none"
    assert "conditions" not in node.entry
