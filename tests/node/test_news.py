"""Tests of `gpushare_plugin.node.news`: what happens is typed news, and the log has a line for each type."""

from typing import get_args

from gpushare_plugin.config.schema.sections import Health
from gpushare_plugin.core.health import Cordon, GpuEvent
from gpushare_plugin.node.gpus.state import Gpus
from gpushare_plugin.node.news.log import NewsLog
from gpushare_plugin.node.news.news import (
    GpuCordoned,
    GpuEventReported,
    GpuModeChanged,
    GpuRecovered,
    GpuUncordoned,
    GpuUnhealthy,
    GpuWaiting,
    News,
    NewsItem,
    Warned,
)
from gpushare_plugin.node.offer import NodeOffer
from tests.nodes import a_gpu, a_node
from tests.unit.sharing.holders import confirmed
from tests.unit.sharing.settings import memory, only, planned, time_slicing

SLICED = {"name": "nvidia.com/gpu", "replicas": 4}


def test_every_type_of_news_has_a_line_in_the_log() -> None:
    """Nothing can happen that the log does not know how to write."""
    registered = NewsLog.__dict__["log"].dispatcher.registry
    assert set(get_args(NewsItem)) <= registered.keys()


def test_every_subscriber_hears_news_once_and_in_order() -> None:
    """A fault, a cordon and their ends, as every subscriber gets them; what is known already is no news."""
    heard: list[list[NewsItem]] = [[], []]
    news = News(heard[0].append, heard[1].append)
    gpus = Gpus(a_node(8192, 8192), Health(good_probes=1), news)
    uuid = a_gpu(0).uuid
    event = GpuEvent(uuid, 56, "XID 56")
    gpus.event(event)
    gpus.event(event)
    gpus.cordon(Cordon({uuid: "cordoned"}, ("GPU 7 is not there",)))
    gpus.merge(gpus.inventory)
    gpus.cordon(Cordon())
    assert heard[0] == [
        GpuEventReported(event, "until recovery"),
        GpuUnhealthy(uuid, "XID 56", until_reset=False),
        GpuEventReported(event, "until recovery"),
        Warned("GPU 7 is not there"),
        GpuCordoned(uuid, "cordoned"),
        GpuRecovered(uuid),
        GpuUncordoned(uuid),
    ]
    assert heard[1] == heard[0]


def test_a_fault_that_gets_worse_is_news_again() -> None:
    """Once, when the fault needs a reset from now on; another reason alone is no news."""
    heard: list[NewsItem] = []
    gpus = Gpus(a_node(8192, 8192), Health(), News(heard.append))
    uuid = a_gpu(0).uuid
    for xid in (56, 57, 79, 56, 79):
        gpus.event(GpuEvent(uuid, xid, f"XID {xid}"))
    assert [each for each in heard if isinstance(each, GpuUnhealthy)] == [
        GpuUnhealthy(uuid, "XID 56", until_reset=False),
        GpuUnhealthy(uuid, "XID 79", until_reset=True),
    ]


def test_a_gpu_that_waits_for_a_pod_is_news_twice() -> None:
    """When another way of sharing has to wait for a pod, and when the pod is gone and the GPU is shared so."""
    node = a_node(8192)
    before, after = planned(node, sharing=memory()), planned(node, sharing=time_slicing(SLICED))
    held = next(iter(only(before).units))
    heard: list[NewsItem] = []
    now = [0.0]
    offer = NodeOffer(News(heard.append), lambda: now[0])
    offer.start([], node, {})
    offer.advance(before, node)
    offer.update_holdings(confirmed(held, at=0, pod="one"))
    offer.advance(after, node)
    offer.advance(after, node)
    assert heard == [GpuWaiting(a_gpu(0).uuid, "changes its mode when its pods end: team/one")]
    now[0] = 100.0
    offer.update_holdings(confirmed(at=100))
    offer.advance(after, node)
    offer.advance(after, node)
    assert heard[1:] == [GpuModeChanged(a_gpu(0).uuid, "none")]
    assert offer.resources.keys() == {SLICED["name"]}
