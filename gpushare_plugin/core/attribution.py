"""Attribution of usage to containers: joins the processes of a sample with the holdings of containers.

The memory limit of a container is the memory of its memory units or slices, an equal part of the GPU where the
isolation limits replicas, or all memory of a whole GPU or MIG instance. Where the driver limits memory, the hard limit
that follows from such a share counts. Time slicing alone sets no limit, nor does a whole GPU whose memory is unknown.
A container with a claim has the limit of its share, and no limit with access for administration.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from gpushare_plugin.base.memory import MIB
from gpushare_plugin.base.structs import Struct, replace
from gpushare_plugin.core.driver_limits import NO_LIMIT, MemoryLimit, given_limit
from gpushare_plugin.core.gpu import Gpu
from gpushare_plugin.core.holding import Holding
from gpushare_plugin.core.prepared_claim import PreparedDevice
from gpushare_plugin.core.snapshot import Snapshot
from gpushare_plugin.core.unit import Unit
from gpushare_plugin.core.usage import ContainerUsage, GpuUsage, Owner, Process, Stowaway, Usage

MPS_SERVER = "nvidia-cuda-mps"
"""The kernel's name for `nvidia-cuda-mps-server`: the kernel cuts names of programs to 15 characters."""

NO_HOLDINGS = "the kubelet does not show what pods hold"
"""Why no process can be attributed while the holdings of containers are unknown."""


class ContainerShare(Struct, frozen=True):
    """What one container, or all containers of a pod together, hold of one GPU."""

    holder: Holding
    """A holding of the container, with the names and IDs of pod and container."""
    gpu: str
    """The UUID of the GPU."""
    resource: str
    """The name of the resource, or of the claim after `claim:`; several names are separated by commas."""
    units: int
    """The number of units; by a claim, of devices."""
    memory: int | None
    """The bytes of GPU memory that the container may use, None for no limit."""
    guaranteed: int = 0
    """The bytes that the driver guarantees to the container, where containers may borrow memory."""
    claimed: tuple[PreparedDevice, ...] = ()
    """What the container has of the GPU by claims."""


def attribute(samples: Iterable[GpuUsage], snapshot: Snapshot, holdings: Sequence[Holding] | None) -> Usage:
    """Attribute the processes of `samples` to containers; `holdings` are None while the holdings are unknown."""
    gpus = {gpu.uuid: gpu for gpu in snapshot.inventory.gpus}
    shares = list(_shares(snapshot, holdings or ()))
    found = [_Attribution(sample, gpus[sample.uuid], shares, holdings) for sample in samples if sample.uuid in gpus]
    offered = {uuid for resource in snapshot.resources for uuid in resource.gpus} | snapshot.by_claim.keys()
    offered |= {share.gpu for share in shares}
    return Usage(
        gpus=tuple(each.gpu_usage(offered, snapshot.under_mps | _leaving_mps(snapshot)) for each in found),
        containers=tuple(_containers(shares, found, gpus)),
        held=None if holdings is None else _held(snapshot, holdings),
    )


def _leaving_mps(snapshot: Snapshot) -> frozenset[str]:
    """Return the GPUs of which containers use MPS, by UUID; also those that the config shares in another way now."""
    return frozenset(uuid for uuid, name in snapshot.isolations_in_use.items() if "mps" in name.split("+"))


# ---------------------------------------------------------------------- holdings of containers


def driver_limits(snapshot: Snapshot, holdings: Iterable[Holding]) -> Iterator[tuple[Holding, str, MemoryLimit]]:
    """Yield every container with each GPU that the container holds, by UUID, and the driver limits promised there."""
    for share in _shares(snapshot, holdings):
        limited = share.gpu in snapshot.driver_limits or _given(share.claimed)
        yield share.holder, share.gpu, MemoryLimit(share.memory, share.guaranteed) if limited else NO_LIMIT


def _shares(snapshot: Snapshot, holdings: Iterable[Holding]) -> Iterator[ContainerShare]:
    """Yield a share per container and GPU, over all resources but compute: units of compute go with units of memory."""
    parts: defaultdict[tuple[str, str, str, str], list[ContainerShare]] = defaultdict(list)
    holdings = tuple(holdings)
    for holding, held in snapshot.held_units(holdings):
        by_gpu: defaultdict[str, list[Unit]] = defaultdict(list)
        for unit in held:
            if unit.form.kind != "cores":
                by_gpu[unit.gpu].append(unit)
        for gpu, units in by_gpu.items():
            limit = _limit(snapshot, gpu, units)
            share = ContainerShare(holding, gpu, holding.resource, len(units), limit.hard, limit.soft)
            parts[*_pod_of(holding), holding.container, gpu].append(share)
    for share in _claimed_shares(snapshot, holdings):
        parts[*_pod_of(share.holder), share.holder.container, share.gpu].append(share)
    return map(_together, parts.values())


