"""What claims of a pod wait for, in words: which are allocated, what is free of each GPU, why a request fits on none.

kube-scheduler decides, by rules of which some are not known here: the expressions (CEL) of requests and DeviceClasses.
Source of the rules for capacities: kubernetes, staging/src/k8s.io/dynamic-resource-allocation/structured/internal
(`calculateConsumedCapacity`), and `CapacityRequestPolicy` in staging/src/k8s.io/api/resource/v1/types.go (1.36).
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from gpushare_plugin.base.memory import MIB
from gpushare_plugin.base.structs import Struct, field
from gpushare_plugin.base.text import some_of
from gpushare_plugin.claims.capacities import MEMORY
from gpushare_plugin.claims.device import Capacity

MOST_GPUS = 20
"""The most GPUs that are told of a request."""
_MOST_NAMES = 5

Place = tuple[str, str]
"""A device: the names of its pool and of the device."""


class AskedDevice(Struct, frozen=True):
    """A request of a claim, or an alternative of a request."""

    name: str
    """The name; `request/alternative` for an alternative."""
    device_class: str
    """The DeviceClass."""
    amounts: Mapping[str, int] = field(default_factory=dict)
    """What is asked of each capacity: bytes, percent or shares."""
    count: int = 1
    """The number of devices."""
    admin_access: bool = False
    """Whether devices are asked for administration, also devices that are in use."""


class PodClaim(Struct, frozen=True):
    """A claim of a pod."""

    label: str
    """The name for people."""
    asked: tuple[AskedDevice, ...] = ()
    """The requests."""
    allocated: tuple[Place, ...] | None = None
    """The allocated devices; None before the allocation."""
    unknown: str = ""
    """Why the claim is not known, for people; empty where it is."""


class GpuForClaims(Struct, frozen=True):
    """A device of a ResourceSlice that gpushare offers."""

    place: Place
    """The device; the pool has the name of the node."""
    shared: bool
    """Whether several claims can have the device at a time."""
    capacities: Mapping[str, Capacity]
    """The capacities, by name."""
    taints: tuple[str, ...] = ()
    """The keys of the taints that keep claims away."""


class HeldByClaim(Struct, frozen=True):
    """What one claim has of a device."""

    place: Place
    """The device."""
    claim: str
    """The name of the claim for people."""
    amounts: Mapping[str, int] = field(default_factory=dict)
    """What the claim takes of each capacity."""


def outlook(claims: Iterable[PodClaim], gpus: Sequence[GpuForClaims], taken: Iterable[HeldByClaim]) -> Iterator[str]:
    """Yield sentences about the claims of a pod; those that belong to a claim are indented."""
    by_place: dict[Place, list[HeldByClaim]] = {}
    for each in taken:
        by_place.setdefault(each.place, []).append(each)
    for claim in claims:
        if claim.unknown:
            yield f"Claim {claim.label}: {claim.unknown}"
        elif claim.allocated is not None:
            places = some_of([f"{device} of {pool}" for pool, device in claim.allocated], _MOST_NAMES)
            yield f"Claim {claim.label}: allocated: {places or 'no device'}"
        else:
            yield f"Claim {claim.label}: not allocated"
            for asked in claim.asked:
                yield from _about(asked, gpus, by_place)


def _about(
    asked: AskedDevice, gpus: Sequence[GpuForClaims], taken: Mapping[Place, Sequence[HeldByClaim]]
) -> Iterator[str]:
    amounts = ", ".join(f"{_words(name, amount)} of {name}" for name, amount in asked.amounts.items())
    times = f" on each of {asked.count} GPUs" if asked.count > 1 else ""
    yield f"  Request {asked.name} of DeviceClass {asked.device_class}: {amounts or 'no size'}{times}"
    reasons = {gpu.place: _why_not(asked, gpu, taken.get(gpu.place, ())) for gpu in gpus}
    fitting = [place for place, reason in reasons.items() if not reason]
    for place, reason in [*reasons.items()][:MOST_GPUS]:
        yield f"    {place[0]} {place[1]}: {reason or 'has room'}"
    if len(reasons) > MOST_GPUS:
        yield f"    … and {len(reasons) - MOST_GPUS} more GPUs, {len(fitting)} of all GPUs have room"
    if not gpus:
        yield "    No ResourceSlice has a GPU that gpushare gives by claim"
    elif len(fitting) >= asked.count:
        yield "    If the claim stays so, the selectors of the request or its DeviceClass (CEL) want other GPUs,"
        yield "    or the pod cannot run on these nodes; `kubectl describe pod` shows what kube-scheduler says"


def _why_not(asked: AskedDevice, gpu: GpuForClaims, taken: Sequence[HeldByClaim]) -> str:
    """Return why a request does not fit on a GPU; empty where it fits."""
    if gpu.taints:
        return f"has the taint {', '.join(gpu.taints)}"
    if missing := [name for name in asked.amounts if name not in gpu.capacities]:
        return f"has no capacity {', '.join(missing)}"
    holders = some_of(sorted({each.claim for each in taken}), _MOST_NAMES)
    if not gpu.shared and taken and not asked.admin_access:
        return f"is whole, and {holders} has it"
    used: Counter[str] = Counter()
    for each in () if asked.admin_access else taken:
        used.update(each.amounts)
    for name, capacity in gpu.capacities.items():
        wanted = consumed(asked.amounts.get(name), capacity) if gpu.shared else asked.amounts.get(name, 0)
        free = capacity.amount - used[name] if gpu.shared else capacity.amount
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
    return f"{amount // MIB} MiB" if name == MEMORY else str(amount)
