"""The picture of a node at one moment: its GPUs, its offer, and the state of every GPU and resource.

Node labels, the record on the Node, metrics and tables are projections of the picture.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from gpushare_plugin.base.structs import Struct, field
from gpushare_plugin.core.driver_limits import LimitRule
from gpushare_plugin.core.gpu import Gpu, Inventory
from gpushare_plugin.core.holding import Holding, Holdings, Unknown
from gpushare_plugin.core.resource import Resource, Standing
from gpushare_plugin.core.unit import Unit
from gpushare_plugin.core.usage import Usage
from gpushare_plugin.slices.mig import MigRoom
from gpushare_plugin.slices.slice import SliceKind

if TYPE_CHECKING:  # most nodes give no GPU by claim
    from gpushare_plugin.core.claim_state import ClaimState
    from gpushare_plugin.core.claimed_gpu import ClaimedGpu

SharingMode = Literal["memory", "time-slicing", "mps", "exclusive"]
"""The way in which a GPU is shared, as written for people and other tools."""

MigStrategy = Literal["none", "single", "mixed"]
"""The strategy for MIG instances in the config, as in NVIDIA's device plugin (`flags.migStrategy`)."""

Cause = Literal["fault", "mps", "cordon", "limits"]
"""Why the units of a GPU cannot be allocated: a fault, no service by MPS, a cordon, or no way to set driver limits."""


class ConfigStanding(Struct, frozen=True):
    """The standing of the config in effect."""

    name: str
    """The name of the config; empty without a file."""
    loaded: float
    """The time at which the config was loaded, in seconds since 1970."""
    refused: bool = False
    """Whether a newer config was rejected or cannot be read."""


