"""What a node offers: what follows from the plan, the GPUs and what pods hold."""

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet

from gpushare_plugin.model.gpu import Inventory
from gpushare_plugin.model.holding import Confirmed, Holding, Unknown
from gpushare_plugin.model.resource import Resource
from gpushare_plugin.programs.node.news.news import GpuModeChanged, GpuWaiting, News
from gpushare_plugin.sharing.cut import PresentUnits
from gpushare_plugin.sharing.isolation.layer import Mode
from gpushare_plugin.sharing.plan import Plan
from gpushare_plugin.sharing.transition import (
    MINIMUM_RETIRED_SECONDS,
    Offer,
    Waiting,
    WantedOffer,
    advance,
    resumed,
)

_MOST_PODS = 5
"""Pods that are named where a GPU waits for some."""


class NodeOffer:
    """What a node lists now, and what keeps it from listing what it should."""

    def __init__(self, news: News, clock: Callable[[], float]) -> None:
        """Offer nothing yet; `clock` (seconds) measures how long units have been retired."""
        self._news = news
        self._clock = clock
        self._offer = Offer()
        self._held: Confirmed | None = None
        self.waiting: Mapping[str, str] = {}
        """Why GPUs are not shared as configured yet, by UUID."""

    def start(self, held: Iterable[Holding], inventory: Inventory, modes: Mapping[str, Mode]) -> None:
        """Start with what containers may hold, in these modes by UUID."""
        self._offer = resumed(held, inventory.gpus, modes, self._clock())

    def update_holdings(self, held: Confirmed | Unknown) -> None:
        """Record what containers hold now."""
        self._held = None if isinstance(held, Unknown) else held

    def advance(self, plan: Plan, inventory: Inventory) -> None:
        """Offer the part of a plan that can be offered now."""
        wanted = WantedOffer(plan.resources, plan.modes, inventory.parts)
        self._offer, waiting = advance(self._offer, wanted, self._held, self._clock())
        before, self.waiting = self.waiting, {each.gpu: _why(each, self._held) for each in waiting}
        for gpu, reason in self.waiting.items() - before.items():
            self._news.publish(GpuWaiting(gpu, reason))
        for present in inventory.gpus:
            if present.uuid in before and present.uuid not in self.waiting:
                self._news.publish(GpuModeChanged(present.uuid))

    @property
    def resources(self) -> Mapping[str, Resource]:
        """The resources that are listed, by name."""
        return self._offer.resources

    def units(self, inventory: Inventory) -> PresentUnits:
        """Return the units that are listed and those that pods hold; where that is not known, as if they held all."""
        gpus = inventory.numa_nodes
        offered = {id_: unit for each in self.resources.values() for id_, unit in each.units.items()}
        retired = {id_: unit.on(gpus) for each in self._offer.retired for id_, unit in each.units.items()}
        listed = {**retired, **offered}
        if self._held is None:
            return PresentUnits(offered, retired, listed, certain=False)
        held = {unit.id: unit for each in self._held.holdings for unit in each.units(gpus, listed.get)}
        return PresentUnits(offered, retired, held)

    @property
    def asked_at(self) -> float | None:
        """When the kubelet said last what pods hold, None where that is unknown."""
        return self._held.asked_at if self._held is not None else None

    def pause(self, most: float) -> float:
        """Return how long to wait, `most` seconds, until what pods hold can free a unit."""
        now = self._clock()
        coming = (each.since + MINIMUM_RETIRED_SECONDS - now for each in self._offer.retired if each.listed)
        return min([most, *(seconds for seconds in coming if seconds > 0)])

    @property
    def modes_in_use(self) -> dict[str, Mode]:
        """The mode of each GPU that has units listed, by its UUID."""
        return self._offer.modes_in_use

    @property
    def depends_on_pods(self) -> bool:
        """Whether what is listed changes when pods end."""
        return bool(self.waiting) or any(each.listed for each in self._offer.retired)

    def waits_for_record(self, surplus: AbstractSet[str]) -> bool:
        """Return whether only the kubelet's checkpoint shows a pod that holds a retired unit, or one of `surplus`."""
        recorded = self._held.only_recorded if self._held is not None else frozenset[str]()
        waited_for = (surplus, *(each.units.keys() for each in self._offer.retired))
        return bool(recorded) and not all(ids.isdisjoint(recorded) for ids in waited_for)


def _why(waiting: Waiting, held: Confirmed | None) -> str:
    """Return what a GPU waits for."""
    if held is None:
        return "it is not known yet which units pods hold"
    pods = sorted(held.holders(waiting.units))
    more = f" and {len(pods) - _MOST_PODS} more" if len(pods) > _MOST_PODS else ""
    # Without a pod, only the next answer of the kubelet is missing.
    return (
        f"changes its mode when its pods end: {', '.join(pods[:_MOST_PODS])}{more}" if pods else "changes its mode soon"
    )
