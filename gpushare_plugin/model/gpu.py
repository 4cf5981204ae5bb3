"""What is known of the GPUs of one node; read once by `host`, never changed."""

from collections.abc import Collection, Mapping

from gpushare_plugin.foundation.structs import Struct, field
from gpushare_plugin.model.health import GpuEvent, Probe
from gpushare_plugin.model.slices.slice import MigPlace

MOST_MEMORY_MIB = 16 * 1024 * 1024
"""The most memory that a GPU is believed to have, in MiB: 16 TiB, some fifty times that of the largest there is."""


def gpu_label(index: int, number: int | None = None) -> str:
    """Return the number by which people and configs name a GPU: `0` for a card, `0:1` for MIG instance 1 on it."""
    return str(index) if number is None else f"{index}:{number}"


def gpu_identity(label: str, uuid: str | None) -> str:
    """Return a GPU as messages name it: `GPU 0 (GPU-…)`, only `GPU 0` where its UUID is not known."""
    return f"GPU {label} ({uuid})" if uuid else f"GPU {label}"


class MigAttributes(Struct, frozen=True):
    """How much of its card a MIG instance has: slices of each kind, multiprocessors, and engines of each kind."""

    gpu_slices: int
    compute_slices: int
    multiprocessors: int = 0
    copy_engines: int = 0
    decoders: int = 0
    encoders: int = 0
    jpeg_decoders: int = 0
    optical_flow_accelerators: int = 0


class MigInstance(Struct, frozen=True):
    """What makes a GPU a MIG instance: where it is on its card, and what it has of the card."""

    parent: str
    """The UUID of the card."""
    number: int
    """NVML's number of the instance on the card."""
    profile: str
    """The profile, such as `1g.5gb`."""
    gpu_instance: int
    """The ID of the GPU instance by which events name it."""
    compute_instance: int
    """The ID of the compute instance by which events name it."""
    capabilities: tuple[int, int] | None = None
    """The numbers in `/dev/nvidia-caps/nvidia-cap<N>` that let a container use the instance, beside the card's own
    device node; None where the driver does not list them."""
    attributes: MigAttributes | None = None
    """How much of the card it has, None where that is not known."""
    start: int | None = None
    """The first memory slice of the card that it has, None where that is not known."""


class Gpu(Struct, frozen=True):
    """One GPU: a card, or a MIG instance of one, which `mig` describes.

    `index` is NVML's number (it can change over a reboot), `uuid` the lasting name (`GPU-…` or `MIG-…`), `minor` the
    number in `/dev/nvidia<minor>`. `memory_mib` is what containers can use, in MiB: the total less what the driver
    keeps; `total_mib` is that total, 0 where it is not known. `numa_node` and `pci_class` (such as 0x030200) are None
    where the host does not say. An instance has a UUID and memory of its own; all else, `index` and `mig_enabled`
    included, is its card's.
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
    pci_class: int | None = None
    mig: MigInstance | None = None

    @property
    def label(self) -> str:
        """The number by which people and configs name it, see `gpu_label`."""
        return gpu_label(self.index, self.mig.number if self.mig else None)

    @property
    def identity(self) -> str:
        """Its name in messages, see `gpu_identity`."""
        return gpu_identity(self.label, self.uuid)

    @property
    def description(self) -> str:
        """Its name in messages, and what it is: `GPU 0 (GPU-…, NVIDIA A100)`."""
        return f"GPU {self.label} ({self.uuid}, {self.product})"

    @property
    def product(self) -> str:
        """What it is, in words: the card's name, and the profile of an instance."""
        return f"{self.name} MIG {self.mig.profile}" if self.mig else self.name

    @property
    def card(self) -> str:
        """The UUID of the card that it is, or is a part of."""
        return self.mig.parent if self.mig else self.uuid

    @property
    def mig_place(self) -> MigPlace | None:
        """The place of a MIG instance on its card, None where that is not known."""
        return None if self.mig is None or self.mig.start is None else MigPlace(self.mig.profile, self.mig.start)

    @property
    def place(self) -> tuple[int, int]:
        """What GPUs are sorted by: cards in index order, each before its instances."""
        return self.index, self.mig.number if self.mig else -1


