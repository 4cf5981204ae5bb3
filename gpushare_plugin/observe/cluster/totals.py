"""The totals of a cluster: what is allocated and free of each resource by model, and how many GPUs are out."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from gpushare_plugin.ledger.node import GPU_MEMORY
from gpushare_plugin.observe.cluster.report import ClusterReport, GpuUse, NodeUse, ResourceUse
from gpushare_plugin.observe.cluster.tables import gpu_states, is_fault


class GpuOfNode(NamedTuple):
    """A GPU of a node with all resources; the MIG instances of a card are one."""

    uses: tuple[tuple[ResourceUse, GpuUse], ...]
    """The resources of the GPU, each with what is allocated of the GPU; empty for a GPU in no resource."""

    @property
    def states(self) -> list[str]:
        """Each problem of the GPU, in a few words."""
        return [state for _, gpu in self.uses for state in gpu_states(gpu)]

    @property
    def is_faulty(self) -> bool:
        """Whether the GPU has a fault."""
        return any(map(is_fault, self.states))

    @property
    def is_cordoned(self) -> bool:
        """Whether people have closed the GPU."""
        return "cordoned" in self.states

    @property
    def held(self) -> float:
        """The allocated part of the resource of which most is allocated, from 0; more than 1 over capacity."""
        sums: dict[str, list[int]] = {}
        for use, gpu in self.uses:
            of_resource = sums.setdefault(use.resource, [0, 0])
            of_resource[0] += gpu.allocated
            of_resource[1] += gpu.units
        return max((held / units if units else float(held > 0) for held, units in sums.values()), default=0.0)


def cards(node: NodeUse) -> list[GpuOfNode]:
    """Return the GPUs of a node in the order of their indexes; GPUs that the node does not list any more come last."""
    found: dict[tuple[bool, int, str], list[tuple[ResourceUse, GpuUse]]] = {}
    for use in (*node.resources, *node.given_by_claim):
        for gpu in use.gpus:
            found.setdefault(_place(gpu.index, gpu.uuid), []).append((use, gpu))
    for unoffered in node.not_offered:
        found.setdefault(_place(unoffered.index, unoffered.uuid), [])
    return [GpuOfNode(tuple(uses)) for _, uses in sorted(found.items())]


def _place(index: int, uuid: str) -> tuple[bool, int, str]:
    """Return the place of a GPU among the GPUs of its node: the index of its card, or the UUID without an index."""
    return (index < 0, index, uuid if index < 0 else "")


class ModelTotal(NamedTuple):
    """The total of a resource on all GPUs of a model, or of several models."""

    resource: str
    """The name of the resource, or of the DRA driver."""
    unit: str
    """The unit."""
    model: str | None
    """The product name; empty if not known, None for units on unknown GPUs."""
    gpus: int
    """The number of GPUs."""
    allocated: int
    """The units that pods and claims have or are promised."""
    units: int
    """The units of all GPUs."""
    largest_free: int
    """The most units that one GPU has free for a new pod."""


def by_model(report: ClusterReport) -> Iterator[ModelTotal]:
    """Yield the totals, of the memory of GPUs first, in the order of resources and models."""
    found: dict[tuple[bool, str, str], dict[tuple[bool, str], list[int]]] = {}
    for node in report.nodes:
        for use in (*node.resources, *node.given_by_claim):
            models = found.setdefault((use.resource != GPU_MEMORY, use.resource, use.unit), {})
            for gpu in use.gpus:
                sums = models.setdefault((False, gpu.product), [0, 0, 0, 0])
                sums[0] += 1
                sums[1] += gpu.allocated
                sums[2] += gpu.units
                sums[3] = max(sums[3], node.free_of(gpu))
            if use.pending:
                models.setdefault((True, ""), [0, 0, 0, 0])[1] += use.pending
    for (_, resource, unit), models in sorted(found.items()):
        for (is_unknown, model), (gpus, allocated, units, largest) in sorted(models.items()):
            yield ModelTotal(resource, unit, None if is_unknown else model, gpus, allocated, units, largest)


def together(several: Sequence[ModelTotal]) -> ModelTotal:
    """Return the total of one resource on all GPUs."""
    return several[0]._replace(
        model=None,
        gpus=sum(each.gpus for each in several),
        allocated=sum(each.allocated for each in several),
        units=sum(each.units for each in several),
        largest_free=max(each.largest_free for each in several),
    )
