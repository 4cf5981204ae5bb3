"""What a node shares and who holds what, as data: a projection of its snapshot."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from gpushare_plugin.model.gpu import Gpu, Inventory, MigInstance
from gpushare_plugin.model.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Use:
    """The units of one GPU that one container holds."""

    namespace: str
    pod: str
    container: str
    units: int


_Uses = Mapping[tuple[str, str], tuple[Use, ...]]
"""Who holds units, by resource and UUID of the GPU."""


@dataclass(frozen=True, slots=True)
class GpuReport:
    """One GPU in one resource (None when it is not offered): its units, and who holds them.

    A GPU of slices of several sizes is in several resources, and there is one of these for each.
    """

    gpu: Gpu
    resource: str | None
    units: int
    unit_mib: int
    uses: tuple[Use, ...]

    @property
    def used(self) -> int:
        """Units that containers hold."""
        return sum(use.units for use in self.uses)


@dataclass(frozen=True, slots=True)
class NodeReport:
    """Everything that `gpushare list` shows; `uses_known` is False when the kubelet did not answer.

    `gpus` has MIG instances after their card, without those of a card that is offered itself.
    """

    inventory: Inventory
    gpus: tuple[GpuReport, ...]
    uses_known: bool


def report(snapshot: Snapshot) -> NodeReport:
    """Bring together the GPUs of a node, what they are offered as, and what containers hold."""
    uses = _uses(snapshot)
    offered = {uuid for resource in snapshot.resources for uuid in resource.gpus}
    gpus = [
        each
        for gpu in snapshot.inventory.gpus
        # With a card, a container gets its instances.
        if not (gpu.mig and gpu.card in offered)
        for each in _gpu_reports(snapshot, gpu, uses)
    ]
    return NodeReport(snapshot.inventory, tuple(gpus), snapshot.holdings is not None)


def _gpu_reports(snapshot: Snapshot, gpu: Gpu, uses: _Uses) -> list[GpuReport]:
    return [
        GpuReport(gpu, resource, len(units), units[0].mib, uses.get((resource, gpu.uuid), ()))
        for resource, units in snapshot.offers(gpu).items()
    ] or [GpuReport(gpu, None, 0, 0, ())]


def _uses(snapshot: Snapshot) -> _Uses:
    """Count the units that containers hold; the GPU is read from the unit's ID."""
    units = {id_: (resource.name, unit.gpu) for resource in snapshot.resources for id_, unit in resource.units.items()}
    counts = Counter(
        (units[id_], (holding.namespace, holding.pod, holding.container))
        for holding in snapshot.holdings or ()
        for id_ in holding.ids
        if id_ in units
    )
    uses: dict[tuple[str, str], tuple[Use, ...]] = {}
    for (place, holder), count in counts.items():
        uses[place] = (*uses.get(place, ()), Use(*holder, count))
    return uses


def as_data(node: NodeReport) -> dict[str, object]:
    """Return the report as plain data for JSON."""
    return {
        "driverVersion": node.inventory.driver_version,
        "cudaVersion": ".".join(map(str, node.inventory.cuda_version)),
        "gpus": [_gpu_data(gpu, uses_known=node.uses_known) for gpu in node.gpus],
        "failed": [asdict(card) for card in node.inventory.failed],
    }


def _gpu_data(report: GpuReport, *, uses_known: bool) -> dict[str, object]:
    gpu = report.gpu
    return {
        "index": gpu.index,
        "uuid": gpu.uuid,
        "name": gpu.name,
        "minor": gpu.minor,
        "computeCapability": ".".join(map(str, gpu.compute_capability)),
        "memoryMiB": gpu.memory_mib,
        "pciBusId": gpu.pci_bus_id,
        "numaNode": gpu.numa_node,
        "migEnabled": gpu.mig_enabled,
        "mig": _mig_data(gpu.mig) if gpu.mig else None,
        "resource": report.resource,
        "units": report.units,
        "unitMiB": report.unit_mib or None,
        "used": report.used if uses_known else None,
        "uses": [asdict(use) for use in report.uses] if uses_known else None,
    }


def _mig_data(mig: MigInstance) -> dict[str, object]:
    return {
        "parent": mig.parent,
        "number": mig.number,
        "profile": mig.profile,
        "gpuInstance": mig.gpu_instance,
        "computeInstance": mig.compute_instance,
    }
