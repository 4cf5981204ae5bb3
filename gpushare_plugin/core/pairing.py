"""Pairing two requests of one container, for memory and for compute, so that both get units of the same GPU.

The kubelet asks for the resources of a container one by one, in random order, and names no container. But the kubelet
finishes one container before beginning the next container, and then writes its checkpoint. So if memory and compute are
allocated one after the other, without a new checkpoint in between, both are for the same container.

The kubelet also writes its checkpoint after receiving a device list. If the kubelet does so between the two requests,
the requests count as requests of two containers. If a container fails because of another plugin, the kubelet writes no
checkpoint, and the next container counts as the same container. The next container may be refused for this reason. A
refusal ends the pairing, so the container after the next is not affected.
"""

from collections.abc import Callable, Collection, Hashable, Iterable
from typing import Literal

from gpushare_plugin.base.errors import PlacementError
from gpushare_plugin.base.structs import Struct
from gpushare_plugin.core.gpu import Gpu

Role = Literal["memory", "cores"]
"""A part of a GPU that a container requests separately: memory, or compute."""


class Allocated(Struct, frozen=True):
    """The units of one of the two resources allocated to a container."""

    role: Role
    """Whether the units are memory or compute."""
    resource: str
    """The name of the resource."""
    gpus: tuple[Gpu, ...]
    """The GPUs of the units."""
    ids: frozenset[str]
    """The IDs of the units."""

    @property
    def uuids(self) -> frozenset[str]:
        """The UUIDs of the GPUs."""
        return frozenset(gpu.uuid for gpu in self.gpus)

    def __str__(self) -> str:
        """Return the words for an error about the other resource."""
        gpus = ", ".join(gpu.identity for gpu in self.gpus)
        return f"this container has its {self.resource} on {gpus}, and a container has memory and compute of one GPU"


class Pairing:
    """Knows the earlier allocation of the container that the kubelet asks for, among all resources of a node."""

    def __init__(self, checkpoint: Callable[[], Hashable]) -> None:
        """Know of no allocation yet; `checkpoint` returns the identity of the kubelet's last checkpoint."""
        self._checkpoint = checkpoint
        self._last: Allocated | None = None
        """The last allocation, while the other one of the same container may follow."""
        self._last_checkpoint: Hashable = None
        """The identity of the kubelet's checkpoint at the last allocation."""
        self._alone: frozenset[str] = frozenset()
        """The IDs of compute units allocated without memory: of containers that have no GPU, or not yet."""

    def partner(self, role: Role | None) -> Allocated | None:
        """Return the allocation of the same container in the role other than `role`, None without an allocation."""
        last = self._last
        if role is None or last is None or last.role == role or self._checkpoint() != self._last_checkpoint:
            return None
        return last

    def allocated(self, allocated: Allocated) -> None:
        """Record an allocation to a container."""
        partner = self.partner(allocated.role)
        compute = frozenset[str]().union(*(each.ids for each in (allocated, partner) if each and each.role == "cores"))
        self._alone = self._alone - compute if partner else self._alone | compute
        self._last, self._last_checkpoint = None if partner else allocated, self._checkpoint()

    def failed(self) -> None:
        """Record that the pod is not admitted, and forget the last allocation."""
        self._last = None

    def check_start(self, resource: str, ids: Collection[str]) -> None:
        """Raise PlacementError if the container with the compute units `ids` has no memory, and therefore no GPU."""
        if not self._alone.isdisjoint(ids):
            raise PlacementError(
                f"{resource}: {len(ids)} requested, but the container has no memory of a GPU, and so no GPU: request "
                "memory in the same container as well, such as aliyun.com/gpu-mem"
            )


def held_elsewhere(resource: str, gpus: Iterable[Gpu], partner: Allocated) -> PlacementError:
    """Return the error for units on other GPUs than the GPUs of `partner`, the other allocation of the container."""
    found = ", ".join(gpu.identity for gpu in gpus)
    return PlacementError(
        f"{resource}: units found on {found}, but {partner}. The kubelet chose these units; the pod fails, and its "
        "controller creates a new one"
    )
