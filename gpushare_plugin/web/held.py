"""What each namespace has of a node: parts of GPUs, and memory."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from gpushare_plugin.base.structs import Struct, replace
from gpushare_plugin.core.usage import Usage
from gpushare_plugin.ledger.node_record import NodeRecord
from gpushare_plugin.observe.cluster.report import GpuUse, NodeUse, ResourceUse, mib_of
from gpushare_plugin.web.use import holders_of, used_mib

WHOLE = 1_000_000
"""A whole GPU, in millionths: sums of whole numbers stay exact."""


class HeldAmounts(Struct, frozen=True):
    """What a namespace has; the promised amounts are among the others."""

    gpus: int = 0
    """The parts of GPUs, in millionths of a GPU."""
    mib: int = 0
    """The memory in MiB, as far as the memory of the GPUs is known."""
    promised_gpus: int = 0
    """The parts of GPUs that a node has not confirmed, in millionths of a GPU."""
    promised_mib: int = 0
    """The memory that a node has not confirmed, in MiB."""
    measured_mib: int = 0
    """The memory among `mib` of which the use is known, in MiB."""
    used_mib: int = 0
    """The used memory in MiB, as far as known."""
    wasted_mib: int = 0
    """The held memory that is known not to be used, in MiB.

    A pod that uses more than its share does not lower the waste of other pods.
    """

    @property
    def used_part(self) -> float | None:
        """The used part of the memory of which the use is known; None where nobody measured."""
        return self.used_mib / self.measured_mib if self.measured_mib else None

    def plus(self, other: "HeldAmounts", times: int = 1) -> "HeldAmounts":
        """Return the sum with `times` as much as `other`; -1 takes `other` away."""
        return HeldAmounts(
            self.gpus + times * other.gpus,
            self.mib + times * other.mib,
            self.promised_gpus + times * other.promised_gpus,
            self.promised_mib + times * other.promised_mib,
            self.measured_mib + times * other.measured_mib,
            self.used_mib + times * other.used_mib,
            self.wasted_mib + times * other.wasted_mib,
        )


NOTHING = HeldAmounts()


class GpuSizes(Struct, frozen=True):
    """The sizes that the record of a node has of its GPUs and units; 0, or nothing, where the record has none."""

    memory: Mapping[str, int]
    """The memory of each GPU in MiB, by UUID."""
    part: Mapping[str, float]
    """The part of its card that each MIG instance is, by UUID: by memory."""
    units: Mapping[tuple[str, str], int]
    """The memory of a unit in MiB, by resource and UUID."""


def sizes(record: NodeRecord | None) -> GpuSizes:
    """Return the sizes that a record has."""
    gpus = () if record is None else record.gpus
    instances = {gpu.uuid: gpu for gpu in gpus if gpu.profile is not None}
    cards = Counter[int]()
    for gpu in instances.values():
        cards[gpu.index] += gpu.memory_mib
    cards |= Counter({gpu.index: gpu.memory_mib for gpu in gpus if gpu.profile is None})
    return GpuSizes(
        {gpu.uuid: gpu.memory_mib for gpu in gpus},
        {uuid: gpu.memory_mib / cards[gpu.index] for uuid, gpu in instances.items() if cards[gpu.index]},
        {(gpu.resource, gpu.uuid): gpu.unit_mib for gpu in gpus if gpu.resource is not None},
    )


class _HeldPart(Struct, frozen=True):
    """What one pod or claim has of one GPU in one resource."""

    owner: tuple[str, str, str]
    """The namespace, the pod or claim, and the UUID of the GPU; of units on unknown GPUs the UUID is empty."""
    pods: tuple[str, ...]
    """The pod, or the pods of the claim."""
    words: str
    """The units, with the GPU where it is known."""
    compute: bool
    """Whether the part is of compute, beside a part of memory of the same GPU."""
    gpus: float
    """The part of the GPU."""
    mib: int
    """The memory in MiB."""
    promised: bool
    """Whether the node has not confirmed the part."""


class HeldOfGpu(Struct, frozen=True):
    """What a pod, or a request of a claim, has of one GPU."""

    namespace: str
    """The namespace."""
    pods: tuple[str, ...]
    """The pod, or the pods of the claim."""
    claim: str
    """The claim and its request; empty for a pod with units."""
    words: tuple[str, ...]
    """The units of each resource, with the GPU where it is known."""
    amounts: HeldAmounts
    """What this adds up to, and what of it is used."""


def held_by_namespace(node: NodeUse, known: GpuSizes, usage: Usage | None = None) -> Mapping[str, HeldAmounts]:
    """Return what each namespace has of a node, and what of it is used."""
    found: dict[str, HeldAmounts] = {}
    for each in holdings(node, known, usage):
        found[each.namespace] = found.get(each.namespace, NOTHING).plus(each.amounts)
    return found


def holdings(node: NodeUse, known: GpuSizes, usage: Usage | None = None) -> Iterator[HeldOfGpu]:
    """Yield who has what of each GPU of a node.

    Of memory and compute of the same GPU, the larger part counts; slices of several sizes add up.
    """
    holders = holders_of(usage)
    of_owners: dict[tuple[str, str, str], list[_HeldPart]] = {}
    for each in _parts(node, known):
        of_owners.setdefault(each.owner, []).append(each)
    for (namespace, name, gpu), several in of_owners.items():
        pods = several[0].pods
        parts = (sum(each.gpus for each in several if each.compute == compute) for compute in (False, True))
        gpus, mib = round(WHOLE * max(parts)), sum(each.mib for each in several)
        promised = any(each.promised for each in several)
        held = HeldAmounts(gpus, mib, gpus if promised else 0, mib if promised else 0)
        if (used := used_mib(holders, namespace, pods, gpu)) is not None:
            held = replace(held, measured_mib=mib, used_mib=used, wasted_mib=max(0, mib - used))
        claim = "" if pods == (name,) else name
        yield HeldOfGpu(namespace, pods, claim, tuple(each.words for each in several), held)


def ranked(several: Iterable[Mapping[str, HeldAmounts]]) -> tuple[str, ...]:
    """Return the namespaces that have something of nodes, those that have most GPUs first."""
    sums = Counter[str]()
    for each in several:
        for namespace, held in each.items():
            sums[namespace] += held.gpus
    return tuple(sorted(sums, key=lambda name: (-sums[name], name)))


def _parts(node: NodeUse, known: GpuSizes) -> Iterator[_HeldPart]:
    for use in node.resources:
        for gpu in use.gpus:
            unit = _unit(use, gpu, known)
            for pod in gpu.pods:
                part, mib = _amount(use, gpu, pod.units, unit, known)
                owner, promised = (pod.namespace, pod.pod, gpu.uuid), pod.state == "promised"
                words = f"{_named(gpu)}: {pod.units} {use.unit}{', promised' if promised else ''}"
                yield _HeldPart(owner, (pod.pod,), words, use.kind == "cores", part, mib, promised)
        yield from _unplaced(use, known)
    for use in node.given_by_claim:
        for gpu in use.gpus:
            yield from _of_claims(use, gpu, known)


def _named(gpu: GpuUse) -> str:
    return f"GPU {gpu.index if gpu.index >= 0 else gpu.uuid}"


def _unit(use: ResourceUse, gpu: GpuUse, known: GpuSizes) -> int:
    """Return the MiB of a unit; 0 for units that are no memory, or of unknown size."""
    return known.units.get((use.resource, gpu.uuid)) or mib_of(use.unit) or 0


def _amount(use: ResourceUse, gpu: GpuUse, units: float, unit: int, known: GpuSizes) -> tuple[float, int]:
    """Return the part of a card, and the MiB, that units of a GPU are."""
    memory, share = known.memory.get(gpu.uuid, 0), units / gpu.units if gpu.units else 0.0
    if use.kind == "slices" and unit and memory:
        share = units * unit / memory
    mib = 0 if use.kind == "cores" else round(units * unit if unit else share * memory)
    return share * known.part.get(gpu.uuid, 1.0), mib


def _unplaced(use: ResourceUse, known: GpuSizes) -> Iterator[_HeldPart]:
    """Yield units on unknown GPUs, as if the GPU was the largest one of the resource."""
    if not use.gpus:
        return
    largest = max(use.gpus, key=lambda gpu: gpu.units)
    for pod in use.unplaced:
        part, mib = _amount(use, largest, pod.units, _unit(use, largest, known), known)
        owner, words = (pod.namespace, pod.pod, ""), f"{pod.units} {use.unit} on unknown GPUs"
        yield _HeldPart(owner, (pod.pod,), words, use.kind == "cores", part, mib, promised=False)


def _of_claims(use: ResourceUse, gpu: GpuUse, known: GpuSizes) -> Iterator[_HeldPart]:
    """Yield what claims have of a GPU, as the larger part of memory or shares and of compute."""
    for claim in gpu.claims:
        units = (claim.shares if use.unit == "shares" else claim.memory_mib) or 0
        part, mib = _amount(use, gpu, units, 0, known)
        part = max(part, (claim.compute_percent or 0) / 100 * known.part.get(gpu.uuid, 1.0))
        owner = (claim.namespace, f"{claim.claim}/{claim.request}", gpu.uuid)
        words = f"{_named(gpu)}: {units} {use.unit}"
        yield _HeldPart(owner, claim.pods, words, compute=False, gpus=part, mib=claim.memory_mib or mib, promised=False)
