"""Whether a pod fits on a node or on many nodes, and the place of the pod on a node."""

from collections.abc import Hashable, Iterable, Iterator

import numpy as np

from gpushare_plugin.base.structs import replace
from gpushare_plugin.ledger.alike import AlikeNodes
from gpushare_plugin.ledger.ask import Ask, Rules
from gpushare_plugin.ledger.gpu_search import GpuSearch
from gpushare_plugin.ledger.occupancy import ONE_GPU_KINDS, NodeAccount
from gpushare_plugin.ledger.pod import Pod
from gpushare_plugin.ledger.verdicts import Misfit, NodeMisfit, PodPlace, Verdict


def fit(account: NodeAccount, ask: Ask) -> Verdict:
    """Return whether a pod fits on a node: a score for a fit, and the numbers of the node for too few units."""
    search = GpuSearch(AlikeNodes.alone(account, ask.request.amounts), ask)
    return _with_numbers(search, account, ask) or search.verdicts()[0]


def place(account: NodeAccount, ask: Ask) -> PodPlace | Misfit:
    """Return the place of a pod on a node, or the reason why the pod does not fit, as `fit` does."""
    search = GpuSearch(AlikeNodes.alone(account, ask.request.amounts), ask, close=True)
    return _with_numbers(search, account, ask) or PodPlace(account.node.name, tuple(search.shares()))


def places(account: NodeAccount, pod: Pod, ask: Ask) -> Iterator[PodPlace]:
    """Yield the places of pods like `pod` on a node, one after another, until no further pod fits."""
    number = 0
    while isinstance(found := place(account, ask), PodPlace):
        yield found
        number += 1
        account = account.promising(replace(pod, uid=f"{pod.uid}/{number}"), found.shares)


def has_room(account: NodeAccount, ask: Ask) -> bool:
    """Return whether a pod fits on a node."""
    return GpuSearch(AlikeNodes.alone(account, ask.request.amounts), ask).misfit is None


def fits(nodes: AlikeNodes, ask: Ask) -> list[Verdict]:
    """Return whether a pod fits on each of some nodes that are alike, with a score for each fit, without other numbers.

    All nodes have the same number of pods of the same owner, and either all or none has a GPU that the pod names.
    """
    node = nodes.account(nodes.names[0]).node
    apart = [units for name, units in nodes.free.items() if node.offers[name].kind not in ONE_GPU_KINDS]
    if not apart:
        return GpuSearch(nodes, ask).verdicts()
    # Units that can come from several GPUs are chosen once for all nodes with the same units free.
    keys: Iterable[Hashable] = [row.tobytes() for row in np.hstack(apart)]
    if ask.owner is not None or not ask.request.wishes.named.isdisjoint(node.gpus):
        keys = nodes.names  # the names of the GPUs count
    groups: dict[Hashable, list[int]] = {}
    for row, key in enumerate(keys):
        groups.setdefault(key, []).append(row)
    found: dict[int, Verdict] = {}
    for rows in groups.values():
        found.update(zip(rows, GpuSearch(nodes.some(rows), ask).verdicts(), strict=True))
    return [found[row] for row in range(len(nodes.names))]


def with_nominated(account: NodeAccount, pods: Iterable[Pod], rules: Rules) -> NodeAccount:
    """Return the account of a node with promises to `pods`, which wait until victims on the node have gone.

    A waiting pod gets its units on the GPUs that it would get without the pods now being deleted. A pod that does not
    fit even then gets no promise.
    """
    ending = {pod.uid for pod in account.pods if pod.ending}
    for pod in pods:
        placed = place(account.without(ending), Ask(pod.request, pod.owner, rules))
        if isinstance(placed, PodPlace):
            account = account.promising(pod, placed.shares)
    return account


def _with_numbers(search: GpuSearch, account: NodeAccount, ask: Ask) -> Misfit | None:
    """Return the misfit of the one node of a search, with the numbers of the node for too few units; None for a fit."""
    if (shortage := search.shortage) is None:
        return search.misfit
    return NodeMisfit.of(shortage, ask.request, account.resources[shortage.offer.resource])
