"""The snapshot of the node for metrics, tables and the API server."""

from gpushare_plugin.base.structs import replace
from gpushare_plugin.core.snapshot import Snapshot
from gpushare_plugin.node.configuration import Configuration
from gpushare_plugin.node.gpus.mig_needs import NodeMig
from gpushare_plugin.node.gpus.mps_needs import NodeMps
from gpushare_plugin.node.gpus.slices import NodeSlices
from gpushare_plugin.node.gpus.state import Gpus
from gpushare_plugin.node.offer import NodeOffer
from gpushare_plugin.sharing.cut import few_slices, unsuitable
from gpushare_plugin.sharing.snapshot import planned_snapshot


def snapshot(  # noqa: PLR0913, PLR0917 - every part of a node
    configuration: Configuration, gpus: Gpus, offer: NodeOffer, mps: NodeMps, slices: NodeSlices, mig: NodeMig
) -> Snapshot:
    """Return the current state of the node."""
    partitioning = configuration.partitioning
    notices = slices.notices(partitioning)
    planned = planned_snapshot(configuration.config, gpus.inventory, configuration.plan)
    return replace(
        planned,
        needs_mps=planned.needs_mps or partitioning == "mps" or mps.in_use,
        resources=tuple(offer.resources.values()),
        unhealthy=mps.unserved | gpus.faults,
        unserved=mps.unserved,
        config=configuration.standing,
        cordoned=gpus.cordons,
        waiting={**mig.reasons, **offer.waiting},
        notices=(*configuration.notices, *notices, *gpus.notices),
        partitioning=partitioning,
        unsuitable=unsuitable(gpus.inventory.cards) if partitioning == "mps" else {},
        mig_rooms=mig.rooms if partitioning == "mig" else {},
        most_slices=few_slices(gpus.inventory.cards) if partitioning == "mps" else {},
    )
