"""What claims were prepared with on a node: what counts on each GPU, what containers got, what the kubelet is answered.

Source: `ResourceClaim` in kubernetes, staging/src/k8s.io/api/resource/v1/types.go (1.36).
"""

from collections.abc import Mapping
from typing import NamedTuple

from gpushare_plugin.base.structs import Struct, field
from gpushare_plugin.core.namespaces import ContainerNamespace


class ClaimId(NamedTuple):
    """Which ResourceClaim is meant: all that the kubelet tells of a claim."""

    namespace: str
    """The namespace."""
    name: str
    """The name."""
    uid: str
    """The UID, which a claim of the same name made later does not have."""

    @property
    def label(self) -> str:
        """The name for people: `namespace/name`."""
        return f"{self.namespace}/{self.name}"


class ClaimUser(NamedTuple):
    """A pod that a claim is reserved for."""

    name: str
    """The name of the pod."""
    uid: str
    """The UID of the pod."""


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
    environment: Mapping[str, str] = field(default_factory=dict)
    """The variables of the container that matter for its limits, as the CDI specification of the claim sets them."""
    namespace: str = ""
    """The MPS namespace of the containers of the request; empty where they have none."""


class PreparedClaim(Struct, frozen=True):
    """A claim that is prepared, or about to be."""

    id: ClaimId
    """Which claim."""
    devices: tuple[PreparedDevice, ...]
    """The devices."""
    namespaces: tuple[ContainerNamespace, ...] = ()
    """The namespaces of MPS that the containers of the claim need."""
    done: bool = True
    """Whether everything that the claim needs was written; False if the daemon ended before."""
    users: tuple[ClaimUser, ...] = ()
    """The pods for which the claim was reserved when the API server was asked last; later pods may not be known yet."""
