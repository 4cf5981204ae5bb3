"""Why a node cannot take a pod."""

from typing import Literal

from gpushare_plugin.foundation.structs import Struct
from gpushare_plugin.model.account.scheduling.demand import CPU

Reason = Literal["bound", "cordon", "taint", "affinity", "port", "resources"]
"""What keeps a pod away: it is on another node already, the node is cordoned, it has a taint that the pod does not
tolerate, it is not what the node selector or the required affinity ask for, a host port is taken, or there is no room.
"""

_IN_BYTES = ("memory", "ephemeral-storage", "hugepages-")
_SUFFIXES = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")


class Shortage(Struct, frozen=True):
    """A resource of which a pod asks for more than is free; less than nothing is free where a node shrank."""

    resource: str
    asked: int
    free: int

    def __str__(self) -> str:
        """Return it in words, with both amounts."""
        return f"{self.resource}: {written(self.resource, self.asked)} asked, {written(self.resource, self.free)} free"


class Refusal(Struct, frozen=True):
    """Why a node cannot take a pod: the first reason that kube-scheduler finds, and everything that is missing."""

    reason: Reason
    words: str
    shortages: tuple[Shortage, ...] = ()

    def __str__(self) -> str:
        """Return the reason in words."""
        return self.words


def written(resource: str, amount: int) -> str:
    """Return an amount as people write it: `2.5` of CPU, `512Mi` of memory; nothing is rounded."""
    if resource == CPU:
        return f"{amount / 1000:.3f}".rstrip("0").rstrip(".")
    if not amount or not resource.startswith(_IN_BYTES):
        return str(amount)
    for suffix in _SUFFIXES:
        if amount % 1024:
            return f"{amount}{suffix}"
        amount //= 1024
    return f"{amount * 1024}{_SUFFIXES[-1]}"
