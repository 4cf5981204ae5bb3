"""Tests of `gpushare_plugin.kube.dra.resource_slices`: ResourceSlices are as the node wants them, whoever writes."""

import asyncio
import contextlib
import json
import os
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gpushare_plugin.base.published import Published
from gpushare_plugin.claims.device import Device
from gpushare_plugin.kube.client import Client, Object
from gpushare_plugin.kube.dra.resource_slices import ResourceSlices
from gpushare_plugin.testing.claims.pools import offered
from gpushare_plugin.testing.cluster import ApiServer, Permission
from gpushare_plugin.testing.cluster.dra.gates import Gates
from gpushare_plugin.testing.cluster.server import Refusal
from gpushare_plugin.testing.cluster.store.place import collection
from gpushare_plugin.testing.cluster.store.selectors import Selector
from tests.unit.kube.cluster import QUICK
from tests.unit.kube.dra.gpus import DRIVER, FAULT, NODE, NODES, RESOURCE_SLICES, devices, names, node, shared, whole
from tests.waiting import until

GROUP = "resource.k8s.io"
RIGHTS = frozenset(
    Permission(verb, "resourceslices", group=GROUP) for verb in ("list", "watch", "create", "patch", "delete")
)
NAME = f"{NODE}-{DRIVER}-00"


class Kept:
    """A Node whose ResourceSlices are kept, and what the scheduler could have seen meanwhile."""

    def __init__(self, server: ApiServer, client: Client) -> None:
        """Begin with a Node, and wish for nothing."""
        self.server = server
        self.nodes: Published[Object | None] = Published(node(server))
        self.wanted: Published[tuple[Device, ...] | None] = Published(None)
        self.now = 1000.0
        self.slices = ResourceSlices(client, DRIVER, NODE, clock=lambda: self.now)

    @property
    def specs(self) -> list[dict[str, Any]]:
        """The specs in the API."""
        return [each["spec"] for each in self.server.store.find(RESOURCE_SLICES)]

    @property
    def writes(self) -> int:
        """The number of requests that write."""
        return sum(each.verb not in {"list", "watch"} for each in self.server.begun)

    async def offers(self, *wanted: Device) -> None:
        """Wish for devices, and wait until the API server shows them, and until nothing is wrong."""
        self.wanted.publish(wanted)
        await until(self.settled)

    async def mended(self, times: int) -> None:
        """Wait until the ResourceSlices are as they should be after others changed them so many times."""
        await until(lambda: self.slices.mended == times and self.settled())

    async def owned_by(self, owner: Object) -> None:
        """Wait until a Node is the one owner."""
        uid = owner["metadata"]["uid"]
        await until(lambda: [each["uid"] for each in self.owners()] == [uid])

    def owners(self) -> list[dict[str, Any]]:
        """Return the owners of all ResourceSlices."""
        found = self.server.store.find(RESOURCE_SLICES)
        return [owner for each in found for owner in each["metadata"]["ownerReferences"]]

    def settled(self) -> bool:
        """Return whether the API server shows what is wanted, the scheduler can use the pool, and nothing is wrong."""
        wanted = [(each.name, len(each.taints)) for each in self.wanted.value or ()]
        there = [(each["name"], len(each.get("taints") or ())) for each in devices(self.server)]
        complete = all(each["pool"]["resourceSliceCount"] == len(self.specs) for each in self.specs)
        known = self.slices.devices.value == frozenset(name for name, _ in wanted)
        return there == wanted and complete and known and self.slices.trouble.value == ""

    def usable(self) -> list[list[dict[str, Any]]]:
        """Return the devices of each version of the pool that the scheduler could use, the oldest first."""
        versions = self.server.store.since(0, collection(RESOURCE_SLICES), Selector())
        specs = [json.loads(change.body)["spec"] for kind, change in versions if kind != "DELETED"]
        return [each.get("devices") or [] for each in specs if each["pool"]["resourceSliceCount"] == 1]


