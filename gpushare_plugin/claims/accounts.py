"""What claims hold of the GPUs of a node, added up: the node believes no allocation without that.

The API server may have promised a GPU twice: a pod was deleted by force while its containers run on, or a scheduler
allocated by what it saw earlier.
"""

from collections.abc import Callable, Iterable, Mapping

from gpushare_plugin.base.structs import Struct
from gpushare_plugin.base.text import some_of
from gpushare_plugin.claims.capacities import WHOLE_COMPUTE
from gpushare_plugin.claims.claim import ClaimRefusedError
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


def check_room(claim: PreparedClaim, others: Iterable[PreparedClaim], by_claim: Mapping[str, ClaimedGpu]) -> None:
    """Raise ClaimRefusedError unless a claim fits beside `others`; `by_claim` are the GPUs of the node by UUID.

    The message names the claims that hold what is missing. Access for administration does not count.
    """
    beside = [each for each in others if each.id.uid != claim.id.uid]
    for uuid in dict.fromkeys(each.gpu for each in claim.devices if not each.admin_access):
        if (gpu := by_claim.get(uuid)) is not None:
            _check_gpu(claim, beside, gpu)


def _check_gpu(claim: PreparedClaim, others: Iterable[PreparedClaim], gpu: ClaimedGpu) -> None:
    own = _on(claim, gpu)
    held = {each.id.label: devices for each in others if (devices := _on(each, gpu))}
    for count in _COUNTS:
        asked, total = sum(map(count.of, own)), count.total(gpu)
        holders = [(label, amount) for label, devices in held.items() if (amount := sum(map(count.of, devices)))]
        taken = sum(amount for _, amount in holders)
        if asked and total is not None and asked + taken > total:
            raise ClaimRefusedError(
                "no-room",
                f"claim {claim.id.label}: {asked} {count.unit} of {gpu.gpu.identity} allocated, which has {total} in "
                f"all, and {taken} are still held by {some_of(holders, _HOLDERS_TO_NAME, _holder) or 'no claim'}; "
                f"{_WAITS}",
            )
    if apart := [label for label, devices in held.items() if _exclude(own, devices)]:
        raise ClaimRefusedError(
            "no-room",
            f"claim {claim.id.label}: {gpu.gpu.identity} allocated in the way {gpu.way}, and still held whole, or in "
            f"another way, by {some_of(apart, _HOLDERS_TO_NAME)}; {_WAITS}",
        )


_WAITS = "the kubelet tries again, and the pod starts once the containers that use them have ended"


def _holder(holder: tuple[str, int]) -> str:
    label, amount = holder
    return f"{label} ({amount})"


def _on(claim: PreparedClaim, gpu: ClaimedGpu) -> list[PreparedDevice]:
    return [each for each in claim.devices if each.gpu == gpu.gpu.uuid and not each.admin_access]


def _exclude(own: Iterable[PreparedDevice], held: Iterable[PreparedDevice]) -> bool:
    """Return whether both cannot be on one GPU, however little they hold."""
    ways = {each.way for each in (*own, *held)}
    return len(ways) > 1 or "whole" in ways
