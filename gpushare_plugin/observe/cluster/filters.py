"""Which nodes, GPUs and pods of a cluster `gpushare inspect` shows, and in which order."""

import re
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatchcase
from typing import Literal, NamedTuple

from gpushare_plugin.base.errors import GpushareError
from gpushare_plugin.base.memory import MIB_PER_GIB
from gpushare_plugin.base.structs import replace
from gpushare_plugin.base.text import nearest, some_of
from gpushare_plugin.ledger.pod import Pod
from gpushare_plugin.observe.cluster.report import (
    ClusterReport,
    GpuUse,
    NodeUse,
    ResourceUse,
    mib_of,
)
from gpushare_plugin.observe.cluster.tables import all_states

Order = Literal["name", "free", "held", "state"]
"""The order of nodes: by name; by the largest free piece or by the held part, the most first; those with a state first.

Nodes that are equal are in the order of their names.
"""

_AMOUNT = re.compile(r"([0-9]{1,9})(?:\s*(Mi|Gi)B?)?", re.ASCII | re.IGNORECASE)
_MOST_NAMES = 5


class FreeAmount(NamedTuple):
    """An amount that a GPU is to have free."""

    amount: int
    """MiB, or units of a resource."""
    memory: bool
    """Whether the amount is in MiB."""

    @classmethod
    def parse(cls, text: str) -> "FreeAmount":
        """Read `10`, which is in units, or memory such as `10GiB`, `10 gib` or `512Mi`; raises ValueError else."""
        if (found := _AMOUNT.fullmatch(text)) is None:
            raise ValueError(
                f"found {text!r}, expected a number of units such as 10, or memory such as 10GiB or 512MiB"
            )
        number, prefix = int(found[1]), (found[2] or "").lower()
        return cls(number * (MIB_PER_GIB if prefix == "gi" else 1), memory=bool(prefix))

    def met_by(self, free: int, unit: str) -> bool:
        """Return whether a number of free units is enough; of a resource without memory, memory is never enough."""
        mib = mib_of(unit)
        return free >= self.amount if not self.memory else mib is not None and free * mib >= self.amount


class Filters(NamedTuple):
    """What is shown of a cluster: what meets all filters. A filter with several values is met by each of the values."""

    nodes: tuple[str, ...] = ()
    """The names of nodes, or patterns of names; empty for all nodes."""
    namespaces: tuple[str, ...] = ()
    """The namespaces whose pods and claims are shown, with the GPUs that they have units of; empty for all."""
    resources: tuple[str, ...] = ()
    """The resources or DRA drivers; empty for all."""
    models: tuple[str, ...] = ()
    """Words of product names of GPUs, such as `A100`, in any case; empty for all GPUs."""
    free: FreeAmount | None = None
    """What at least one GPU of a node has free for a new pod; None for any amount."""
    order: Order = "name"
    """The order of the nodes."""

    @property
    def choose_nodes(self) -> bool:
        """Whether a filter chooses by what only nodes have, so that pods without a node are none of what is shown."""
        return bool(self.nodes or self.models or self.free)


def check(report: ClusterReport, filters: Filters) -> None:
    """Raise GpushareError for a value that nothing in a cluster has, with the nearest one that something has."""
    if not report.nodes:
        return
    names = [node.name for node in report.nodes]
    for pattern in filters.nodes:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise _unknown("--node", pattern, "no node that shares GPUs has such a name", names)
    resources = _resources(report)
    for resource in filters.resources:
        if resource not in resources:
            raise _unknown("--resource", resource, "no node has this resource", resources)
    models = dict.fromkeys(product for node in report.nodes for product in _products(node))
    for model in filters.models:
        if not any(is_model(product, [model]) for product in models):
            raise _unknown("--model", model, "no GPU has these words in its product name", models)


def _unknown(option: str, value: str, problem: str, there: Iterable[str]) -> GpushareError:
    names = sorted(filter(None, there))
    meant = nearest(value, names)
    instead = f"did you mean {meant}?" if meant else f"there are {some_of(names, _MOST_NAMES) or 'none'}"
    return GpushareError(f"{option} {value}: {problem}; {instead}")


def _resources(report: ClusterReport) -> dict[str, None]:
    """Return the resources of nodes, and those that pods wait for."""
    offered = [use.resource for node in report.nodes for use in (*node.resources, *node.given_by_claim)]
    sliced = [each.resource for node in report.nodes for each in node.slices]
    return dict.fromkeys([*offered, *sliced, *(name for pod in report.waiting for name in pod.resources)])


def _products(node: NodeUse) -> Iterator[str]:
    yield from (gpu.product for use in (*node.resources, *node.given_by_claim) for gpu in use.gpus)
    yield from (gpu.product for gpu in node.not_offered)


def is_model(product: str, models: Iterable[str]) -> bool:
    """Return whether a product name has the words of one of `models`, in any case."""
    # Whole words, because A10 is another model than A100.
    return any(re.search(rf"(?<!\w){re.escape(model)}(?!\w)", product, re.IGNORECASE) for model in models)


def nothing_found(report: ClusterReport, filters: Filters) -> str:
    """Return why nothing of a cluster with GPUs is shown, in one sentence."""
    known = sorted({namespace for node in report.nodes for namespace in _namespaces(node)})
    for namespace in filters.namespaces:
        if namespace not in known:
            meant = nearest(namespace, known)
            return f"No pod of namespace {namespace} has units of a GPU" + (f"; did you mean {meant}?" if meant else "")
    return "No GPU of this cluster meets all filters"


