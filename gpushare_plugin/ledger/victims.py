"""The search for victims: the fewest and least important pods whose eviction makes a request fit.

Most requests need one GPU: a tried set then has pods of one GPU only, and the sum of the units tells whether the set
is enough. For all other requests, a search for a place tells whether a set is enough.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import combinations
from typing import NamedTuple

from gpushare_plugin.ledger import fitting
from gpushare_plugin.ledger.ask import Ask
from gpushare_plugin.ledger.node import OfferedGpu
from gpushare_plugin.ledger.occupancy import ONE_GPU_KINDS, NodeAccount, ResourceAccount
from gpushare_plugin.ledger.pod import Pod

MOST_TRIED = 4096
"""The number of sets of pods tried on a node; if more exist, the victims are enough, but perhaps not the fewest."""

Importance = tuple[float, ...]
"""The importance of a pod; importances compare like tuples."""


def by_priority(pod: Pod) -> Importance:
    """Return the importance of a pod by its priority alone."""
    return (pod.priority,)


def no_violation(_pods: Sequence[Pod]) -> int:
    """Return 0 violations, for a cluster without known disruption budgets."""
    return 0


class EvictionCosts(NamedTuple):
    """What evictions cost, by two functions, which decide among equally small sets of pods."""

    importance: Callable[[Pod], Importance] = by_priority
    """Returns the importance of a pod."""
    violations: Callable[[Sequence[Pod]], int] = no_violation
    """Returns the number of pods whose eviction violates a disruption budget, if all given pods are evicted."""


class VictimCandidates(NamedTuple):
    """The pods that may be evicted from a node for a request, and what decides among them."""

    certain: Sequence[Pod]
    """The pods evicted in any case."""
    others: Sequence[Pod]
    """The pods evicted only if needed."""
    ahead: Sequence[Pod] = ()
    """The pods that wait for a place on the node, and get a place before the request."""
    costs: EvictionCosts = EvictionCosts()
    """The costs of the evictions."""
    most: int = MOST_TRIED
    """The number of sets of pods to try at most."""


def victims(account: NodeAccount, ask: Ask, candidates: VictimCandidates) -> list[Pod] | None:
    """Return the pods of `candidates.others` to evict to make a request fit; None if all of the pods are not enough.

    The pods are the fewest. Among equally small sets, the set with the fewest violations of disruption budgets wins,
    then the least important set: the most important pods of two sets are compared first, then the second most important
    pods, down to the least important.
    """
    left = account.without({pod.uid for pod in candidates.certain})
    everywhere = _Everywhere(left, ask, candidates)
    if everywhere.enough(()):
        return []
    if not everywhere.enough(candidates.others):
        return None
    scopes = _scopes_of_gpus(left, ask, candidates) if _is_on_one_gpu(left, ask, candidates) else [everywhere]
    return _VictimSearch(candidates, scopes).run()


def _asked(account: NodeAccount, ask: Ask) -> list[ResourceAccount]:
    """Return the accounts of all resources both requested and offered by the node."""
    found = [account.resources.get(name) for name in ask.request.amounts]
    return [each for each in found if each is not None and each.offer.kind]


def _is_on_one_gpu(account: NodeAccount, ask: Ask, candidates: VictimCandidates) -> bool:
    """Return whether all requested units must be on one GPU, and no pod gets a place before the request."""
    kinds = [each.offer.kind for each in _asked(account, ask)]
    one = ask.request.gpu_count == 1 and kinds.count("memory") == 1
    return one and ONE_GPU_KINDS.issuperset(kinds) and not candidates.ahead


class _Scope(ABC):
    """A part of the pods of a node, searched for victims."""

    pods: Sequence[Pod]
    """The possible victims; sorted by the search, the least important first."""

    @abstractmethod
    def enough(self, pods: Sequence[Pod]) -> bool:
        """Return whether the request fits without `pods` and without the pods evicted in any case."""

    @abstractmethod
    def could_be(self, size: int) -> bool:
        """Return False if certainly no set of `size` pods is enough; otherwise the sets have to be tried."""

    @abstractmethod
    def weight(self, pod: Pod) -> float:
        """Return the gain of evicting a pod; pods with the highest weight are taken first."""


class _OfGpu(_Scope):
    """The pods of one GPU: a set is enough if the pods have at least the missing units in every resource."""

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
    """The pods of all GPUs; if no pod is ahead, sets of pods with the same units of the same GPUs are tried once."""

    def __init__(self, account: NodeAccount, ask: Ask, candidates: VictimCandidates) -> None:
        self._account = account
        self._ask = ask
        self._ahead = candidates.ahead
        self._units: dict[str, list[tuple[str, str, int]]] = {pod.uid: [] for pod in candidates.others}
        for each in _asked(account, ask):
            here = [(each.offer.resource, held.gpu, held.units, held.pod.uid) for held in each.holdings]
            anywhere = [(each.offer.resource, "", unplaced.each, unplaced.pod.uid) for unplaced in each.unplaced]
            for resource, gpu, units, uid in (*here, *anywhere):
                if uid in self._units:
                    self._units[uid].append((resource, gpu, units))
        self.pods = [pod for pod in candidates.others if self._units[pod.uid]]
        self._known: dict[Hashable, bool] = {}

    def enough(self, pods: Sequence[Pod]) -> bool:
        signature = self._signature(pods)
        if (known := self._known.get(signature)) is None:
            account = self._account.without({pod.uid for pod in pods})
            account = fitting.with_nominated(account, self._ahead, self._ask.rules)
            known = self._known[signature] = fitting.has_room(account, self._ask)
        return known

    def _signature(self, pods: Sequence[Pod]) -> Hashable:
        if self._ahead:
            # The places of the pods ahead depend on the owners of the pods that stay.
            return frozenset([pod.uid for pod in pods])
        return tuple(sorted([tuple(self._units[pod.uid]) for pod in pods]))

    def could_be(self, size: int) -> bool:
        return size <= len(self.pods)

    def weight(self, pod: Pod) -> float:
        return sum([units for _, _, units in self._units[pod.uid]])


def _scopes_of_gpus(account: NodeAccount, ask: Ask, candidates: VictimCandidates) -> list[_Scope]:
    """Return a scope for every GPU that evictions can free for the request: the fewest victims are all on one GPU."""
    asked = _asked(account, ask)
    gpus = dict.fromkeys(gpu.name for each in asked for gpu in each.offer.gpus)
    scopes = [_OfGpu(gpu, asked, ask, candidates.others) for gpu in gpus]
    return [scope for scope in scopes if scope.enough(scope.pods)]


_Cost = tuple[int, int, list[Importance]]
"""The cost of evictions: the number of pods, the violations of budgets, and the importances in descending order."""


class _VictimSearch:
    """The search for the best victims in scopes; evicting all pods of any scope is enough."""

    def __init__(self, candidates: VictimCandidates, scopes: Sequence[_Scope]) -> None:
        self._candidates = candidates
        self._left = candidates.most
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
        """Return a set of pods that is enough, without a needless pod: pods with the highest weight are taken first."""
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
        """Return the cheapest set of `size` pods that is enough, None if no tried set is enough."""
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
        """Return the cost of evicting `pods`, beside the pods evicted in any case; the lowest cost is best."""
        importance, violations = self._candidates.costs
        return len(pods), violations((*self._candidates.certain, *pods)), sorted(map(importance, pods), reverse=True)

    def _least_important_first(self, pods: Iterable[Pod]) -> list[Pod]:
        return sorted(pods, key=self._candidates.costs.importance)
