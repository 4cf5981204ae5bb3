"""Which GPU a request goes to: policies as key functions over shared loops.

Nothing here knows resources, protocols or settings: only numbers of units by GPU.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from gpushare_plugin.model.gpu import Closeness

MemoryPlacement = Literal["binpack", "spread"]
ReplicaPlacement = Literal["distributed", "packed"]


@dataclass(frozen=True, slots=True)
class Occupancy:
    """How full one GPU is, in units: `free` of `total`; `index` breaks ties."""

    index: int
    free: int
    total: int

    @property
    def used(self) -> int:
        """Units of this GPU that somebody holds."""
        return self.total - self.free


_MEMORY_ORDER: Mapping[MemoryPlacement, Callable[[Occupancy], tuple[int, int]]] = {
    "binpack": lambda gpu: (gpu.free, gpu.index),
    "spread": lambda gpu: (-gpu.free, gpu.index),
}

_REPLICA_ORDER: Mapping[ReplicaPlacement, Callable[[Occupancy], tuple[int, int]]] = {
    "distributed": lambda gpu: (gpu.used, gpu.index),
    "packed": lambda gpu: (-gpu.used, gpu.index),
}


def one_gpu(gpus: Mapping[str, Occupancy], size: int, policy: MemoryPlacement) -> str | None:
    """Return the GPU that takes all of a request of `size` units, or None when none can hold it."""
    order = _MEMORY_ORDER[policy]
    fitting = [uuid for uuid, gpu in gpus.items() if gpu.free >= size]
    return min(fitting, key=lambda uuid: order(gpus[uuid]), default=None)


def replicas(
    gpus: Mapping[str, Occupancy], taken: Mapping[str, int], size: int, policy: ReplicaPlacement
) -> dict[str, int]:
    """Spread `size` more replicas over GPUs and return how many to take from each.

    `taken` are the replicas of the same request that are already chosen; they count as used. GPUs this request has
    not touched come first, because a second replica of the same GPU adds no compute; the policy decides among equals.
    There must be `size` free replicas in all.
    """
    order = _REPLICA_ORDER[policy]
    state = dict(gpus)
    picked = dict.fromkeys(gpus, 0)
    for _ in range(size):
        uuid = min(
            (uuid for uuid, gpu in state.items() if gpu.free),
            key=lambda uuid: (taken.get(uuid, 0) + picked[uuid], order(state[uuid])),
        )
        gpu = state[uuid]
        state[uuid] = Occupancy(gpu.index, gpu.free - 1, gpu.total)
        picked[uuid] += 1
    return picked


def close_gpus(
    available: Sequence[str], must_include: Sequence[str], size: int, closeness: Closeness
) -> tuple[str, ...]:
    """Return `size` of the `available` GPUs that are close to each other, `must_include` among them.

    A set is grown from every GPU in turn, nearest next; the set closest within wins, and among equals the one that
    tears least from the GPUs left behind, so that close groups stay whole for later requests. Growing costs
    O(GPUs² x size) where trying every combination would be exponential; on trees (PCI) and full meshes (NVSwitch) it
    finds the optimum.
    """

    def near(gpu: str, others: Sequence[str]) -> int:
        return sum(closeness.get(frozenset((gpu, other)), 0) for other in others)

    def grow(chosen: list[str]) -> tuple[str, ...]:
        rest = [gpu for gpu in available if gpu not in chosen]
        while len(chosen) < size:
            best = max(rest, key=lambda gpu: (near(gpu, chosen), -near(gpu, rest)))
            chosen.append(best)
            rest.remove(best)
        return tuple(chosen)

    def quality(chosen: tuple[str, ...]) -> tuple[int, int]:
        rest = [gpu for gpu in available if gpu not in chosen]
        within = sum(near(gpu, chosen) for gpu in chosen)
        torn = sum(near(gpu, rest) for gpu in chosen)
        return within, -torn

    seeds = [list(must_include)] if must_include else [[gpu] for gpu in available]
    return max((grow(seed) for seed in seeds), key=quality)
