"""What claims were prepared with on a node: what counts on each GPU, and what the kubelet is answered."""

from gpushare_plugin.base.structs import Struct
from gpushare_plugin.claims.claim import ClaimId


class PreparedDevice(Struct, frozen=True):
    """A device of a prepared claim."""

    request: str
    """The name of the request in the claim, without the alternative."""
    pool: str
    """The name of the pool."""
    device: str
    """The name of the device."""
    gpu: str
    """The UUID of the GPU."""
    way: str
    """The way in which the GPU was shared when the claim was prepared."""
    share_id: str | None = None
    """The ID of the share; None for a device that is not shared."""
    memory_mib: int = 0
    """The memory in MiB that counts against the GPU; all of it for a whole GPU, 0 for access for administration."""
    shares: int = 0
    """The shares that count against the GPU; 0 where shares do not count."""
    percent: int | None = None
    """The compute in percent of the GPU that counts against the GPU; None where compute does not count."""
    admin_access: bool = False
    """Whether the claim has the device for administration: then nothing counts."""
    cdi_devices: tuple[str, ...] = ()
    """The fully qualified names of the CDI devices of the container."""
    isolation: str = "none"
    """The name of the isolation that keeps the container within its share."""


class PreparedClaim(Struct, frozen=True):
    """A claim that is prepared, or about to be."""

    id: ClaimId
    """Which claim."""
    devices: tuple[PreparedDevice, ...]
    """The devices."""
    done: bool = True
    """Whether everything that the claim needs was written; False if the daemon ended before."""
