"""The reasons why a node cannot take a pod."""

from typing import Literal

from gpushare_plugin.foundation.structs import Struct
from gpushare_plugin.model.account.scheduling.demand import CPU

Reason = Literal["bound", "cordon", "taint", "affinity", "port", "resources"]
"""The kind of a refusal.

`bound`: the pod is already on a different node; `cordon`: the node is cordoned; `taint`: the pod does not tolerate a
taint of the node; `affinity`: the node does not meet node selector or required affinity; `port`: a host port is taken;
`resources`: the node has no room.
"""

_IN_BYTES = ("memory", "ephemeral-storage", "hugepages-")
_SUFFIXES = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")


class Shortage(Struct, frozen=True):
    """A resource with fewer free than requested units."""

    resource: str
    """The name of the resource."""
    asked: int
    """The amount requested by the pod."""
    free: int
    """The free amount of the node; negative for a node that shrank."""

    def __str__(self) -> str:
        """Return the shortage in words, with both amounts."""
        return f"{self.resource}: {written(self.resource, self.asked)} asked, {written(self.resource, self.free)} free"


class Refusal(Struct, frozen=True):
    """Why a node cannot take a pod."""

    reason: Reason
    """The kind of the first reason found by kube-scheduler."""
    words: str
    """The reason in words."""
    shortages: tuple[Shortage, ...] = ()
    """All missing resources, if the reason is `resources`."""

    def __str__(self) -> str:
        """Return the reason in words."""
        return self.words


def written(resource: str, amount: int) -> str:
    """Return an amount for people, without rounding: `2.5` of CPU, `512Mi` of memory."""
    if resource == CPU:
        return f"{amount / 1000:.3f}".rstrip("0").rstrip(".")
    if not amount or not resource.startswith(_IN_BYTES):
        return str(amount)
    for suffix in _SUFFIXES:
        if amount % 1024:
            return f"{amount}{suffix}"
        amount //= 1024
    return f"{amount * 1024}{_SUFFIXES[-1]}"
