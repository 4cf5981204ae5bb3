"""Which GPU of a node a request goes to: one loop for memory, one for replicas, one for GPUs that are close.

Nothing here knows resources, protocols or configs: only numbers of units by GPU.
"""

from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heapreplace
from math import inf
from operator import add

from gpushare_plugin.model.choice.policies import POLICIES, REPLICA_POLICIES, Occupancy, PolicyName, ReplicaPolicyName
from gpushare_plugin.model.gpu import Closeness


def one_gpu(gpus: Mapping[str, Occupancy], size: int, policy: PolicyName) -> str | None:
    """Return the GPU that takes all of a request of `size` units, or None when none can hold it."""
    order = POLICIES[policy].order
    fitting = [uuid for uuid, gpu in gpus.items() if gpu.free >= size]
    return min(fitting, key=lambda uuid: order(gpus[uuid]), default=None)


def replicas(
    gpus: Mapping[str, Occupancy], taken: Mapping[str, int], size: int, policy: ReplicaPolicyName
) -> dict[str, int]:
    """Choose `size` more replicas, one after the other, and return how many to take from each GPU.

    Each comes from the least (`distributed`) or most (`packed`) used GPU, among equals from one of which the request
    has less; or from a GPU of which the request has least (`spread`), among equals the least used one. These are the
    rules of NVIDIA's device plugin, but for the last tie, which the index breaks here and chance there.
    `taken` are the replicas of the same request that are already chosen; they count as used. There must be `size` free
    replicas in all.
    """
    order = REPLICA_POLICIES[policy]
    state = dict(gpus)
    picked = dict.fromkeys(gpus, 0)
    # What is taken of one GPU changes the order of no other one; their numbers break the last tie.
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
    """Return `size` of the `available` GPUs that are close to each other, `must_include` among them.

    A set is grown from every GPU in turn, nearest next; the set closest within wins, and among equals the one that
    takes least from the GPUs left behind, so that close groups stay together for later requests. Trying every
    combination would be exponential; on trees (PCI) and full meshes (NVSwitch) this finds the optimum.
    """
    rows = _rows((*available, *must_include), closeness)
    runs = _runs(rows)
    total = {gpu: sum(rows[run[0]].values()) for run in runs for gpu in run}
    # Of runs that are as near to a set, the first takes least from all others.
    order = sorted(runs, key=lambda run: total[run[0]])
    place = {gpu: number for number, run in enumerate(order) for gpu in run}
    # Within a run, the first is as near to the last as any to any.
    weights = [[rows[one[0]].get(other[-1], 0) for other in order] for one in order]

    def grow(seed: Sequence[str]) -> tuple[float, tuple[str, ...]]:
        """Return the set grown from `seed`, and how close what was added is to the rest of it."""
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

    # From whichever GPU of a run a set grows, it becomes as close.
    grown = map(grow, [must_include] if must_include else [run[:1] for run in runs])
    return max(grown, key=lambda each: (each[0], -sum(total[gpu] for gpu in each[1])))[1]


def _rows(gpus: Iterable[str], closeness: Closeness) -> dict[str, dict[str, int]]:
    """Return how close each GPU is to the others, in the order of `gpus`; what is 0 is left out."""
    rows: dict[str, dict[str, int]] = {gpu: {} for gpu in gpus}
    for pair, score in closeness.items():
        if score and pair <= rows.keys():
            one, other = pair
            rows[one][other] = rows[other][one] = score
    return rows


def _runs(rows: Mapping[str, Mapping[str, int]]) -> list[list[str]]:
    """Return the GPUs, in their order, in runs of alike ones: each as close to any other GPU as the next.

    Whole GPUs on one NVSwitch are a run, and so are MIG instances, however many a node has.
    """
    runs: list[list[str]] = []
    for gpu in rows:
        if runs and _alike(gpu, runs[-1][-1], rows):
            runs[-1].append(gpu)
        else:
            runs.append([gpu])
    return runs


def _alike(one: str, other: str, rows: Mapping[str, Mapping[str, int]]) -> bool:
    """Return whether two GPUs could change places, as far as closeness goes."""
    if len(rows[one]) != len(rows[other]):
        return False
    return {**rows[one], one: 0, other: 0} == {**rows[other], one: 0, other: 0}
