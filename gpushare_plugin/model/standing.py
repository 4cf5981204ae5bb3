"""What the kubelet has of this node: how each resource stands with it, and which units containers hold."""

from collections.abc import Mapping

from gpushare_plugin.foundation.structs import Struct


class Standing(Struct, frozen=True):
    """How a resource stands with the kubelet, and what was answered for it since it was offered.

    `registered` tells whether the kubelet that is there took our registration and watches the device list.
    `allocations` are the `Allocate` calls that were granted, `refusals` the calls refused, by their name.
    """

    registered: bool
    allocations: int
    refusals: Mapping[str, int]


class Holding(Struct, frozen=True):
    """The units of one resource that one container holds; `ids` are the IDs of these units."""

    namespace: str
    pod: str
    container: str
    resource: str
    ids: frozenset[str]
