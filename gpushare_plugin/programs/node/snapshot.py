"""The node at one moment, as metrics, tables and the API server show it."""

from dataclasses import replace

from gpushare_plugin.model.snapshot import Snapshot
from gpushare_plugin.programs.node.configuration import Configuration
from gpushare_plugin.programs.node.gpus.mps_needs import NodeMps
from gpushare_plugin.programs.node.gpus.state import Gpus
from gpushare_plugin.programs.node.offer import NodeOffer
from gpushare_plugin.sharing.snapshot import planned_snapshot


def snapshot(configuration: Configuration, gpus: Gpus, offer: NodeOffer, mps: NodeMps) -> Snapshot:
    """Return the node as it is now."""
    return replace(
        planned_snapshot(configuration.config, gpus.inventory, configuration.plan),
        resources=tuple(offer.resources.values()),
        unhealthy=gpus.reasons | mps.unserved,
        waiting=offer.waiting,
        notices=(*configuration.notices, *gpus.notices),
    )
