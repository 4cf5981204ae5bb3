"""Replicas: a GPU is advertised several times over, and its users take turns or, under MPS, run side by side.

A replica is access to a GPU, not a part of it. Where an isolation gives each an equal part, a second replica of the
same GPU adds nothing.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from gpushare_plugin.errors import PlacementError
from gpushare_plugin.model.gpu import Gpu
from gpushare_plugin.model.grant import AllocatedGpu, Allocation, Grant
from gpushare_plugin.model.unit import KUBELET_MESSAGE_LIMIT, Unit, replica_prefix, wire_size
from gpushare_plugin.sharing.injection import Injection
from gpushare_plugin.sharing.isolation.layer import ContainerShare, Layers, Part, isolate


@dataclass(frozen=True, slots=True)
class ReplicaGranter:
    """Gives a container access to GPUs; `layers` hold replicas to their part.

    GPUs that are not shared can stand under the same name.
    """

    injection: Injection
    layers: Layers = ()
    fail_requests_greater_than_one: bool = False

    def grant(self, allocation: Allocation) -> Grant:
        """Return the GPUs and, where replicas are limited, the limits on each."""
        shared = [each for each in allocation.gpus if each.gpu.uuid not in allocation.ids]
        if self.fail_requests_greater_than_one and shared and len(allocation.ids) > 1:
            raise PlacementError(
                f"{allocation.resource}: {len(allocation.ids)} replicas asked for, at most 1 allowed "
                "(failRequestsGreaterThanOne): more replicas of a shared GPU give no more of it; ask for 1"
            )
        grant = self.injection.grant([each.gpu for each in allocation.gpus])
        if not shared:
            return grant
        if self.layers and len(shared) < len(allocation.gpus):
            raise PlacementError(
                f"{allocation.resource}: replicas and whole GPUs found in one request, and only replicas are limited: "
                "ask for 1, or rename the replicas"
            )
        return isolate(grant, ContainerShare(tuple(map(_part, shared)), allocation.ids), self.layers)


def _part(allocated: AllocatedGpu) -> Part:
    return Part(allocated.gpu, allocated.gpu.memory_mib // allocated.of, Fraction(1, allocated.of))


def replica_units(gpu: Gpu, count: int) -> list[Unit]:
    """Cut `gpu` into `count` replicas."""
    prefix = replica_prefix(gpu.uuid)
    return [Unit(f"{prefix}{number}", gpu.uuid, number, gpu.numa_node) for number in range(count)]


def most_replicas(gpus: Sequence[Gpu]) -> int:
    """Return how many replicas of each of `gpus` the kubelet's message limit allows."""
    counts = range(1, KUBELET_MESSAGE_LIMIT)
    return bisect_right(counts, KUBELET_MESSAGE_LIMIT, key=lambda count: replica_list_size(gpus, count))


def replica_list_size(gpus: Iterable[Gpu], count: int) -> int:
    """Return the bytes that `count` replicas of each of `gpus` take in the device list, without making them."""
    return sum(wire_size(replica_prefix(gpu.uuid), count, gpu.numa_node) for gpu in gpus)