class Snapshot(Struct, frozen=True):
    """A node at one moment."""

    inventory: Inventory = field(default_factory=lambda: Inventory(()))
    """The GPUs of the node."""
    resources: tuple[Resource, ...] = ()
    """The offer of the node; retired units are only in `Resource.retired`."""
    unhealthy: Mapping[str, str] = field(default_factory=dict)
    """The unhealthy GPUs by UUID, with the reason: a fault, or no service by MPS."""
    cordoned: Mapping[str, str] = field(default_factory=dict)
    """The cordoned GPUs by UUID, with the source of the cordon."""
    waiting: Mapping[str, str] = field(default_factory=dict)
    """The GPUs that are not shared as configured or wanted yet, by UUID, with the reason."""
    under_mps: frozenset[str] = frozenset()
    """The UUIDs of the GPUs that are shared through MPS."""
    isolations: Mapping[str, str] = field(default_factory=dict)
    """The names of the isolations of shared GPUs by the config, by UUID."""
    isolation_reasons: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Why the isolations before the chosen one were not chosen, by UUID; only for GPUs whose entry names several."""
    isolations_in_use: Mapping[str, str] = field(default_factory=dict)
    """The names of the isolations that limit containers now, by UUID; without GPUs that no isolation limits.

    While a GPU waits to change its mode, the isolation is that of the containers that hold the GPU.
    """
    equal_shares_mib: Mapping[str, int] = field(default_factory=dict)
    """The share of each container in MiB on GPUs that an isolation in use divides into equal parts, by UUID."""
    driver_limits: Mapping[str, LimitRule] = field(default_factory=dict)
    """The rules of the GPUs on which containers have driver limits, by UUID.

    While a GPU waits to change its mode, the rule is that of the containers that hold the GPU.
    """
    by_claim: "Mapping[str, ClaimedGpu]" = field(default_factory=dict)
    """The GPUs that are given by claim, by UUID, in order of place."""
    cdi_names: Mapping[str, str] = field(default_factory=dict)
    """The qualified names of the CDI devices that containers get, by UUID; empty where they get no CDI devices."""
    notices: tuple[str, ...] = ()
    """Warnings for people: about the config, a rejected config included, about slices, and about cordoned GPUs."""
    mig_strategy: MigStrategy = "none"
    """The strategy for MIG instances in the effective config."""
    policy: str | None = None
    """The policy that the effective config names for shares of memory; None without a single named policy."""
    needs_mps: bool = False
    """Whether `gpushare mps` has work on the node: GPUs are to be shared through MPS, or pods still use MPS."""
    unshared_names: frozenset[str] = frozenset()
    """The resource names that GPUs and MIG instances have before any sharing."""
    standings: Mapping[str, Standing] = field(default_factory=dict)
    """The standing of every resource with the kubelet, by the name of the resource."""
    holdings: Holdings | Unknown = Unknown()
    """The holdings of the containers on the node."""
    excess: Mapping[str, Mapping[str, int]] | None = None
    """Units held beyond the promises, by resource and UUID of the GPU; None where pods are not followed."""
    usage: Usage | None = None
    """The use of the GPUs by containers and other processes; None before the first look."""
    unserved: Mapping[str, str] = field(default_factory=dict)
    """The GPUs without service by MPS, by UUID, with the reason; `unhealthy` has these GPUs, too."""
    unlimited: Mapping[str, str] = field(default_factory=dict)
    """The GPUs on which no driver limits can be set, by UUID, with the reason; `unhealthy` has these GPUs, too."""
    claims: "ClaimState | None" = None
    """The claims of the node; None on a node that gives no GPU by claim, and gave none that is still held."""
    config: ConfigStanding | None = None
    """The standing of the config in effect; None before a config is in effect."""
    partitioning: SliceKind | None = None
    """The kind of slices that the node is divided into; None where the config decides how GPUs are shared."""
    mig_rooms: Mapping[str, MigRoom] = field(default_factory=dict)
    """The places for MIG instances on cards of a node that is divided by MIG, by UUID, as `gpushare mig` reports."""
    unsuitable: Mapping[str, str] = field(default_factory=dict)
    """The cards that MPS cannot divide on a node that is divided by MPS, by UUID, with the reason."""
    most_slices: Mapping[str, int] = field(default_factory=dict)
    """The most slices that MPS serves on a divided card, by UUID; only cards with a lower limit than usual."""

    @property
    def excluded(self) -> Mapping[str, str]:
        """The reason why a GPU cannot be allocated, by UUID: faults and MPS before cordons."""
        return {**self.cordoned, **self.unhealthy}

    @property
    def reasons(self) -> Mapping[str, str]:
        """The gravest reason why a GPU cannot be allocated, or is not shared as configured or wanted, by UUID."""
        return {**self.unsuitable, **self.waiting, **self.excluded}

    def causes(self, gpu: Gpu) -> frozenset[Cause]:
        """Return why the units of a GPU cannot be allocated; an empty set for a GPU that can be allocated."""
        uuid = gpu.uuid
        found: dict[Cause, bool] = {
            "fault": uuid in self.unhealthy
            and self.unhealthy[uuid] not in {self.unserved.get(uuid), self.unlimited.get(uuid)},
            "mps": uuid in self.unserved,
            "cordon": uuid in self.cordoned,
            "limits": uuid in self.unlimited,
        }
        return frozenset(cause for cause, applies in found.items() if applies)

    def offers(self, gpu: Gpu) -> dict[str, Sequence[Unit]]:
        """Return the units of a GPU by the name of their resource; units of compute come last.

        A GPU has more than one resource only with slices of several sizes, or with units of compute beside memory.
        """
        return {
            resource.name: resource.units.by_gpu[resource.gpus[gpu.uuid]]
            for resource in sorted(self.resources, key=lambda each: each.role == "cores")
            if resource.units_of.get(gpu.uuid)
        }

    def held_units(self, holdings: Iterable[Holding]) -> Iterator[tuple[Holding, list[Unit]]]:
        """Yield every holding with its units on present GPUs: the listed units, or else units parsed from the IDs."""
        gpus = self.inventory.numa_nodes
        resources = {resource.name: resource for resource in self.resources}
        for holding in holdings:
            resource = resources.get(holding.resource)
            units = holding.units(gpus, resource.listed) if resource else holding.units(gpus)
            yield holding, [unit for unit in units if unit.gpu in gpus]

    def mode(self, gpu: Gpu) -> SharingMode | None:
        """Return the mode in which a GPU is shared, None for a GPU that is not offered."""
        units = next(iter(self.offers(gpu).values()), ())
        if not units:
            return None
        if gpu.uuid in self.under_mps:
            return "mps"
        if units[0].mib:
            return "memory"
        return "exclusive" if len(units) == 1 else "time-slicing"
