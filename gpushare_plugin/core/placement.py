"""Placing a request on GPUs of a node: one loop for memory, one loop for replicas, one loop for close GPUs.

The functions know numbers of units by GPU, but no resources, protocols or configs.
"""

from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heapreplace
from math import inf
from operator import add

from gpushare_plugin.core.gpu import Closeness
from gpushare_plugin.core.policies import POLICIES, REPLICA_POLICIES, Occupancy, PolicyName, ReplicaPolicyName


def one_gpu(gpus: Mapping[str, Occupancy], size: int, policy: PolicyName) -> str | None:
    """Return the first GPU by `policy` with room for all `size` units of a request, None without room."""
    order = POLICIES[policy].order
    fitting = [uuid for uuid, gpu in gpus.items() if gpu.free >= size]
    return min(fitting, key=lambda uuid: order(gpus[uuid]), default=None)


def replicas(
    gpus: Mapping[str, Occupancy], taken: Mapping[str, int], size: int, policy: ReplicaPolicyName
) -> dict[str, int]:
    """Choose `size` more replicas, one after the other, and return the number of replicas to take from each GPU.

    `distributed` takes the least used GPU, `packed` the most used GPU; among equals, both take a GPU with fewer
    replicas of the request. `spread` takes a GPU with the fewest replicas of the request, and among equals the least
    used GPU. The rules are the rules of NVIDIA's device plugin, except for the last tie: here the index breaks the tie,
    in NVIDIA's plugin chance. `taken` holds the number of replicas already chosen for the request, by GPU UUID; taken
    replicas count as used. `gpus` must have at least `size` free replicas in all.
    """
    order = REPLICA_POLICIES[policy]
    state = dict(gpus)
    picked = dict.fromkeys(gpus, 0)
    # A replica taken from one GPU does not change the order of the other GPUs. The number of a GPU breaks the last tie.
    next_ones = [
        (order(gpu, taken.get(uuid, 0)), number, uuid) for number, (uuid, gpu) in enumerate(gpus.items()) if gpu.free
    ]
    heapify(next_ones)
    for _ in range(size):
        _, number, uuid = next_ones[0]
        gpu = state[uuid]
        left = state[uuid] = Occupancy(gpu.index, gpu.free - 1, gpu.total)
        picked[uuid] += 1
        if left.free:
            heapreplace(next_ones, (order(left, taken.get(uuid, 0) + picked[uuid]), number, uuid))
        else:
            heappop(next_ones)
    return picked


def close_gpus(
    available: Sequence[str], must_include: Sequence[str], size: int, closeness: Closeness
) -> tuple[str, ...]:
    """Return `size` of the `available` GPUs that are close to each other, including `must_include`.

    A set grows from every GPU in turn, always by the nearest GPU. The set with the closest GPUs wins. Among equals, the
    set wins that takes least closeness from the remaining GPUs, so that close groups stay together for later requests.
    Trying every combination would be exponential; on trees (PCI) and full meshes (NVSwitch), growing sets finds the
    optimum.
    """
    rows = _rows((*available, *must_include), closeness)
    runs = _runs(rows)
    total = {gpu: sum(rows[run[0]].values()) for run in runs for gpu in run}
    # Among runs that are equally near to a set, the first run takes least closeness from all other GPUs.
    order = sorted(runs, key=lambda run: total[run[0]])
    place = {gpu: number for number, run in enumerate(order) for gpu in run}
    # Within a run, the first GPU is as near to the last GPU as any GPU to any other GPU.
    weights = [[rows[one[0]].get(other[-1], 0) for other in order] for one in order]

    def grow(seed: Sequence[str]) -> tuple[float, tuple[str, ...]]:
        """Return the closeness of the added GPUs to the rest of the set, and the set grown from `seed`."""
        chosen, within = list(seed), 0.0
        left = [[gpu for gpu in reversed(run) if gpu not in seed] for run in order]
        near = [0.0 if gpus else -inf for gpus in left]
        for gpu in seed:
            near = list(map(add, near, weights[place[gpu]]))
        while len(chosen) < size:
            best = near.index(max(near))
            within += near[best]
            chosen.append(left[best].pop())
            near = list(map(add, near, weights[best]))
            if not left[best]:
                near[best] = -inf
        return within, tuple(chosen)

    # Sets grown from GPUs of the same run are equally close, so the first GPU of each run is enough.
    grown = map(grow, [must_include] if must_include else [run[:1] for run in runs])
    return max(grown, key=lambda each: (each[0], -sum(total[gpu] for gpu in each[1])))[1]


def _rows(gpus: Iterable[str], closeness: Closeness) -> dict[str, dict[str, int]]:
    """Return the closeness of each GPU to the other GPUs, in the order of `gpus`; values of 0 are left out."""
    rows: dict[str, dict[str, int]] = {gpu: {} for gpu in gpus}
    for pair, score in closeness.items():
        if score and pair <= rows.keys():
            one, other = pair
            rows[one][other] = rows[other][one] = score
    return rows


def _runs(rows: Mapping[str, Mapping[str, int]]) -> list[list[str]]:
    """Return the GPUs, in their order, in runs of alike GPUs, which have equal closeness to all other GPUs.

    Whole GPUs on one NVSwitch are a run, and all MIG instances of a node are a run, however many.
    """
    runs: list[list[str]] = []
    for gpu in rows:
        if runs and _alike(gpu, runs[-1][-1], rows):
            runs[-1].append(gpu)
        else:
            runs.append([gpu])
    return runs


def _alike(one: str, other: str, rows: Mapping[str, Mapping[str, int]]) -> bool:
    """Return whether two GPUs have equal closeness to all other GPUs."""
    if len(rows[one]) != len(rows[other]):
        return False
    return {**rows[one], one: 0, other: 0} == {**rows[other], one: 0, other: 0}
