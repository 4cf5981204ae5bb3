"""Which GPU the second of a container's two requests has to be on, where it requests memory and compute separately.

The kubelet asks for the resources of a container one by one, in random order, and names no container. But it finishes
one container before it begins the next, and then writes its checkpoint. So of memory and compute that are allocated one
after the other, with no other checkpoint in between, the second is for the same container as the first.

The kubelet also writes one when it is sent a list; where that happens between the two, they are taken for two
containers. Where a container fails because of another plugin, no checkpoint is written, and the next one is taken for
the same; it may be refused for that, but then the one after it is not.
"""

from collections.abc import Callable, Collection, Hashable, Iterable
from typing import Literal

from gpushare_plugin.foundation.errors import PlacementError
from gpushare_plugin.foundation.structs import Struct
from gpushare_plugin.model.gpu import Gpu

Role = Literal["memory", "cores"]
"""What a container requests separately of the same GPU: a part of its memory, or of its compute."""


class Allocated(Struct, frozen=True):
    """What a container was allocated of the one of the two resources: units with these IDs, on these GPUs."""

    role: Role
    resource: str
    gpus: tuple[Gpu, ...]
    ids: frozenset[str]

    @property
    def uuids(self) -> frozenset[str]:
        """The UUIDs of the GPUs."""
        return frozenset(gpu.uuid for gpu in self.gpus)

    def __str__(self) -> str:
        """Return what it is to the other one."""
        gpus = ", ".join(gpu.identity for gpu in self.gpus)
        return f"this container has its {self.resource} on {gpus}, and a container has memory and compute of one GPU"


class Pairing:
    """Knows what the container that the kubelet asks for has been allocated already; for all resources of a node."""

    def __init__(self, checkpoint: Callable[[], Hashable]) -> None:
        """Know of no allocation; `checkpoint` returns which one is the kubelet's last."""
        self._checkpoint = checkpoint
        self._last: Allocated | None = None
        self._last_checkpoint: Hashable = None
        self._alone: frozenset[str] = frozenset()

    def partner(self, role: Role | None) -> Allocated | None:
        """Return what the container that asks in this role has in the other, None where it has nothing yet."""
        last = self._last
        if role is None or last is None or last.role == role or self._checkpoint() != self._last_checkpoint:
            return None
        return last

    def allocated(self, allocated: Allocated) -> None:
        """Take note of what a container got."""
        partner = self.partner(allocated.role)
        compute = frozenset[str]().union(*(each.ids for each in (allocated, partner) if each and each.role == "cores"))
        self._alone = self._alone - compute if partner else self._alone | compute
        self._last, self._last_checkpoint = None if partner else allocated, self._checkpoint()

    def failed(self) -> None:
        """Take note that the pod is not admitted: what its container got is not followed."""
        self._last = None

    def check_start(self, resource: str, ids: Collection[str]) -> None:
        """Raise PlacementError where a container that has this compute got no memory; then it has no GPU either."""
        if not self._alone.isdisjoint(ids):
            raise PlacementError(
                f"{resource}: {len(ids)} requested, but the container has no memory of a GPU, and so no GPU: request "
                "memory in the same container as well, such as aliyun.com/gpu-mem"
            )


def held_elsewhere(resource: str, gpus: Iterable[Gpu], partner: Allocated) -> PlacementError:
    """Return the error for units of other GPUs than those of the same container's other resource."""
    found = ", ".join(gpu.identity for gpu in gpus)
    return PlacementError(
        f"{resource}: units found on {found}, but {partner}. The kubelet chose these units; the pod fails, and its "
        "controller creates a new one"
    )
