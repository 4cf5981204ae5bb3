"""What a node is and offers at one moment, for those who tell others."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpushare_plugin.config.schema.sections import Config
from gpushare_plugin.model.gpu import Gpu, Inventory
from gpushare_plugin.model.resource import Resource
from gpushare_plugin.model.unit import Unit


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A node as it is now.

    `resources` are what is offered, units on their way out not counted. `unhealthy` tells, by UUID, why a GPU is not
    handed out, `waiting` why it is not shared as the settings say yet, `under_mps` which are shared through MPS.
    `notices` are what people should know of the settings, refused ones included, and of what they took out by hand.
    """

    inventory: Inventory = field(default_factory=lambda: Inventory(()))
    resources: tuple[Resource, ...] = ()
    config: Config = field(default_factory=Config)
    unhealthy: Mapping[str, str] = field(default_factory=dict)
    waiting: Mapping[str, str] = field(default_factory=dict)
    under_mps: frozenset[str] = frozenset()
    notices: tuple[str, ...] = ()

    def offers(self, gpu: Gpu) -> dict[str, Sequence[Unit]]:
        """Return the units of a GPU by their resource; only slices of several sizes have more than one."""
        return {
            resource.name: resource.shares[resource.gpus[gpu.uuid]]
            for resource in self.resources
            if resource.units_of.get(gpu.uuid)
        }
