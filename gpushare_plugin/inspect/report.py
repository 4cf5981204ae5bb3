"""What a node shares and who holds what, as data and as text for people."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from rich.table import Table
from rich.text import Text

from gpushare_plugin.model.gpu import Gpu, Inventory, MigInstance
from gpushare_plugin.model.resource import Resource
from gpushare_plugin.model.standing import Holding

_BAR_CELLS = 10

_Uses = Counter[tuple[str, str, str, str, str]]
"""Units by resource, GPU, namespace, pod and container."""


@dataclass(frozen=True, slots=True)
class Use:
    """The units of one GPU that one container holds."""

    namespace: str
    pod: str
    container: str
    units: int


@dataclass(frozen=True, slots=True)
class GpuReport:
    """One GPU as one resource (None when it is left out): its units, and who holds them.

    A GPU that is cut into slices of several sizes is several resources, and there is one of these for each.
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
    """Everything `gpushare list` tells; `uses_known` is False when the kubelet could not be asked.

    `gpus` has the MIG instances after their card, but for those of a card that is advertised itself.
    """

    inventory: Inventory
    gpus: tuple[GpuReport, ...]
    uses_known: bool


def report(inventory: Inventory, resources: Iterable[Resource], holdings: Iterable[Holding] | None) -> NodeReport:
    """Bring together the GPUs, what they are advertised as, and what pods hold (None: not known)."""
    resources = tuple(resources)
    uses = _uses(resources, holdings or ())
    offered = {uuid for resource in resources for uuid in resource.gpus}
    gpus: list[GpuReport] = []
    for gpu in inventory.devices:
        if gpu.mig and gpu.card in offered:
            continue  # whoever gets the card gets its instances with it
        owners = [resource for resource in resources if gpu.uuid in resource.gpus]
        gpus += [_gpu_report(gpu, owner, uses) for owner in owners] or [GpuReport(gpu, None, 0, 0, ())]
    return NodeReport(inventory, tuple(gpus), holdings is not None)


def _gpu_report(gpu: Gpu, resource: Resource, uses: _Uses) -> GpuReport:
    unit_mib = next(unit.mib for unit in resource.units.values() if unit.gpu == gpu.uuid)
    users = tuple(
        Use(namespace, pod, container, count)
        for (name, uuid, namespace, pod, container), count in uses.items()
        if (name, uuid) == (resource.name, gpu.uuid)
    )
    return GpuReport(gpu, resource.name, resource.units_of[gpu.uuid], unit_mib, users)


def _uses(resources: Iterable[Resource], holdings: Iterable[Holding]) -> _Uses:
    """Count the units that containers hold; the GPU is read from the unit's ID."""
    units = {id_: (resource.name, unit.gpu) for resource in resources for id_, unit in resource.units.items()}
    return Counter(
        (*units[id_], holding.namespace, holding.pod, holding.container)
        for holding in holdings
        for id_ in holding.ids
        if id_ in units
    )


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


def gpu_table(node: NodeReport, *, uuids: bool = True) -> Table:
    """Return a table of the GPUs with a picture of how much of each is in use; without `uuids` it fits 80 columns."""
    table = plain_table("GPU", "NAME", "MEMORY", "RESOURCE", "USED", "", *(["UUID"] if uuids else []))
    divided = {each.gpu.card for each in node.gpus if each.gpu.mig and each.resource}
    for each in node.gpus:
        gpu = each.gpu
        used = f"{each.used if node.uses_known else '?'}/{each.units}" if each.resource else ""
        picture = bar(each.used, each.units) if each.resource and node.uses_known else ""
        uuid = [gpu.uuid] if uuids else []
        resource = each.resource or ("in parts" if gpu.uuid in divided else "left out")
        table.add_row(gpu.label, gpu.product, f"{gpu.memory_mib} MiB", resource, used, picture, *uuid)
    for card in node.inventory.failed:
        table.add_row(card.label, f"does not answer: {card.reason}", "", "left out", "", "", card.uuid or "")
    return table


def plain_table(*columns: str) -> Table:
    """Return an empty table without lines, whose cells break only where they must."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def bar(used: int, total: int) -> Text:
    """Return a picture of `used` out of `total`: empty and full only where that is so."""
    filled = _BAR_CELLS * used // total if total else 0
    if used:
        filled = max(1, filled)
    return Text("█" * filled + "░" * (_BAR_CELLS - filled))


def use_table(node: NodeReport) -> Table:
    """Return a table of the containers that hold units, GPU by GPU."""
    table = plain_table("GPU", "NAMESPACE", "POD", "CONTAINER", "RESOURCE", "UNITS")
    for each in node.gpus:
        for use in each.uses:
            table.add_row(each.gpu.label, use.namespace, use.pod, use.container, each.resource or "", str(use.units))
    return table
