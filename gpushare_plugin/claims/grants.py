"""What an allocated claim holds, and what the container of each of its requests gets.

The granter of the resource decides what a container gets, as for units of the device plugin. A claim has no units; the
ID of its share is made of the UID of the claim and the name of the request, so no other container has the same.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, NoReturn

from gpushare_plugin.base.errors import PlacementError
from gpushare_plugin.base.memory import MIB
from gpushare_plugin.base.structs import replace
from gpushare_plugin.claims.capacities import COMPUTE, MEMORY, SHARES, capacities, part_mib, slices, unit_mib
from gpushare_plugin.claims.claim import OTHER_POD, AllocatedClaim, AllocatedDevice, ClaimRefusedError
from gpushare_plugin.claims.device import Capacity
from gpushare_plugin.core.claimed_gpu import ClaimedGpu, ClaimWay
from gpushare_plugin.core.grant import AllocatedGpu, Allocation, Grant, Recipient
from gpushare_plugin.core.prepared_claim import ClaimId, PreparedDevice
from gpushare_plugin.core.resource import Resource


class _Taken(NamedTuple):
    """What a request was allocated of one GPU; to what containers get, several shares of one GPU are one share."""

    allocated: AllocatedDevice
    """The device."""
    gpu: ClaimedGpu
    """The GPU."""


def held(claim: AllocatedClaim, gpus: Mapping[str, ClaimedGpu]) -> tuple[PreparedDevice, ...]:
    """Return what counts of a claim, in the order of the allocation; `gpus` are by the names of their devices.

    Raises ClaimRefusedError for a device that the node does not give by claim, or gives in another way now.
    """
    return tuple(_counted(request, part) for request, parts in _requests(claim, gpus).items() for part in parts)


def grants(claim: AllocatedClaim, gpus: Mapping[str, ClaimedGpu]) -> Mapping[str, Grant]:
    """Return what the container of each request gets, by the name of the request; `gpus` are as for `held`.

    Raises ClaimRefusedError as `held` does, and for several GPUs of one request that no isolation limits together.
    """
    return {request: _grant(claim.id, request, parts) for request, parts in _requests(claim, gpus).items()}


def _requests(claim: AllocatedClaim, gpus: Mapping[str, ClaimedGpu]) -> Mapping[str, list[_Taken]]:
    """Return what each request was allocated, by the name of the request without an alternative."""
    requests: dict[str, list[_Taken]] = {}
    for each in claim.devices:
        if (gpu := gpus.get(each.device)) is None:
            raise ClaimRefusedError(
                "unknown-device",
                f"claim {claim.id.label}: this node does not give device {each.device} by claim any more; {OTHER_POD}",
            )
        if not each.admin_access and (reason := _why_other_way(each, gpu)):
            raise ClaimRefusedError(
                "other-way",
                f"claim {claim.id.label}: the allocation is none that this node can give of {gpu.gpu.description}: "
                f"{reason}. The config has changed since, or something else than kube-scheduler wrote the allocation; "
                f"{OTHER_POD}",
            )
        requests.setdefault(each.request.partition("/")[0], []).append(_Taken(each, gpu))
    return requests


# ---------------------------------------------------------------------- whether the way is the one that was allocated


def _why_other_way(allocated: AllocatedDevice, gpu: ClaimedGpu) -> str:
    """Return why the GPU is not shared as it was when the claim was allocated; empty if it is."""
    if (allocated.share_id is not None) != gpu.shared:
        return f"the claim has {_whole_or_share(gpu.shared)}, and the GPU is now given {_as(gpu.shared)}"
    if not gpu.shared:
        return ""
    offered = capacities(gpu)
    if differing := sorted(allocated.consumed.keys() ^ offered.keys()):
        return f"only one of both has the capacity {', '.join(differing)}"
    impossible = (name for name, each in offered.items() if not _possible(allocated.consumed[name], each))
    return next(
        (f"the claim has {allocated.consumed[name]} of {name}, {_expected(offered[name])}" for name in impossible), ""
    )


def _possible(consumed: int, capacity: Capacity) -> bool:
    """Return whether a claim can have `consumed`. Steps do not matter: limits are exact, whatever the unit is now."""
    if capacity.values:
        return consumed in capacity.values
    return (consumed > 0 or capacity.least == 0) and consumed <= capacity.amount


def _expected(capacity: Capacity) -> str:
    """Return what a claim can have of a capacity, for people."""
    if capacity.values:
        return f"{' or '.join(map(str, capacity.values))} expected"
    return f"{min(capacity.least or 0, 1)} to {capacity.amount} expected"


def _whole_or_share(shared: bool) -> str:  # noqa: FBT001 - the value itself
    return "the whole GPU" if shared else "a share"


def _as(shared: bool) -> str:  # noqa: FBT001 - the value itself
    return "in shares" if shared else "whole"


# ---------------------------------------------------------------------- what counts


def _counted(request: str, part: _Taken) -> PreparedDevice:
    allocated, gpu = part
    found = PreparedDevice(
        request,
        allocated.pool,
        allocated.device,
        gpu.gpu.uuid,
        gpu.way,
        allocated.share_id,
        admin_access=allocated.admin_access,
        isolation=gpu.isolation,
    )
    if allocated.admin_access:
        return found
    percent = allocated.consumed.get(COMPUTE, 0) if gpu.way == "memory" else 0
    return replace(
        found, memory_mib=_memory_mib(part), shares=allocated.consumed.get(SHARES, 0), percent=percent or None
    )


def _memory_mib(part: _Taken) -> int:
    """Return the memory that counts against the GPU, rounded up to MiB; of a limited share, its limit."""
    consumed, gpu = part.allocated.consumed.get(MEMORY, 0), part.gpu
    match gpu.way:
        case "whole":
            return gpu.gpu.memory_mib
        case "slices":
            return slices(gpu)[consumed].units.of(gpu.gpu.uuid)[0].mib
        case "replicas" | "mps-replicas" if gpu.limited:
            return part_mib(gpu)
        case _:
            return -(-consumed // MIB)


# ---------------------------------------------------------------------- what a container gets


def _grant(claim: ClaimId, request: str, parts: Sequence[_Taken]) -> Grant:
    title = f"claim {claim.label}, request {request}"
    parts = sorted(_by_gpu(title, parts), key=lambda part: part.gpu.gpu.place)
    first = parts[0]
    if len(parts) > 1:
        _refuse_without_limits(title, parts)
    gpus = tuple(_allocated_gpu(part) for part in parts)
    whole = first.allocated.admin_access or not first.gpu.shared
    ids = frozenset(each.gpu.uuid for each in gpus) if whole else frozenset({f"{claim.uid}/{request}"})
    granter = first.gpu.unlimited if first.allocated.admin_access else _resource(first).granter
    try:
        grant = granter.grant(Allocation(title, gpus, ids, Recipient(promised=True)))
    except PlacementError as error:
        raise ClaimRefusedError("cannot-limit", f"{title}: {str(error).removeprefix(f'{title}: ')}") from error
    return _with_compute(grant, parts)


def _by_gpu(title: str, parts: Iterable[_Taken]) -> Iterator[_Taken]:
    """Yield what a request has of each GPU: of several shares of one GPU, their sum.

    Kubernetes 1.34 and 1.35 give a request of several devices the same shared GPU several times: `allocateOne` in
    dynamic-resource-allocation/structured/internal/experimental/allocator_experimental.go. From 1.36 on, the devices of
    a request differ (kubernetes#133678). Raises ClaimRefusedError for shares that no container can have together.
    """
    shares: defaultdict[str, list[_Taken]] = defaultdict(list)
    for part in parts:
        shares[part.allocated.device].append(part)
    for first, *others in shares.values():
        if others and not first.allocated.admin_access:
            _refuse_apart(title, first.gpu)
        total: Counter[str] = Counter()
        for part in (first, *others):
            total.update(part.allocated.consumed)
        yield first._replace(allocated=replace(first.allocated, consumed=total))


def _refuse_apart(title: str, gpu: ClaimedGpu) -> None:
    """Raise ClaimRefusedError for a GPU of which no container can have several shares at once."""
    if gpu.way == "slices" or gpu.single_share or (gpu.way != "memory" and gpu.limited):
        _cannot(
            title,
            f"several shares of GPU {gpu.gpu.label} found, and a container has one {_PARTS[gpu.way]} of a GPU; ask for "
            "one device in the request, or for different GPUs by a constraint with `distinctAttribute` and the "
            "attribute uuid",
        )


_PARTS: Mapping[ClaimWay, str] = {"slices": "slice", "replicas": "replica", "mps-replicas": "replica"}
"""The words for a share, by the ways that can refuse several shares."""


def _resource(part: _Taken) -> Resource:
    """Return the resource whose granter decides: of slices, the resource of the size."""
    return slices(part.gpu)[part.allocated.consumed[MEMORY]] if part.gpu.way == "slices" else part.gpu.resource


def _allocated_gpu(part: _Taken) -> AllocatedGpu:
    """Return the share of a GPU in units, as the device plugin would allocate them."""
    gpu, mib = part.gpu, 0 if part.allocated.admin_access else _memory_mib(part)
    units = max(1, mib // unit_mib(gpu)) if gpu.way == "memory" else 1
    return AllocatedGpu(gpu.gpu, units, _resource_units(part), mib)


def _resource_units(part: _Taken) -> int:
    return len(part.gpu.resource.units)


def _refuse_without_limits(title: str, parts: Sequence[_Taken]) -> None:
    """Raise ClaimRefusedError for several GPUs on which one container cannot have the limits of its shares."""
    gpus = [part.gpu for part in parts]
    first = gpus[0]
    labels = ", ".join(gpu.gpu.label for gpu in gpus)
    admin = {part.allocated.admin_access for part in parts}
    if len(admin) > 1:
        _cannot(title, f"GPUs {labels} are partly for administration; use a request for each")
    if True in admin or all(gpu.way == "whole" for gpu in gpus):
        return
    if any((gpu.way, gpu.resource.name) != (first.way, first.resource.name) for gpu in gpus):
        _cannot(
            title,
            f"GPUs {labels} are not shared alike, and a container has the limits of one kind of sharing; select GPUs "
            "of one kind, for example by the attributes way and isolation (matchAttribute)",
        )
    if first.way == "slices":
        _cannot(title, f"slices of several GPUs found ({labels}), and a container has one slice; ask for one GPU")
    if first.resource.single_gpu:
        _cannot(
            title,
            f"shares of GPUs {labels} found, and MPS does not limit a process that sees fewer GPUs than its share has; "
            "ask for one GPU in the request, or accept the risk with sharing.memory.resources[].allowMultiGPUShares: "
            "true in the config of the node",
        )


def _cannot(title: str, reason: str) -> NoReturn:
    raise ClaimRefusedError("cannot-limit", f"{title}: {reason}")


def _with_compute(grant: Grant, parts: Iterable[_Taken]) -> Grant:
    """Return a grant with the limit of compute that the request asks for, in place of the limit by the config."""
    asked = {
        part.gpu.compute_variable: percent
        for part in parts
        if part.gpu.way == "memory" and (percent := part.allocated.consumed.get(COMPUTE, 0))
    }
    for variable, percent in asked.items():
        if variable is not None:
            grant.environment[variable] = str(percent)
            if grant.namespace is not None:
                grant.namespace = replace(grant.namespace, active_thread_percentage=percent)
    return grant
