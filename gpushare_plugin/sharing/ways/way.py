"""The boundary between the plan and the ways of sharing; each way is a module of this package and a line in `table`."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from gpushare_plugin.base.errors import Path
from gpushare_plugin.base.structs import Struct, field
from gpushare_plugin.config.effective import EffectiveConfig
from gpushare_plugin.config.findings import Findings
from gpushare_plugin.config.schema.sections import Config, Devices
from gpushare_plugin.core.driver_limits import DriverLimits
from gpushare_plugin.core.gpu import Gpu, Inventory
from gpushare_plugin.core.resource import Resource
from gpushare_plugin.sharing.isolation.choice import Choice
from gpushare_plugin.sharing.isolation.layer import Isolation, NodeMeans
from gpushare_plugin.sharing.ways.injection import Injection
from gpushare_plugin.slices.slice import Slice

SliceNumbers = Mapping[Slice, Sequence[int]]
"""The slices of one GPU under MPS: the numbers at the end of the IDs, by size."""


class NodeFacts(Struct, frozen=True):
    """The facts about a node that ways of sharing use."""

    effective: EffectiveConfig
    """The config in effect."""
    inventory: Inventory
    """All GPUs of the node."""
    offered: Mapping[Gpu, str]
    """The GPUs to share, sorted by place, with the resource name of each GPU before sharing."""
    short_uuids: Mapping[str, str]
    """The short name of each card in unit IDs, by UUID."""
    injection: Injection
    """The access of containers to GPUs."""
    cut: Mapping[str, SliceNumbers] = field(default_factory=dict)
    """The slices of each GPU of a partitioned node, by UUID; under MIG, the offered GPUs, without slices."""
    driver_limits: DriverLimits | None = None
    """The means of the node to set driver limits; None where nobody looked."""

    @property
    def means(self) -> NodeMeans:
        """The means of the node to isolate containers."""
        return NodeMeans(self.inventory.driver_version, self.driver_limits)

    @property
    def config(self) -> Config:
        """The config as changed by node labels, without the requests of node labels that a config cannot express."""
        return self.effective.config


class Unsuitable(Struct, frozen=True):
    """A GPU that an entry of the config cannot share."""

    reason: str
    """The reason, such as `is in MIG mode and cannot be shared by memory`, which follows the name of the GPU."""
    remedy: str
    """The remedy for people if the entry names the GPU."""


class Entry(Struct, kw_only=True):
    """One entry of the config that requests GPUs."""

    path: Path
    """The path of the entry in the config."""
    name: str
    """The names of the resources, for messages; `partitioned` for the GPUs of a partitioned node."""
    devices: Devices
    """The GPUs that the entry requests among `candidates`."""
    candidates: tuple[Gpu, ...]
    """The GPUs that the entry can share."""
    isolations: tuple[Isolation, ...]
    """The isolations of the containers that the entry names, in the order of preference."""
    containers: Callable[[Gpu], int]
    """Returns the number of containers that could share a GPU at a time."""
    key: str = ""
    """The key of the entry that sets the number of containers.

    Empty if no key sets the number, or if one container can count for several.
    """
    unsuitable: Mapping[Gpu, Unsuitable] = field(default_factory=dict)
    """GPUs outside of `candidates` that people may expect among them, with reasons."""
    unsized: tuple[Gpu, ...] = ()
    """GPUs outside of `candidates` whose memory is unknown; the entry serves the other GPUs, with a warning."""
    gpus: list[Gpu] = field(default_factory=list)
    """The GPUs that the entry gets, filled in by the plan."""
    choice: Choice = Choice()
    """The chosen isolation, filled in by the plan after the GPUs."""

    @property
    def isolation(self) -> Isolation:
        """The isolation of the containers."""
        return self.choice.isolation


class Way(Protocol):
    """One way of sharing, for one plan."""

    @property
    def section(self) -> Path:
        """The path in the config of the entries for the way of sharing."""
        ...

    @property
    def entries(self) -> Sequence[Entry]:
        """The entries of the config for the way of sharing."""
        ...

    def resources(self, unclaimed: Mapping[Gpu, str]) -> Sequence[Resource]:
        """Return the resources to advertise, after all entries got GPUs.

        `unclaimed` has the offered GPUs without an entry or a resource yet, with the resource names before sharing; a
        way can take the unclaimed GPUs. Impossible resources are left out, and added to the findings.
        """
        ...


MakeWay = Callable[[NodeFacts, Findings], Way]
"""Makes a way of sharing for a node; problems are added to the findings at once, or by `resources`."""


def by_place(gpus: Iterable[Gpu]) -> list[Gpu]:
    """Return GPUs sorted by place: the order of GPUs in resources."""
    return sorted(gpus, key=lambda gpu: gpu.place)
