"""Claims for the tests of the node, and a card of 80 GiB that they share."""

import asyncio
from collections.abc import Iterable, Mapping
from pathlib import Path

from gpushare_plugin.base.structs import Struct
from gpushare_plugin.claims.claim import AllocatedClaim, AllocatedDevice, ClaimRefusedError
from gpushare_plugin.core.grant import Grant, Mount
from gpushare_plugin.core.prepared_claim import ClaimId, ClaimUser, PreparedClaim, PreparedDevice
from gpushare_plugin.node.claims.cdi_files import CdiFiles
from gpushare_plugin.node.claims.preparation import WAIT_FOR_ROOM, Preparation
from gpushare_plugin.node.claims.records import ClaimRecords

DRIVER = "gpu.example.com"
GPU = "GPU-5f4c2a1b-0000-0000-0000-000000000000"
BOOT = "a-boot"
MIB = 1 << 20


def claim_id(name: str) -> ClaimId:
    """Return the ID of a claim of this name."""
    return ClaimId("default", name, f"0000-{name}")


def share(name: str, gib: int) -> AllocatedClaim:
    """Return a claim that is allocated a share of the card."""
    consumed = {"memory": gib * 1024 * MIB}
    device = AllocatedDevice("gpu", "node", "gpu-0", f"share-{name}", consumed)
    return AllocatedClaim(claim_id(name), (device,), (ClaimUser(f"pod-{name}", f"uid-{name}"),))


class Card(Struct, frozen=True):
    """A card that claims share by memory, as `GivenGpus`."""

    gib: int = 80

    def devices(self, claim: AllocatedClaim) -> tuple[PreparedDevice, ...]:
        """Return a device of the card for each device of the claim."""
        return tuple(
            PreparedDevice(
                each.request, each.pool, each.device, GPU, "memory", each.share_id, each.consumed["memory"] // MIB
            )
            for each in claim.devices
        )

    def check(self, claim: PreparedClaim, others: Iterable[PreparedClaim]) -> None:
        """Add up the memory."""
        claims = (claim, *others)
        if sum(device.memory_mib for each in claims for device in each.devices) > self.gib * 1024:
            holders = ", ".join(each.id.label for each in claims[1:])
            raise ClaimRefusedError("no-room", f"claim {claim.id.label}: its memory is held by {holders}")

    def grants(self, claim: AllocatedClaim) -> Mapping[str, Grant]:
        """Return the limit of each request."""
        return {
            each.request: Grant(
                {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"0={each.consumed['memory'] // MIB}M"},
                [Mount("/tmp/nvidia-mps", "/run/gpushare/mps/pipe")],  # noqa: S108 - where CUDA looks
                cdi_devices=[f"nvidia.com/gpu={GPU}"],
            )
            for each in claim.devices
        }

    async def ready(self, claim: PreparedClaim) -> None:
        """Return at once."""


class Claims:
    """The claims of a cluster, and the claims of a node in files below a directory."""

    def __init__(self, folder: Path, *allocated: AllocatedClaim) -> None:
        """Know the `allocated` claims."""
        self.folder = folder
        self.cdi = folder / "cdi"
        self.cdi.mkdir(exist_ok=True)
        self.records = folder / "claims"
        self.allocated = {each.id: each for each in allocated}
        self.asked: list[ClaimId] = []
        self.running: set[str] = set()
        self.answering = asyncio.Event()
        self.answering.set()

    async def find(self, id_: ClaimId) -> AllocatedClaim:
        """Return a claim as the API server has it."""
        self.asked.append(id_)
        await self.answering.wait()
        if id_ not in self.allocated:
            raise ClaimRefusedError("not-found", f"claim {id_.label} does not exist")
        return self.allocated[id_]

    def daemon(self, boot: str = BOOT, wait_for_room: float = WAIT_FOR_ROOM) -> Preparation:
        """Return what a daemon that starts now prepares claims with."""
        kept = ClaimRecords(self.records, boot), CdiFiles(self.cdi, DRIVER)
        runs = self.running.__contains__
        return Preparation(DRIVER, *kept, self.find, Card(), runs, wait_for_room=wait_for_room, wait_for_end=0)

    @property
    def files(self) -> set[str]:
        """The files of claims that exist, hidden files included."""
        both = (*self.cdi.iterdir(), *(self.records.iterdir() if self.records.exists() else ()))
        return {file.name for file in both} - {"lock", "writer"}
