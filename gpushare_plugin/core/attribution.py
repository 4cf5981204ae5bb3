"""Attribution of usage to containers: joins the processes of a sample with the holdings of containers.

The memory limit of a container is the memory of its memory units or slices, an equal part of the GPU where the
isolation limits replicas, or all memory of a whole GPU or MIG instance. Time slicing alone sets no limit.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from gpushare_plugin.base.memory import MIB
from gpushare_plugin.base.structs import Struct, replace
from gpushare_plugin.core.gpu import Gpu
from gpushare_plugin.core.holding import Holding
from gpushare_plugin.core.resource import Resource
from gpushare_plugin.core.snapshot import Snapshot
from gpushare_plugin.core.unit import Unit
from gpushare_plugin.core.usage import ContainerUsage, GpuUsage, Owner, Process, Stowaway, Usage

MPS_SERVER = "nvidia-cuda-mps"
"""The kernel's name for `nvidia-cuda-mps-server`: the kernel cuts names of programs to 15 characters."""

NO_HOLDINGS = "the kubelet does not show what pods hold"
"""Why no process can be attributed while the holdings of containers are unknown."""


class Claim(Struct, frozen=True):
    """The units of one GPU held by one container, or by all containers of a pod together."""

    holder: Holding
    """A holding of the container, with the names and IDs of pod and container."""
    gpu: str
    """The UUID of the GPU."""
    resource: str
    """The name of the resource; several names are separated by commas."""
    units: int
    """The number of units."""
    memory: int | None
    """The bytes of GPU memory that the container may use, None for no limit."""


def attribute(samples: Iterable[GpuUsage], snapshot: Snapshot, holdings: Sequence[Holding] | None) -> Usage:
    """Attribute the processes of `samples` to containers; `holdings` are None while the holdings are unknown."""
    gpus = {gpu.uuid: gpu for gpu in snapshot.inventory.gpus}
    claims = list(_claims(snapshot, holdings or ()))
    found = [_Attribution(sample, gpus[sample.uuid], claims, holdings) for sample in samples if sample.uuid in gpus]
    offered = {uuid for resource in snapshot.resources for uuid in resource.gpus} | {claim.gpu for claim in claims}
    return Usage(
        gpus=tuple(each.gpu_usage(offered, snapshot.under_mps) for each in found),
        containers=tuple(_containers(claims, found, gpus)),
        held=None if holdings is None else _held(snapshot, holdings),
    )


# ---------------------------------------------------------------------- holdings of containers


def _claims(snapshot: Snapshot, holdings: Iterable[Holding]) -> Iterator[Claim]:
    """Yield a claim per container and GPU, over all resources but compute: units of compute go with units of memory."""
    resources = {resource.name: resource for resource in snapshot.resources}
    parts: defaultdict[tuple[str, str, str, str], list[Claim]] = defaultdict(list)
    for holding, held in snapshot.held_units(holdings):
        by_gpu: defaultdict[str, list[Unit]] = defaultdict(list)
        for unit in held:
            if unit.form.kind != "cores":
                by_gpu[unit.gpu].append(unit)
        for gpu, units in by_gpu.items():
            memory = _memory(snapshot, resources.get(holding.resource), gpu, units)
            claim = Claim(holding, gpu, holding.resource, len(units), memory)
            parts[holding.namespace, holding.pod, holding.container, gpu].append(claim)
    return map(_together, parts.values())


def _held(snapshot: Snapshot, holdings: Iterable[Holding]) -> Counter[tuple[str, str]]:
    """Return the number of held units by resource and GPU, without retired units, which no resource offers."""
    units = {resource.name: resource.units.by_id for resource in snapshot.resources}
    return Counter(
        (holding.resource, units[holding.resource][id_].gpu)
        for holding in holdings
        for id_ in holding.ids
        if id_ in units.get(holding.resource, ())
    )


def _memory(snapshot: Snapshot, resource: Resource | None, uuid: str, units: Sequence[Unit]) -> int | None:
    """Return the bytes of a GPU that a container with the units `units` may use, None for no limit."""
    if all(unit.mib for unit in units):
        return sum(unit.mib for unit in units) * MIB
    gpu = next(gpu for gpu in snapshot.inventory.gpus if gpu.uuid == uuid)
    if any(unit.form.kind == "whole" for unit in units):
        return gpu.memory_mib * MIB
    # Replicas: with an isolation, a container has one part of the memory, however many replicas the container holds.
    parts = resource.units_of.get(uuid) if resource else None
    limited = snapshot.isolations.get(uuid, "none") != "none"
    return gpu.memory_mib // parts * MIB if parts and limited else None


