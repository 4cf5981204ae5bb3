"""Pods that seem to use a claim, though it was prepared for others: pods that came to the claim later."""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from gpushare_plugin.core.attribution import MPS_SERVER
from gpushare_plugin.core.prepared_claim import PreparedClaim
from gpushare_plugin.core.usage import Usage


def strangers(claims: Iterable[PreparedClaim], usage: Usage) -> Mapping[str, frozenset[str]]:
    """Return the pods that may have come to claims, by the UID of the claim, as a look at the usage shows them.

    Pods of which the kubelet shows a container with the claim are named as `namespace/name`, pods with processes on a
    GPU of the claim by their UID; a pod whose UID is known as that of a holder of the GPU is no stranger. Claims
    without strangers are left out.
    """
    nameless, foreign = _nameless(usage), _foreign(usage)
    found = {
        claim.id.uid: frozenset().union(
            *(nameless[claim.id.namespace, each.device, each.share_id] for each in claim.devices),
            *(foreign[each.gpu] for each in claim.devices),
        )
        for claim in claims
    }
    return {uid: pods for uid, pods in found.items() if pods}


def _nameless(usage: Usage) -> defaultdict[tuple[str, str, str | None], set[str]]:
    """Return the pods without a known UID, by the namespace and the device of what they have by claims."""
    found: defaultdict[tuple[str, str, str | None], set[str]] = defaultdict(set)
    for each in usage.containers:
        for device in each.claimed if not each.uid else ():
            found[each.namespace, device.device, device.share_id].add(each.label)
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
