"""Tests of a node under each isolation: what depends on another daemon is not allocated without it."""

import pytest

from gpushare_plugin.base.structs import replace
from gpushare_plugin.config.schema.isolations import IsolationName
from gpushare_plugin.config.schema.sections import Config
from gpushare_plugin.core.driver_limits import DriverLimits
from gpushare_plugin.sharing.isolation.layer import Limits, NodeMeans
from gpushare_plugin.sharing.isolation.mps import UnderMps
from gpushare_plugin.sharing.isolation.table import ISOLATIONS
from gpushare_plugin.testing.kubelet import EmbeddedKubelet
from tests.node.living import living
from tests.nodes import Cards, a_gpu, a_node
from tests.unit.sharing.settings import GPU_MEM, memory

DAEMONLESS = {"none", "hami-core", "driver"}
"""The isolations that need nothing that runs on the node; `driver` with a hook of NVIDIA's container toolkit."""


@pytest.mark.parametrize("name", ISOLATIONS)
async def test_units_are_healthy_only_where_nothing_is_missing(kubelet: EmbeddedKubelet, name: str) -> None:
    """Where no daemon of the isolation serves a GPU, none of its units is allocated, and the node says why."""
    cards = Cards(replace(a_node(8192), driver_limits=DriverLimits()))
    async with living(kubelet, cards, sharing=memory(isolation=name)) as life:
        await kubelet.wait_for(lambda seen: seen.capacity() == {GPU_MEM: 8})
        snapshot = life.node.snapshot.value
        served = name in DAEMONLESS
        where = f"if {name} needs no daemon, add it to DAEMONLESS here; else node/node.py has to ask what is served"
        assert kubelet.allocatable() == {GPU_MEM: 8 if served else 0}, where
        assert (snapshot.unserved.keys() == {a_gpu(0).uuid}) is not served, where


@pytest.mark.parametrize("name", ISOLATIONS)
def test_a_daemon_is_needed_in_a_mode_of_its_own(name: IsolationName) -> None:
    """A GPU goes to and from MPS only when no pod holds it, and the mode says what MPS has to serve."""
    mode = ISOLATIONS[name](Config(), Limits(), NodeMeans()).mode(a_gpu(0))
    assert isinstance(mode, UnderMps) is (name not in DAEMONLESS)
