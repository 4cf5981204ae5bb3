"""The choice of GPUs for units that can come from several GPUs of one node: replicas, slices and whole GPUs."""

from collections.abc import Collection, Mapping
from typing import NamedTuple

from gpushare_plugin.base.errors import PlacementError
from gpushare_plugin.core.chooser import WHY_SINGLE_GPU, Chooser, Request
from gpushare_plugin.core.policies import UnitCounts
from gpushare_plugin.ledger.node import OfferedResource, Shape
from gpushare_plugin.ledger.pod import Share
from gpushare_plugin.ledger.request import PodRequest
from gpushare_plugin.ledger.verdicts import Misfit, NodeShortage


def unsplittable(request: PodRequest, shapes: Mapping[str, Shape]) -> str | None:
    """Return why the units of the pod cannot be split evenly over the requested GPUs, None if a split is possible.

    `shapes` are the shapes of the node's offers, for every resource to be split. An offer may forbid a split.
    """
    count = request.gpu_count
    for resource, shape in shapes.items():
        if shape.single_gpu and count > 1:
            return (
                f"the pod asks for {resource} of {count} GPUs, but the node gives units of one only: {WHY_SINGLE_GPU}"
            )
    for container in request.containers:
        for resource, amount in container.amounts:
            if resource in shapes and (rest := amount % count):
                return (
                    f"container {container.name} asks for {amount} units of {resource}, which cannot be split evenly "
                    f"over {count} GPUs: {rest} are left over, {count - rest} more could be split"
                )
    return None


def without_memory(request: PodRequest, cores: str, memory: Collection[str]) -> str | None:
    """Return a problem if a container requests compute without memory, None otherwise.

    Memory decides the GPU of a container: without memory the container would have a limit, but no GPU.
    """
    if not memory:
        return f"the pod requests {cores} but no memory of a GPU, and so has no GPU: request both in each container"
    for container in request.containers:
        if container.amount(cores) and not any(map(container.amount, memory)):
            return (
                f"container {container.name} requests {cores} but no memory of a GPU, and so has no GPU: request "
                "memory in the same container as well, such as aliyun.com/gpu-mem"
            )
    return None


class ApartChoice(NamedTuple):
    """The GPUs chosen for the units of one resource."""

    shares: list[Share]
    """The units of every container, by GPU."""
    free: Mapping[str, int]
    """The units of every GPU that are free afterwards."""


def chosen_apart(
    request: PodRequest, offer: OfferedResource, free: dict[str, int], chooser: Chooser, avoided: Collection[str]
) -> ApartChoice | NodeShortage | Misfit:
    """Choose container by container, in the order of the kubelet's calls, or return why the pod does not fit.

    Later containers reuse the units of init containers. `free` are the units of every GPU for the pod, and change with
    the choice. GPUs other than those `avoided` are tried first.
    """
    resource = offer.resource
    reusable: dict[str, int] = {}
    shares: list[Share] = []
    for container in request.containers:
        if not (size := container.amount(resource)):
            continue
        taken = _reused(reusable, size)
        try:
            asked = Request(resource, size, _unit_counts(offer, free, taken), taken)
            chosen = _choose(chooser, offer, asked, avoided)
        except PlacementError as error:
            if offer.kind == "slices" and size > 1:
                return Misfit(str(error), curable=False)
            return NodeShortage(offer, size, 0, tuple(units + taken.get(gpu, 0) for gpu, units in free.items()))
        shares += [Share(container.name, resource, gpu, units) for gpu, units in chosen.items() if units]
        for gpu, units in chosen.items():
            reused = taken.get(gpu, 0)
            free[gpu] -= units - reused
            # An init container leaves all its units to later containers; any other container keeps its units.
            reusable[gpu] = reusable.get(gpu, 0) - reused + (units if container.kind == "init" else 0)
    return ApartChoice(shares, free)


def _choose(chooser: Chooser, offer: OfferedResource, request: Request, avoided: Collection[str]) -> Mapping[str, int]:
    """Return the units that a chooser gives one container, by GPU; raises PlacementError if no choice is possible."""
    if avoided:
        free = {
            gpu: 0 if gpu in avoided else each.free - request.taken.get(gpu, 0) for gpu, each in request.gpus.items()
        }
        apart = Request(request.resource, request.size, _unit_counts(offer, free, request.taken), request.taken)
        try:
            return chooser.choose(apart)
        except PlacementError:
            pass
    return chooser.choose(request)


def _unit_counts(offer: OfferedResource, free: Mapping[str, int], taken: Mapping[str, int]) -> dict[str, UnitCounts]:
    """Return the units of the GPUs for a chooser: the units already taken for a container count as free."""
    return {gpu.name: UnitCounts(gpu.index, free[gpu.name] + taken.get(gpu.name, 0), gpu.units) for gpu in offer.gpus}


def _reused(reusable: Mapping[str, int], most: int) -> dict[str, int]:
    """Return the units that a container reuses of earlier init containers, by GPU, at most `most` units in all."""
    taken: dict[str, int] = {}
    for gpu, units in reusable.items():
        if units and most:
            taken[gpu] = min(units, most)
            most -= taken[gpu]
    return taken
