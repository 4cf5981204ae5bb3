"""What a way of sharing is to the plan: each is a module beside this one and a line in `table`."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from gpushare_plugin.config.effective import EffectiveConfig
from gpushare_plugin.config.schema.sections import Config, Devices
from gpushare_plugin.foundation.errors import Path
from gpushare_plugin.foundation.structs import Struct, field
from gpushare_plugin.model.gpu import Gpu, Inventory
from gpushare_plugin.model.resource import Resource
from gpushare_plugin.model.slices.slice import Slice
from gpushare_plugin.sharing.findings import Findings
from gpushare_plugin.sharing.injection import Injection
from gpushare_plugin.sharing.isolation.layer import Isolation

Numbers = Mapping[Slice, Sequence[int]]
"""The slices of one GPU under MPS: by size, the numbers that their IDs end with."""


class NodeFacts(Struct, frozen=True):
    """What ways of sharing know of the node whose GPUs they share."""

    effective: EffectiveConfig
    """The config in effect."""
    inventory: Inventory
    """All GPUs of the node."""
    offered: Mapping[Gpu, str]
    """The GPUs to share, sorted by place, each with the name of the resource that a whole GPU would be in."""
    short_uuids: Mapping[str, str]
    """The short name of each card in the IDs of units, by UUID."""
    injection: Injection
    """How a container gets its GPUs."""
    cut: Mapping[str, Numbers] = field(default_factory=dict)
    """The slices of each GPU of a partitioned node, by UUID; MIG instances that are offered are there without any."""

    @property
    def config(self) -> Config:
        """The config, without what only node labels request."""
        return self.effective.config


class Unsuitable(Struct, frozen=True):
    """Why a GPU cannot be shared as an entry shares its GPUs, and what to do if the entry names it."""

    reason: str
    remedy: str


class Entry(Struct, kw_only=True):
    """One entry of the config that requests GPUs.

    `path` says where it stands, `name` which resources it is about, `devices` which of the `candidates` it requests.
    `unsuitable` are other GPUs that people may expect among them.
    `containers` returns how many containers could share a GPU at a time, and `key` is the key of the entry that says so
    where each counts as one. `gpus` are those it gets, which the plan fills in.
    """

    path: Path
    name: str
    devices: Devices
    candidates: tuple[Gpu, ...]
    isolation: Isolation
    containers: Callable[[Gpu], int]
    key: str = ""
    unsuitable: Mapping[Gpu, Unsuitable] = field(default_factory=dict)
    gpus: list[Gpu] = field(default_factory=list)


class Way(Protocol):
    """One way of sharing, for one plan."""

    @property
    def section(self) -> Path:
        """Where the entries of this way are in the config."""
        ...

    @property
    def entries(self) -> Sequence[Entry]:
        """The entries of the config that share GPUs in this way."""
        ...

    def resources(self, unclaimed: Mapping[Gpu, str]) -> Sequence[Resource]:
        """Return what is advertised, once all entries have their GPUs.

        `unclaimed` are the offered GPUs that are in no entry and no resource yet, with their names; a way may take
        them. What cannot be advertised is left out, and added to the findings.
        """
        ...


MakeWay = Callable[[NodeFacts, Findings], Way]
"""Makes a way of sharing for a node; what is wrong with it is added to the findings, now or later."""


def by_place(gpus: Iterable[Gpu]) -> list[Gpu]:
    """Return GPUs sorted by place, the order in which resources have them."""
    return sorted(gpus, key=lambda gpu: gpu.place)
