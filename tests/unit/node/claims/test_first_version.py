"""The files of the first version of claims, as a daemon of that version wrote them, are read by every later daemon.

The files in `first_version` are never written again: a change that cannot read them needs a new version of the files.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from gpushare_plugin.core.namespaces import ContainerNamespace
from gpushare_plugin.core.prepared_claim import ClaimId, ClaimUser, PreparedClaim, PreparedDevice
from gpushare_plugin.node.claims.given import ClaimSharing, GivenFile
from gpushare_plugin.node.claims.records import ClaimRecords

FILES = Path(__file__).parent / "first_version"
UID, BOOT = "uid-1", "a-boot"
RECORD = f"claims/{UID}.json"
CLAIM = PreparedClaim(
    ClaimId("default", "share", UID),
    (
        PreparedDevice(
            request="gpu",
            pool="node",
            device="gpu-0",
            gpu="GPU-0",
            way="memory",
            share_id="share-1",
            memory_mib=10240,
            shares=1,
            percent=12,
            cdi_devices=("gpu.example.com/claim=uid-1-gpu", "nvidia.com/gpu=GPU-0"),
            isolation="mps",
            environment={"CUDA_VISIBLE_DEVICES": "GPU-0"},
            namespace="c_0011223344556677",
        ),
    ),
    (ContainerNamespace("c_0011223344556677", 10240, 12),),
    users=(ClaimUser("pod", "pod-uid"),),
)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Return a directory of a DRA driver with the files."""
    return Path(shutil.copytree(FILES, tmp_path / "driver"))


async def records(directory: Path) -> ClaimRecords:
    """Return the records in a directory, as a daemon reads them."""
    found = ClaimRecords(directory / "claims", BOOT)
    async with found.exclusive():
        return found


def extended(content: dict[str, Any]) -> dict[str, Any]:
    """Return an object of JSON with a field that the first version does not know."""
    return {**content, "ofALaterBuild": [1]}


async def test_a_record_of_the_first_version_is_read_whole(directory: Path) -> None:
    """Nothing of the claim is lost, and its CDI specification is as it was."""
    found = await records(directory)
    assert found.unreadable == {}
    assert found.claims[UID].claim == CLAIM
    assert found.claims[UID].cdi == json.loads((directory / RECORD).read_text())["cdi"]


async def test_a_record_is_written_as_the_first_version_reads_it(directory: Path) -> None:
    """No field of the first version has gone, or has another meaning; so an update can be rolled back."""
    before = json.loads((directory / RECORD).read_text())
    found = await records(directory)
    async with found.exclusive():
        found.write(CLAIM, before["cdi"])
    after = json.loads((directory / RECORD).read_text())
    assert {name: after[name] for name in before} == before


async def test_fields_of_a_later_build_cost_no_claim(directory: Path) -> None:
    """A build that adds fields, and keeps the meaning of the others, keeps the version."""
    file = directory / RECORD
    content = json.loads(file.read_text())
    claim = content["claim"]
    claim["devices"] = [*map(extended, claim["devices"])]
    file.write_text(json.dumps(extended({**content, "claim": extended(claim)})))
    found = await records(directory)
    assert found.unreadable == {}
    assert found.claims[UID].claim == CLAIM


@pytest.mark.parametrize("later", [False, True])
def test_the_gpus_that_belong_to_claims_are_read(directory: Path, *, later: bool) -> None:
    """A daemon that starts knows how claims share each GPU, also by a file of a later build with more fields."""
    file = GivenFile(directory)
    if later:
        content = json.loads(file.path.read_text())
        gpus = {uuid: extended(each) for uuid, each in content["gpus"].items()}
        file.path.write_text(json.dumps(extended({**content, "gpus": gpus})))
    assert file.read().gpus == {"GPU-0": ClaimSharing("memory", "mps")}
