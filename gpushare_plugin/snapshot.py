"""What a node is and offers at one moment, for those who tell others."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpushare_plugin.config.schema import Config
from gpushare_plugin.model.gpu import Gpu, Inventory
from gpushare_plugin.model.resource import Resource
from gpushare_plugin.model.unit import Unit


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A node as it is now.

    `resources` are what is offered, units on their way out not counted. `unhealthy` tells, by UUID, why a GPU is not
    handed out. `notices` are what people should know of the settings, refused ones included.
    """

    inventory: Inventory = field(default_factory=lambda: Inventory(()))
    resources: tuple[Resource, ...] = ()
    config: Config = field(default_factory=Config)
    unhealthy: Mapping[str, str] = field(default_factory=dict)
    notices: tuple[str, ...] = ()

    def offered_as(self, gpu: Gpu) -> Resource | None:
        """Return the resource that a GPU has units in, None where it is offered in no way."""
        return next((resource for resource in self.resources if resource.units_of.get(gpu.uuid)), None)

    def units(self, gpu: Gpu) -> Sequence[Unit]:
        """Return the units of a GPU."""
        resource = self.offered_as(gpu)
        return () if resource is None else resource.shares[resource.gpus[gpu.uuid]]
