"""PodDisruptionBudgets of the API, if RBAC permits reading them.

Only preemption uses the budgets, so nothing waits for them.
"""

import asyncio
from collections.abc import Iterator
from contextlib import aclosing

import msgspec
import structlog

from gpushare_plugin.kube.client import Client
from gpushare_plugin.kube.collection import (
    Collection,
    CollectionForbiddenError,
    Gone,
    Listed,
    Put,
    raise_forbidden,
)
from gpushare_plugin.kube.objects import Kept, Metadata
from gpushare_plugin.ledger.constraints import Requirement
from gpushare_plugin.ledger.disruption import Budget, Disruptions

_log = structlog.get_logger()

BUDGETS = "/apis/policy/v1/poddisruptionbudgets"
"""The path of all PodDisruptionBudgets."""

_AGAIN = 300.0
"""Seconds until the next attempt to read the budgets after a refusal of the API server."""


class LabelSelector(Kept, frozen=True):
    """Requirements on the labels of a pod; a matching pod meets all of them."""

    match_labels: dict[str, str] = msgspec.field(default_factory=dict)
    """The required values, by label."""
    match_expressions: tuple[Requirement, ...] = ()
    """The requirements with operators."""


class BudgetSpec(Kept, frozen=True):
    """The scope of a budget."""

    selector: LabelSelector | None = None
    """The selector of the covered pods; None covers no pod."""


class BudgetStatus(Kept, frozen=True):
    """The current state of a budget."""

    disruptions_allowed: int = 0
    """The number of evictions allowed now."""
    disrupted_pods: dict[str, msgspec.Raw] = msgspec.field(default_factory=dict)
    """The pods with an eviction in progress, by name."""


class PodDisruptionBudget(Kept, frozen=True):
    """A PodDisruptionBudget."""

    metadata: Metadata = Metadata()
    """The metadata of the budget."""
    spec: BudgetSpec = BudgetSpec()
    """The covered pods."""
    status: BudgetStatus = BudgetStatus()
    """The allowed and current evictions."""


def budget(found: PodDisruptionBudget) -> Budget:
    """Return a budget in the form used to judge evictions."""
    selector = found.spec.selector
    return Budget(
        namespace=found.metadata.namespace,
        name=found.metadata.name,
        selector=None if selector is None else tuple(_requirements(selector)),
        allowed=found.status.disruptions_allowed,
        disrupted=frozenset(found.status.disrupted_pods),
    )


def _requirements(selector: LabelSelector) -> Iterator[Requirement]:
    for key, value in selector.match_labels.items():
        yield Requirement(key, "In", (value,))
    yield from selector.match_expressions


class BudgetFollower:
    """Keeps the known budgets equal to the budgets of the cluster."""

    def __init__(self, client: Client, disruptions: Disruptions) -> None:
        """Fill `disruptions`, which has no budgets yet."""
        self._client = client
        self._disruptions = disruptions

    async def follow(self) -> None:
        """Follow all budgets; runs until cancelled.

        A missing right to read the budgets is logged once: charts before this version did not grant the right.
        """
        told = False
        while True:
            try:
                await self._follow()
            except CollectionForbiddenError:
                self._disruptions.forget_budgets()
                if not told:
                    _log.warning("budgets_forbidden", path=BUDGETS, remedy="upgrade the chart, which gives the right")
                told = True
                await asyncio.sleep(_AGAIN)

    async def _follow(self) -> None:
        """Follow the budgets from a first list on; raises CollectionForbiddenError."""
        collection = Collection(
            self._client,
            BUDGETS,
            PodDisruptionBudget,
            consequence="preemption counts violations of the disruption budgets that were known before",
            forbidden=raise_forbidden,
        )
        async with aclosing(collection.changes()) as changes:
            async for change in changes:
                match change:
                    case Put(found):
                        self._disruptions.put_budget(budget(found))
                    case Gone(namespace=namespace, name=name):
                        self._disruptions.remove_budget(namespace, name)
                    case Listed():
                        self._disruptions.counted = True
