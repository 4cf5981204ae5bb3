"""Records of claims: counted by GPU, and read again by the daemon beside when their files have changed."""

import os
import time
from pathlib import Path

import pytest

from gpushare_plugin.core.prepared_claim import PreparedClaim, PreparedDevice
from gpushare_plugin.node.claims.records import TRUSTED_AFTER, ClaimRecords
from tests.unit.node.claims.claims import BOOT, claim_id


def on(name: str, *gpus: str) -> PreparedClaim:
    """Return a claim with a device of each of these GPUs."""
    devices = [PreparedDevice("gpu", "node", gpu.lower(), gpu, "memory", memory_mib=1024) for gpu in gpus]
    return PreparedClaim(claim_id(name), tuple(devices))


def names(records: ClaimRecords, *gpus: str) -> list[str]:
    """Return the names of the claims beside a claim of these GPUs."""
    return sorted(each.id.name for each in records.beside(on("new", *gpus)))


async def test_a_claim_is_beside_the_claims_of_its_gpus_alone(tmp_path: Path) -> None:
    """Also after a claim was written again with another GPU, after a removal, and as another daemon reads the files."""
    records, others = ClaimRecords(tmp_path, BOOT), ClaimRecords(tmp_path, BOOT)
    async with records.exclusive():
        for claim in (on("a", "GPU-A"), on("b", "GPU-B"), on("both", "GPU-A", "GPU-B"), on("moved", "GPU-A")):
            records.write(claim, None)
    async with records.exclusive():
        records.write(on("moved", "GPU-C"), None)
        records.remove(claim_id("b").uid)
    async with others.exclusive():
        pass
    for each in (records, others):
        assert names(each, "GPU-A") == ["a", "both"]
        assert names(each, "GPU-A", "GPU-B") == ["a", "both"]
        assert names(each, "GPU-C") == ["moved"]
        assert names(each, "GPU-D") == []


async def look(records: ClaimRecords) -> dict[str, int]:
    """Return the memory of each claim that a daemon knows once it has looked, by name."""
    async with records.exclusive():
        return {each.claim.id.name: each.claim.devices[0].memory_mib for each in records.claims.values()}


async def test_a_daemon_beside_another_reads_only_what_has_changed(tmp_path: Path) -> None:
    """A record whose file is as it was is not read again, however often the other daemon changes other records."""
    records, others = ClaimRecords(tmp_path, BOOT), ClaimRecords(tmp_path, BOOT)
    async with records.exclusive():
        records.write(on("a", "GPU-A"), None)
        records.write(on("b", "GPU-B"), None)
    for name in "ab":
        os.utime(tmp_path / f"{claim_id(name).uid}.json", (0, 0))
    assert await look(others) == {"a": 1024, "b": 1024}
    for name in "ab":
        file = tmp_path / f"{claim_id(name).uid}.json"
        file.write_text(file.read_text().replace("1024", "2048"))
    os.utime(tmp_path / f"{claim_id('a').uid}.json", (0, 0))
    async with records.exclusive():
        records.write(on("c", "GPU-C"), None)
    assert await look(others) == {"a": 1024, "b": 2048, "c": 1024}


@pytest.mark.parametrize("age", [0.0, 2 * TRUSTED_AFTER])
async def test_what_became_of_each_record_is_seen(tmp_path: Path, age: float) -> None:
    """A record that was written again, damaged, or removed, whether or not its file is old."""
    records, others = ClaimRecords(tmp_path, BOOT), ClaimRecords(tmp_path, BOOT)
    async with records.exclusive():
        for name in ("again", "damaged", "removed", "stays"):
            records.write(on(name, "GPU-A"), None)
    for name in ("again", "damaged", "removed", "stays"):
        os.utime(tmp_path / f"{claim_id(name).uid}.json", (time.time() - age,) * 2)
    assert names(others, "GPU-A") == []
    await look(others)
    async with records.exclusive():
        records.write(on("again", "GPU-B"), None)
        records.remove(claim_id("removed").uid)
        (tmp_path / f"{claim_id('damaged').uid}.json").write_text("{")
    await look(others)
    assert (names(others, "GPU-A"), names(others, "GPU-B")) == (["stays"], ["again"])
    assert others.unreadable.keys() == {claim_id("damaged").uid}
