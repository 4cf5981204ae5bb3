"""Whether the limits of claims are in effect, device by device, by a look at the usage of containers."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from gpushare_plugin.core.effect import Effect, worst
from gpushare_plugin.core.prepared_claim import PreparedClaim, PreparedDevice
from gpushare_plugin.core.usage import ContainerUsage


class DeviceShare(NamedTuple):
    """Which device of which claim is meant; a device that is not shared has one claim with a limit at a time."""

    namespace: str
    """The namespace of the claim."""
    device: str
    """The name of the device."""
    share_id: str | None
    """The ID of the share; None for a device that is not shared."""


def share_effects(containers: Iterable[ContainerUsage]) -> Mapping[DeviceShare, Effect]:
    """Return whether the limits of shares are in effect: of several containers with a share, the gravest effect."""
    found: defaultdict[DeviceShare, list[Effect]] = defaultdict(list)
    for each in containers:
        if each.effect is not None:
            for device in each.claimed:
                found[_share(each.namespace, device)].append(each.effect)
    return {share: worst(known) for share, known in found.items()}


def device_effects(claim: PreparedClaim, effects: Mapping[DeviceShare, Effect]) -> tuple[Effect | None, ...]:
    """Return the effect of each device of a claim, in their order; None without a limit, and where none is known."""
    return tuple(
        effects.get(_share(claim.id.namespace, each)) if each.memory_mib and not each.admin_access else None
        for each in claim.devices
    )


def _share(namespace: str, device: PreparedDevice) -> DeviceShare:
    return DeviceShare(namespace, device.device, device.share_id)
