"""Nodes as they are told to the cluster, made without any host."""

from collections.abc import Mapping

from gpushare_plugin.base.structs import replace
from gpushare_plugin.config.effective import EffectiveConfig
from gpushare_plugin.config.schema.sections import Config
from gpushare_plugin.core.driver_limits import DriverLimits
from gpushare_plugin.core.gpu import Inventory
from gpushare_plugin.core.snapshot import Snapshot
from gpushare_plugin.sharing.plan import plan
from gpushare_plugin.sharing.snapshot import planned_snapshot
from tests.nodes import a_node


def snapshot(
    sharing: Mapping[str, object],
    *memory_mib: int,
    inventory: Inventory | None = None,
    unhealthy: Mapping[str, str] | None = None,
    notices: tuple[str, ...] = (),
    driver_limits: DriverLimits | None = None,
    **sections: object,
) -> Snapshot:
    """Return a node of these GPUs that is shared as this section of the settings, and others, say."""
    config = Config.model_validate({"sharing": sharing, **sections}, context={"declared": ()}, by_alias=True)
    found = inventory or a_node(*memory_mib)
    decided = plan(EffectiveConfig(config), found, driver_limits=driver_limits)
    assert not decided.problems
    return replace(planned_snapshot(config, found, decided), unhealthy=unhealthy or {}, notices=notices)
