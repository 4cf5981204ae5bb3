"""What is known of the GPUs of one node; read once by `host`, never changed."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpushare_plugin.model.health import Probe


@dataclass(frozen=True, slots=True)
class Gpu:
    """One physical GPU.

    `index` is NVML's number (it can change over a reboot), `uuid` the lasting name (`GPU-…`), `minor` the number in
    `/dev/nvidia<minor>`. `memory_mib` is what containers can use, in MiB: the card's total less what the driver keeps.
    `total_mib` is that total, 0 where it is not known. `numa_node` is None where the host does not say.
    """

    index: int
    uuid: str
    minor: int
    name: str
    compute_capability: tuple[int, int]
    memory_mib: int
    pci_bus_id: str
    numa_node: int | None = None
    mig_enabled: bool = False
    mig_capable: bool = False
    total_mib: int = 0


@dataclass(frozen=True, slots=True)
class FailedGpu:
    """A card that did not answer when it was asked; `uuid` is None when not even that could be read.

    `lost` tells that the card is off the bus, or was reset under us: once it answers again, it has been reset.
    """

    index: int
    reason: str
    uuid: str | None = None
    lost: bool = False


Closeness = Mapping[frozenset[str], int]
"""How close two GPUs are, by the pair of their UUIDs; more is closer, an absent pair is 0."""


@dataclass(frozen=True, slots=True)
class Inventory:
    """All GPUs of a node, in index order, and the cards that failed to answer.

    `cuda_version` is (major, minor). `closeness` is filled for nodes of two GPUs or more. `needs_reset` is the driver's
    own word on each GPU, by UUID, where it is new enough to say. `unwatched` tells, by UUID, why nobody hears of the
    errors of a GPU that answers.
    """

    gpus: tuple[Gpu, ...]
    failed: tuple[FailedGpu, ...] = ()
    driver_version: str = ""
    cuda_version: tuple[int, int] = (0, 0)
    closeness: Closeness = field(default_factory=dict)
    needs_reset: Mapping[str, bool] = field(default_factory=dict)
    unwatched: Mapping[str, str] = field(default_factory=dict)

    def probe(self, uuid: str) -> Probe:
        """Return what this look found of a GPU that answers."""
        return Probe(self.unwatched.get(uuid), needs_reset=self.needs_reset.get(uuid))
