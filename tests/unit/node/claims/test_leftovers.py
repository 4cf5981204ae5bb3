"""Claims that nobody has any more are forgotten, and no claim that somebody may have."""

import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from gpushare_plugin.base.structs import replace
from gpushare_plugin.claims.claim import AllocatedClaim
from gpushare_plugin.core.prepared_claim import ClaimUser
from gpushare_plugin.kubelet.api import dra_v1_pb2
from gpushare_plugin.kubelet.claim_files import RECORD_VERSION
from gpushare_plugin.node.claims.cdi_files import CdiFiles
from gpushare_plugin.node.claims.leftovers import LEFT_SECONDS, LOOK_AGAIN, LOOK_EVERY, Leftovers
from gpushare_plugin.node.claims.preparation import Preparation
from gpushare_plugin.node.claims.records import ClaimRecords
from tests.logs import logged
from tests.unit.node.claims.claims import BOOT, DRIVER, Card, Claims, claim_id, share
from tests.unit.testing.dra.node import dra_node

FIRST = claim_id("first")


class Node:
    """A daemon that looks for leftovers, with a clock of its own."""

    def __init__(self, folder: Path, socket: Path) -> None:
        """Know one claim."""
        folder.mkdir()
        self.claims = Claims(folder, share("first", 10))
        self.records, files = ClaimRecords(self.claims.records, BOOT), CdiFiles(self.claims.cdi, DRIVER)
        runs = self.claims.running.__contains__
        self.preparation = Preparation(DRIVER, self.records, files, self.claims.find, Card(), runs, wait_for_end=0)
        self.leftovers = Leftovers(DRIVER, self.preparation, self.records, files, self._allocated, socket)
        self.now = 0.0

    async def _allocated(self) -> Iterable[AllocatedClaim]:
        return self.claims.allocated.values()

    async def look(self, after: float) -> float:
        """Look some seconds later; return when to look again."""
        self.now += after
        return await self.leftovers.look(lambda: self.now)


@pytest.mark.parametrize("left", ["all", "the record", "the CDI file"])
async def test_what_nobody_has_goes_after_a_while(short_path: Path, left: str) -> None:
    """A claim that is not allocated, and in no container; whatever there is of it."""
    async with dra_node(short_path) as kubelet:
        node = Node(short_path / "node", kubelet.kubelet.pod_resources_socket)
        await node.preparation.prepare([FIRST])
        await node.look(10 * LEFT_SECONDS)
        await node.look(10 * LEFT_SECONDS)
        assert len(node.claims.files) == 2, "the claim is allocated"
        node.claims.allocated.clear()
        if left == "the record":
            next(node.claims.cdi.iterdir()).unlink()
        if left == "the CDI file":
            (node.claims.records / f"{FIRST.uid}.json").unlink()
            (node.claims.records / "writer").unlink()
            await node.preparation.look()
        await node.look(0)
        await node.look(LEFT_SECONDS - 1)
        assert node.claims.files
        await node.look(1)
        assert node.claims.files == set()
        assert node.preparation.prepared.value == ()


async def test_a_claim_in_a_container_is_kept(short_path: Path) -> None:
    """A claim that was deallocated by force is in use as long as the kubelet shows the claim in a container."""

    def devices(uid: str) -> list[dra_v1_pb2.Device]:
        name = f"{DRIVER}/claim={FIRST.uid}-gpu"
        return [dra_v1_pb2.Device(pool_name="node", device_name=uid, cdi_device_ids=[name])]

    async with dra_node(short_path) as kubelet:
        kubelet.driver.devices = devices
        await kubelet.register()
        pod = kubelet.pod("first")
        await kubelet.kubelet.admit(pod)
        node = Node(short_path / "node", kubelet.kubelet.pod_resources_socket)
        await node.preparation.prepare([FIRST])
        node.claims.allocated.clear()
        await node.look(0)
        await node.look(10 * LEFT_SECONDS)
        assert len(node.claims.files) == 2
        await kubelet.kubelet.end(pod)
        await kubelet.driver.stop()
        await node.look(0)
        await node.look(LEFT_SECONDS)
        assert node.claims.files == set()


