"""What a node says of a device that is allocated to a claim, for people who read the claim."""

from gpushare_plugin.base.structs import Struct
from gpushare_plugin.core.effect import Effect


class DeviceStatus(Struct, frozen=True):
    """What a claim got of one device, and whether the limit is in effect."""

    pool: str
    """The name of the pool."""
    device: str
    """The name of the device."""
    gpu: str
    """The UUID of the GPU."""
    share_id: str | None = None
    """The ID of the share; None for a device that is not shared."""
    memory_mib: int | None = None
    """The limit of memory in MiB; None without one."""
    percent: int | None = None
    """The limit of compute in percent of the GPU; None without one."""
    isolation: str = "none"
    """What keeps the containers of the claim within the limit, as configs name it."""
    effect: Effect | None = None
    """Whether the limit is in effect; None where there is no limit, and while that is not known."""