class FailedGpu(Struct, frozen=True):
    """An unresponsive GPU, which did not answer when it was asked; `uuid` is None when not even that could be read.

    `lost` is whether the card is off the bus, or was reset while we used it: once it answers again, it has been reset.
    `number` is that of a MIG instance on its card, None for a card.
    """

    index: int
    reason: str
    uuid: str | None = None
    lost: bool = False
    number: int | None = None

    @property
    def label(self) -> str:
        """The number by which people name it, see `gpu_label`."""
        return gpu_label(self.index, self.number)

    @property
    def identity(self) -> str:
        """Its name in messages, see `gpu_identity`."""
        return gpu_identity(self.label, self.uuid)


Closeness = Mapping[frozenset[str], int]
"""How close two GPUs are, by the pair of their UUIDs; more is closer, an absent pair is 0."""


class Inventory(Struct, frozen=True):
    """All cards of a node, in index order, their MIG instances, and what is unresponsive.

    `cuda_version` is (major, minor). `closeness` is filled for nodes of two GPUs or more. `needs_reset` is the driver's
    own word on each card, by UUID, where it is new enough to say. `unwatched` is, by UUID, why the errors of a
    card that answers are not reported. `machine` is the model of the host, empty where it is not known.
    """

    cards: tuple[Gpu, ...]
    failed: tuple[FailedGpu, ...] = ()
    driver_version: str = ""
    cuda_version: tuple[int, int] = (0, 0)
    closeness: Closeness = field(default_factory=dict)
    needs_reset: Mapping[str, bool] = field(default_factory=dict)
    unwatched: Mapping[str, str] = field(default_factory=dict)
    instances: tuple[Gpu, ...] = ()
    machine: str = ""

    def probe(self, gpu: Gpu) -> Probe:
        """Return what this look found of a GPU that answers; an instance is as well as its card."""
        return Probe(self.unwatched.get(gpu.card), needs_reset=self.needs_reset.get(gpu.card))

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """Cards and instances, each card before its own."""
        return tuple(sorted((*self.cards, *self.instances), key=lambda gpu: gpu.place))

    @property
    def numa_nodes(self) -> dict[str, int | None]:
        """The NUMA node of each card and instance, by UUID."""
        return {gpu.uuid: gpu.numa_node for gpu in self.gpus}

    @property
    def parts(self) -> Mapping[str, str]:
        """The card of each instance, both by UUID."""
        return {gpu.uuid: gpu.card for gpu in self.instances}

    def instances_of(self, card: Gpu) -> tuple[Gpu, ...]:
        """Return the instances of a card, by number."""
        return tuple(gpu for gpu in self.instances if gpu.card == card.uuid)

    def concerned(self, event: GpuEvent) -> frozenset[str]:
        """Return the UUIDs of those an event is about: the instances it names, or else the card, or else every card.

        An instance that is not known, for the layout has just changed, leaves it to the card.
        """
        if event.uuid is None:
            return frozenset(gpu.uuid for gpu in self.cards)
        concerned = frozenset(gpu.uuid for gpu in self.instances if gpu.card == event.uuid and _concerns(event, gpu))
        return concerned or frozenset({event.uuid})

    def affected(self, faulty: Collection[str]) -> frozenset[str]:
        """Return the UUIDs of those that must not be allocated while `faulty` are at fault.

        A card takes all its instances with it, and an instance the card, for a card in MIG mode that is allocated
        whole is its instances.
        """
        affected = set(faulty)
        for gpu in self.instances:
            if gpu.card in faulty:
                affected.add(gpu.uuid)
            if gpu.uuid in faulty:
                affected.add(gpu.card)
        return frozenset(affected)


def _concerns(event: GpuEvent, gpu: Gpu) -> bool:
    return (
        gpu.mig is not None
        and event.gpu_instance == gpu.mig.gpu_instance
        and event.compute_instance in {None, gpu.mig.compute_instance}
    )
