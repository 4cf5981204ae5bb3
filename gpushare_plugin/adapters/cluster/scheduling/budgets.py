"""PodDisruptionBudgets of the API, where they may be read.

They matter to a preemption alone, so nothing waits for them.
"""

import asyncio
from collections.abc import Iterator
from contextlib import aclosing

import msgspec
import structlog

from gpushare_plugin.adapters.cluster.client import Client
from gpushare_plugin.adapters.cluster.collection import Collection, Gone, Listed, Put
from gpushare_plugin.adapters.cluster.objects import Kept, Metadata
from gpushare_plugin.model.account.scheduling.constraints import Requirement
from gpushare_plugin.model.account.search.disruption import Budget, Disruptions

_log = structlog.get_logger()

BUDGETS = "/apis/policy/v1/poddisruptionbudgets"
"""The collection of all PodDisruptionBudgets."""

_AGAIN = 300.0
"""Seconds until it is tried again whether the API server lets us read them."""


class LabelSelector(Kept, frozen=True):
    """Requirements of labels, all of which have to be met."""

    match_labels: dict[str, str] = msgspec.field(default_factory=dict)
    match_expressions: tuple[Requirement, ...] = ()


class BudgetSpec(Kept, frozen=True):
    """Which pods a budget covers; without a selector, none."""

    selector: LabelSelector | None = None


class BudgetStatus(Kept, frozen=True):
    """How many evictions are allowed now, and which pods, by name, are being evicted already."""

    disruptions_allowed: int = 0
    disrupted_pods: dict[str, msgspec.Raw] = msgspec.field(default_factory=dict)


class PodDisruptionBudget(Kept, frozen=True):
    """A PodDisruptionBudget."""

    metadata: Metadata = Metadata()
    spec: BudgetSpec = BudgetSpec()
    status: BudgetStatus = BudgetStatus()


def budget(found: PodDisruptionBudget) -> Budget:
    """Return a budget as evictions are judged by it."""
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


class _ForbiddenError(Exception):
    """The API server does not let us read them."""


class BudgetFollower:
    """Keeps the budgets equal to those of the cluster."""

    def __init__(self, client: Client, disruptions: Disruptions) -> None:
        """Fill `disruptions`, which has no budget yet."""
        self._client = client
        self._disruptions = disruptions

    async def follow(self) -> None:
        """Follow all of them; runs until cancelled.

        Without the right to read them, which charts before this one did not give, it says so once.
        """
        told = False
        while True:
            try:
                await self._follow()
            except _ForbiddenError:
                self._disruptions.forget_budgets()
                if not told:
                    _log.warning("budgets_forbidden", path=BUDGETS, remedy="upgrade the chart, which gives the right")
                told = True
                await asyncio.sleep(_AGAIN)

    async def _follow(self) -> None:
        """Follow them from a first list on; raises _ForbiddenError."""
        collection = Collection(
            self._client,
            BUDGETS,
            PodDisruptionBudget,
            consequence="preemption counts violations of the disruption budgets that were known before",
            forbidden=_forbid,
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


def _forbid() -> None:
    raise _ForbiddenError
