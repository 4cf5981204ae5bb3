"""Tests of `gpushare_plugin.ledger.disruption`: what evictions violate, and which pod matters more."""

import math
from itertools import permutations

import pytest

from gpushare_plugin.base.structs import replace
from gpushare_plugin.ledger.constraints import Requirement
from gpushare_plugin.ledger.disruption import MOST_RULES, Budget, Disruptions
from gpushare_plugin.ledger.pod import Pod, shared_labels
from tests.unit.ledger.objects import memory, pod

WEB = (Requirement("app", "In", ("web",)),)


def known() -> Disruptions:
    """Return what is known where budgets can be read, and there are none."""
    made = Disruptions()
    made.counted = True
    return made


def web(name: str, started: float = 1.0, priority: int = 0) -> Pod:
    """Return a pod of the app `web` that started so many seconds after 1970."""
    labels = shared_labels((("app", "web"),))
    return pod(memory(1), "node", name, labels=labels, started=started, priority=priority)


PODS = [web(name) for name in "abc"]


@pytest.mark.parametrize(
    ("selector", "violations"),
    [
        (WEB, 2),
        ((), 2),
        (None, 0),
        ((Requirement("app", "NotIn", ("web",)),), 0),
        ((*WEB, Requirement("tier", "DoesNotExist")), 2),
        ((*WEB, Requirement("tier", "Exists")), 0),
    ],
)
def test_a_budget_allows_as_many_evictions_as_it_says(
    selector: tuple[Requirement, ...] | None, violations: int
) -> None:
    """Of three evictions one is allowed where the selector covers the pods; an empty selector covers every pod."""
    made = known()
    made.put_budget(Budget("default", "web", selector, allowed=1))
    assert made.violations(PODS) == violations


def test_budgets_count_in_their_namespace_and_while_they_exist() -> None:
    """Budgets of other namespaces cover nothing here; a budget that changes, or is deleted, counts as it is then."""
    made = known()
    made.put_budget(Budget("other", "web", WEB, allowed=0))
    assert made.violations(PODS) == 0
    made.put_budget(Budget("default", "web", WEB, allowed=0))
    assert made.violations(PODS) == 3
    made.put_budget(Budget("default", "web", WEB, allowed=2))
    assert made.violations(PODS) == 1
    made.remove_budget("default", "web")
    assert made.violations(PODS) == 0


def test_violations_are_the_same_in_any_order_of_equally_important_pods() -> None:
    """Where budgets overlap, the number depends on who is counted first: then the names decide, not the list."""
    made = known()
    made.put_budget(Budget("default", "all", (), allowed=2))
    made.put_budget(Budget("default", "web", WEB, allowed=0))
    others = [replace(web(name), labels=shared_labels((("app", "other"),))) for name in ("a", "c")]
    counted = {made.violations(each) for each in permutations([*others, web("b")])}
    assert counted == {2}


def test_a_pod_that_is_being_evicted_already_violates_no_budget() -> None:
    """The API server has subtracted these pods from what the budget allows."""
    made = known()
    made.put_budget(Budget("default", "web", WEB, allowed=0, disrupted=frozenset({"a", "b"})))
    assert made.violations(PODS) == 1


def test_the_latest_pods_of_a_priority_are_least_important() -> None:
    """As for kube-scheduler: priority counts first, then who has been running longest; who has not started is last."""
    first, second, never, high = web("a", 100), web("b", 200), web("c", math.inf), web("high", priority=1)
    assert sorted([high, first, second, never], key=known().importance) == [never, second, first, high]


def test_budgets_count_pods_on_nodes_alone() -> None:
    """A pod that is being bound, or has ended, violates no budget, and is least important of its priority."""
    made = known()
    made.put_budget(Budget("default", "web", WEB, allowed=0))
    others = [replace(web("d"), node=None), replace(web("e"), ended=True)]
    assert made.violations(others) == 0
    assert all(made.importance(each) < made.importance(PODS[0]) for each in others)


def test_violations_are_not_counted_without_the_right_to_read_budgets() -> None:
    """Budgets that were known before do not count, and pods are ordered as before."""
    made = known()
    made.put_budget(Budget("default", "web", WEB, allowed=0))
    made.forget_budgets()
    assert not made.counted
    assert made.costs.violations(PODS) == 0
    assert made.costs.importance == made.importance


def test_rules_of_a_namespace_are_bounded_in_number() -> None:
    """Budgets beyond the bound are as if they were not there, until there is room for them again."""
    made = known()
    made.put_budget(Budget("default", "large", (Requirement("x", "In", ("y",) * MOST_RULES),), allowed=0))
    for number in range(MOST_RULES):
        made.put_budget(Budget("default", f"web-{number}", (), allowed=1))
    made.put_budget(Budget("default", "beyond", WEB, allowed=0))
    assert made.violations(PODS) == 2
    for number in range(3):
        made.remove_budget("default", f"web-{number}")
    made.put_budget(Budget("default", "beyond", WEB, allowed=0))
    assert made.violations(PODS) == 3
