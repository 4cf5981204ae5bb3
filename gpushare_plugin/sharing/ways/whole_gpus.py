"""Whole GPUs: a request gets cards to itself, close to each other when it asks for several."""

from collections.abc import Mapping

from gpushare_plugin.foundation.errors import Path
from gpushare_plugin.foundation.structs import Struct
from gpushare_plugin.model.choice.chooser import CloseGpus
from gpushare_plugin.model.gpu import Gpu
from gpushare_plugin.model.grant import Allocation, Grant
from gpushare_plugin.model.resource import Resource, Units
from gpushare_plugin.model.unit import Form, Unit
from gpushare_plugin.sharing.findings import Findings
from gpushare_plugin.sharing.injection import Injection
from gpushare_plugin.sharing.ways.way import Entry, NodeFacts, by_place


class WholeGpusWay:
    """Advertises what nothing else shares; the config has no entries for it."""

    section: Path = ("resources",)
    entries: tuple[Entry, ...] = ()

    def __init__(self, node: NodeFacts, findings: Findings) -> None:  # noqa: ARG002 - there is nothing to find
        """Share GPUs and MIG instances alike."""
        self._node = node

    def resources(self, unclaimed: Mapping[Gpu, str]) -> list[Resource]:
        """Advertise the unclaimed GPUs under their names."""
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
    """Gives a container GPUs to itself."""

    injection: Injection

    def grant(self, allocation: Allocation) -> Grant:
        """Return the GPUs."""
        return self.injection.grant([each.gpu for each in allocation.gpus])


def whole_unit(gpu: Gpu) -> Unit:
    """Return the one unit of a GPU that is not shared."""
    return Unit(gpu.uuid, gpu.uuid, 0, Form.whole(gpu.uuid), gpu.numa_node)
