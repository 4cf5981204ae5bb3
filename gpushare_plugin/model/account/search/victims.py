"""Which pods have to go so that another one fits: those of one GPU, not a few units on each."""

from collections.abc import Iterator, Sequence

from gpushare_plugin.model.account.occupancy import NodeAccount
from gpushare_plugin.model.account.pod import AccountPod
from gpushare_plugin.model.account.search import fitting
from gpushare_plugin.model.account.search.fitting import Ask
from gpushare_plugin.model.account.search.verdicts import Fit


def victims(account: NodeAccount, ask: Ask, lower: Sequence[str]) -> list[str] | None:
    """Return the UIDs of the pods to evict from a node so that a request fits; None where even all are not enough.

    `lower` are those that may be evicted, those that should go first in front. Of the pods of each GPU, and of all,
    those are spared that need not go, the most important first. The best set is, as for kube-scheduler, the one whose
    most important pod is least important; then the one with fewest pods.
    """
    if isinstance(fitting.fit(account, ask), Fit):
        return []
    allowed = [pod for uid in lower for pod in account.pods if pod.uid == uid]
    order = sorted(allowed, key=lambda pod: pod.priority)
    sets = [needed for pods in _sets(account, ask, order) if (needed := _needed(account, ask, pods)) is not None]
    best = min(sets, key=lambda pods: (max(pod.priority for pod in pods), len(pods)), default=None)
    return [pod.uid for pod in best] if best is not None else None


def _sets(account: NodeAccount, ask: Ask, order: Sequence[AccountPod]) -> Iterator[Sequence[AccountPod]]:
    """Yield, least important first, the pods of each GPU and then all pods; pods on unknown GPUs are in every set."""
    asked = [account.resources[name] for name in ask.request.amounts if name in account.resources]
    everywhere = {each.pod.uid for resource in asked for each in resource.unplaced}
    for resource in asked:
        for gpu in resource.offer.gpus:
            here = {each.pod.uid for each in resource.holdings if each.gpu == gpu.name} | everywhere
            yield [pod for pod in order if pod.uid in here]
    yield order


def _needed(account: NodeAccount, ask: Ask, pods: Sequence[AccountPod]) -> list[AccountPod] | None:
    """Return those of the pods that have to go, None where the request does not fit without all of them."""
    gone = {pod.uid for pod in pods}
    if not gone or not isinstance(fitting.fit(account.without(gone), ask), Fit):
        return None
    for pod in reversed(pods):
        if isinstance(fitting.fit(account.without(gone - {pod.uid}), ask), Fit):
            gone.discard(pod.uid)
    return [pod for pod in pods if pod.uid in gone]
