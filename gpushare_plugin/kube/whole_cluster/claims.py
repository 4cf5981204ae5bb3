"""Reads or follows the ResourceSlices and ResourceClaims of a cluster, for people."""

from collections.abc import Iterator

from gpushare_plugin.claims.cluster import HeldByClaim, OfferedDevices
from gpushare_plugin.core.prepared_claim import ClaimId
from gpushare_plugin.kube.dra.claims import allocated_device, users
from gpushare_plugin.kube.dra.device_status import key, status_of
from gpushare_plugin.kube.dra.devices import device_of
from gpushare_plugin.kube.dra.objects import ApiClaim, ApiResourceSlice

_OURS = frozenset({"way", "isolation"})
"""The attributes that devices of gpushare have, whatever the name of the DRA driver is."""


def offered_devices(found: ApiResourceSlice) -> OfferedDevices:
    """Return the GPUs in a ResourceSlice that gpushare gives by claim; raises QuantityError."""
    spec = found.spec
    devices = tuple(device_of(each) for each in spec.devices if each.attributes.keys() >= _OURS)
    return OfferedDevices(spec.driver, spec.pool.name, spec.pool.generation, devices)


def held_by(claim: ApiClaim) -> Iterator[HeldByClaim]:
    """Yield what a claim was allocated of each device, of all DRA drivers; raises QuantityError."""
    if claim.status.allocation is None:
        return
    metadata, statuses = claim.metadata, {key(each): each for each in claim.status.devices}
    for each in claim.status.allocation.devices.results:
        status = statuses.get((each.driver, each.pool, each.device, each.share_id))
        yield HeldByClaim(
            each.driver,
            ClaimId(metadata.namespace, metadata.name, metadata.uid),
            allocated_device(each),
            users(claim),
            None if status is None else status_of(status),
        )