def _pod_of(holding: Holding) -> tuple[str, str]:
    return (holding.namespace, holding.pod) if holding.pod else ("", holding.uid)


def _claimed_shares(snapshot: Snapshot, holdings: Iterable[Holding]) -> Iterator[ContainerShare]:
    """Yield what containers hold of GPUs by claims."""
    if snapshot.claims is None:
        return
    gpus = {gpu.uuid: gpu for gpu in snapshot.inventory.gpus}
    for holding, held in snapshot.claims.held(holdings):
        by_gpu: defaultdict[str, list[PreparedDevice]] = defaultdict(list)
        for device in held:
            if device.gpu in gpus:
                by_gpu[device.gpu].append(device)
        for uuid, devices in by_gpu.items():
            limit = _claimed_limit(snapshot, gpus[uuid], devices)
            about = holding, uuid, holding.resource, len(devices)
            yield ContainerShare(*about, limit.hard, limit.soft, tuple(devices))


def _claimed_limit(snapshot: Snapshot, gpu: Gpu, devices: Sequence[PreparedDevice]) -> MemoryLimit:
    """Return the limits of a container with `devices` of a GPU, which are shares, or the GPU itself.

    The driver limits a share as the claim was given it, whatever the config adds now; by the rule of the config only
    where the variables of a container cannot say it, as for different limits on several GPUs.
    """
    share, rule = sum(each.memory_mib for each in devices), snapshot.driver_limits.get(gpu.uuid)
    given = _given(devices)
    if given and given.keys() == {each.request for each in devices}:
        most = sum(each.hard or 0 for each in given.values())
        return MemoryLimit(min(most, gpu.memory_mib * MIB), sum(each.soft for each in given.values()))
    if rule is None or not share or any(each.way == "whole" for each in devices):
        return MemoryLimit(share * MIB or None)
    return rule.limit(share, gpu.memory_mib)


def _given(devices: Iterable[PreparedDevice]) -> Mapping[str, MemoryLimit]:
    """Return the driver limits that requests were given, by the request; nothing for one without such limits.

    Several shares of one GPU in a request have one limit together.
    """
    return {each.request: given for each in devices if (given := given_limit(each.environment)) is not None}


def _held(snapshot: Snapshot, holdings: Iterable[Holding]) -> Counter[tuple[str, str]]:
    """Return the number of held units by resource and GPU, without retired units, which no resource offers."""
    units = {resource.name: resource.units.by_id for resource in snapshot.resources}
    return Counter(
        (holding.resource, units[holding.resource][id_].gpu)
        for holding in holdings
        for id_ in holding.ids
        if id_ in units.get(holding.resource, ())
    )


def _limit(snapshot: Snapshot, uuid: str, units: Sequence[Unit]) -> MemoryLimit:
    """Return the limits of a container with the units `units` of a GPU."""
    gpu = next(gpu for gpu in snapshot.inventory.gpus if gpu.uuid == uuid)
    if any(unit.form.kind == "whole" for unit in units):
        return MemoryLimit(gpu.memory_mib * MIB or None)
    rule = snapshot.driver_limits.get(uuid)
    if (share := _share_mib(snapshot, uuid, units)) is None or rule is None:
        return MemoryLimit(None if share is None else share * MIB)
    return rule.limit(share, gpu.memory_mib)


def _share_mib(snapshot: Snapshot, uuid: str, units: Sequence[Unit]) -> int | None:
    """Return the share of a container with the units `units` of a GPU in MiB, None where shares have no size."""
    if all(unit.mib for unit in units):
        return sum(unit.mib for unit in units)
    # Replicas: with an isolation, a container has one part of the memory, however many replicas the container holds.
    return snapshot.equal_shares_mib.get(uuid)


def _together(shares: Sequence[ContainerShare]) -> ContainerShare:
    """Return one share for several shares of the same GPU, by one container or by all containers of a pod."""
    first = shares[0]
    # Containers of a pod can have one share of a claim together, while no two containers hold a unit.
    shares = list({(share.resource, share.holder.ids): share for share in shares}.values())
    memories = [share.memory for share in shares if share.memory is not None]
    return ContainerShare(
        first.holder,
        first.gpu,
        ",".join(sorted({share.resource for share in shares})),
        sum(share.units for share in shares),
        sum(memories) if len(memories) == len(shares) else None,
        sum(share.guaranteed for share in shares),
        tuple(device for share in shares for device in share.claimed),
    )


# ---------------------------------------------------------------------- processes of a GPU


