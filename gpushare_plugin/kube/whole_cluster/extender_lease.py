"""Reads the Lease of the scheduler extender: what the extender does by default, and whether one runs."""

from datetime import datetime
from http import HTTPStatus

from gpushare_plugin.core.policies import POLICIES
from gpushare_plugin.kube.client import Client, ClusterError
from gpushare_plugin.kube.lease import read_lease, silence
from gpushare_plugin.kube.names import ANYONE, CLIENTS, EXTENDER_LEASE
from gpushare_plugin.kube.scheduling.lessons import LESSON, read
from gpushare_plugin.ledger.annotations import PLACEMENT
from gpushare_plugin.ledger.standing import ExtenderStanding
from gpushare_plugin.packing.seen import NOTHING


async def extender_standing(client: Client, namespace: str, now: datetime) -> ExtenderStanding:
    """Return what the Lease of the scheduler extenders in a namespace says at an aware time, for people."""
    name = f"Lease {namespace}/{EXTENDER_LEASE}"
    try:
        lease = await read_lease(client, namespace, EXTENDER_LEASE)
    except ClusterError as error:
        return _without_lease(name, error)
    annotations, silent = lease.metadata.annotations, silence(lease, now)
    stopped = None if silent is None else f"{silent} {name}"
    anyone = annotations.get(CLIENTS) == ANYONE
    policy = annotations.get(PLACEMENT)
    if policy is not None and policy in POLICIES:
        source = f"the default of the scheduler extender ({name})"
        lesson = read(annotations.get(LESSON, "")) or NOTHING
        return ExtenderStanding(policy, source, None, stopped, open_to_anyone=anyone, lesson=lesson)
    assumed = f"the {name} of the scheduler extender names no policy that is known here"
    return ExtenderStanding(assumed=assumed, stopped=stopped, open_to_anyone=anyone)


def _without_lease(name: str, error: ClusterError) -> ExtenderStanding:
    if error.status == HTTPStatus.NOT_FOUND:
        assumed = f"no scheduler extender has a {name}; --extender-namespace names another namespace"
        return ExtenderStanding(assumed=assumed, stopped=f"there is no {name}", installed=False)
    if error.status == HTTPStatus.FORBIDDEN:
        return ExtenderStanding(assumed=f"you may not get the {name} of the scheduler extender")
    return ExtenderStanding(assumed=f"the {name} cannot be read: {error}")
