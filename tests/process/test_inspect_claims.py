"""`gpushare inspect` of GPUs that are given by claim, as people run it: with a kubeconfig, against an API server."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gpushare_plugin.core.snapshot import Snapshot
from gpushare_plugin.kube.client import NODES
from gpushare_plugin.ledger.node_record import GPUS_ANNOTATION, encode, record
from gpushare_plugin.testing.cluster import ApiServer, Permission
from gpushare_plugin.testing.cluster.server import Refusal
from tests.process.daemon import Finished, gpushare
from tests.unit.claims.node import DRIVER, NODE, ClaimNode
from tests.unit.sharing.settings import memory
from tests.waiting import PATIENCE

API = "/apis/resource.k8s.io/v1"
SLICES = f"{API}/resourceslices"
CLAIMS = f"{API}/namespaces/team/resourceclaims"
SHARE = "4f2c2a1b-1111-4222-8333-0123456789ab"

NODES_AND_PODS = (Permission("list", "nodes"), Permission("list", "pods"))


def claim(node: ClaimNode, name: str, size: str) -> dict[str, Any]:
    """Return a claim with a share of the first GPU, which the node has prepared."""
    consumed = {**dict.fromkeys(node.device().capacities, "1"), "memory": size, "compute": "0"}
    identity = {"driver": DRIVER, "pool": NODE, "device": node.device().name, "shareID": SHARE}
    result = {"request": "gpu", **identity, "consumedCapacity": consumed}
    condition = {"type": "LimitInEffect", "status": "True", "reason": "InEffect", "message": "in effect"}
    data = {"uuid": node.device().gpu, "isolation": "mps", "limit": {"memory": size}}
    return {
        "metadata": {"name": name, "namespace": "team"},
        "status": {
            "allocation": {"devices": {"results": [result]}},
            "reservedFor": [{"resource": "pods", "name": "trainer", "uid": "uid"}],
            "devices": [{**identity, "data": data, "conditions": [condition]}],
        },
    }


@pytest.fixture
def node() -> ClaimNode:
    """Return a node that gives its four GPUs by claim."""
    return ClaimNode(sharing=memory(unit="GiB", isolation="mps"))


@pytest.fixture
async def server(node: ClaimNode) -> AsyncIterator[ApiServer]:
    """Run an API server with the node, and a claim that has a share."""
    async with ApiServer() as started:
        told = encode(record(Snapshot(node.inventory, node.plan.resources, by_claim=node.plan.by_claim)))
        started.store.create(NODES, {"metadata": {"name": NODE, "annotations": {GPUS_ANNOTATION: told}}, "status": {}})
        started.store.create(SLICES, {**node.resource_slice, "metadata": {"name": "a"}})
        started.store.create(CLAIMS, claim(node, "share", "10Gi"))
        yield started


async def inspect(server: ApiServer, folder: Path, *more: str) -> Finished:
    """Return what is shown."""
    environment = {"KUBECONFIG": str(server.kubeconfig(folder / "config"))}
    done = await gpushare("inspect", *more, environment=environment)
    assert (done.status, done.errors) == (0, "")
    return done


@pytest.mark.parametrize("more", [(), ("-d",), ("-o", "wide"), (NODE,)])
async def test_claims_stand_beside_the_gpus(server: ApiServer, tmp_path: Path, more: tuple[str, ...]) -> None:
    """In each table: the claim with its pods, the GPU, the memory, the limit, and whether that is in effect."""
    lines = [line.split("  ") for line in (await inspect(server, tmp_path, *more)).output.splitlines()]
    rows = [[cell.strip() for cell in line if cell.strip()] for line in lines]
    header = rows.index(["GPUs and shares by claim:"]) + 1
    assert dict(zip(rows[header], rows[header + 1], strict=True)) == {
        "NAME": NODE,
        "GPU": "0",
        "NAMESPACE": "team",
        "CLAIM": "share",
        "REQUEST": "gpu",
        "PODS": "trainer",
        "MEMORY": "10240 MiB",
        "SHARES": "1",
        "COMPUTE": "-",
        "LIMIT": "mps (10240 MiB)",
        "STATE": "prepared",
        "LIMIT IS": "in effect",
    }


async def test_json_has_the_gpus_by_claim_beside_the_resources(server: ApiServer, tmp_path: Path) -> None:
    """The fields that readers know stay: the GPUs are in no resource, and given by claim."""
    (node,) = json.loads((await inspect(server, tmp_path, "-o", "json")).output)["nodes"]
    assert (node["resources"], [gpu["byClaim"] for gpu in node["notOffered"]]) == ([], [True] * 4)
    (use,) = node["givenByClaim"]
    gpus = [(gpu["index"], gpu["units"], gpu["allocated"], gpu["free"]) for gpu in use["gpus"]]
    assert (use["resource"], use["unit"]) == (DRIVER, "MiB")
    assert gpus == [(0, 40960, 10240, 30720), *((number, 40960, 0, 40960) for number in (1, 2, 3))]
    (found,) = use["gpus"][0]["claims"]
    assert (found["pods"], found["memoryLimitMiB"], found["limitEffect"]["state"]) == (["trainer"], 10240, "in effect")


async def test_nobody_asks_for_claims_where_no_node_gives_gpus_by_claim(server: ApiServer, tmp_path: Path) -> None:
    """No right is missed, and no time lost."""
    server.store.patch(NODES, NODE, {"metadata": {"annotations": {GPUS_ANNOTATION: None}}})
    await inspect(server, tmp_path)
    assert {asked.resource for asked in server.asked} == {"nodes", "pods"}


async def test_what_may_not_be_read_is_one_line(server: ApiServer, tmp_path: Path) -> None:
    """And everything else is shown, also where the API server has no such API."""
    server.permissions = NODES_AND_PODS
    (line,) = [line for line in (await inspect(server, tmp_path)).output.splitlines() if line.startswith("Claims")]
    assert line == (
        "Claims are not shown: this needs the right to list resourceclaims and resourceslices of resource.k8s.io in "
        "the whole cluster: see the ClusterRole in docs/inspect.md"
    )
    data = json.loads((await inspect(server, tmp_path, "-o", "json")).output)
    assert (data["claimsUnknown"], data["nodes"][0]["givenByClaim"]) == (
        line.removeprefix("Claims are not shown: "),
        [],
    )
    server.permissions = None
    server.refusals = [Refusal(404, resource=name) for name in ("resourceslices", "resourceclaims")]
    assert ("Claims are not shown: the API server has no resource.k8s.io/v1, which Kubernetes has from 1.34 on") in (
        await inspect(server, tmp_path)
    ).output


async def test_a_list_of_claims_that_expires_is_read_again(server: ApiServer, tmp_path: Path) -> None:
    """As lists of nodes and pods are; another failure is told, because half of what is so would mislead."""
    server.refusals.append(Refusal(410, verb="list", resource="resourceclaims", times=1))
    assert "10240/40960" in (await inspect(server, tmp_path)).output
    server.refusals = [Refusal(500, resource="resourceclaims")]
    done = await gpushare("inspect", environment={"KUBECONFIG": str(tmp_path / "config")})
    assert (done.status, done.output) == (1, "")
    assert "500: refused with 500" in done.errors


async def test_a_claim_that_makes_no_sense_is_named_and_left_out(
    server: ApiServer, node: ClaimNode, tmp_path: Path
) -> None:
    """One broken object hides no other; what others wrote into a status is theirs."""
    server.store.create(CLAIMS, claim(node, "broken", "much"))
    foreign = claim(node, "foreign", "1Gi")
    foreign["status"]["devices"][0]["data"] = {"text": "\x1b[2J"}
    server.store.create(CLAIMS, foreign)
    done = await gpushare("inspect", environment={"KUBECONFIG": str(server.kubeconfig(tmp_path / "config"))})
    assert "11264/40960" in done.output
    assert "team/broken" in done.errors


async def test_watch_shows_claims_that_come_and_go(server: ApiServer, node: ClaimNode, tmp_path: Path) -> None:
    """One JSON document a line for each state, as for pods; a right that is taken away is said."""
    command = (sys.executable, "-m", "gpushare_plugin", "inspect", "--watch", "-o", "json")
    environment = {**os.environ, "KUBECONFIG": str(server.kubeconfig(tmp_path / "config"))}
    process = await asyncio.create_subprocess_exec(
        *command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(PATIENCE):
            assert allocated(await process.stdout.readline()) == 10240
            server.store.create(CLAIMS, claim(node, "second", "4Gi"))
            assert allocated(await process.stdout.readline()) == 14336
            server.store.delete(CLAIMS, "share")
            assert allocated(await process.stdout.readline()) == 4096
            server.store.delete(SLICES, "a")
            assert json.loads(await process.stdout.readline())["nodes"][0]["givenByClaim"] == []
            process.terminate()
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_watch_goes_on_without_the_right_to_follow_claims(server: ApiServer, tmp_path: Path) -> None:
    """It says what is missing, and shows units."""
    server.permissions = [*NODES_AND_PODS, Permission("watch", "nodes"), Permission("watch", "pods")]
    command = (sys.executable, "-m", "gpushare_plugin", "inspect", "--watch", "-o", "json")
    environment = {**os.environ, "KUBECONFIG": str(server.kubeconfig(tmp_path / "config"))}
    process = await asyncio.create_subprocess_exec(
        *command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(PATIENCE):
            said = json.loads(await process.stdout.readline())["claimsUnknown"]
        assert said.startswith("this needs the right to list and watch resourceclaims")
    finally:
        process.kill()
        await process.wait()


def allocated(line: bytes) -> int:
    """Return the MiB that claims have on the node."""
    (node,) = json.loads(line)["nodes"]
    return sum(gpu["allocated"] for use in node["givenByClaim"] for gpu in use["gpus"])
