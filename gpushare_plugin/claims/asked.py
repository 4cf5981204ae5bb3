"""What the claims of a pod ask for, and what they have."""

from collections.abc import Collection, Mapping

from gpushare_plugin.base.structs import Struct, field, replace

Place = tuple[str, str, str]
"""A device: the names of the DRA driver, of the pool, which is the name of the node, and of the device."""


class AskedDevice(Struct, frozen=True):
    """A request of a claim, or an alternative of a request."""

    name: str
    """The name; `request/alternative` for an alternative."""
    device_class: str
    """The DeviceClass."""
    amounts: Mapping[str, int] = field(default_factory=dict)
    """What is asked of each capacity: bytes, percent or shares."""
    count: int = 1
    """The number of devices."""
    admin_access: bool = False
    """Whether devices are asked for administration, also devices that are in use."""
    no_class: bool = False
    """Whether there is no such DeviceClass."""


class PodClaim(Struct, frozen=True):
    """A claim of a pod."""

    label: str
    """The name for people."""
    asked: tuple[AskedDevice, ...] = ()
    """The requests."""
    allocated: tuple[Place, ...] | None = None
    """The allocated devices; None before the allocation."""
    gone: tuple[Place, ...] = ()
    """The allocated devices that no ResourceSlice has."""
    unknown: str = ""
    """Why the claim is not known, for people; empty where it is."""

    def among(self, classes: Collection[str]) -> "PodClaim":
        """Return the claim of which each request says whether its DeviceClass is missing in `classes`."""
        return replace(
            self, asked=tuple(replace(each, no_class=each.device_class not in classes) for each in self.asked)
        )
