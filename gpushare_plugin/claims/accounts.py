"""What claims hold of the GPUs of a node, added up: the node believes no allocation without that.

The API server may have promised a GPU twice: a pod was deleted by force while its containers run on, or a scheduler
allocated by what it saw earlier.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping

from gpushare_plugin.base.structs import Struct
from gpushare_plugin.base.text import some_of
from gpushare_plugin.claims.capacities import WHOLE_COMPUTE
from gpushare_plugin.claims.claim import OTHER_POD, ClaimRefusedError
from gpushare_plugin.core.claimed_gpu import ClaimedGpu
from gpushare_plugin.core.prepared_claim import PreparedClaim, PreparedDevice

_HOLDERS_TO_NAME = 5


class _Count(Struct, frozen=True):
    """Something of a GPU that is added up."""

    unit: str
    """The words after a number."""
    of: Callable[[PreparedDevice], int]
    """Returns how much of it a device of a claim holds."""
    total: Callable[[ClaimedGpu], int | None]
    """Returns how much of it the GPU has; None where it does not count."""


_COUNTS = (
    _Count("MiB of memory", lambda each: each.memory_mib, lambda gpu: gpu.gpu.memory_mib),
    _Count("shares", lambda each: each.shares, lambda gpu: gpu.shares),
    _Count("percent of compute", lambda each: each.percent or 0, lambda _gpu: WHOLE_COMPUTE),
)


def check_room(claim: PreparedClaim, claims: Collection[PreparedClaim], by_claim: Mapping[str, ClaimedGpu]) -> None:
    """Raise ClaimRefusedError unless a claim fits beside the other `claims`; `by_claim` are the GPUs by UUID.

    The message names the claims that hold what is missing. Access for administration does not count.
    """
    for uuid in dict.fromkeys(each.gpu for each in claim.devices if not each.admin_access):
        if (gpu := by_claim.get(uuid)) is not None:
            _check_gpu(claim, claims, gpu)


_Held = Iterable[tuple[PreparedClaim, PreparedDevice]]
"""The shares of a GPU that count, each with its claim."""


def _check_gpu(claim: PreparedClaim, claims: Iterable[PreparedClaim], gpu: ClaimedGpu) -> None:
    own = [device for _, device in _on(gpu, [claim])]
    held = [(other, device) for other, device in _on(gpu, claims) if other.id.uid != claim.id.uid]
    for count in _COUNTS:
        asked, total = sum(map(count.of, own)), count.total(gpu)
        taken = sum(count.of(device) for _, device in held)
        if total is not None and asked > total:
            raise ClaimRefusedError(
                "beyond-gpu",
                f"claim {claim.id.label}: {asked} {count.unit} of {gpu.gpu.identity} allocated, which has {total} in "
                f"all; {OTHER_POD}",
            )
        if asked and total is not None and asked + taken > total:
            raise ClaimRefusedError(
                "no-room",
                f"claim {claim.id.label}: {asked} {count.unit} of {gpu.gpu.identity} allocated, which has {total} in "
                f"all, and {taken} are still held by {_holders(held, count)}; {_WAITS}",
            )
    if apart := [claim for claim, device in held if _exclude(own[0], device)]:
        labels = list(dict.fromkeys(each.id.label for each in apart))
        raise ClaimRefusedError(
            "no-room",
            f"claim {claim.id.label}: {gpu.gpu.identity} allocated in the way {gpu.way}, and still held whole, or in "
            f"another way, by {some_of(labels, _HOLDERS_TO_NAME)}; {_WAITS}",
        )


_WAITS = "the kubelet tries again, and the pod starts once the containers that use them have ended"


def _on(gpu: ClaimedGpu, claims: Iterable[PreparedClaim]) -> list[tuple[PreparedClaim, PreparedDevice]]:
    """Return what claims hold of a GPU. A node can have hundreds of claims, and each further claim waits for this."""
    uuid = gpu.gpu.uuid
    return [
        (claim, device)
        for claim in claims
        for device in claim.devices
        if device.gpu == uuid and not device.admin_access
    ]


def _holders(held: _Held, count: _Count) -> str:
    """Return the claims with how much each holds, for people."""
    amounts: Counter[str] = Counter()
    for claim, device in held:
        amounts[claim.id.label] += count.of(device)
    return some_of([f"{label} ({amount})" for label, amount in amounts.items() if amount], _HOLDERS_TO_NAME)


def _exclude(own: PreparedDevice, held: PreparedDevice) -> bool:
    """Return whether both cannot be on one GPU, however little they hold."""
    return own.way != held.way or own.way == "whole"
