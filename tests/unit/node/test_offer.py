"""Tests of `gpushare_plugin.node.offer`."""

from gpushare_plugin.config.effective import EffectiveConfig
from gpushare_plugin.config.schema.sections import Config
from gpushare_plugin.core.unit import Form
from gpushare_plugin.node.news.news import News
from gpushare_plugin.node.offer import NodeOffer
from gpushare_plugin.sharing.cut import PresentUnits
from gpushare_plugin.sharing.plan import Plan, plan
from gpushare_plugin.sharing.transition import MINIMUM_RETIRED_SECONDS
from gpushare_plugin.slices.slice import Slice
from tests.clock import Clock
from tests.nodes import a_node
from tests.unit.sharing.holders import confirmed, taken
from tests.unit.sharing.settings import planned, time_slicing

NODE = a_node(8192)
SHARED = planned(NODE, sharing=time_slicing({"name": "nvidia.com/gpu", "replicas": 2}))
WHOLE: Plan = plan(EffectiveConfig(Config()), NODE)


def test_the_kubelet_is_asked_when_retired_units_can_go() -> None:
    """The pause ends two seconds after they were retired, not whenever the next question would be due."""
    clock = Clock()
    offer = NodeOffer(News(lambda _item: None), clock)
    offer.advance(SHARED, NODE)
    assert offer.pause(60) == 60
    offer.advance(WHOLE, NODE)
    assert offer.pause(60) == MINIMUM_RETIRED_SECONDS
    clock.now += 1.5
    assert offer.pause(60) == MINIMUM_RETIRED_SECONDS - 1.5
    clock.now += 0.5
    assert offer.pause(60) == 60  # asked now; should a pod hold them, it is asked as often as ever
    offer.update_holdings(confirmed(at=clock.now))
    offer.advance(WHOLE, NODE)
    assert not offer.depends_on_pods


def test_every_listed_unit_counts_as_held_while_it_is_not_known_what_pods_hold() -> None:
    """Nothing is taken away for want of an answer."""
    offer = NodeOffer(News(lambda _item: None), Clock())
    offer.start(taken({("nvidia.com/gpu-10gb", "00000000-10gb-3")}), NODE, {})
    old = {"00000000-10gb-3": Form.cut("00000000", Slice("mps", "10gb")).units(NODE.cards[0].uuid, None, [3], 10240)[0]}
    assert offer.units(NODE) == PresentUnits(retired=old, held=old)
    offer.update_holdings(confirmed(at=100.0))
    assert offer.units(NODE) == PresentUnits(retired=old, asked_at=100.0)
