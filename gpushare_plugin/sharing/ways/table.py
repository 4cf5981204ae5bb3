"""Every way of sharing, in the order they are planned; a new one is a module beside this one and a line here."""

from gpushare_plugin.sharing.ways.memory import MemoryWay
from gpushare_plugin.sharing.ways.replicas import ReplicasWay
from gpushare_plugin.sharing.ways.slices import SlicesWay
from gpushare_plugin.sharing.ways.way import MakeWay
from gpushare_plugin.sharing.ways.whole_gpus import WholeGpusWay

WAYS: tuple[MakeWay, ...] = (
    MemoryWay,
    SlicesWay,
    ReplicasWay,
    WholeGpusWay,  # takes what is left, so it stays last
)