def _namespaces(node: NodeUse) -> Iterator[str]:
    for use in (*node.resources, *node.given_by_claim):
        yield from (pod.namespace for pod in use.unplaced)
        for gpu in use.gpus:
            yield from (pod.namespace for pod in gpu.pods)
            yield from (claim.namespace for claim in gpu.claims)


def narrowed(report: ClusterReport, filters: Filters) -> ClusterReport:
    """Return a report with fewer nodes, GPUs, pods and claims; amounts of a GPU stay what all namespaces have."""
    if filters == Filters():
        return report
    nodes = (found for node in report.nodes if (found := _node(node, filters)) is not None)
    return replace(
        report,
        nodes=tuple(sorted(nodes, key=_ORDERS[filters.order])),
        waiting=tuple(
            pod
            for pod in report.waiting
            if not filters.choose_nodes and _is_in(pod.namespace, filters) and _has_resource(pod.resources, filters)
        ),
    )


def is_shown(pod: Pod, filters: Filters) -> bool:
    """Return whether a pod without a node is among what is shown."""
    if filters.choose_nodes:
        return False
    return _is_in(pod.namespace, filters) and _has_resource(pod.request.amounts, filters)


def _has_resource(resources: Iterable[str], filters: Filters) -> bool:
    return not filters.resources or not set(filters.resources).isdisjoint(resources)


def _node(node: NodeUse, filters: Filters) -> NodeUse | None:
    """Return what is shown of a node; None for nothing."""
    if filters.nodes and not any(fnmatchcase(node.name, pattern) for pattern in filters.nodes):
        return None
    if filters.namespaces or filters.resources or filters.models:
        node = _with_fewer_gpus(node, filters)
        if not (node.resources or node.given_by_claim or node.not_offered or node.slices):
            return None
    return node if filters.free is None or _has_free(node, filters.free) else None


def _with_fewer_gpus(node: NodeUse, filters: Filters) -> NodeUse:
    whole = not (filters.namespaces or filters.resources)
    shown = replace(
        node,
        resources=tuple(_uses(node.resources, filters)),
        given_by_claim=tuple(_uses(node.given_by_claim, filters)),
        not_offered=tuple(gpu for gpu in node.not_offered if whole and is_model(gpu.product, filters.models)),
    )
    indexes = {gpu.index for use in shown.resources for gpu in use.gpus} | {gpu.index for gpu in shown.not_offered}
    by_gpu = bool(filters.namespaces or filters.models)
    return replace(
        shown,
        slices=tuple(
            each
            for each in node.slices
            if (not by_gpu or each.index in indexes) and (not filters.resources or each.resource in filters.resources)
        ),
    )


def _uses(uses: Iterable[ResourceUse], filters: Filters) -> Iterator[ResourceUse]:
    for use in uses:
        if filters.resources and use.resource not in filters.resources:
            continue
        gpus = tuple(found for gpu in use.gpus if (found := _gpu(gpu, filters)) is not None)
        unplaced = tuple(pod for pod in use.unplaced if _is_in(pod.namespace, filters))
        if gpus or (unplaced and not filters.models):
            yield replace(use, gpus=gpus, unplaced=unplaced)


def _gpu(gpu: GpuUse, filters: Filters) -> GpuUse | None:
    """Return a GPU with what pods and claims of the shown namespaces have; None for a GPU that is not shown."""
    if filters.models and not is_model(gpu.product, filters.models):
        return None
    if not filters.namespaces:
        return gpu
    pods = tuple(pod for pod in gpu.pods if _is_in(pod.namespace, filters))
    claims = tuple(claim for claim in gpu.claims if _is_in(claim.namespace, filters))
    return replace(gpu, pods=pods, claims=claims) if pods or claims else None


def _is_in(namespace: str, filters: Filters) -> bool:
    return not filters.namespaces or namespace in filters.namespaces


def _has_free(node: NodeUse, wanted: FreeAmount) -> bool:
    uses = (*node.resources, *node.given_by_claim)
    return any(wanted.met_by(node.free_of(gpu), use.unit) for use in uses for gpu in use.gpus)


def _largest_free(node: NodeUse) -> tuple[int, int]:
    """Return the largest free piece of a node: MiB, and units of resources without memory."""
    mib = units = 0
    for use in (*node.resources, *node.given_by_claim):
        free = max((node.free_of(gpu) for gpu in use.gpus), default=0)
        if (of_unit := mib_of(use.unit)) is not None:
            mib = max(mib, free * of_unit)
        else:
            units = max(units, free)
    return mib, units


def _held(node: NodeUse) -> float:
    """Return the held part of the resource of which most is held."""
    uses = (*node.resources, *node.given_by_claim)
    return max((use.allocated / use.units for use in uses if use.units), default=0.0)


_ORDERS: dict[Order, Callable[[NodeUse], tuple[object, ...]]] = {
    "name": lambda node: (node.name,),
    "free": lambda node: (*(-piece for piece in _largest_free(node)), node.name),
    "held": lambda node: (-_held(node), node.name),
    "state": lambda node: (not all_states(node), node.name),
}