def _together(claims: Sequence[Claim]) -> Claim:
    """Return one claim for several claims to the same GPU, by one container or by all containers of a pod."""
    first = claims[0]
    memories = [claim.memory for claim in claims if claim.memory is not None]
    return Claim(
        first.holder,
        first.gpu,
        ",".join(sorted({claim.resource for claim in claims})),
        sum(claim.units for claim in claims),
        sum(memories) if len(memories) == len(claims) else None,
    )


# ---------------------------------------------------------------------- processes of a GPU


class _Attribution:
    """The processes of a GPU with the claims of their pods; for a MIG instance, claims to the whole card count, too."""

    def __init__(self, sample: GpuUsage, gpu: Gpu, claims: Iterable[Claim], holdings: Sequence[Holding] | None) -> None:
        self.sample = sample
        self.gpu = gpu
        of_pod: defaultdict[str, list[Claim]] = defaultdict(list)
        for claim in claims:
            if claim.gpu in {gpu.uuid, gpu.card}:
                for owner in _owners(claim.holder):
                    of_pod[owner].append(claim)
        self._pods = {owner: holding for holding in holdings or () for owner in _owners(holding)}
        self.used: list[tuple[Process, list[Claim]]] = [
            (process, of_pod.get(_pod(process.owner), [])) for process in sample.processes or ()
        ]
        self.unknown = sample.unknown or (NO_HOLDINGS if holdings is None else self._nameless(of_pod.get("", [])))

    def _nameless(self, claims: Sequence[Claim]) -> str | None:
        """Return why a process without a claim may belong to a holder of the GPU (a UID is unknown), or None."""
        strange = any(process.owner.pod_uid and not owned for process, owned in self.used)
        holder = claims[0].holder if strange and claims else None
        return f"the UID of pod {holder.label} is not known" if holder else None

    def gpu_usage(self, offered: frozenset[str] | set[str], under_mps: frozenset[str]) -> GpuUsage:
        """Return the usage of the GPU; foreign processes are reported only on GPUs `offered` to pods."""
        ours = {self.gpu.uuid, self.gpu.card}
        mps = not ours.isdisjoint(under_mps)
        strangers = [each for each, claims in self.used if not claims and not (mps and each.program == MPS_SERVER)]
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
    claims: Iterable[Claim], found: Sequence[_Attribution], gpus: Mapping[str, Gpu]
) -> Iterator[ContainerUsage]:
    """Yield the usage of every container on every GPU that the container holds, in the order of the GPUs."""
    of_pod: defaultdict[tuple[str, str, str], list[Claim]] = defaultdict(list)
    for claim in claims:
        of_pod[claim.gpu, claim.holder.namespace, claim.holder.pod].append(claim)
    for (gpu, _, _), theirs in sorted(of_pod.items(), key=lambda item: (gpus[item[0][0]].place, item[0])):
        here = [each for each in found if gpu in {each.gpu.uuid, each.gpu.card}]
        processes = [process for each in here for process, owned in each.used if theirs[0] in owned]
        known = bool(here) and all(each.unknown is None for each in here)
        for claim, used in _told_apart(theirs, processes):
            yield _container(claim, used if known else None)


def _told_apart(claims: Sequence[Claim], processes: Sequence[Process]) -> Iterator[tuple[Claim, list[Process]]]:
    """Yield every claim with the processes of its container.

    If a process cannot be assigned to one container, yield a single claim for the pod with all processes.
    """
    if len(claims) == 1:
        yield claims[0], list(processes)
        return
    assigned = [[process for process in processes if _runs_in(process, claim.holder)] for claim in claims]
    if sum(map(len, assigned)) == len(processes):
        yield from zip(claims, assigned, strict=True)
        return
    whole = _together(claims)
    pod = whole.holder._replace(container="", container_id="")
    yield replace(whole, holder=pod), list(processes)


def _runs_in(process: Process, holder: Holding) -> bool:
    owner = process.owner
    by_id = owner.container_id and owner.container_id == holder.container_id
    return bool(by_id or (owner.container and owner.container == holder.container))


def _container(claim: Claim, processes: Sequence[Process] | None) -> ContainerUsage:
    holder = claim.holder
    return ContainerUsage(
        holder.namespace,
        holder.pod,
        holder.container,
        holder.uid,
        claim.gpu,
        claim.resource,
        claim.units,
        claim.memory,
        None if processes is None else _sum(process.memory for process in processes),
        None if processes is None else _utilization(process.utilization for process in processes),
        None if processes is None else len(processes),
    )


def _sum(amounts: Iterable[int | None]) -> int | None:
    """Return the sum, None if an amount is unknown: a partial sum would look like the total."""
    known = list(amounts)
    return None if None in known else sum(filter(None, known))


def _utilization(parts: Iterable[float | None]) -> float | None:
    known = list(parts)
    return None if None in known else min(1.0, sum(filter(None, known), 0.0))
