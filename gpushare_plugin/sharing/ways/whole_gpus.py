"""Whole GPUs: a container gets GPUs that are not shared, close to each other if the request is for several GPUs."""

from collections.abc import Mapping

from gpushare_plugin.base.errors import Path
from gpushare_plugin.base.structs import Struct
from gpushare_plugin.config.findings import Findings
from gpushare_plugin.core.chooser import CloseGpus
from gpushare_plugin.core.gpu import Gpu
from gpushare_plugin.core.grant import Allocation, Grant
from gpushare_plugin.core.resource import Resource, Units
from gpushare_plugin.core.unit import Form, Unit
from gpushare_plugin.sharing.ways.injection import Injection
from gpushare_plugin.sharing.ways.way import Entry, NodeFacts, by_place


class WholeGpusWay:
    """The way of offering all GPUs that no other way shares, without entries in the config."""

    section: Path = ("resources",)
    entries: tuple[Entry, ...] = ()

    def __init__(self, node: NodeFacts, findings: Findings) -> None:  # noqa: ARG002 - whole GPUs add no findings
        """Offer cards and MIG instances alike."""
        self._node = node

    def resources(self, unclaimed: Mapping[Gpu, str]) -> list[Resource]:
        """Return one resource for each name of the unclaimed GPUs."""
        return [
            Resource(
                name,
                Units({gpu: [whole_unit(gpu)] for gpu in by_place(unclaimed) if unclaimed[gpu] == name}),
                CloseGpus(self._node.inventory.closeness),
                WholeGpuGranter(self._node.injection),
            )
            for name in dict.fromkeys(unclaimed.values())
        ]


class WholeGpuGranter(Struct, frozen=True):
    """Gives a container whole GPUs."""

    injection: Injection
    """The access to GPUs."""

    def grant(self, allocation: Allocation) -> Grant:
        """Return the GPUs."""
        return self.injection.grant([each.gpu for each in allocation.gpus])


def whole_unit(gpu: Gpu) -> Unit:
    """Return the only unit of a GPU that is not shared."""
    return Unit(gpu.uuid, gpu.uuid, 0, Form.whole(gpu.uuid), gpu.numa_node)
