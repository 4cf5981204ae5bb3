"""Records of claims by GPU: a claim is counted beside the claims of its own GPUs, and of no others."""

from pathlib import Path

from gpushare_plugin.core.prepared_claim import PreparedClaim, PreparedDevice
from gpushare_plugin.node.claims.records import ClaimRecords
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
