"""Why claims are not prepared, for the documents: what each reason means, and what to do."""

from collections.abc import Mapping

from gpushare_plugin.base.structs import Struct
from gpushare_plugin.claims.claim import RefusalReason


class ClaimRefusal(Struct, frozen=True):
    """What a reason means to people."""

    meaning: str
    """What was found."""
    remedy: str
    """What to do."""


REFUSALS: Mapping[RefusalReason, ClaimRefusal] = {
    "not-found": ClaimRefusal(
        "The API server has no claim of this name.",
        "Delete the pod: it waits for a claim that somebody deleted.",
    ),
    "other-claim": ClaimRefusal(
        "The claim of this name has another UID: it was deleted and made anew since the pod was scheduled.",
        "Delete the pod; a new pod gets the new claim.",
    ),
    "not-allocated": ClaimRefusal(
        "The claim has no allocation for this node, or none any more.",
        "Nothing, if the pod is being deleted; else delete the pod, so that a new pod is scheduled.",
    ),
    "malformed": ClaimRefusal(
        "The allocation is none that kube-scheduler writes: an amount that cannot be read, more than 32 devices, or a "
        "request with an impossible name.",
        "Delete the pod and the claim, and look who else writes the `status` of claims; the message says what was "
        "found.",
    ),
    "unknown-device": ClaimRefusal(
        "The node does not give the allocated GPU by claim any more: the config changed, or the GPU is gone.",
        "Delete the pod and, if it is not from a template, the claim.",
    ),
    "other-way": ClaimRefusal(
        "The node cannot give the allocation: the GPU is shared in another way than when the claim was allocated, or "
        "the allocation is none that kube-scheduler makes, such as compute over 100.",
        "Delete the pod and, if it is not from a template, the claim.",
    ),
    "beyond-gpu": ClaimRefusal(
        "The claim alone has more memory, shares or compute than the GPU has, so no waiting helps.",
        "Delete the pod and, if it is not from a template, the claim.",
    ),
    "no-room": ClaimRefusal(
        "Other claims still hold the memory, shares or compute, though the API has freed them: a pod was deleted by "
        "force, or the node was away. Or it is not known what the claim of a damaged record holds. The claim has "
        "waited 10 seconds.",
        "Nothing: the kubelet tries again, and the pod starts once the named claims have ended. If that takes "
        "long, look for containers that do not end, or at the record that the message names.",
    ),
    "not-served": ClaimRefusal(
        "Nothing would keep the container within its share now, for example because MPS does not serve the GPU (yet). "
        "The claim has waited 10 seconds, and 20 for its MPS namespaces.",
        "Nothing, if `gpushare mps` has just started: the kubelet tries again. Else see the reason in the message.",
    ),
    "cannot-limit": ClaimRefusal(
        "The request has several GPUs, or several shares of one GPU, and no container can have the limits of all.",
        "Ask for one GPU in a request, or for GPUs that are shared alike; the message says which.",
    ),
    "parameters": ClaimRefusal(
        "The claim, or its DeviceClass, has opaque parameters for the DRA driver, which takes none.",
        "Remove them from `config`: how GPUs are shared is configured for each node.",
    ),
    "api": ClaimRefusal(
        "The API server does not answer, or denies the right to read the claim.",
        "Nothing for an API server that is away: the kubelet tries again. For a missing right, see the message.",
    ),
    "files": ClaimRefusal(
        "The node cannot write the record or the CDI specification of the claim, or the record is of a newer version.",
        "Mend what the message names, such as a full disk; update the daemon for a newer record.",
    ),
}
"""The reasons, in the order of the checks."""
