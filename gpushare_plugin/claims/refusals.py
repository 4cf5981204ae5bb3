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
        "The claim was made anew since the pod was scheduled.",
        "Delete the pod.",
    ),
    "not-allocated": ClaimRefusal(
        "The claim has no allocation for this node.",
        "Delete the pod, unless it ends already.",
    ),
    "malformed": ClaimRefusal(
        "kube-scheduler writes no such allocation.",
        "Delete pod and claim. Find who else writes the `status` of claims.",
    ),
    "unknown-device": ClaimRefusal(
        "The node no longer gives the allocated GPU by claim.",
        "Delete the pod, and a claim without template.",
    ),
    "other-way": ClaimRefusal(
        "The GPU is now shared in another way, or the allocation is impossible.",
        "Delete the pod, and a claim without template.",
    ),
    "beyond-gpu": ClaimRefusal(
        "The claim alone is larger than the GPU.",
        "Delete the pod, and a claim without template.",
    ),
    "no-room": ClaimRefusal(
        "Ended claims still hold the GPU, or a record is damaged.",
        "Wait until the named claims end. If a claim stays, look for containers that do not end.",
    ),
    "not-served": ClaimRefusal(
        "Nothing would limit the container now.",
        "Wait if `gpushare mps` has just started; else follow the message.",
    ),
    "cannot-limit": ClaimRefusal(
        "No container can have the limits of all GPUs or shares of the request.",
        "Ask for one GPU in a request, or for GPUs shared alike.",
    ),
    "parameters": ClaimRefusal(
        "The claim or its DeviceClass has opaque parameters.",
        "Remove the parameters from `config`.",
    ),
    "api": ClaimRefusal(
        "The API server does not answer, or denies reading the claim.",
        "Wait, or follow the message.",
    ),
    "files": ClaimRefusal(
        "A file of the claim cannot be written, or is newer than the daemon.",
        "Follow the message.",
    ),
}
"""The reasons, in the order of the checks."""
