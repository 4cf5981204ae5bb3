"""The wire form of ResourceSlices and ResourceClaims, with only the fields used by gpushare.

Source: kubernetes, staging/src/k8s.io/api/resource/v1/types.go (1.36).
"""

from typing import Any
from urllib.parse import quote

import msgspec

from gpushare_plugin.kube.objects import Kept, Metadata

GROUP = "resource.k8s.io"
"""The API group."""
API = f"/apis/{GROUP}/v1"
"""The path of the API group, which Kubernetes has from 1.34 on."""
API_VERSION = f"{GROUP}/v1"
"""The API group and version, as objects name them."""
RESOURCE_SLICES = f"{API}/resourceslices"
"""The path of all ResourceSlices."""
CLAIMS = f"{API}/resourceclaims"
"""The path of the ResourceClaims of all namespaces."""
DEVICE_CLASSES = f"{API}/deviceclasses"
"""The path of all DeviceClasses."""


def claim_path(namespace: str, name: str) -> str:
    """Return the path of one ResourceClaim."""
    return f"{API}/namespaces/{quote(namespace, safe='')}/resourceclaims/{quote(name, safe='')}"


class WrittenPart(Kept, frozen=True, omit_defaults=True):
    """Part of an object that gpushare also writes; a field that is not set is left out."""


class ApiAttribute(WrittenPart, frozen=True):
    """The value of an attribute of a device: one of these."""

    string: str | None = None
    """A text."""
    version: str | None = None
    """A semantic version."""
    number: int | None = msgspec.field(default=None, name="int")
    """A whole number."""
    flag: bool | None = msgspec.field(default=None, name="bool")
    """True or false."""


class ApiRange(WrittenPart, frozen=True):
    """The range of what a claim can take of a capacity, as quantities."""

    min: str | None = None
    """The least."""
    step: str | None = None
    """What is taken is `min` and a multiple of `step`."""


class ApiPolicy(WrittenPart, frozen=True):
    """What a claim takes of a capacity of a shared device."""

    default: str | None = None
    """The quantity for a claim that does not ask."""
    valid_values: tuple[str, ...] = ()
    """The only quantities, ascending; empty for others."""
    valid_range: ApiRange | None = None
    """The range; None for any quantity."""


class ApiCapacity(WrittenPart, frozen=True):
    """A capacity of a device."""

    value: str = ""
    """All that there is, as a quantity."""
    request_policy: ApiPolicy | None = None
    """What a claim takes; None for all."""


class ApiTaint(WrittenPart, frozen=True):
    """A taint of a device."""

    key: str = ""
    """The name of the kind of reason."""
    value: str = ""
    """The reason."""
    effect: str = ""
    """What the taint does."""
    time_added: str | None = None
    """When the taint was added, set by the API server."""


class ApiDevice(WrittenPart, frozen=True):
    """A device of a ResourceSlice."""

    name: str = ""
    """The name in the pool."""
    attributes: dict[str, ApiAttribute] = msgspec.field(default_factory=dict)
    """The attributes, by name."""
    capacity: dict[str, ApiCapacity] = msgspec.field(default_factory=dict)
    """The capacities, by name."""
    taints: tuple[ApiTaint, ...] = ()
    """The taints."""
    allow_multiple_allocations: bool | None = None
    """Whether several claims can have the device at a time; None means no."""


class ApiPool(WrittenPart, frozen=True):
    """The pool of a ResourceSlice."""

    name: str = ""
    """The name of the pool."""
    generation: int = 0
    """The version of the pool; only the ResourceSlices of the highest one count."""
    resource_slice_count: int = 0
    """The number of ResourceSlices of the pool; with another number of them there, the scheduler ignores the pool."""


class ApiResourceSliceSpec(WrittenPart, frozen=True):
    """The spec of a ResourceSlice."""

    driver: str = ""
    """The name of the DRA driver."""
    node_name: str = ""
    """The node of all devices."""
    pool: ApiPool = ApiPool()
    """The pool."""
    devices: tuple[ApiDevice, ...] = ()
    """The devices; the scheduler takes the first that fits."""


class ApiResourceSlice(Kept, frozen=True):
    """A ResourceSlice."""

    metadata: Metadata = Metadata()
    """The metadata."""
    spec: ApiResourceSliceSpec = ApiResourceSliceSpec()
    """The devices, and where they are."""


class ApiResult(Kept, frozen=True):
    """A device, or a share of a device, that is allocated to a claim."""

    request: str = ""
    """The name of the request; `request/alternative` for one of several alternatives."""
    driver: str = ""
    """The name of the DRA driver."""
    pool: str = ""
    """The name of the pool."""
    device: str = ""
    """The name of the device."""
    share_id: str | None = msgspec.field(default=None, name="shareID")
    """The ID of the share; None for a device that is not shared."""
    consumed_capacity: dict[str, str] = msgspec.field(default_factory=dict)
    """What the share takes of each capacity, as quantities."""
    admin_access: bool | None = None
    """Whether the claim gets the device for administration."""


class ApiOpaque(Kept, frozen=True):
    """Parameters for a DRA driver."""

    driver: str = ""
    """The name of the DRA driver."""


class ApiConfig(Kept, frozen=True):
    """Configuration of a claim or class for a DRA driver."""

    opaque: ApiOpaque | None = None
    """The parameters."""


class ApiDevices(Kept, frozen=True):
    """The devices of an allocation."""

    results: tuple[ApiResult, ...] = ()
    """The devices, of all DRA drivers."""
    config: tuple[ApiConfig, ...] = ()
    """The configuration, of the class and of the claim."""


class ApiAllocation(Kept, frozen=True):
    """The allocation of a claim."""

    devices: ApiDevices = ApiDevices()
    """The devices."""


class ApiUser(Kept, frozen=True):
    """What a claim is reserved for."""

    resource: str = ""
    """The kind, in the plural: `pods`."""
    name: str = ""
    """The name."""
    uid: str = ""
    """The UID."""


class ApiClaimStatus(Kept, frozen=True):
    """The status of a claim."""

    allocation: ApiAllocation | None = None
    """The allocation; None for a claim that waits."""
    reserved_for: tuple[ApiUser, ...] = ()
    """Who may use the claim."""
    devices: tuple[dict[str, Any], ...] = ()
    """What DRA drivers say of allocated devices, as in the API."""


class ApiClaim(Kept, frozen=True):
    """A ResourceClaim."""

    metadata: Metadata = Metadata()
    """The metadata."""
    status: ApiClaimStatus = ApiClaimStatus()
    """The status."""
