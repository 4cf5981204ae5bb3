"""The table of all isolations; a new isolation is a module of this package and a line in the table."""

from collections.abc import Callable, Mapping

from gpushare_plugin.config.schema.sections import Config
from gpushare_plugin.sharing.isolation.hami_core import HamiCoreIsolation
from gpushare_plugin.sharing.isolation.layer import Isolation, Limits
from gpushare_plugin.sharing.isolation.mps import MpsIsolation

ISOLATIONS: Mapping[str, Callable[[Config, Limits], Isolation]] = {
    "none": lambda _config, _limits: Isolation(),
    "mps": lambda config, limits: MpsIsolation(config.flags.mps_root, limits),
    "hami-core": lambda config, limits: HamiCoreIsolation(config.hami_core.library_directory, limits),
}
"""The functions that make the isolation of an entry from the config and the limits, by name in the config."""
