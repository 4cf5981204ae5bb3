"""Tests of `gpushare_plugin.config.directives`."""

from gpushare_plugin.config.directives import shared_through_mps
from gpushare_plugin.config.effective import EffectiveConfig
from gpushare_plugin.sharing.isolation.mps import MpsNeeds, UnderMps
from gpushare_plugin.sharing.plan import plan
from tests.nodes import a_node
from tests.unit.sharing.settings import GPU_MEM, memory, only, settings, time_slicing

NODE = a_node(40960, 40960)


def test_all_gpus_are_shared_by_memory_through_mps() -> None:
    """Whatever the file shares, the label means aliyun.com/gpu-mem under MPS on every GPU."""
    config = shared_through_mps(settings(sharing=time_slicing({"name": "nvidia.com/gpu", "replicas": 2})))
    assert config == settings(sharing=memory(isolation="mps"))
    decided = plan(EffectiveConfig(config), NODE)
    resource = only(decided)
    assert (resource.name, len(resource.units)) == (GPU_MEM, 80)
    assert decided.mps == MpsNeeds(dict.fromkeys((gpu.uuid for gpu in NODE.gpus), UnderMps(None)))


def test_everything_else_stays() -> None:
    """Unit, placement and flags are no matter of the label."""
    config = settings(
        flags={"mpsRoot": "/srv/mps"}, sharing=memory(unit="256MiB", placement="spread", devices=[0], isolation="none")
    )
    assert shared_through_mps(config) == settings(
        flags={"mpsRoot": "/srv/mps"}, sharing=memory(unit="256MiB", placement="spread", isolation="mps")
    )
