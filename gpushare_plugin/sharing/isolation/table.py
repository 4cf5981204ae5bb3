"""The table of all isolations; a new isolation is a module of this package and a line in the table."""

from collections.abc import Callable, Iterable, Mapping

from gpushare_plugin.config.schema.isolations import IsolationName
from gpushare_plugin.config.schema.sections import Config
from gpushare_plugin.sharing.isolation.driver import driver_isolation
from gpushare_plugin.sharing.isolation.driver_and_mps import DriverAndMpsIsolation
from gpushare_plugin.sharing.isolation.hami_core import HamiCoreIsolation
from gpushare_plugin.sharing.isolation.layer import Isolation, Limits, NodeMeans
from gpushare_plugin.sharing.isolation.mps import MpsIsolation

ISOLATIONS: Mapping[IsolationName, Callable[[Config, Limits, NodeMeans], Isolation]] = {
    "none": lambda _config, _limits, _node: Isolation(),
    "mps": lambda config, limits, node: MpsIsolation(
        config.flags.mps_root, limits, config.flags.mps_protocol, node.driver_version
    ),
    "hami-core": lambda config, limits, _node: HamiCoreIsolation(config.hami_core.library_directory, limits),
    "driver": lambda config, limits, node: driver_isolation(config, limits, node.driver_limits),
    "driver+mps": lambda config, limits, node: DriverAndMpsIsolation(
        config.flags.mps_root,
        limits,
        config.flags.mps_protocol,
        node.driver_version,
        driver_isolation(config, limits, node.driver_limits),
    ),
}
"""The functions that make the isolation of an entry, by name in the config.

They take the config, the limits of the entry, and the means of the node.
"""


def isolations(
    names: Iterable[IsolationName], config: Config, limits: Limits, node: NodeMeans
) -> tuple[Isolation, ...]:
    """Return the isolations of an entry with these names, in the same order."""
    return tuple(ISOLATIONS[name](config, limits, node) for name in names)


def isolations_under_mps(
    names: Iterable[IsolationName] | None, config: Config, limits: Limits, node: NodeMeans
) -> tuple[Isolation, ...]:
    """Return the isolations of an entry under MPS, where `driver` is not without MPS; None names no isolation."""
    both: dict[IsolationName, None] = dict.fromkeys(
        "driver+mps" if name == "driver" else name for name in names or ("mps",)
    )
    return isolations(both, config, limits, node)