async def test_without_an_answer_of_the_kubelet_nothing_is_forgotten(short_path: Path) -> None:
    """A claim may be in a container that nobody shows."""
    node = Node(short_path / "node", short_path / "no.sock")
    await node.preparation.prepare([FIRST])
    node.claims.allocated.clear()
    await node.look(0)
    await node.look(10 * LEFT_SECONDS)
    assert len(node.claims.files) == 2


async def test_a_damaged_record_of_an_allocated_claim_is_written_anew(short_path: Path) -> None:
    """What the claim holds is known again, with the pods that use the claim, before anybody takes that."""
    async with dra_node(short_path) as kubelet:
        node = Node(short_path / "node", kubelet.kubelet.pod_resources_socket)
        await node.preparation.prepare([FIRST])
        before = node.preparation.prepared.value
        (node.claims.records / f"{FIRST.uid}.json").write_text("{")
        (node.claims.records / "writer").unlink()
        await node.preparation.look()
        assert node.preparation.prepared.value == ()
        await node.look(0)
        assert node.preparation.prepared.value == before


async def test_a_record_of_a_newer_version_counts_until_nobody_has_the_claim(short_path: Path) -> None:
    """The record itself stays for the newer version."""
    async with dra_node(short_path) as kubelet:
        node = Node(short_path / "node", kubelet.kubelet.pod_resources_socket)
        await node.preparation.prepare([FIRST])
        record = node.claims.records / f"{FIRST.uid}.json"
        record.write_text(json.dumps(json.loads(record.read_text()) | {"version": RECORD_VERSION + 1}))
        (node.claims.records / "writer").unlink()
        await node.preparation.look()
        node.claims.allocated.clear()
        files = node.claims.files
        await node.look(0)
        assert node.records.unreadable
        await node.look(LEFT_SECONDS)
        assert (dict(node.records.unreadable), node.claims.files) == ({}, files)


async def test_a_damaged_record_is_kept_while_its_pods_run_and_the_log_says_so(short_path: Path) -> None:
    """Its pod was deleted by force while no daemon ran: no kubelet and no API server knows the claim any more."""
    pod = "11111111-2222-3333-4444-555555555555"
    async with dra_node(short_path) as kubelet:
        node = Node(short_path / "node", kubelet.kubelet.pod_resources_socket)
        node.claims.allocated[FIRST] = replace(share("first", 10), users=(ClaimUser("pod", pod),))
        await node.preparation.prepare([FIRST])
        record = node.claims.records / f"{FIRST.uid}.json"
        record.write_text(record.read_text().partition(pod)[0] + pod)
        (node.claims.records / "writer").unlink()
        await node.preparation.look()
        node.claims.allocated.clear()
        node.claims.running.add(pod)
        await node.look(0)
        with logged() as log:
            await node.look(LEFT_SECONDS)
        (told,) = [each for each in log if each["event"] == "claim_kept"]
        assert pod in told["reason"]
        assert node.records.unreadable
        node.claims.running.clear()
        await node.look(LOOK_EVERY)
        assert node.claims.files == set()


async def test_the_claims_of_the_cluster_are_listed_less_and_less_often(short_path: Path) -> None:
    """Processes of a pod that nobody has any more can run for days, and every look lists the claims of the cluster."""
    async with dra_node(short_path) as kubelet:
        node = Node(short_path / "node", kubelet.kubelet.pod_resources_socket)
        await node.preparation.prepare([FIRST])
        assert await node.look(0) == LOOK_EVERY
        node.claims.allocated.clear()
        node.claims.running.add("uid-first")
        pauses = [await node.look(LOOK_AGAIN) for _ in range(8)]
        assert pauses == [LOOK_AGAIN * factor for factor in (1, 2, 4, 8, 16, 30, 30, 30)]
        node.claims.running.clear()
        assert await node.look(LOOK_EVERY) == LOOK_EVERY
        assert node.claims.files == set()
