"""What claims of a pod wait for, in words: which are allocated, what is free of each GPU, why a request fits on none.

kube-scheduler decides, by rules of which some are not known here: the expressions (CEL) of requests and DeviceClasses.
Source of the rules for capacities: kubernetes, staging/src/k8s.io/dynamic-resource-allocation/structured/internal
(`calculateConsumedCapacity`), and `CapacityRequestPolicy` in staging/src/k8s.io/api/resource/v1/types.go (1.36).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

from gpushare_plugin.base.memory import MIB
from gpushare_plugin.base.text import some_of
from gpushare_plugin.claims.asked import AskedDevice, PodClaim
from gpushare_plugin.claims.capacities import MEMORY
from gpushare_plugin.claims.cluster import HeldGpu
from gpushare_plugin.claims.device import Capacity

MOST_GPUS = 20
"""The most GPUs that are told of a request."""
_MOST_NAMES = 5


Naming = Callable[[Sequence[str]], Iterable[str]]
"""Returns what people read for the names of the claims that hold a GPU."""


def outlook(claims: Iterable[PodClaim], gpus: Sequence[HeldGpu], named: Naming = list) -> Iterator[str]:
    """Yield sentences about the claims of a pod; those that belong to a claim are indented.

    `gpus` are the GPUs that are given by claim, and what claims have of them.
    """
    for claim in claims:
        if claim.unknown:
            yield f"Claim {claim.label}: {claim.unknown}"
        elif claim.allocated is not None:
            places = some_of([f"{device} of {pool}" for _, pool, device in claim.allocated], _MOST_NAMES)
            yield f"Claim {claim.label}: allocated: {places or 'no device'}"
            for driver, pool, device in claim.gone[:_MOST_NAMES]:
                yield f"  No ResourceSlice has {device} now: the DRA driver {driver} does not run on {pool}, or no more"
                yield "  gives the GPU by claim; if that stays so, delete the pod, and a claim that is from no template"
        else:
            yield f"Claim {claim.label}: not allocated"
            for asked in claim.asked:
                yield from _about(asked, [each for each in gpus if each.gpu.offered], named)


def _about(asked: AskedDevice, gpus: Sequence[HeldGpu], named: Naming) -> Iterator[str]:
    amounts = ", ".join(f"{_words(name, amount)} of {name}" for name, amount in asked.amounts.items())
    times = f" on each of {asked.count} GPUs" if asked.count > 1 else ""
    yield f"  Request {asked.name} of DeviceClass {asked.device_class}: {amounts or 'no size'}{times}"
    if asked.no_class:
        yield f"    There is no DeviceClass {asked.device_class}: `kubectl get deviceclasses` lists those that exist"
        return
    reasons = {each.gpu.place: _why_not(asked, each, named) for each in gpus}
    fitting = [place for place, reason in reasons.items() if not reason]
    if gpus and not fitting:
        yield f"    {_verdict(asked, gpus)}"
    for (_, pool, device), reason in [*reasons.items()][:MOST_GPUS]:
        yield f"    {pool} {device}: {reason or 'has room'}"
    if len(reasons) > MOST_GPUS:
        yield f"    … and {len(reasons) - MOST_GPUS} more GPUs, {len(fitting)} of all GPUs have room"
    if not gpus:
        yield "    No ResourceSlice has a GPU that gpushare gives by claim"
    elif len(fitting) >= asked.count:
        yield "    If the claim stays so, the selectors of the request or its DeviceClass (CEL) want other GPUs,"
        yield "    or the pod cannot run on these nodes; `kubectl describe pod` shows what kube-scheduler says"


def claims_verdict(claims: Sequence[PodClaim], gpus: Sequence[HeldGpu]) -> str:
    """Return what keeps a pod waiting for its claims, in one sentence, or what the claims have."""
    return next(_claims_verdicts(claims, [each for each in gpus if each.gpu.offered]))


def _claims_verdicts(claims: Sequence[PodClaim], gpus: Sequence[HeldGpu]) -> Iterator[str]:
    """Yield what can be said of claims, the most important first."""
    for claim in claims:
        if claim.unknown:
            yield f"Claim {claim.label}: {claim.unknown}"
        if claim.gone:
            yield f"A GPU that claim {claim.label} was allocated is in no ResourceSlice now"
    for asked in (asked for claim in claims if claim.allocated is None for asked in claim.asked):
        if asked.no_class:
            yield f"There is no DeviceClass {asked.device_class}"
        if not gpus:
            yield "No ResourceSlice has a GPU that gpushare gives by claim"
        fitting = sum(not _why_not(asked, each) for each in gpus)
        if not fitting:
            yield _verdict(asked, gpus)
        if fitting < asked.count:
            yield f"Request {asked.name} is for {asked.count} GPUs, and {fitting} have room now"
    if any(claim.allocated is None for claim in claims):
        yield "GPUs have room for the claims of the pod, which waits for another reason of kube-scheduler"
    yield "All claims of the pod are allocated"


def _verdict(asked: AskedDevice, gpus: Sequence[HeldGpu]) -> str:
    """Return why a request fits on no GPU, in one sentence."""
    usable = [each.gpu.device for each in gpus if not each.taints]
    if not usable:
        return "Every GPU has a taint, which keeps claims away until the reason is gone"
    for name, amount in asked.amounts.items():
        most = max((device.capacities[name].amount for device in usable if name in device.capacities), default=None)
        if most is None:
            return f"No GPU without a taint has a capacity {name}; leave {name} out of the request"
        if amount > most:
            return f"No GPU without a taint has more than {_words(name, most)} of {name}; ask for that at most"
    return "No GPU has room now; the request fits when the claims that hold GPUs have ended"


def _why_not(asked: AskedDevice, gpu: HeldGpu, named: Naming = list) -> str:
    """Return why a request does not fit on a GPU; empty where it fits."""
    device = gpu.gpu.device
    if gpu.taints:
        return f"has the taint {', '.join(gpu.taints)}"
    if missing := [name for name in asked.amounts if name not in device.capacities]:
        return f"has no capacity {', '.join(missing)}"
    holders = some_of([*named(gpu.holders)], _MOST_NAMES)
    if not device.shared and gpu.counted and not asked.admin_access:
        return f"is whole, and {holders} has it"
    for name, capacity in device.capacities.items():
        wanted = consumed(asked.amounts.get(name), capacity) if device.shared else asked.amounts.get(name, 0)
        used = gpu.used(name) if device.shared and not asked.admin_access else 0
        free = capacity.amount - used
        if wanted is None:
            return f"no claim can have {_words(name, asked.amounts[name])} of {name} there"
        if wanted > free:
            wants = (
                f"{_words(name, free)} of {_words(name, capacity.amount)} {name} free, {_words(name, wanted)} wanted"
            )
            return f"{wants}; held by {holders}" if holders else wants
    return ""


def consumed(asked: int | None, capacity: Capacity) -> int | None:
    """Return what a claim takes of a capacity of a shared device that asks for `asked`, or for nothing (None).

    None where no claim can have so much.
    """
    if asked is None:
        return capacity.amount if capacity.default is None else capacity.default
    if capacity.values:
        return next((value for value in capacity.values if value >= asked), None)
    least, step = capacity.least or 0, capacity.step or 1
    rounded = least + -(-max(0, asked - least) // step) * step
    return rounded if rounded <= capacity.amount else None


def _words(name: str, amount: int) -> str:
    if name != MEMORY:
        return str(amount)
    return f"{amount} bytes" if amount % MIB else f"{amount // MIB} MiB"
