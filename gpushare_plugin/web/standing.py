"""What the programs that decide about pods say of themselves in their Leases, read again and again."""

from datetime import UTC, datetime

from gpushare_plugin.base.structs import Struct
from gpushare_plugin.claims.overview import DeviceClasses
from gpushare_plugin.kube.client import Client
from gpushare_plugin.kube.whole_cluster.extender_lease import extender_standing
from gpushare_plugin.kube.whole_cluster.pod_claims import device_classes
from gpushare_plugin.ledger.standing import ExtenderStanding
from gpushare_plugin.partitioner.outlook import Partitioners, partitioners

EVERY = 30.0
"""Seconds between two reads."""


class ProgramNamespaces(Struct, frozen=True):
    """The namespaces of the programs that are read beside Nodes and Pods."""

    extender: str = "kube-system"
    """The namespace of the scheduler extender."""
    partitioner: str = "kube-system"
    """The namespace of the partitioner."""
    daemons: str = ""
    """The namespace of the daemons of nodes, whose metrics are read; empty for no metrics."""


class ClusterStanding(Struct, frozen=True):
    """What is known of a cluster beside its Nodes, Pods and claims."""

    extender: ExtenderStanding = ExtenderStanding()
    """The known state of the scheduler extender."""
    leading: Partitioners = Partitioners(runs=None)
    """The configuration of the leading partitioner."""
    classes: DeviceClasses = DeviceClasses()
    """The DeviceClasses, where something waits for claims."""


async def read_standing(client: Client, namespaces: ProgramNamespaces, *, claims: bool) -> ClusterStanding:
    """Return what the programs say now; what cannot be read is said in the place of what would be known.

    DeviceClasses are read with `claims` only.
    """
    now, unread = datetime.now(UTC), list[str]()
    classes = await device_classes(client, unread) if claims else None
    return ClusterStanding(
        await extender_standing(client, namespaces.extender, now),
        await partitioners(client, namespaces.partitioner, now),
        DeviceClasses(classes, tuple(unread)),
    )
