"""Replicas: a GPU is advertised several times over, and its users take turns or, under MPS, run side by side.

A replica is access to a GPU, not a part of it. Where an isolation gives each an equal part, a second replica of the
same GPU adds nothing.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from gpushare_plugin.foundation.errors import PlacementError
from gpushare_plugin.model.gpu import Gpu
from gpushare_plugin.model.grant import Grant
from gpushare_plugin.model.placement import ReplicaPlacement, replicas
from gpushare_plugin.model.resource import Resource, Shares, by_gpu, lowest, without
from gpushare_plugin.model.unit import KUBELET_MESSAGE_LIMIT, Unit, replica_prefix, wire_size
from gpushare_plugin.sharing.injection import Injection
from gpushare_plugin.sharing.isolation import Layers, Part, Share, isolate


@dataclass(frozen=True, slots=True)
class ReplicaRules:
    """How replicas are chosen, and whether a request for more than one fails."""

    placement: ReplicaPlacement = "distributed"
    fail_requests_greater_than_one: bool = False


class TimeSlicedGpus(Resource):
    """A resource whose units are replicas; GPUs that are not shared can stand under the same name."""

    def __init__(
        self, name: str, shares: Shares, rules: ReplicaRules, injection: Injection, layers: Layers = ()
    ) -> None:
        """Advertise the units of `shares`; a GPU of one unit is not shared. `layers` hold replicas to their part."""
        super().__init__(name, shares)
        self._rules = rules
        self._injection = injection
        self._layers = layers

    def _choose(self, available: Sequence[Unit], must: Sequence[Unit], size: int) -> list[Unit]:
        if len(available) < size:
            raise PlacementError(f"{self.name}: {size} replicas asked for, {len(available)} free and healthy")
        free = by_gpu(without(available, must))
        taken = Counter(unit.gpu for unit in must)
        picked = replicas(self.occupancy(free), taken, size - len(must), self._rules.placement)
        chosen = list(must)
        for gpu, count in picked.items():
            if count:
                chosen += lowest(free[gpu], (), count)
        return chosen

    def _grant(self, units: Sequence[Unit]) -> Grant:
        shared = [unit for unit in units if unit.id != unit.gpu]
        if self._rules.fail_requests_greater_than_one and shared and len(units) > 1:
            raise PlacementError(
                f"{self.name}: {len(units)} replicas asked for, at most 1 allowed (failRequestsGreaterThanOne): "
                "more replicas of a shared GPU give no more of it; ask for 1"
            )
        gpus = sorted({self.gpus[unit.gpu] for unit in units}, key=lambda gpu: gpu.place)
        grant = self._injection.grant(gpus)
        if not shared:
            return grant
        if self._layers and len(shared) < len(units):
            raise PlacementError(
                f"{self.name}: replicas and whole GPUs found in one request, and only replicas are limited: ask for 1, "
                "or rename the replicas"
            )
        parts = tuple(self._part(gpu) for gpu in gpus)
        return isolate(grant, Share(parts, frozenset(unit.id for unit in units)), self._layers)

    def _part(self, gpu: Gpu) -> Part:
        count = self.units_of[gpu.uuid]
        return Part(gpu, gpu.memory_mib // count, Fraction(1, count))


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
