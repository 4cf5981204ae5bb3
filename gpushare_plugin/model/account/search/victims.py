"""Which pods have to go so that another one fits: the fewest, and of as few the least important.

Most requests need one GPU, so each set that is tried has pods of one GPU, and their units are added up. For all others
a search for a place tells whether a set is enough.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import combinations
from typing import NamedTuple

from gpushare_plugin.model.account.node import OfferedGpu
from gpushare_plugin.model.account.occupancy import ONE_GPU_KINDS, NodeAccount, ResourceAccount
from gpushare_plugin.model.account.pod import Pod
from gpushare_plugin.model.account.search import fitting
from gpushare_plugin.model.account.search.fitting import Ask
from gpushare_plugin.model.account.search.verdicts import Fit

MOST_TRIED = 4096
"""Sets of pods of a node that are tried; where that is not enough, what is found is enough, but perhaps not fewest."""

Importance = tuple[float, ...]
"""How important a pod is; importances compare like tuples."""


def by_priority(pod: Pod) -> Importance:
    """Return the importance of a pod of which nothing else is known."""
    return (pod.priority,)


def no_violation(_pods: Sequence[Pod]) -> int:
    """Return the violations of disruption budgets where none is known."""
    return 0


class Harm(NamedTuple):
    """What it means to evict pods: how important each is, and how many evictions violate a disruption budget."""

    importance: Callable[[Pod], Importance] = by_priority
    violations: Callable[[Sequence[Pod]], int] = no_violation


class Eviction(NamedTuple):
    """Who may be evicted from a node: `certain` go in any case, `others` only as far as they are needed.

    `ahead` are pods that wait for a place on the node, and get theirs first. At most `most` sets of pods are tried.
    """

    certain: Sequence[Pod]
    others: Sequence[Pod]
    ahead: Sequence[Pod] = ()
    harm: Harm = Harm()
    most: int = MOST_TRIED


def victims(account: NodeAccount, ask: Ask, eviction: Eviction) -> list[Pod] | None:
    """Return which of the others have to go, too, so that a request fits; None where even all are not enough.

    They are the fewest; of as few those whose eviction violates the fewest disruption budgets, and then those that are
    least important: whose most important pod is least important, and so on.
    """
    left = account.without({pod.uid for pod in eviction.certain})
    everywhere = _Everywhere(left, ask, eviction)
    if everywhere.enough(()):
        return []
    if not everywhere.enough(eviction.others):
        return None
    scopes = _scopes_of_gpus(left, ask, eviction) if _is_on_one_gpu(left, ask, eviction) else [everywhere]
    return _Search(eviction, scopes).run()


def _asked(account: NodeAccount, ask: Ask) -> list[ResourceAccount]:
    """Return the resources that are asked for, as far as the node offers them."""
    found = [account.resources.get(name) for name in ask.request.amounts]
    return [each for each in found if each is not None and each.offer.kind]


def _is_on_one_gpu(account: NodeAccount, ask: Ask, eviction: Eviction) -> bool:
    """Return whether all that is asked for has to be on one GPU, whichever pods go elsewhere."""
    kinds = [each.offer.kind for each in _asked(account, ask)]
    one = ask.request.gpu_count == 1 and kinds.count("memory") == 1
    return one and ONE_GPU_KINDS.issuperset(kinds) and not eviction.ahead


class _Scope(ABC):
    """Pods among which victims are sought, the least important first."""

    pods: Sequence[Pod]

    @abstractmethod
    def enough(self, pods: Sequence[Pod]) -> bool:
        """Return whether the request fits without these pods, and those that go in any case."""

    @abstractmethod
    def could_be(self, size: int) -> bool:
        """Return whether so many pods can be enough, as far as that is known without trying all."""

    @abstractmethod
    def weight(self, pod: Pod) -> float:
        """Return how much it helps if a pod goes: what is tried first has most."""


class _OfGpu(_Scope):
    """The pods of one GPU: they are enough where they have as many units of each resource as are missing there."""

    def __init__(self, gpu: str, asked: Sequence[ResourceAccount], ask: Ask, others: Iterable[Pod]) -> None:
        self._missing: list[int] = []
        units: dict[str, list[int]] = {pod.uid: [0] * len(asked) for pod in others}
        for number, account in enumerate(asked):
            offered = next((each for each in account.offer.gpus if each.name == gpu and _can_serve(each, ask)), None)
            missing = ask.request.amounts[account.offer.resource] - (offered.units if offered is not None else 0)
            here = [(each.pod.uid, each.units) for each in account.holdings if each.gpu == gpu]
            for uid, amount in (*here, *[(each.pod.uid, each.each) for each in account.unplaced]):
                missing += amount
                if uid in units:
                    units[uid][number] += amount
            self._missing.append(max(0, missing))
        self._units = units
        self.pods = [pod for pod in others if any(units[pod.uid])]

    def enough(self, pods: Sequence[Pod]) -> bool:
        units = self._units
        return all(
            sum([units[pod.uid][number] for pod in pods]) >= missing for number, missing in enumerate(self._missing)
        )

    def could_be(self, size: int) -> bool:
        return all(
            sum(sorted([self._units[pod.uid][number] for pod in self.pods], reverse=True)[:size]) >= missing
            for number, missing in enumerate(self._missing)
        )

    def weight(self, pod: Pod) -> float:
        return sum(
            [units / max(1, missing) for units, missing in zip(self._units[pod.uid], self._missing, strict=True)]
        )


def _can_serve(gpu: OfferedGpu, ask: Ask) -> bool:
    return gpu.reason is None and ask.request.wishes.refusal(gpu.name, gpu.product) is None


class _Everywhere(_Scope):
    """The pods of all GPUs. Sets whose pods have the same units of the same GPUs are tried once."""

    def __init__(self, account: NodeAccount, ask: Ask, eviction: Eviction) -> None:
        self._account = account
        self._ask = ask
        self._ahead = eviction.ahead
        self._units: dict[str, list[tuple[str, str, int]]] = {pod.uid: [] for pod in eviction.others}
        for each in _asked(account, ask):
            here = [(each.offer.resource, held.gpu, held.units, held.pod.uid) for held in each.holdings]
            anywhere = [(each.offer.resource, "", unplaced.each, unplaced.pod.uid) for unplaced in each.unplaced]
            for resource, gpu, units, uid in (*here, *anywhere):
                if uid in self._units:
                    self._units[uid].append((resource, gpu, units))
        self.pods = [pod for pod in eviction.others if self._units[pod.uid]]
        self._known: dict[Hashable, bool] = {}

    def enough(self, pods: Sequence[Pod]) -> bool:
        signature = self._signature(pods)
        if (known := self._known.get(signature)) is None:
            account = self._account.without({pod.uid for pod in pods})
            account = fitting.with_nominated(account, self._ahead, self._ask.rules)
            known = self._known[signature] = isinstance(fitting.fit(account, self._ask), Fit)
        return known

    def _signature(self, pods: Sequence[Pod]) -> Hashable:
        if self._ahead:
            # Where these go depends on whose replicas are beside them.
            return frozenset([pod.uid for pod in pods])
        return tuple(sorted([tuple(self._units[pod.uid]) for pod in pods]))

    def could_be(self, size: int) -> bool:
        return size <= len(self.pods)

    def weight(self, pod: Pod) -> float:
        return sum([units for _, _, units in self._units[pod.uid]])


def _scopes_of_gpus(account: NodeAccount, ask: Ask, eviction: Eviction) -> list[_Scope]:
    """Return the pods of each GPU that can be made free: the fewest victims are all of one of these."""
    asked = _asked(account, ask)
    gpus = dict.fromkeys(gpu.name for each in asked for gpu in each.offer.gpus)
    scopes = [_OfGpu(gpu, asked, ask, eviction.others) for gpu in gpus]
    return [scope for scope in scopes if scope.enough(scope.pods)]


_Cost = tuple[int, int, list[Importance]]


class _Search:
    """The search for the best victims in scopes, of each of which all pods are enough."""

    def __init__(self, eviction: Eviction, scopes: Sequence[_Scope]) -> None:
        self._eviction = eviction
        self._left = eviction.most
        self._scopes = scopes
        for scope in scopes:
            scope.pods = self._least_important_first(scope.pods)

    def run(self) -> list[Pod]:
        best = min(map(self._reduced, self._scopes), key=self._cost)
        for size in range(1, len(best) + 1):
            found = self._best_of_size(size)
            if found is not None:
                return min(best, found, key=self._cost)
            if self._left <= 0:
                break
        return best

    def _reduced(self, scope: _Scope) -> list[Pod]:
        """Return pods that are enough, none of them too many: those that help most are taken first."""
        order = sorted(scope.pods, key=scope.weight, reverse=True)
        least, most = 1, len(order)
        while least < most:
            middle = (least + most) // 2
            least, most = (least, middle) if scope.enough(order[:middle]) else (middle + 1, most)
        chosen = self._least_important_first(order[:least])
        for pod in reversed(tuple(chosen)):
            fewer = [each for each in chosen if each is not pod]
            if scope.enough(fewer):
                chosen = fewer
        return chosen

    def _best_of_size(self, size: int) -> list[Pod] | None:
        """Return the best set of so many pods that is enough, None where none is among those that were tried."""
        best: list[Pod] | None = None
        least: _Cost | None = None
        for scope in self._scopes:
            if not scope.could_be(size):
                continue
            for pods in combinations(scope.pods, size):
                if self._left <= 0:
                    return best
                self._left -= 1
                if scope.enough(pods) and (least is None or self._cost(pods) < least):
                    best, least = list(pods), self._cost(pods)
        return best

    def _cost(self, pods: Sequence[Pod]) -> _Cost:
        """Return what it costs to evict these beside those that go in any case: the least is best."""
        importance, violations = self._eviction.harm
        return len(pods), violations((*self._eviction.certain, *pods)), sorted(map(importance, pods), reverse=True)

    def _least_important_first(self, pods: Iterable[Pod]) -> list[Pod]:
        return sorted(pods, key=self._eviction.harm.importance)
