"""The one table of the policies that can be compared."""

from collections.abc import Callable, Mapping, Sequence

from numpy.random import Generator

from gpushare_plugin.base.structs import Struct
from gpushare_plugin.packing.pod_kind import PodKind
from gpushare_plugin.packing.policy import Packing
from gpushare_plugin.packing.rows import NodeRows
from gpushare_plugin.simulator.policies import scored
from gpushare_plugin.simulator.policies.fgd import Fgd
from gpushare_plugin.simulator.policies.policy import ComparedPolicy
from gpushare_plugin.simulator.policies.random_spot import RandomSpot
from gpushare_plugin.simulator.policies.scored import Scored


class Setting(Struct, frozen=True):
    """What a policy starts with."""

    rows: NodeRows
    """The nodes, empty."""
    pods: Sequence[PodKind]
    """The pods of the trace, for policies that know the mix of pods beforehand."""
    chance: Generator
    """The source of random numbers, for policies that decide by chance."""


COMPARED: Mapping[str, Callable[[Setting], ComparedPolicy]] = {
    "packing": lambda setting: Packing(setting.rows),
    "fgd": lambda setting: Fgd(setting.rows, setting.pods),
    "binpack": lambda setting: Scored(setting.rows, scored.fullest, scored.tightest),
    "spread": lambda setting: Scored(setting.rows, scored.emptiest, scored.most_free),
    "best-fit": lambda setting: Scored(setting.rows, scored.least_left, scored.tightest),
    "worst-fit": lambda setting: Scored(setting.rows, scored.most_left, scored.most_free),
    "dot-product": lambda setting: Scored(setting.rows, scored.least_aligned, scored.tightest),
    "random": lambda setting: RandomSpot(setting.rows, setting.chance),
}
"""The policies that can be compared, by name."""
