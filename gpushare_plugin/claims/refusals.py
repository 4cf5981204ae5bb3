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
        "Delete the pod.",
    ),
    "other-claim": ClaimRefusal(
        "The claim was deleted and made anew since the pod was scheduled.",
        "Delete the pod; a new pod gets the new claim.",
    ),
    "not-allocated": ClaimRefusal(
        "The claim has no allocation for this node.",
        "Delete the pod, unless it ends already.",
    ),
    "malformed": ClaimRefusal(
        "kube-scheduler writes no such allocation: an unreadable amount, more than 32 devices, an impossible name.",
        "Delete pod and claim, and look who else writes the `status` of claims.",
    ),
    "unknown-device": ClaimRefusal(
        "The node no longer gives the allocated GPU by claim.",
        "Delete the pod and, if it is not from a template, the claim.",
    ),
    "other-way": ClaimRefusal(
        "The GPU is shared in another way than when allocated, or the allocation is impossible (compute over 100).",
        "Delete the pod and, if it is not from a template, the claim.",
    ),
    "beyond-gpu": ClaimRefusal(
        "The claim alone is larger than the GPU.",
        "Delete the pod and, if it is not from a template, the claim.",
    ),
    "no-room": ClaimRefusal(
        "Ended claims still hold the GPU after 10 seconds: a pod was deleted by force, the node was away, or a "
        "record is damaged.",
        "Wait: the pod starts when the named claims have ended. If not, look for containers that do not end, or at "
        "the named record.",
    ),
    "not-served": ClaimRefusal(
        "Nothing would limit the container now, after a wait of 10 seconds (20 for MPS namespaces).",
        "Wait if `gpushare mps` has just started; else follow the message.",
    ),
    "cannot-limit": ClaimRefusal(
        "The request has several GPUs or shares, and no container can have the limits of all.",
        "Ask for one GPU in a request, or for GPUs that are shared alike.",
    ),
    "parameters": ClaimRefusal(
        "The claim or its DeviceClass has opaque parameters.",
        "Remove them from `config`: the node's config says how GPUs are shared.",
    ),
    "api": ClaimRefusal(
        "The API server does not answer, or denies the right to read the claim.",
        "Wait for the API server; for a missing right, follow the message.",
    ),
    "files": ClaimRefusal(
        "The node cannot write the claim's record or CDI specification, or the record is of a newer version.",
        "Mend what the message names, such as a full disk; update the daemon for a newer record.",
    ),
}
"""The reasons, in the order of the checks."""