class _Attribution:
    """The processes of a GPU with the shares of their pods; for a MIG instance, shares of the whole card count, too."""

    def __init__(
        self, sample: GpuUsage, gpu: Gpu, shares: Iterable[ContainerShare], holdings: Sequence[Holding] | None
    ) -> None:
        self.sample = sample
        self.gpu = gpu
        of_pod: defaultdict[str, list[ContainerShare]] = defaultdict(list)
        for share in shares:
            if share.gpu in {gpu.uuid, gpu.card}:
                for owner in _owners(share.holder):
                    of_pod[owner].append(share)
        self._pods = {owner: holding for holding in holdings or () for owner in _owners(holding)}
        self.used: list[tuple[Process, list[ContainerShare]]] = [
            (process, of_pod.get(_pod(process.owner), [])) for process in sample.processes or ()
        ]
        self.unknown = sample.unknown or (NO_HOLDINGS if holdings is None else self._nameless(of_pod.get("", [])))

    def _nameless(self, shares: Sequence[ContainerShare]) -> str | None:
        """Return why a process without a share may belong to a holder of the GPU (a UID is unknown), or None."""
        strange = any(process.owner.pod_uid and not owned for process, owned in self.used)
        holder = shares[0].holder if strange and shares else None
        return f"the UID of pod {holder.label} is not known" if holder else None

    def gpu_usage(self, offered: frozenset[str] | set[str], under_mps: frozenset[str]) -> GpuUsage:
        """Return the usage of the GPU; foreign processes are reported only on GPUs `offered` to pods."""
        ours = {self.gpu.uuid, self.gpu.card}
        mps = not ours.isdisjoint(under_mps)
        strangers = [each for each, shares in self.used if not shares and not (mps and each.program == MPS_SERVER)]
        reported = self.unknown is None and not ours.isdisjoint(offered)
        stowaways = tuple(map(self._stowaway, strangers)) if reported else ()
        return replace(self.sample, unknown=self.unknown, stowaways=stowaways)

    def _stowaway(self, process: Process) -> Stowaway:
        owner = process.owner
        holding = self._pods.get(_pod(owner))
        return Stowaway(
            self.gpu.uuid,
            process.pid,
            process.program,
            holding.label if holding else owner.pod,
            owner.pod_uid,
            owner.container_id,
            process.memory,
        )


def _pod(owner: Owner) -> str:
    """Return the key of a process's pod: the UID, or the name for a simulated process."""
    return owner.pod_uid or owner.pod or "-"


def _owners(holding: Holding) -> tuple[str, str]:
    return holding.uid, holding.label


# ---------------------------------------------------------------------- usage of containers


def _containers(
    shares: Iterable[ContainerShare], found: Sequence[_Attribution], gpus: Mapping[str, Gpu]
) -> Iterator[ContainerUsage]:
    """Yield the usage of every container on every GPU that the container holds, in the order of the GPUs."""
    of_pod: defaultdict[tuple[str, str, str], list[ContainerShare]] = defaultdict(list)
    for share in shares:
        of_pod[share.gpu, share.holder.namespace, share.holder.pod].append(share)
    for (gpu, _, _), theirs in sorted(of_pod.items(), key=lambda item: (gpus[item[0][0]].place, item[0])):
        here = [each for each in found if gpu in {each.gpu.uuid, each.gpu.card}]
        processes = [process for each in here for process, owned in each.used if theirs[0] in owned]
        known = bool(here) and all(each.unknown is None for each in here)
        for share, used in _told_apart(theirs, processes):
            yield _container(share, used if known else None)


def _told_apart(
    shares: Sequence[ContainerShare], processes: Sequence[Process]
) -> Iterator[tuple[ContainerShare, list[Process]]]:
    """Yield every share with the processes of its container.

    If a process cannot be assigned to one container, yield a single share for the pod with all processes.
    """
    if len(shares) == 1:
        yield shares[0], list(processes)
        return
    assigned = [[process for process in processes if _runs_in(process, share.holder)] for share in shares]
    if sum(map(len, assigned)) == len(processes):
        yield from zip(shares, assigned, strict=True)
        return
    whole = _together(shares)
    pod = whole.holder._replace(container="", container_id="")
    yield replace(whole, holder=pod), list(processes)


def _runs_in(process: Process, holder: Holding) -> bool:
    owner = process.owner
    by_id = owner.container_id and owner.container_id == holder.container_id
    return bool(by_id or (owner.container and owner.container == holder.container))


def _container(share: ContainerShare, processes: Sequence[Process] | None) -> ContainerUsage:
    holder = share.holder
    return ContainerUsage(
        holder.namespace,
        holder.pod,
        holder.container,
        holder.uid,
        share.gpu,
        share.resource,
        share.units,
        share.memory,
        None if processes is None else _sum(process.memory for process in processes),
        None if processes is None else _utilization(process.utilization for process in processes),
        None if processes is None else len(processes),
        holder.container_id,
        tuple(processes or ()),
        share.guaranteed,
        claimed=share.claimed,
    )


def _sum(amounts: Iterable[int | None]) -> int | None:
    """Return the sum, None if an amount is unknown: a partial sum would look like the total."""
    known = list(amounts)
    return None if None in known else sum(filter(None, known))


def _utilization(parts: Iterable[float | None]) -> float | None:
    known = list(parts)
    return None if None in known else min(1.0, sum(filter(None, known), 0.0))
