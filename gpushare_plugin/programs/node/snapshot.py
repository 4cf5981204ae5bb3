"""The node at one moment, as metrics, tables and the API server show it."""

from gpushare_plugin.programs.node.configuration import Configuration
from gpushare_plugin.programs.node.gpus.state import Gpus
from gpushare_plugin.programs.node.mps_needs import NodeMps
from gpushare_plugin.programs.node.offer import NodeOffer
from gpushare_plugin.sharing.snapshot import Snapshot


def snapshot(configuration: Configuration, gpus: Gpus, offer: NodeOffer, mps: NodeMps) -> Snapshot:
    """Return the node as it is now."""
    return Snapshot(
        inventory=gpus.inventory,
        resources=tuple(offer.resources.values()),
        config=configuration.config,
        unhealthy=gpus.reasons | mps.unserved,
        waiting=offer.waiting,
        under_mps=frozenset(configuration.plan.mps.gpus),
        notices=(*configuration.notices, *gpus.notices),
    )
