"""Requests that no GPU of a node can serve, because units cannot be divided over GPUs or containers as requested."""

from collections.abc import Collection, Mapping

from gpushare_plugin.core.chooser import WHY_SINGLE_GPU
from gpushare_plugin.ledger.node import Shape
from gpushare_plugin.ledger.request import PodRequest


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
