"""Choosers, which decide how many units of each GPU a request gets, only from the numbers of units on each GPU.

A node knows each unit, a scheduler only the numbers. Both ask the same chooser and get the same answer, or the same
error.
"""

from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heapreplace
from math import inf
from operator import add
from typing import Protocol

from gpushare_plugin.base.errors import PlacementError
from gpushare_plugin.base.structs import Struct, field
from gpushare_plugin.core.gpu import Closeness, gpu_identity, gpu_label
from gpushare_plugin.core.policies import (
    DEFAULT_REPLICA_POLICY,
    NODE_POLICIES,
    REPLICA_POLICIES,
    PolicyName,
    ReplicaPolicyName,
    UnitCounts,
)
from gpushare_plugin.packing.values import LINEAR, Values


def one_gpu(gpus: Mapping[str, UnitCounts], size: int, policy: PolicyName, values: Values = LINEAR) -> str | None:
    """Return the first GPU by `policy` with room for all `size` units of a request, None without room.

    `values` is what free pieces are worth to the policy `packing`.
    """
    order = NODE_POLICIES[policy]
    fitting = [uuid for uuid, gpu in gpus.items() if gpu.free >= size]
    return min(fitting, key=lambda uuid: order(gpus[uuid], size, values), default=None)


def replicas(
    gpus: Mapping[str, UnitCounts], taken: Mapping[str, int], size: int, policy: ReplicaPolicyName
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
        left = state[uuid] = UnitCounts(gpu.index, gpu.free - 1, gpu.total)
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


class Request(Struct, frozen=True):
    """A request for units of one resource, with the free units of the GPUs of the resource."""

    resource: str
    """The name of the resource."""
    size: int
    """The number of requested units."""
    gpus: Mapping[str, UnitCounts]
    """The number of units of every GPU by UUID, sorted by place; units of an unhealthy GPU do not count as free."""
    taken: Mapping[str, int] = field(default_factory=dict)
    """The number of units already taken for the request on each GPU, by UUID; the choice must include the units.

    Taken units of a healthy GPU count as free.
    """

    @property
    def free(self) -> int:
        """The free units of all GPUs."""
        return sum(gpu.free for gpu in self.gpus.values())


class Chooser(Protocol):
    """Chooses GPUs for requests; has no state."""

    def choose(self, request: Request) -> Mapping[str, int]:
        """Return the number of units that the request gets on each GPU, by UUID, including units already taken.

        Raises PlacementError if no choice is possible.
        """
        ...


class OneGpu(Struct, frozen=True):
    """Gives all units of a request on one GPU."""

    policy: PolicyName
    """The policy for the choice of the GPU."""
    unit_mib: int = 0
    """The memory of one unit in MiB, 0 for units of another kind."""
    values: Values = LINEAR
    """What free pieces of the GPUs are worth, learned from requests for the resource; only for the policy `packing`."""

    def choose(self, request: Request) -> Mapping[str, int]:
        """Choose the GPU by the policy, or the GPU of units already taken."""
        refuse_several_gpus(request.resource, request.taken)
        candidates = {uuid: request.gpus[uuid] for uuid in request.taken} or request.gpus
        gpu = one_gpu(candidates, request.size, self.policy, self.values)
        if gpu is None:
            raise PlacementError(self._does_not_fit(request))
        return {gpu: request.size}

    def _does_not_fit(self, request: Request) -> str:
        each = ", ".join(
            f"{gpu_identity(gpu_label(gpu.index), uuid)}: {gpu.free}" for uuid, gpu in request.gpus.items()
        )
        amount = f" ({request.size * self.unit_mib} MiB)" if self.unit_mib else ""
        asked = f"{request.size} units{amount} requested"
        if request.taken:
            ((uuid, taken),) = request.taken.items()
            bound = request.gpus[uuid]
            most = bound.free
            reason = f"{taken} of them are already on GPU {bound.index}, which can give this container {most} in all"
        else:
            most = max((gpu.free for gpu in request.gpus.values()), default=0)
            reason = "no single GPU has as many free"
        would_fit = f"a request of up to {most} units would fit" if most else "no request fits now"
        return f"{request.resource}: {asked}, but {reason}; free units: {each}; {would_fit}"


def refuse_several_gpus(resource: str, units: Mapping[str, int]) -> None:
    """Raise PlacementError if `units` of one container, by GPU UUID, are on more than one GPU."""
    if len(units) > 1:
        raise PlacementError(
            f"{resource}: {sum(units.values())} units found on {len(units)} GPUs, all on one GPU expected: a share "
            "cannot span GPUs. The kubelet chose these units; the pod fails, and its controller creates a new one"
        )


def refuse_unlimited(resource: str, units: Mapping[str, int]) -> None:
    """Raise PlacementError if `units` of one container are on several GPUs, while the limits hold on one GPU only."""
    if len(units) > 1:
        raise PlacementError(
            f"{resource}: {sum(units.values())} units found on {len(units)} GPUs, all on one GPU expected: "
            f"{WHY_SINGLE_GPU}"
        )


WHY_SINGLE_GPU = (
    "MPS does not limit a process that sees fewer GPUs than its share has. Remove the label aliyun.com/gpu-count from "
    "the pod, or accept the risk with sharing.memory.resources[].allowMultiGPUShares: true in the node's config"
)
"""The reason why a share is on one GPU only, and the remedy for a share on several GPUs."""


class Replicas(Struct, frozen=True):
    """Gives replicas of one or several GPUs, by the policy."""

    policy: ReplicaPolicyName = DEFAULT_REPLICA_POLICY
    """The policy for the choice of GPUs."""

    def choose(self, request: Request) -> Mapping[str, int]:
        """Choose the GPUs by the policy."""
        if request.free < request.size:
            raise PlacementError(
                f"{request.resource}: {request.size} replicas requested, {request.free} free and healthy"
            )
        taken = request.taken
        left = {
            uuid: UnitCounts(gpu.index, max(0, gpu.free - taken.get(uuid, 0)), gpu.total)
            for uuid, gpu in request.gpus.items()
        }
        more = replicas(left, taken, request.size - sum(taken.values()), self.policy)
        return {uuid: taken.get(uuid, 0) + count for uuid, count in more.items()}


class OneSlice(Struct, frozen=True):
    """Gives one slice, from the fullest GPU with a free slice."""

    def choose(self, request: Request) -> Mapping[str, int]:
        """Choose the GPU, or the GPU of a slice already taken."""
        refuse_several_slices(request.resource, request.size)
        if request.taken:
            return request.taken
        gpu = one_gpu(request.gpus, request.size, "binpack")
        if gpu is None:
            raise PlacementError(f"{request.resource}: 1 slice requested, none is free and healthy")
        return {gpu: request.size}


def refuse_several_slices(resource: str, count: int) -> None:
    """Raise PlacementError for a request of more than one slice."""
    if count > 1:
        raise PlacementError(
            f"{resource}: {count} slices requested, at most 1 allowed: slices cannot be combined; "
            "request one larger slice"
        )


class CloseGpus(Struct, frozen=True):
    """Gives whole GPUs that are close to each other."""

    closeness: Closeness
    """The closeness of the GPUs, read together with the GPUs."""

    def choose(self, request: Request) -> Mapping[str, int]:
        """Choose the GPUs that are closest together."""
        free = [uuid for uuid, gpu in request.gpus.items() if gpu.free]
        if len(free) < request.size:
            raise PlacementError(f"{request.resource}: {request.size} GPUs requested, {len(free)} free and healthy")
        return dict.fromkeys(close_gpus(free, list(request.taken), request.size, self.closeness), 1)
