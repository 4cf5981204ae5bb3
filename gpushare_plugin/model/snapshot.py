"""One picture of a node at one moment: what it has, what it offers, and how each GPU and resource is.

Node labels, the record on the Node, metrics and tables are all projections of it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

from gpushare_plugin.foundation.structs import Struct, field
from gpushare_plugin.model.gpu import Gpu, Inventory
from gpushare_plugin.model.holding import Holding, Holdings, Unknown
from gpushare_plugin.model.resource import Resource, Standing
from gpushare_plugin.model.slices.mig import MigRoom
from gpushare_plugin.model.slices.slice import Kind
from gpushare_plugin.model.unit import Unit
from gpushare_plugin.model.usage.usage import Usage

SharingMode = Literal["memory", "time-slicing", "mps", "exclusive"]
"""How a GPU is shared, as people and other tools are told."""

MigStrategy = Literal["none", "single", "mixed"]

Cause = Literal["fault", "mps", "cordon"]
"""Why units of a GPU cannot be allocated: it is faulty, not served by MPS, or cordoned."""


class ConfigStanding(Struct, frozen=True):
    """The config in effect: its `name`, empty without a file, and when it was `loaded`, in seconds since 1970.

    `refused` is whether a newer one was rejected, or cannot be read.
    """

    name: str
    loaded: float
    refused: bool = False


class Snapshot(Struct, frozen=True):
    """A node as it is now.

    `resources` are what is offered; retired units are in `Resource.retired` only. `unhealthy` says, by the UUID of a
    GPU, why it is faulty or not served by MPS, `cordoned` what cordons it, and `waiting` why it is not shared as
    configured yet; `under_mps` are the UUIDs of the GPUs shared through MPS, `isolations` the names of the isolations
    of shared GPUs by UUID. `notices` are warnings for people: about the config, a rejected one included, and about
    cordoned GPUs.

    `mig_strategy` is what the effective config says of MIG, `placement` the policy that it names for shares, None where
    it names none. `needs_mps` is whether `gpushare mps` has work here: the
    config shares GPUs through MPS, or pods still use one so. `unshared_names` are the resource names that GPUs and MIG
    instances have before they are shared. `standings` say how resources stand with the kubelet, by name; `holdings`
    are what containers hold. `excess` says, by resource and
    the UUID of a GPU, how many units more pods hold there than they were promised; None where the pods of the node are
    not followed. `usage` says who uses what, None before that was looked at. `unserved` are the GPUs that MPS does not
    serve, with the reason, which are `unhealthy`, too; `config` is None where there is none yet. `partitioning` is None
    where the config says how GPUs are shared. `mig_rooms` are the places for MIG instances on cards that are divided as
    wanted, by UUID; `unsuitable` says why cards cannot be divided as the node is, by UUID; `most_slices` how many
    slices MPS serves on cards that are divided so, where that is fewer than usual.
    """

    inventory: Inventory = field(default_factory=lambda: Inventory(()))
    resources: tuple[Resource, ...] = ()
    unhealthy: Mapping[str, str] = field(default_factory=dict)
    cordoned: Mapping[str, str] = field(default_factory=dict)
    waiting: Mapping[str, str] = field(default_factory=dict)
    under_mps: frozenset[str] = frozenset()
    isolations: Mapping[str, str] = field(default_factory=dict)
    notices: tuple[str, ...] = ()
    mig_strategy: MigStrategy = "none"
    placement: str | None = None
    needs_mps: bool = False
    unshared_names: frozenset[str] = frozenset()
    standings: Mapping[str, Standing] = field(default_factory=dict)
    holdings: Holdings | Unknown = Unknown()
    excess: Mapping[str, Mapping[str, int]] | None = None
    usage: Usage | None = None
    unserved: Mapping[str, str] = field(default_factory=dict)
    config: ConfigStanding | None = None
    partitioning: Kind | None = None
    mig_rooms: Mapping[str, MigRoom] = field(default_factory=dict)
    unsuitable: Mapping[str, str] = field(default_factory=dict)
    most_slices: Mapping[str, int] = field(default_factory=dict)

    @property
    def excluded(self) -> Mapping[str, str]:
        """Why GPUs cannot be allocated, by UUID: faults and MPS before cordons."""
        return {**self.cordoned, **self.unhealthy}

    @property
    def reasons(self) -> Mapping[str, str]:
        """Why GPUs cannot be allocated, or are not shared as configured or wanted, by UUID: the gravest reason."""
        return {**self.unsuitable, **self.waiting, **self.excluded}

    def causes(self, gpu: Gpu) -> frozenset[Cause]:
        """Return why units of a GPU cannot be allocated; nothing where they can."""
        uuid = gpu.uuid
        found: dict[Cause, bool] = {
            "fault": uuid in self.unhealthy and self.unhealthy[uuid] != self.unserved.get(uuid),
            "mps": uuid in self.unserved,
            "cordon": uuid in self.cordoned,
        }
        return frozenset(cause for cause, applies in found.items() if applies)

    def offers(self, gpu: Gpu) -> dict[str, Sequence[Unit]]:
        """Return the units of a GPU by their resource; those of compute, which go with memory, are last.

        Beside these only slices of several sizes have more than one resource.
        """
        return {
            resource.name: resource.units.by_gpu[resource.gpus[gpu.uuid]]
            for resource in sorted(self.resources, key=lambda each: each.role == "cores")
            if resource.units_of.get(gpu.uuid)
        }

    def held_units(self, holdings: Iterable[Holding]) -> Iterator[tuple[Holding, list[Unit]]]:
        """Yield what each container holds: its units of GPUs that are present, as listed, or as their IDs say."""
        gpus = self.inventory.numa_nodes
        resources = {resource.name: resource for resource in self.resources}
        for holding in holdings:
            resource = resources.get(holding.resource)
            units = holding.units(gpus, resource.listed) if resource else holding.units(gpus)
            yield holding, [unit for unit in units if unit.gpu in gpus]

    def mode(self, gpu: Gpu) -> SharingMode | None:
        """Return how a GPU is shared, None where it is not offered."""
        units = next(iter(self.offers(gpu).values()), ())
        if not units:
            return None
        if gpu.uuid in self.under_mps:
            return "mps"
        if units[0].mib:
            return "memory"
        return "exclusive" if len(units) == 1 else "time-slicing"
