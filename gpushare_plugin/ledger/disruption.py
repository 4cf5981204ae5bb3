"""The costs of evictions: the importance of the victims, and the violations of PodDisruptionBudgets."""

import math
from collections.abc import Iterable, Mapping
from operator import attrgetter
from weakref import WeakKeyDictionary

from gpushare_plugin.base.structs import Struct
from gpushare_plugin.ledger.constraints import Requirement
from gpushare_plugin.ledger.pod import Labels, Pod
from gpushare_plugin.ledger.victims import EvictionCosts, Importance

MOST_RULES = 1024
"""The number of rules kept of a namespace: budgets, requirements and values of selectors, and disrupted pods together.

Anybody with the right to create budgets may write far more, and every pod of the namespace would be compared with all
of the rules.
"""


class Budget(Struct, frozen=True):
    """A PodDisruptionBudget."""

    namespace: str
    """The namespace of the budget and of all covered pods."""
    name: str
    """The name of the budget."""
    selector: tuple[Requirement, ...] | None
    """The requirements on the labels of a covered pod; empty for every pod of the namespace, None for no pod."""
    allowed: int
    """The number of covered pods that may be evicted now; the disrupted pods are already subtracted."""
    disrupted: frozenset[str] = frozenset()
    """The names of the pods already being evicted, whose evictions do not count again."""

    @property
    def rules(self) -> int:
        """The number of rules of the budget, counted towards MOST_RULES."""
        return 1 + sum([1 + len(each.values) for each in self.selector or ()]) + len(self.disrupted)

    def covers(self, labels: Mapping[str, str]) -> bool:
        """Return whether the budget covers a pod of its namespace with the labels."""
        return self.selector is not None and all(requirement.met_by(labels) for requirement in self.selector)


class _Namespace:
    """The budgets of one namespace, and the covering budgets found for labels."""

    def __init__(self) -> None:
        self.budgets: dict[str, Budget] = {}
        self.complete = True
        """Whether every budget was kept since the namespace last had no budget."""
        self._rules = 0
        self._covering: WeakKeyDictionary[Labels, tuple[Budget, ...]] = WeakKeyDictionary()

    def put(self, budget: Budget) -> None:
        """Take in a budget, unless the namespace would then have more than MOST_RULES rules."""
        self.remove(budget.name)
        if self._rules + budget.rules > MOST_RULES:
            self.complete = False
            return
        self.budgets[budget.name] = budget
        self._rules += budget.rules

    def remove(self, name: str) -> None:
        if (budget := self.budgets.pop(name, None)) is not None:
            self._rules -= budget.rules
        self._covering.clear()

    def covering(self, labels: Labels) -> tuple[Budget, ...]:
        """Return the budgets that cover a pod with the labels."""
        if (found := self._covering.get(labels)) is None:
            pairs = dict(labels.pairs)
            found = self._covering[labels] = tuple([each for each in self.budgets.values() if each.covers(pairs)])
        return found


class Disruptions:
    """All budgets of the cluster, for the choice of victims."""

    def __init__(self) -> None:
        """Start without budgets."""
        self._namespaces: dict[str, _Namespace] = {}
        self.counted = False
        """Whether all budgets have been read. Otherwise violations cannot be counted."""

    @property
    def costs(self) -> EvictionCosts:
        """The costs of evictions; without violations while not all budgets have been read."""
        return EvictionCosts(self.importance, self.violations) if self.counted else EvictionCosts(self.importance)

    def put_budget(self, budget: Budget) -> None:
        """Take in the current state of a budget."""
        self._namespaces.setdefault(budget.namespace, _Namespace()).put(budget)

    def remove_budget(self, namespace: str, name: str) -> None:
        """Forget a budget."""
        if (found := self._namespaces.get(namespace)) is not None:
            found.remove(name)
            if not found.budgets:
                del self._namespaces[namespace]

    def forget_budgets(self) -> None:
        """Forget all budgets, because they can no longer be read."""
        self._namespaces.clear()
        self.counted = False

    def importance(self, pod: Pod) -> Importance:
        """Return the importance of a pod in the order of kube-scheduler: by priority, then by running time.

        A pod that has ended or has no node counts as the youngest pod of its priority.
        """
        return pod.priority, -pod.started if _counts(pod) else -math.inf

    def counts(self, pods: Iterable[Pod]) -> bool:
        """Return whether all budgets of the namespaces of the pods are known."""
        found = {self._namespaces.get(namespace) for namespace in {pod.namespace for pod in pods}}
        return self.counted and all(each is None or each.complete for each in found)

    def violations(self, pods: Iterable[Pod]) -> int:
        """Return the number of pods whose eviction violates a budget.

        Budgets allow evictions in order of importance, the most important pod first; equally important pods are counted
        in the order of their names, so that the number is the same however the pods are listed.
        """
        left: dict[tuple[str, str], int] = {}
        violating = 0
        by_name = sorted(pods, key=attrgetter("namespace", "name"))
        for pod in sorted(by_name, key=self.importance, reverse=True):
            violates = False
            for budget in self._covering(pod):
                if pod.name not in budget.disrupted:
                    key = budget.namespace, budget.name
                    left[key] = left.get(key, budget.allowed) - 1
                    violates = violates or left[key] < 0
            violating += violates
        return violating

    def _covering(self, pod: Pod) -> tuple[Budget, ...]:
        namespace = self._namespaces.get(pod.namespace)
        return namespace.covering(pod.labels) if _counts(pod) and namespace is not None else ()


def _counts(pod: Pod) -> bool:
    """Return whether budgets count a pod: the pod is on a node and has not ended."""
    return pod.node is not None and not pod.ended
