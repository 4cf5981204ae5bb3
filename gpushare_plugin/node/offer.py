"""The offer of a node, computed from the plan, the GPUs and the holdings of pods."""

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet

from gpushare_plugin.core.gpu import Inventory
from gpushare_plugin.core.holding import Confirmed, Holding, Unknown
from gpushare_plugin.core.resource import Resource
from gpushare_plugin.node.news.news import GpuModeChanged, GpuWaiting, News
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
"""The most pods named in the reason why a GPU waits for pods."""


class NodeOffer:
    """The units listed by a node now, and the reasons why GPUs are not shared by the plan yet."""

    def __init__(self, news: News, clock: Callable[[], float]) -> None:
        """Offer nothing yet; `clock` (seconds) measures how long units have been retired."""
        self._news = news
        self._clock = clock
        self._offer = Offer()
        self._held: Confirmed | None = None
        self._served: frozenset[str] = frozenset()
        self.waiting: Mapping[str, str] = {}
        """Why GPUs are not shared as configured yet, by UUID."""

    def start(self, held: Iterable[Holding], inventory: Inventory, modes: Mapping[str, Mode]) -> None:
        """Start with the possible holdings of containers; `modes` are the earlier modes of GPUs, by UUID."""
        self._offer = resumed(held, inventory.gpus, modes, self._clock())

    def update_holdings(self, held: Confirmed | Unknown) -> None:
        """Record the current holdings of containers."""
        self._held = None if isinstance(held, Unknown) else held

    def advance(self, plan: Plan, inventory: Inventory) -> None:
        """Offer the part of a plan that is possible now; publish the GPUs that begin or cease to wait."""
        wanted = WantedOffer(plan.resources, plan.modes, inventory.parts, self._served)
        self._offer, waiting = advance(self._offer, wanted, self._held, self._clock())
        before, self.waiting = self.waiting, {each.gpu: _why(each, self._held) for each in waiting}
        for gpu, reason in self.waiting.items() - before.items():
            self._news.publish(GpuWaiting(gpu, reason))
        for present in inventory.gpus:
            if present.uuid in before and present.uuid not in self.waiting:
                self._news.publish(GpuModeChanged(present.uuid, plan.isolations.get(present.uuid, "none")))

    @property
    def resources(self) -> Mapping[str, Resource]:
        """The listed resources, by name."""
        return self._offer.resources

    def units(self, inventory: Inventory) -> PresentUnits:
        """Return the listed units and the held units; with unknown holdings, all listed units count as held."""
        gpus = inventory.numa_nodes
        offered = {id_: unit for each in self.resources.values() for id_, unit in each.units.items()}
        retired = {id_: unit.on(gpus) for each in self._offer.retired for id_, unit in each.units.items()}
        listed = {**retired, **offered}
        if self._held is None:
            return PresentUnits(offered, retired, listed)
        held = {unit.id: unit for each in self._held.holdings for unit in each.units(gpus, listed.get)}
        return PresentUnits(offered, retired, held, self._held.asked_at)

    def occupied(self, inventory: Inventory) -> frozenset[str]:
        """Return the UUIDs of the GPUs with units that are listed, or that pods may hold."""
        gpus = inventory.numa_nodes
        listed = (uuid for each in self.resources.values() for uuid in each.gpus)
        return frozenset((*listed, *(each.first.on(gpus).gpu for each in self._offer.retired)))

    def pause(self, most: float) -> float:
        """Return the seconds until an answer of the kubelet can free a retired unit, at most `most`."""
        now = self._clock()
        coming = (each.since + MINIMUM_RETIRED_SECONDS - now for each in self._offer.retired if each.listed)
        return min([most, *(seconds for seconds in coming if seconds > 0)])

    def only_recorded(self, inventory: Inventory) -> frozenset[str]:
        """Return the names of resources that are not served, and of whose units only the kubelet's checkpoint knows.

        They are units of `inventory` that pods held before this daemon started.
        """
        recorded = self._held.only_recorded if self._held is not None else frozenset[str]()
        gpus = inventory.numa_nodes
        retired = (each for each in self._offer.retired if not each.listed and each.first.on(gpus).gpu in gpus)
        return frozenset(each.resource for each in retired if not recorded.isdisjoint(each.units))

    def serve(self, names: AbstractSet[str]) -> None:
        """Serve these resources, too, as long as they have retired units."""
        self._served |= names

    @property
    def modes_in_use(self) -> dict[str, Mode]:
        """The mode of each shared GPU, by UUID; a waiting GPU still has the earlier mode."""
        return self._offer.modes_in_use

    @property
    def depends_on_pods(self) -> bool:
        """Whether the list of units changes when pods end."""
        return bool(self.waiting) or any(each.listed for each in self._offer.retired)

    def waits_for_record(self, surplus: AbstractSet[str]) -> bool:
        """Return whether the kubelet's checkpoint alone shows a retired unit, or a unit of `surplus`, to be held."""
        recorded = self._held.only_recorded if self._held is not None else frozenset[str]()
        waited_for = (surplus, *(each.units.keys() for each in self._offer.retired))
        return bool(recorded) and not all(ids.isdisjoint(recorded) for ids in waited_for)


def _why(waiting: Waiting, held: Confirmed | None) -> str:
    """Return the reason why a GPU waits, for people."""
    if held is None:
        return "it is not known yet which units pods hold"
    pods = sorted(held.holders(waiting.units))
    more = f" and {len(pods) - _MOST_PODS} more" if len(pods) > _MOST_PODS else ""
    # Without a holder, the GPU waits only for the next answer of the kubelet.
    return (
        f"changes its mode when its pods end: {', '.join(pods[:_MOST_PODS])}{more}" if pods else "changes its mode soon"
    )