@pytest.fixture
async def kept(tmp_path: Path) -> AsyncIterator[Kept]:
    """Run with no other rights than those that the chart grants."""
    async with ApiServer(RIGHTS) as server, Client(server.kubeconfig(tmp_path / "kubeconfig"), QUICK) as client:
        made = Kept(server, client)
        task = asyncio.create_task(made.slices.run(made.wanted, made.nodes))
        yield made
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_devices_are_published_in_the_pool_of_the_node(kept: Kept) -> None:
    """With the Node as the owner, so that they go with the Node, and in the order of the node."""
    await kept.offers(shared(1), whole(0))
    (found,) = kept.server.store.find(RESOURCE_SLICES)
    (there,) = kept.server.store.find(NODES, NODE)
    (owner,) = found["metadata"]["ownerReferences"]
    assert found["metadata"]["name"] == NAME
    assert (owner["apiVersion"], owner["kind"], owner["name"]) == ("v1", "Node", NODE)
    assert owner["uid"] == there["metadata"]["uid"]
    assert found["spec"]["nodeName"] == NODE
    assert found["spec"]["pool"] == {"name": NODE, "generation": 1, "resourceSliceCount": 1}
    assert kept.slices.devices.value == frozenset({"gpu-0", "gpu-1"})


async def test_nothing_is_written_while_nothing_changes(kept: Kept) -> None:
    """However often the same is wanted, and the Node changes; a change is one request."""
    await kept.offers(shared(0), shared(1))
    writes = kept.writes
    for _ in range(3):
        kept.wanted.publish((shared(0), shared(1)))
        kept.nodes.publish(kept.server.store.patch(NODES, NODE, {"metadata": {"labels": {"a": "b"}}}))
        await asyncio.sleep(0)
    await kept.offers(shared(1), shared(0))
    assert kept.writes == writes + 1
    assert (kept.slices.mended, kept.specs[0]["pool"]["generation"]) == (0, 1)


async def test_none_withdraws_and_no_device_is_an_empty_pool(kept: Kept) -> None:
    """An empty pool says that the DRA driver is there; without one, it is not."""
    await kept.offers(shared())
    await kept.offers()
    await until(lambda: kept.slices.devices.value == frozenset())
    assert [each.get("devices") or [] for each in kept.specs] == [[]]
    kept.wanted.publish(None)
    await until(lambda: not kept.specs)
    await kept.offers(shared())
    assert kept.slices.mended == 0


async def test_a_wipe_is_mended(kept: Kept) -> None:
    """The kubelet deletes all ResourceSlices of its node when it starts, and may do so more than once."""
    await kept.offers(shared())
    for times in range(1, 4):
        kept.server.store.delete(RESOURCE_SLICES, NAME)
        await kept.mended(times)


async def test_a_change_by_others_is_mended(kept: Kept) -> None:
    """Labels of others stay."""
    await kept.offers(shared())
    other = {"metadata": {"labels": {"a": "b"}}, "spec": {"devices": []}}
    kept.server.store.patch(RESOURCE_SLICES, NAME, other)
    await kept.mended(1)
    assert kept.server.store.find(RESOURCE_SLICES)[0]["metadata"]["labels"] == {"a": "b"}


@pytest.mark.parametrize("version", ["1.34", "1.35"])
async def test_half_a_gpu_never_becomes_a_gpu_for_one_claim(kept: Kept, version: str) -> None:
    """Where the API server drops the fields of shared devices, the scheduler never sees these devices."""
    kept.server.dra.gates = Gates.of(version)
    kept.wanted.publish((shared(0), whole(1)))
    await until(lambda: names(kept.server) == ["gpu-1"] and "DRAConsumableCapacity" in kept.slices.trouble.value)
    assert [[each["name"] for each in found] for found in kept.usable()] == [["gpu-1"]]


async def test_shared_devices_return_with_the_gate(kept: Kept) -> None:
    """They are tried again at times, here with the next change after a minute."""
    kept.server.dra.gates = Gates.of("1.35")
    kept.wanted.publish((shared(),))
    await until(lambda: kept.slices.trouble.value.count("DRAConsumableCapacity"))
    kept.server.dra.gates = Gates.of("1.36")
    kept.now += 60
    await kept.offers(shared())


async def test_a_tainted_gpu_is_withdrawn_where_taints_are_dropped(kept: Kept) -> None:
    """The scheduler never sees the GPU without its taint; the GPU returns when the fault is over."""
    kept.server.dra.gates = Gates.of("1.35")
    await kept.offers(whole(0), whole(1))
    kept.wanted.publish((whole(0), whole(1, taints=(FAULT,))))
    await until(lambda: names(kept.server) == ["gpu-0"] and "DRADeviceTaints" in kept.slices.trouble.value)
    assert [[each["name"] for each in found] for found in kept.usable()] == [["gpu-0", "gpu-1"], ["gpu-0"]]
    kept.wanted.publish((whole(0), whole(1)))
    await until(lambda: names(kept.server) == ["gpu-0", "gpu-1"])


