"""Memory sharing: a GPU is cut into units of memory, and a request gets all of its units on one GPU.

Variables: `ALIYUN_COM_GPU_MEM_*` as Aliyun's gpushare gives them to containers, in units.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction

from gpushare_plugin.foundation.errors import PlacementError
from gpushare_plugin.model.gpu import Gpu
from gpushare_plugin.model.grant import Grant
from gpushare_plugin.model.placement import MemoryPlacement, one_gpu
from gpushare_plugin.model.resource import Resource, Shares, by_gpu, lowest
from gpushare_plugin.model.unit import KUBELET_MESSAGE_LIMIT, Unit, memory_prefix, wire_size
from gpushare_plugin.sharing.injection import Injection
from gpushare_plugin.sharing.isolation import Layers, Part, Share, isolate


class SharedMemory(Resource):
    """A resource whose units are equal pieces of GPU memory."""

    def __init__(
        self, name: str, shares: Shares, placement: MemoryPlacement, injection: Injection, layers: Layers
    ) -> None:
        """Advertise the units of `shares`, as `memory_units` cuts them; `layers` hold containers to theirs."""
        super().__init__(name, shares)
        self._placement = placement
        self._injection = injection
        self._layers = layers

    def _choose(self, available: Sequence[Unit], must: Sequence[Unit], size: int) -> list[Unit]:
        self._refuse_several_gpus(must)
        free = by_gpu(available)
        occupancy = self.occupancy(free)
        candidates = {must[0].gpu: occupancy[must[0].gpu]} if must else occupancy
        gpu = one_gpu(candidates, size, self._placement)
        if gpu is None:
            raise PlacementError(self._does_not_fit(size, {uuid: seen.free for uuid, seen in occupancy.items()}, must))
        return lowest(free[gpu], must, size)

    def _grant(self, units: Sequence[Unit]) -> Grant:
        self._refuse_several_gpus(units)
        gpu = self.gpus[units[0].gpu]
        grant = self._injection.grant([gpu])
        count = str(len(units))
        grant.environment |= {
            "ALIYUN_COM_GPU_MEM_IDX": str(gpu.index),
            # The kubelet does not say which pod asks: for a pod of one container this is the pod's request.
            "ALIYUN_COM_GPU_MEM_POD": count,
            "ALIYUN_COM_GPU_MEM_CONTAINER": count,
            "ALIYUN_COM_GPU_MEM_DEV": str(self.units_of[gpu.uuid]),
        }
        part = Part(gpu, sum(unit.mib for unit in units), Fraction(len(units), self.units_of[gpu.uuid]))
        return isolate(grant, Share((part,), frozenset(unit.id for unit in units)), self._layers)

    def _refuse_several_gpus(self, units: Sequence[Unit]) -> None:
        if len(gpus := {unit.gpu for unit in units}) > 1:
            raise PlacementError(
                f"{self.name}: {len(units)} units found on {len(gpus)} GPUs, all on one GPU expected: memory "
                "cannot span cards. The kubelet chose them; the pod's controller will try again with a new pod"
            )

    def _does_not_fit(self, size: int, free: dict[str, int], must: Sequence[Unit]) -> str:
        each = ", ".join(f"GPU {self.gpus[uuid].index} ({uuid}): {count}" for uuid, count in free.items())
        unit_mib = next((unit.mib for unit in self.units.values()), 0)
        asked = f"{size} units ({size * unit_mib} MiB) asked for"
        if must:
            bound = self.gpus[must[0].gpu]
            most = free[bound.uuid]
            reason = (
                f"{len(must)} of them are already on GPU {bound.index}, which can give this container {most} in all"
            )
        else:
            most = max(free.values(), default=0)
            reason = "no single GPU has as many free"
        would_fit = f"a request of up to {most} units would fit" if most else "no request fits now"
        return f"{self.name}: {asked}, but {reason}; free units: {each}; {would_fit}"


def memory_units(gpu: Gpu, short_uuid: str, unit_mib: int) -> list[Unit]:
    """Cut the usable memory of `gpu` into whole units of `unit_mib` MiB; what is left over is not handed out."""
    prefix = memory_prefix(short_uuid, unit_mib)
    return [
        Unit(f"{prefix}{number}", gpu.uuid, number, gpu.numa_node, unit_mib)
        for number in range(gpu.memory_mib // unit_mib)
    ]


def list_size(gpus: Iterable[Gpu], short_uuids: Mapping[str, str], unit_mib: int) -> int:
    """Return the bytes of the device list when `gpus` are cut into units of `unit_mib` MiB, without cutting them."""
    return sum(
        wire_size(memory_prefix(short_uuids[gpu.uuid], unit_mib), gpu.memory_mib // unit_mib, gpu.numa_node)
        for gpu in gpus
    )


def smallest_unit(gpus: Sequence[Gpu], short_uuids: Mapping[str, str]) -> int:
    """Return the smallest unit, in MiB, whose device list for `gpus` the kubelet accepts."""
    found: list[int] = []
    for units in _units_of_one_length(max(gpu.memory_mib for gpu in gpus)):
        # The lists become shorter; what can be searched is in ascending order.
        place = bisect_left(units, -KUBELET_MESSAGE_LIMIT, key=lambda unit: -list_size(gpus, short_uuids, unit))
        found += units[place : place + 1]
    return min(found)


def _units_of_one_length(most_mib: int) -> Iterator[range]:
    """Yield all units of up to `most_mib` MiB in groups whose sizes take the same number of characters in an ID.

    Only among those does a larger unit always mean a shorter list: 10 MiB takes a character more than 9 MiB. Whole GiB
    are among the MiB as well, where they can only be found too early, not too late.
    """
    for scale in (1, 1024):
        first = scale
        while first <= most_mib:
            yield range(first, min(10 * first, most_mib + 1), scale)
            first *= 10
