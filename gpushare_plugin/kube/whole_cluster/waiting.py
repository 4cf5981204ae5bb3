"""Pods that wait for a node: what is kept of each, and what Kubernetes itself says."""

from collections.abc import Iterator

from gpushare_plugin.base.structs import Struct
from gpushare_plugin.kube.objects import ApiPod
from gpushare_plugin.kube.pods import claim_names, pod_of
from gpushare_plugin.ledger.cluster import ClusterAccount
from gpushare_plugin.ledger.pod import FINAL_PHASES, Pod

_MOST_REASONS = 16
_LONGEST_REASON = 1024
"""The characters of a sentence that are kept: a scheduler names all causes on all nodes."""
_LONGEST_NAME = 253
_MOST_CLAIMS = 32
"""The most claims of a pod that are named."""


class WaitingPod(Struct, frozen=True):
    """A pod without a node that asks for an extended resource, or has a ResourceClaim."""

    pod: Pod
    """The pod."""
    scheduler: str = ""
    """The name of the pod's scheduler."""
    reasons: tuple[str, ...] = ()
    """What Kubernetes itself says, in sentences."""
    claims: tuple[tuple[str, str | None], ...] = ()
    """The entries of the pod for ResourceClaims, each with the name of its claim; None where none is made yet."""

    @property
    def claim_names(self) -> tuple[str, ...]:
        """The names of the claims, or of the entries where none is made yet."""
        return tuple(name or entry for entry, name in self.claims)

    def waits_for_gpus(self, account: ClusterAccount) -> bool:
        """Return whether the pod waits for units, slices or claims, given the account of the cluster."""
        return bool(self.claims) or self.pod.asks_for_slices or account.concerns(self.pod.request)


def waiting_pod(found: ApiPod, pod: Pod | None) -> WaitingPod | None:
    """Return what is kept of a pod that waits; None for a pod that has a node, or has ended.

    `pod` is the same pod for the account; None where the account has no such pod.
    """
    if found.spec.node_name or found.status.phase in FINAL_PHASES:
        return None
    claims = [
        (entry[:_LONGEST_NAME], None if name is None else name[:_LONGEST_NAME])
        for entry, name in claim_names(found).items()
    ]
    if pod is None and not claims:
        return None
    reasons = [text[:_LONGEST_REASON] for text, _ in zip(reasons_of(found), range(_MOST_REASONS), strict=False)]
    scheduler = found.spec.scheduler_name[:_LONGEST_NAME]
    return WaitingPod(pod or pod_of(found), scheduler, tuple(reasons), tuple(claims[:_MOST_CLAIMS]))


def reasons_of(pod: ApiPod) -> Iterator[str]:
    """Yield what Kubernetes itself says that the pod waits for, or why it failed."""
    for gate in pod.spec.scheduling_gates:
        yield f"Scheduling gate {gate.name}: no scheduler looks at the pod until it is removed"
    for each in pod.status.conditions:
        if each.type == "PodScheduled" and each.status != "True":
            yield f"The scheduler says: {each.message or each.reason or 'nothing'}"
    if pod.status.nominated_node_name:
        yield f"Nominated for node {pod.status.nominated_node_name}: pods there are being evicted for it"
    if pod.status.reason or pod.status.message:
        yield f"The kubelet says: {': '.join(filter(None, (pod.status.reason, pod.status.message)))}"
