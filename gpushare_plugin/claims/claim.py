"""An allocated ResourceClaim, as far as one DRA driver on one node is concerned.

Source: `ResourceClaim` in kubernetes, staging/src/k8s.io/api/resource/v1/types.go (1.36).
"""

from collections.abc import Mapping
from typing import Literal

from gpushare_plugin.base.errors import GpushareError
from gpushare_plugin.base.structs import Struct, field
from gpushare_plugin.core.prepared_claim import ClaimId, ClaimUser


class AllocatedDevice(Struct, frozen=True):
    """What a claim was allocated of one device of this driver and node."""

    request: str
    """The name of the request in the claim; `request/alternative` where the request has alternatives."""
    pool: str
    """The name of the pool."""
    device: str
    """The name of the device."""
    share_id: str | None = None
    """The ID of the share of a shared device; None for a device that is not shared."""
    consumed: Mapping[str, int] = field(default_factory=dict)
    """What the share takes of every capacity of the device: bytes, percent, or shares."""
    admin_access: bool = False
    """Whether the claim gets the device for administration, beside all other claims."""


class AllocatedClaim(Struct, frozen=True):
    """A claim as the scheduler allocated the claim."""

    id: ClaimId
    """Which claim."""
    devices: tuple[AllocatedDevice, ...]
    """The devices of this driver, in the order of the allocation."""
    users: tuple[ClaimUser, ...] = ()
    """The pods that the claim is reserved for."""


RefusalReason = Literal[
    "not-found",
    "other-claim",
    "not-allocated",
    "malformed",
    "unknown-device",
    "other-way",
    "beyond-gpu",
    "no-room",
    "not-served",
    "cannot-limit",
    "parameters",
    "api",
    "files",
]
"""Why a claim is not prepared, as metrics count the reasons."""


OTHER_POD = "delete the pod and, if the claim stays, the claim: a new pod is scheduled by what the node offers now"
"""The remedy for an allocation that does not suit the node any more."""


class ClaimRefusedError(GpushareError):
    """A claim is not prepared; the message names the claim, the cause and the remedy, and a pod shows the message."""

    def __init__(self, reason: RefusalReason, message: str) -> None:
        """Refuse for `reason`, with `message` for people."""
        super().__init__(message)
        self.reason: RefusalReason = reason
