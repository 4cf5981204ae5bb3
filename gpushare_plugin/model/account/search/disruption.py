"""What evictions disrupt: PodDisruptionBudgets, which pods they cover, and how many evictions violate one."""

import math
from collections.abc import Iterable, Mapping
from weakref import WeakKeyDictionary

from gpushare_plugin.foundation.structs import Struct
from gpushare_plugin.model.account.pod import Labels, Pod
from gpushare_plugin.model.account.scheduling.constraints import Requirement
from gpushare_plugin.model.account.search.victims import Harm, Importance

MOST_RULES = 1024
"""What is kept of a namespace: its budgets, requirements and values of their selectors, and disrupted pods together.

Whoever may create budgets may write far more, and all of it would be compared with the labels of each pod there.
"""


class Budget(Struct, frozen=True):
    """A PodDisruptionBudget, and how many evictions of the pods that it covers it allows now.

    An empty `selector` covers every pod of its namespace, None covers none. Pods that are `disrupted` are being evicted
    already, and were subtracted from what is allowed.
    """

    namespace: str
    name: str
    selector: tuple[Requirement, ...] | None
    allowed: int
    disrupted: frozenset[str] = frozenset()

    @property
    def rules(self) -> int:
        """What it counts for in its namespace."""
        return 1 + sum([1 + len(each.values) for each in self.selector or ()]) + len(self.disrupted)

    def covers(self, labels: Mapping[str, str]) -> bool:
        """Return whether it covers a pod of its namespace with these labels."""
        return self.selector is not None and all(requirement.met_by(labels) for requirement in self.selector)


class _Namespace:
    """The budgets of one namespace, and which of them cover pods with which labels."""

    def __init__(self) -> None:
        self.budgets: dict[str, Budget] = {}
        self.complete = True
        """Whether all budgets were kept, since the namespace had none."""
        self._rules = 0
        self._covering: WeakKeyDictionary[Labels, tuple[Budget, ...]] = WeakKeyDictionary()

    def put(self, budget: Budget) -> None:
        """Take in a budget, unless it is more than is kept of a namespace."""
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
        """Return the budgets that cover a pod with these labels."""
        if (found := self._covering.get(labels)) is None:
            pairs = dict(labels.pairs)
            found = self._covering[labels] = tuple([each for each in self.budgets.values() if each.covers(pairs)])
        return found


class Disruptions:
    """What is known of all budgets, for the question whom to evict."""

    def __init__(self) -> None:
        """Know nothing yet."""
        self._namespaces: dict[str, _Namespace] = {}
        self.counted = False
        """Whether all budgets are known: without them, no violation can be counted."""

    @property
    def harm(self) -> Harm:
        """What it means to evict pods."""
        return Harm(self.importance, self.violations) if self.counted else Harm(self.importance)

    def put_budget(self, budget: Budget) -> None:
        """Take in a budget as it is now."""
        self._namespaces.setdefault(budget.namespace, _Namespace()).put(budget)

    def remove_budget(self, namespace: str, name: str) -> None:
        """Forget a budget."""
        if (found := self._namespaces.get(namespace)) is not None:
            found.remove(name)
            if not found.budgets:
                del self._namespaces[namespace]

    def forget_budgets(self) -> None:
        """Forget all budgets: they cannot be read any more."""
        self._namespaces.clear()
        self.counted = False

    def importance(self, pod: Pod) -> Importance:
        """Return how important a pod is to kube-scheduler: by its priority, then by how long it has been running."""
        return pod.priority, -pod.started if _counts(pod) else -math.inf

    def counts(self, pods: Iterable[Pod]) -> bool:
        """Return whether all budgets of the namespaces of these pods are known."""
        found = {self._namespaces.get(namespace) for namespace in {pod.namespace for pod in pods}}
        return self.counted and all(each is None or each.complete for each in found)

    def violations(self, pods: Iterable[Pod]) -> int:
        """Return how many of these evictions violate a budget: the most important pod counts first."""
        left: dict[tuple[str, str], int] = {}
        violating = 0
        for pod in sorted(pods, key=self.importance, reverse=True):
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
    """Return whether a pod is on a node and has not ended: budgets count no other pods."""
    return pod.node is not None and not pod.ended
