"""The table of all ways of sharing; a new way is a module of this package and a line in the table."""

from gpushare_plugin.sharing.ways.memory import MemoryWay
from gpushare_plugin.sharing.ways.replicas import ReplicasWay
from gpushare_plugin.sharing.ways.slices import SlicesWay
from gpushare_plugin.sharing.ways.way import MakeWay
from gpushare_plugin.sharing.ways.whole_gpus import WholeGpusWay

WAYS: tuple[MakeWay, ...] = (
    MemoryWay,
    SlicesWay,
    ReplicasWay,
    WholeGpusWay,  # takes all remaining GPUs, so this way stays last
)
"""The ways of sharing, in the order of planning."""