async def test_a_tainted_gpu_is_never_seen_without_its_taint(kept: Kept) -> None:
    """In the same pool as before, with the taint."""
    await kept.offers(shared())
    await kept.offers(shared(taints=(FAULT,)))
    assert [len(found[0].get("taints") or ()) for found in kept.usable()] == [0, 1]


async def test_a_device_that_the_api_server_refuses_is_left_out(kept: Kept) -> None:
    """The others are offered, people read which one and why, and a device that has changed is tried again."""
    bad = shared(1, attributes={"productName": "x" * 65})
    kept.wanted.publish((shared(0), bad, shared(2, name="GPU.2")))
    await until(lambda: names(kept.server) == ["gpu-0"] and "device GPU.2" in kept.slices.trouble.value)
    assert "device gpu-1 is not offered" in kept.slices.trouble.value
    assert "may not be more than 64 bytes" in kept.slices.trouble.value
    await kept.offers(shared(0), shared(1))


async def test_what_is_left_over_of_the_own_node_is_deleted(kept: Kept) -> None:
    """ResourceSlices of other DRA drivers and other nodes stay."""

    def made(name: str, driver: str, node_name: str) -> None:
        pool = {"name": node_name, "generation": 7, "resourceSliceCount": 1}
        spec = {"driver": driver, "nodeName": node_name, "pool": pool, "devices": []}
        kept.server.store.create(RESOURCE_SLICES, {"metadata": {"name": name}, "spec": spec})

    made("old", DRIVER, NODE)
    made("other-driver", "nic.example.com", NODE)
    made("other-node", DRIVER, "gpu-2")
    kept.wanted.publish((shared(),))
    left = {"other-driver", "other-node", NAME}
    await until(lambda: {each["metadata"]["name"] for each in kept.server.store.find(RESOURCE_SLICES)} == left)
    (ours,) = kept.server.store.find(RESOURCE_SLICES, NAME)
    assert ours["spec"]["pool"]["generation"] == 8


async def test_a_node_that_was_made_anew_is_the_owner(kept: Kept) -> None:
    """Otherwise the garbage collector deletes the ResourceSlices; without a Node none are made."""
    kept.nodes.publish(None)
    kept.wanted.publish((shared(),))
    await until(lambda: kept.slices.trouble.value == "")
    assert not kept.specs
    for _ in range(2):
        there = node(kept.server)
        kept.nodes.publish(there)
        await kept.owned_by(there)
    assert kept.specs[0]["pool"]["generation"] == 1


async def test_many_devices_change_together_or_not_at_all(kept: Kept) -> None:
    """More devices than one ResourceSlice has; each generation is complete once all are written."""
    many = [shared(number) for number in range(70)]
    await kept.offers(*many)
    generation = kept.specs[0]["pool"]["generation"]
    await kept.offers(*many[1:])
    assert {each["pool"]["generation"] for each in kept.specs} == {generation + 1}
    await kept.offers(*many[:3])
    assert len(kept.specs) == 1


async def test_a_failing_api_server_is_asked_again(kept: Kept) -> None:
    """What fails is told, with the right that is missing, and is over with the next answer."""
    kept.server.permissions = RIGHTS - {Permission("create", "resourceslices", group=GROUP)}
    kept.wanted.publish((shared(),))
    await until(lambda: "grant list, watch, create, patch and delete" in kept.slices.trouble.value)
    kept.server.permissions = RIGHTS
    await until(kept.settled)
    kept.server.refusals = [Refusal(500, "patch", times=3)]
    await kept.offers(shared(1))


