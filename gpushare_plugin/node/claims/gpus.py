"""The GPUs that belong to claims, as the preparation of claims asks for them, and as devices with taints."""

from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence

from gpushare_plugin.base.memory import MIB
from gpushare_plugin.base.published import Published
from gpushare_plugin.base.structs import replace
from gpushare_plugin.claims.accounts import check_room
from gpushare_plugin.claims.capacities import COMPUTE, MEMORY, SHARES
from gpushare_plugin.claims.claim import AllocatedClaim, AllocatedDevice, ClaimRefusedError
from gpushare_plugin.claims.device import DeviceTaint
from gpushare_plugin.claims.devices import NodeDevices, by_device, node_devices
from gpushare_plugin.claims.grants import grants, held
from gpushare_plugin.core.claimed_gpu import ClaimedGpu
from gpushare_plugin.core.gpu import Gpu
from gpushare_plugin.core.grant import Grant
from gpushare_plugin.core.namespaces import ContainerNamespace
from gpushare_plugin.core.prepared_claim import PreparedClaim, PreparedDevice
from gpushare_plugin.core.snapshot import Cause, Snapshot
from gpushare_plugin.node.claims.given import GivenFile
from gpushare_plugin.node.claims.hand_over import ClaimStanding

TAINTS: Mapping[Cause, str] = {
    "fault": "gpushare/fault",
    "cordon": "gpushare/cordoned",
    "mps": "gpushare/not-served",
    "limits": "gpushare/not-limited",
}
"""The keys of the taints of a device, by the cause for which further pods do not get its GPU."""


UntilMade = Callable[[Sequence[ContainerNamespace]], Awaitable[str]]
"""Waits a while until namespaces exist with their limits; returns why one does not exist, empty when all do."""


async def _unneeded(namespaces: Sequence[ContainerNamespace]) -> str:
    return "no MPS serves claims" if namespaces else ""


class ClaimGpus:
    """The GPUs for which claims are prepared now, as `node.claims.preparation.GivenGpus`."""

    def __init__(self, standing: Published[ClaimStanding], file: GivenFile) -> None:
        """Follow the ledger, and its `file`, which another daemon of the node may have changed."""
        self._standing = standing
        self._file = file
        self.until_made: UntilMade = _unneeded
        """Waits for namespaces of MPS."""
        self.unserved: Mapping[str, str] = {}
        """Why containers cannot have their limits on a GPU now, by UUID."""

    def devices(self, claim: AllocatedClaim) -> tuple[PreparedDevice, ...]:
        """Return what counts of a claim, without CDI devices; raises ClaimRefusedError."""
        if not self._standing.value.known:
            raise ClaimRefusedError(
                "not-served",
                f"claim {claim.id.label}: gpushare has just started and does not know yet which GPUs belong to claims; "
                "the kubelet tries again",
            )
        return held(claim, by_device(self._gpus))

    def check(self, claim: PreparedClaim, claims: Collection[PreparedClaim]) -> None:
        """Raise ClaimRefusedError where a claim does not fit beside the other `claims`, or could have no limit now."""
        given = self._file.read()
        if gone := [each.device for each in claim.devices if each.gpu not in given.gpus]:
            if given.trouble:
                raise ClaimRefusedError("files", f"claim {claim.id.label}: device {gone[0]}: {given.trouble}")
            raise ClaimRefusedError(
                "unknown-device",
                f"claim {claim.id.label}: device {gone[0]} is not given by claim by {self._file.path}: the device "
                "plugin has the GPU now, or somebody removed the file, which is written again. The kubelet tries "
                "again; if that does not help, delete the pod, so that a new pod is scheduled by what the node offers",
            )
        check_room(claim, claims, self._gpus)
        for each in claim.devices:
            if not each.admin_access and (reason := self.unserved.get(each.gpu)):
                raise ClaimRefusedError(
                    "not-served", f"claim {claim.id.label}: GPU {each.gpu} {reason}; the kubelet tries again"
                )

    def grants(self, claim: AllocatedClaim) -> Mapping[str, Grant]:
        """Return what the container of each request gets; raises ClaimRefusedError."""
        return grants(claim, by_device(self._gpus))

    async def ready(self, claim: PreparedClaim) -> None:
        """Wait until the containers of a claim can start; raises ClaimRefusedError."""
        if reason := await self.until_made(claim.namespaces):
            raise ClaimRefusedError("not-served", f"claim {claim.id.label}: {reason}; the kubelet tries again")

    @property
    def _gpus(self) -> Mapping[str, ClaimedGpu]:
        return self._standing.value.claimed


def offered_devices(standing: ClaimStanding, snapshot: Snapshot, prepared: Iterable[PreparedClaim]) -> NodeDevices:
    """Return the devices of the GPUs that further claims can get, with a taint for each cause that closes a GPU."""
    found = node_devices(standing.offered, snapshot.inventory, map(_taken, _devices(prepared)))
    tainted = (replace(each, taints=tuple(_taints(standing.offered[each.gpu].gpu, snapshot))) for each in found.devices)
    return replace(found, devices=tuple(tainted))


def _taints(gpu: Gpu, snapshot: Snapshot) -> Iterator[DeviceTaint]:
    for cause in sorted(snapshot.causes(gpu)):
        yield DeviceTaint(TAINTS[cause], "", "NoSchedule")


def _devices(claims: Iterable[PreparedClaim]) -> Iterator[PreparedDevice]:
    for claim in claims:
        yield from claim.devices


def _taken(device: PreparedDevice) -> AllocatedDevice:
    """Return what a device of a prepared claim takes, as the scheduler counts what claims take."""
    taken = {MEMORY: device.memory_mib * MIB, SHARES: device.shares, COMPUTE: device.percent or 0}
    return AllocatedDevice(
        device.request, device.pool, device.device, device.share_id, taken, admin_access=device.admin_access
    )
