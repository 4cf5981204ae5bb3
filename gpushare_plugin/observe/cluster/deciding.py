"""Which of the nodes where a pod does not fit decide the verdict: a table of many pods explains only these."""

from collections.abc import Iterable, Iterator

from gpushare_plugin.ledger.cluster import ClusterAccount
from gpushare_plugin.ledger.node import Shape
from gpushare_plugin.ledger.request import ANY_GPU, PodRequest


def deciding(account: ClusterAccount, request: PodRequest, misfits: Iterable[str]) -> Iterator[str]:
    """Yield the nodes among `misfits` whose numbers can be in the verdict, in order.

    Of nodes whose GPUs are alike, a node counts that has more units free, on one GPU or in sum, than all nodes before.
    Nodes with GPUs that cannot be used count, because the most common reason is told.
    """
    simple = len(request.amounts) == 1 and request.wishes == ANY_GPU
    best: dict[Shape, tuple[int, int]] = {}
    for name in misfits:
        if not simple:
            yield name
            continue
        (resource,) = request.amounts
        there = account.account_of(name).resources.get(resource)
        if there is None:
            continue
        most, total = max(there.free, default=0), there.free_in_sum
        before = best.get(there.offer.shape, (-1, total - 1))
        if most > before[0] or total > before[1] or any(gpu.reason for gpu in there.offer.gpus):
            best[there.offer.shape] = max(most, before[0]), max(total, before[1])
            yield name
