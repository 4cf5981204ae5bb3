"""The interface to what prepares claims, and knows the health of devices."""

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

from gpushare_plugin.base.published import Published
from gpushare_plugin.base.structs import Struct
from gpushare_plugin.core.prepared_claim import ClaimId, PreparedDevice


class DeviceHealth(Struct, frozen=True):
    """The health of a device, which the kubelet shows in the status of the pods that have the device."""

    pool: str
    """The name of the pool."""
    device: str
    """The name of the device."""
    health: Literal["Healthy", "Unhealthy", "Unknown"]
    """The health in the words of Kubernetes."""
    message: str = ""
    """The reason in words; the kubelet shows the first 1024 bytes."""


class ClaimService(Protocol):
    """Prepares claims for the containers of pods.

    Calls for different pods come at the same time, and a claim may come again at any time. The kubelet waits for 45 s
    for an answer, and tries again after about a minute. Namespaces, names and UIDs have the form of Kubernetes', so
    they can be a part of paths. A GpushareError of a call counts for each claim of the call.
    """

    async def prepare(self, ids: Sequence[ClaimId]) -> Mapping[str, tuple[PreparedDevice, ...] | str]:
        """Prepare all claims of a pod; return, by UID, the devices of each claim, or why the claim is not prepared.

        The pod shows the reason to people. Claims with a UID that is already prepared get the same answer again.
        """
        ...

    async def unprepare(self, ids: Sequence[ClaimId]) -> Mapping[str, str]:
        """Give back what claims were prepared with, if anything; return, by UID, why a claim is not given back.

        The reason is empty, or left out, for a claim that is given back.
        """
        ...

    @property
    def health(self) -> Published[tuple[DeviceHealth, ...]]:
        """The health of all devices."""
        ...
