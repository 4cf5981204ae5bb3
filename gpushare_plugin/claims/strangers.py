"""Pods that seem to use a claim, though it was prepared for others: pods that came to the claim later."""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from gpushare_plugin.core.attribution import MPS_SERVER
from gpushare_plugin.core.prepared_claim import PreparedClaim
from gpushare_plugin.core.usage import Usage


def strangers(claims: Iterable[PreparedClaim], usage: Usage) -> Mapping[str, frozenset[str]]:
    """Return the pods that may have come to claims, by the UID of the claim, as a look at the usage shows them.

    Pods with a container that has the claim are named as `namespace/name`, unless their UID is that of a pod of the
    claim; pods with processes on a GPU of the claim by their UID, unless it is that of a holder of the GPU. Claims
    without strangers are left out.
    """
    holders, foreign = _holders(usage), _foreign(usage)
    found: dict[str, frozenset[str]] = {}
    for claim in claims:
        users = {user.uid for user in claim.users}
        having = (who for each in claim.devices for who in holders[claim.id.namespace, each.device, each.share_id])
        unknown = frozenset(label for label, uid in having if uid not in users)
        found[claim.id.uid] = unknown.union(*(foreign[each.gpu] for each in claim.devices))
    return {uid: pods for uid, pods in found.items() if pods}


def _holders(usage: Usage) -> defaultdict[tuple[str, str, str | None], set[tuple[str, str]]]:
    """Return label and UID of the pods that have devices by claims, by the namespace and the device."""
    found: defaultdict[tuple[str, str, str | None], set[tuple[str, str]]] = defaultdict(set)
    for each in usage.containers:
        for device in each.claimed:
            found[each.namespace, device.device, device.share_id].add((each.label, each.uid))
    return found


def _foreign(usage: Usage) -> defaultdict[str, set[str]]:
    """Return the UIDs of pods with processes on a GPU that they do not hold, by the UUID of the GPU."""
    held = {(each.gpu, each.uid) for each in usage.containers}
    found: defaultdict[str, set[str]] = defaultdict(set)
    for gpu in usage.gpus:
        for each in gpu.processes or ():
            uid = each.owner.pod_uid
            if uid and (gpu.uuid, uid) not in held and each.program != MPS_SERVER:
                found[gpu.uuid].add(uid)
    return found
