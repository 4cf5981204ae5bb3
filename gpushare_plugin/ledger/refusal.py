"""Why a node does not take a pod: the cause, and what the node or its GPUs have too little of."""

from collections.abc import Callable
from typing import Literal, NamedTuple

from gpushare_plugin.base.structs import Struct

Cause = Literal["bound", "cordon", "taint", "affinity", "port", "resources", "slices"]
"""The kind of a refusal.

`bound`: the pod is already on a different node; `cordon`: the node is cordoned; `taint`: the pod does not tolerate a
taint of the node; `affinity`: the node does not meet node selector or required affinity; `port`: a host port is taken;
`resources`: the node has no room; `slices`: the GPUs of the node give no slice.
"""


class Shortage(NamedTuple):
    """A resource of a node, or a GPU, that does not give what a pod requests."""

    name: str
    """The name of the resource, or the UUID of the GPU (the index if the node has no record)."""
    free: int
    """The amount that is free for the pod, in units of the resource; negative for a node that shrank."""
    missing: int
    """The missing amount, 0 if a GPU has enough. A GPU that gives no slice because of `reason` misses 0, too."""
    words: str | Callable[[], str]
    """The shortage in words, or a function that returns it: thousands are made, and few are read."""
    reason: str | None = None
    """Why the pod cannot use the GPU, or not all that is free; None if all that is free counts."""

    @property
    def text(self) -> str:
        """The shortage in words."""
        return self.words if isinstance(self.words, str) else self.words()


class Refusal(Struct, frozen=True, gc=False):
    """Why a node does not take a pod."""

    cause: Cause
    """The kind of the first cause found."""
    summary: str
    """The cause, without numbers of single GPUs: nodes with the same cause have the same summary."""
    shortages: tuple[Shortage, ...] = ()
    """The resources, or the GPUs in the order of the node, that do not give what the pod requests.

    Empty if other causes than room decide.
    """

    @property
    def missing(self) -> int | None:
        """The fewest units missing of a shortage, None if nothing is short of units."""
        return min((each.missing for each in self.shortages if each.reason is None), default=None)
