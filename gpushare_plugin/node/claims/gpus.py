"""The GPUs that belong to claims, as the preparation of claims asks for them, and as devices with taints."""

from collections.abc import Iterable, Iterator, Mapping

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
from gpushare_plugin.core.prepared_claim import PreparedClaim, PreparedDevice
from gpushare_plugin.core.snapshot import Cause, Snapshot
from gpushare_plugin.node.claims.hand_over import ClaimStanding

TAINTS: Mapping[Cause, str] = {
    "fault": "gpushare/fault",
    "cordon": "gpushare/cordoned",
    "mps": "gpushare/not-served",
    "limits": "gpushare/not-limited",
}
"""The keys of the taints of a device, by the cause for which further pods do not get its GPU."""


class ClaimGpus:
    """The GPUs for which claims are prepared now, as `node.claims.preparation.GivenGpus`."""

    def __init__(self, standing: Published[ClaimStanding]) -> None:
        """Follow the ledger."""
        self._standing = standing
        self.unserved: Mapping[str, str] = {}
        """Why containers cannot have their limits on a GPU now, by UUID."""

    def devices(self, claim: AllocatedClaim) -> tuple[PreparedDevice, ...]:
        """Return what counts of a claim, without CDI devices; raises ClaimRefusedError."""
        return held(claim, by_device(self._gpus))

    def check(self, claim: PreparedClaim, others: Iterable[PreparedClaim]) -> None:
        """Raise ClaimRefusedError where a claim does not fit beside `others`, or could have no limit now."""
        check_room(claim, others, self._gpus)
        for each in claim.devices:
            if not each.admin_access and (reason := self.unserved.get(each.gpu)):
                raise ClaimRefusedError(
                    "not-served", f"claim {claim.id.label}: GPU {each.gpu} {reason}; the kubelet tries again"
                )

    def grants(self, claim: AllocatedClaim) -> Mapping[str, Grant]:
        """Return what the container of each request gets; raises ClaimRefusedError."""
        return grants(claim, by_device(self._gpus))

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
