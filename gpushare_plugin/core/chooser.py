"""Choosers, which decide how many units of each GPU a request gets, only from the numbers of units on each GPU.

A node knows each unit, a scheduler only the numbers. Both ask the same chooser and get the same answer, or the same
error.
"""

from collections.abc import Mapping
from typing import Protocol

from gpushare_plugin.base.errors import PlacementError
from gpushare_plugin.base.structs import Struct, field
from gpushare_plugin.core.gpu import Closeness, gpu_identity, gpu_label
from gpushare_plugin.core.placement import close_gpus, one_gpu, replicas
from gpushare_plugin.core.policies import DEFAULT_REPLICA_POLICY, Occupancy, PolicyName, ReplicaPolicyName


class Request(Struct, frozen=True):
    """A request for units of one resource, with the free units of the GPUs of the resource."""

    resource: str
    """The name of the resource."""
    size: int
    """The number of requested units."""
    gpus: Mapping[str, Occupancy]
    """The occupancy of every GPU by UUID, sorted by place; units of an unhealthy GPU do not count as free."""
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

    placement: PolicyName
    """The policy for the choice of the GPU."""
    unit_mib: int = 0
    """The memory of one unit in MiB, 0 for units of another kind."""

    def choose(self, request: Request) -> Mapping[str, int]:
        """Choose the GPU by the placement policy, or the GPU of units already taken."""
        refuse_several_gpus(request.resource, request.taken)
        candidates = {uuid: request.gpus[uuid] for uuid in request.taken} or request.gpus
        gpu = one_gpu(candidates, request.size, self.placement)
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
    "the pod, or accept the risk with allowMultiGPUShares: true in sharing.memory of the node's config"
)
"""The reason why a share is on one GPU only, and the remedy for a share on several GPUs."""


class Replicas(Struct, frozen=True):
    """Gives replicas of one or several GPUs, by the placement policy."""

    placement: ReplicaPolicyName = DEFAULT_REPLICA_POLICY
    """The policy for the choice of GPUs."""

    def choose(self, request: Request) -> Mapping[str, int]:
        """Choose the GPUs by the placement policy."""
        if request.free < request.size:
            raise PlacementError(
                f"{request.resource}: {request.size} replicas requested, {request.free} free and healthy"
            )
        taken = request.taken
        left = {
            uuid: Occupancy(gpu.index, max(0, gpu.free - taken.get(uuid, 0)), gpu.total)
            for uuid, gpu in request.gpus.items()
        }
        more = replicas(left, taken, request.size - sum(taken.values()), self.placement)
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
