"""The devices that a node offers to claims, one for each GPU: the neutral form of the devices of a ResourceSlice.

Source: `Device` in kubernetes, staging/src/k8s.io/api/resource/v1/types.go (1.36).
"""

from collections.abc import Mapping
from typing import Literal

from gpushare_plugin.base.structs import Struct, field


class SemanticVersion(Struct, frozen=True):
    """A version as an attribute: semantic versioning, without leading zeros."""

    text: str
    """The version, for example `535.161.8`."""


Attribute = str | int | bool | SemanticVersion
"""The value of an attribute of a device, by which claims select devices."""

CapacityUnit = Literal["bytes", "number"]
"""How the amounts of a capacity are written: in powers of 1024, or as plain numbers."""


class Capacity(Struct, frozen=True):
    """A capacity of a device, and what a claim may take of the capacity where the device is shared."""

    amount: int
    """All that there is: bytes, percent of the compute, or shares."""
    unit: CapacityUnit = "number"
    """How amounts are written."""
    default: int | None = None
    """What a claim takes that does not ask; None on a device that is not shared, which has no rules."""
    least: int | None = None
    """The least that a claim can take; None without steps."""
    step: int | None = None
    """What a claim takes is a multiple of this; None without steps."""
    values: tuple[int, ...] = ()
    """The only amounts that a claim can take, ascending; empty where steps rule."""


TaintEffect = Literal["NoSchedule", "NoExecute", "None"]
"""What a taint of a device does to pods that do not tolerate the taint."""


class DeviceTaint(Struct, frozen=True):
    """A reason why claims should not get a device."""

    key: str
    """The name of the kind of reason, such as `gpushare/fault`."""
    value: str
    """The reason as a value of a label; empty without one."""
    effect: TaintEffect
    """What the taint does."""


class Device(Struct, frozen=True):
    """A GPU as claims can get the GPU: whole, or shared by many claims."""

    name: str
    """The name in the pool of the node: a DNS label, the same for the life of the GPU."""
    gpu: str
    """The UUID of the GPU."""
    shared: bool
    """Whether several claims can have the device at a time (`allowMultipleAllocations`)."""
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    """The attributes by name. All devices of a node have the same names."""
    capacities: Mapping[str, Capacity] = field(default_factory=dict)
    """The capacities by name."""
    taints: tuple[DeviceTaint, ...] = ()
    """The taints."""