async def test_two_daemons_side_by_side_make_one_set(kept: Kept, tmp_path: Path) -> None:
    """As in a rolling update: the names are the same, so the later one finds its work done."""
    (tmp_path / "second").mkdir()
    async with Client(kept.server.kubeconfig(tmp_path / "second" / "kubeconfig"), QUICK) as client:
        second = ResourceSlices(client, DRIVER, NODE)
        task = asyncio.create_task(second.run(kept.wanted, kept.nodes))
        await kept.offers(shared())
        await until(lambda: second.trouble.value == "")
        assert second.written + kept.slices.written <= 4
        assert (len(kept.specs), second.mended, kept.slices.mended) == (1, 0, 0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


class Webhook(Gates):
    """A webhook of somebody else that changes an attribute of every device."""

    def drop_from_slice(self, new: dict[str, Any], old: dict[str, Any] | None) -> None:
        """Change the attribute."""
        super().drop_from_slice(new, old)
        for device in new["spec"].get("devices") or ():
            device["attributes"]["uuid"] = {"string": "hidden"}


class Chance:
    """Draws what happens to ResourceSlices; the same seed draws the same."""

    def __init__(self, kept: Kept, seed: int) -> None:
        """Draw for `kept`."""
        self._kept = kept
        self._random = random.Random(seed)  # noqa: S311 - no secret
        self._steps = (self._want, self._wipe, self._change, self._turn_gates, self._fail, self._renew_node)

    async def step(self) -> None:
        """Let one thing happen, and some time pass."""
        self._random.choice(self._steps)()
        self._kept.now += self._random.choice((0, 0, 30, 4000))
        await asyncio.sleep(self._random.choice((0, 0, 0.003, 0.03)))

    def settled_later(self) -> bool:
        """Return whether all is as it should be after some more time, by which dropped fields are tried again."""
        self._kept.now += 4000
        self._kept.nodes.publish(self._kept.nodes.value)
        return self._kept.settled()

    def _want(self) -> None:
        wanted = self._random.sample(EVERY_KIND, self._random.randint(0, len(EVERY_KIND)))
        self._kept.wanted.publish(self._random.choice((tuple(wanted), tuple(wanted), None)))

    def _wipe(self) -> None:
        for each in self._kept.server.store.find(RESOURCE_SLICES):
            self._kept.server.store.delete(RESOURCE_SLICES, each["metadata"]["name"])

    def _change(self) -> None:
        for each in self._kept.server.store.find(RESOURCE_SLICES):
            self._kept.server.store.patch(RESOURCE_SLICES, each["metadata"]["name"], {"spec": {"devices": []}})

    def _turn_gates(self) -> None:
        self._kept.server.dra.gates = Gates.of(self._random.choice(("1.35", "1.36")))

    def _fail(self) -> None:
        verb, status = self._random.choice(("create", "patch", "delete")), self._random.choice((0, 409, 500))
        done = self._random.random() < 0.5
        self._kept.server.refusals.append(Refusal(status, verb, times=1, carried_out=done))

    def _renew_node(self) -> None:
        self._kept.nodes.publish(node(self._kept.server))


EVERY_KIND = [shared(0), shared(1), whole(2), whole(3, taints=(FAULT,))]


@pytest.mark.parametrize("seed", range(int(os.environ.get("GPUSHARE_RESOURCE_SLICES_SEEDS", "4"))))
async def test_whatever_happens_the_scheduler_sees_no_gpu_as_it_is_not(kept: Kept, seed: int) -> None:
    """Wipes, changes by people, gates that are turned, failures with and without effect, Nodes made anew.

    At no time can the scheduler use a shared GPU as a GPU for one claim, or a GPU without its taint. In the end, all
    that is wanted is there.
    """
    chance = Chance(kept, seed)
    for _ in range(30):
        await chance.step()
    kept.server.dra.gates = Gates()
    kept.server.refusals.clear()
    kept.wanted.publish(tuple(EVERY_KIND))
    await until(chance.settled_later)
    there: dict[str, Any] = {}
    for kind, change in kept.server.store.since(0, collection(RESOURCE_SLICES), Selector()):
        found = json.loads(change.body)
        there[found["metadata"]["name"]] = found
        if kind == "DELETED":
            del there[found["metadata"]["name"]]
        for each in offered(there.values(), NODE):
            assert each.shared == (each.device["name"] in {"gpu-0", "gpu-1"})
            assert bool(each.device.get("taints")) == (each.device["name"] == "gpu-3")


async def test_what_a_webhook_changes_is_not_written_again(kept: Kept) -> None:
    """It would change it again, without end."""
    kept.server.dra.gates = Webhook()
    await kept.offers(shared())
    written = kept.slices.written
    kept.wanted.publish((shared(),))
    await kept.offers(shared(), shared(1))
    assert kept.slices.written == written + 1
    assert kept.slices.mended == 0
