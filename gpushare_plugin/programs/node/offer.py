"""What a node offers: what follows from the plan, the GPUs and what pods hold."""

from collections.abc import Callable, Iterable, Mapping

from gpushare_plugin.adapters.kubelet.allocations.ledger import ONLY_RECORDED
from gpushare_plugin.model.gpu import Inventory
from gpushare_plugin.model.resource import Resource
from gpushare_plugin.programs.node.news.news import GpuWaiting, News
from gpushare_plugin.sharing.isolation.layer import Mode
from gpushare_plugin.sharing.plan import Plan
from gpushare_plugin.sharing.transition import Account, Offer, Waiting, Wanted, advance, resumed

_MOST_PODS = 5
"""Pods that are named where a GPU waits for some."""


class NodeOffer:
    """What a node lists now, and what keeps it from listing what it should."""

    def __init__(self, news: News, clock: Callable[[], float]) -> None:
        """Offer nothing yet; `clock` (seconds) tells how long units have been on their way out."""
        self._news = news
        self._clock = clock
        self._offer = Offer()
        self._account: Account | None = None
        self.waiting: Mapping[str, str] = {}
        """Why GPUs are not shared as the config says yet, by UUID."""

    def resume(self, held: Iterable[tuple[str, str]], inventory: Inventory, modes: Mapping[str, Mode]) -> None:
        """Begin with what pods hold from before, as resource and ID, in these modes by the GPU's UUID."""
        self._offer = resumed(held, inventory.devices, modes, self._clock())

    def learn(self, account: Account | None) -> None:
        """Take note of what pods hold now, None where that is not known."""
        self._account = account

    def advance(self, plan: Plan, inventory: Inventory) -> None:
        """Offer of a plan what can be offered now."""
        wanted = Wanted(plan.resources, plan.modes, inventory.parts)
        self._offer, waiting = advance(self._offer, wanted, self._account, self._clock())
        before, self.waiting = self.waiting, {each.gpu: _why(each, self._account) for each in waiting}
        for gpu, reason in self.waiting.items() - before.items():
            self._news.publish(GpuWaiting(gpu, reason))

    @property
    def resources(self) -> Mapping[str, Resource]:
        """The resources that are listed, by name."""
        return self._offer.resources

    @property
    def modes_in_use(self) -> dict[str, Mode]:
        """The mode of each GPU that has units listed, by its UUID."""
        return self._offer.modes_in_use

    @property
    def depends_on_pods(self) -> bool:
        """Whether more can be offered, or less has to be listed, once pods end."""
        return bool(self.waiting) or any(each.listed for each in self._offer.retired)

    @property
    def waits_for_record(self) -> bool:
        """Whether a unit on its way out is held in the kubelet's record alone."""
        held = self._account.held if self._account is not None else {}
        return any(ONLY_RECORDED in map(held.get, each.units) for each in self._offer.retired)


def _why(waiting: Waiting, account: Account | None) -> str:
    """Tell what a GPU waits for."""
    if account is None:
        return "it is not known yet what pods hold"
    pods = sorted(waiting.holders(account))
    more = f" and {len(pods) - _MOST_PODS} more" if len(pods) > _MOST_PODS else ""
    # Without a pod, all that is missing is that the kubelet says so once more.
    return f"changes over when its pods end: {', '.join(pods[:_MOST_PODS])}{more}" if pods else "changes over soon"
