"""The snapshot of a node from its plan, with what it needs of the config as plain values."""

from gpushare_plugin.config.schema import names
from gpushare_plugin.config.schema.sections import Config
from gpushare_plugin.model.gpu import Inventory
from gpushare_plugin.model.snapshot import Snapshot
from gpushare_plugin.sharing.plan import Plan


def planned_snapshot(config: Config, inventory: Inventory, decided: Plan) -> Snapshot:
    """Return the node with everything that the plan offers, where no GPU is unhealthy or waits."""
    return Snapshot(
        inventory,
        decided.resources,
        under_mps=frozenset(decided.mps.gpus),
        isolations=decided.isolations,
        notices=decided.notices,
        mig_strategy=config.flags.mig_strategy,
        mps_configured=config.sharing.mps is not None,
        whole_gpu_names=frozenset({names.WHOLE_GPU, *(pattern.name for pattern in config.resources.gpus)}),
    )
