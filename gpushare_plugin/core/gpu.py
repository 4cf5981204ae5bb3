"""The facts about the GPUs of a node, read at a look by `gpus`; values never change."""

from collections.abc import Collection, Mapping

from gpushare_plugin.base.structs import Struct, field
from gpushare_plugin.core.driver_limits import DriverLimits
from gpushare_plugin.core.health import GpuEvent, Probe
from gpushare_plugin.slices.slice import MigPlace

MOST_MEMORY_MIB = 16 * 1024 * 1024
"""The most memory in MiB that a GPU can plausibly have: 16 TiB, some fifty times the memory of the largest GPU."""


def gpu_label(index: int, number: int | None = None) -> str:
    """Return the number by which people and configs name a GPU: `0` for card 0, `0:1` for MIG instance 1 on card 0."""
    return str(index) if number is None else f"{index}:{number}"


def gpu_identity(label: str, uuid: str | None) -> str:
    """Return the name of a GPU in messages: `GPU 0 (GPU-…)`, or `GPU 0` without a known UUID."""
    return f"GPU {label} ({uuid})" if uuid else f"GPU {label}"


class MigAttributes(Struct, frozen=True):
    """The part of a card that a MIG instance has."""

    gpu_slices: int
    """The number of slices of the GPU instance."""
    compute_slices: int
    """The number of slices of the compute instance."""
    multiprocessors: int = 0
    """The number of streaming multiprocessors."""
    copy_engines: int = 0
    """The number of copy engines."""
    decoders: int = 0
    """The number of video decoders."""
    encoders: int = 0
    """The number of video encoders."""
    jpeg_decoders: int = 0
    """The number of JPEG decoders."""
    optical_flow_accelerators: int = 0
    """The number of optical flow accelerators."""


class MigInstance(Struct, frozen=True):
    """The description of a MIG instance: its place on a card, and its part of the card."""

    parent: str
    """The UUID of the card."""
    number: int
    """NVML's number of the instance on the card."""
    profile: str
    """The profile, for example `1g.5gb`."""
    gpu_instance: int
    """The ID of the GPU instance in events of the driver."""
    compute_instance: int
    """The ID of the compute instance in events of the driver."""
    capabilities: tuple[int, int] | None = None
    """The numbers in `/dev/nvidia-caps/nvidia-cap<N>` that let a container use the instance, beside the card's own
    device node; None where the driver does not list the numbers."""
    attributes: MigAttributes | None = None
    """The instance's part of the card; None where unknown."""
    start: int | None = None
    """The first memory slice of the instance on the card; None where unknown."""


class Gpu(Struct, frozen=True):
    """A GPU: a card, or a MIG instance of a card.

    A MIG instance has its own UUID and memory; all other values, `index` and `mig_enabled` included, are the card's.
    """

    index: int
    """NVML's number of the card, which can change over a reboot."""
    uuid: str
    """The lasting name: `GPU-…` for a card, `MIG-…` for an instance."""
    minor: int
    """The number in the device node `/dev/nvidia<minor>`."""
    name: str
    """The product name of the card, for example `NVIDIA A100-SXM4-40GB`; empty where unknown."""
    compute_capability: tuple[int, int] | None
    """The CUDA compute capability, as major and minor number; None where unknown."""
    memory_mib: int
    """The memory in MiB that containers can use: the total without the driver's own part; 0 where unknown.

    For a card whose memory the driver does not report, the size in the config (`unreportedMemory`).
    """
    pci_bus_id: str
    """The PCI address of the card; empty where unknown."""
    numa_node: int | None = None
    """The NUMA node; None where the host does not tell."""
    mig_enabled: bool = False
    """Whether the card is in MIG mode."""
    mig_capable: bool = False
    """Whether the card supports MIG."""
    total_mib: int = 0
    """The total memory in MiB; 0 where unknown."""
    pci_class: int | None = None
    """The PCI class, for example 0x030200; None where the host does not tell."""
    mig: MigInstance | None = None
    """The description of a MIG instance; None for a card."""
    brand: str = ""
    """The brand of the card in the words of NVIDIA's DRA driver, such as `Nvidia` or `Tesla`; empty where unknown."""
    pci_root: str = ""
    """The PCI root complex of the card as the kernel names it, for example `pci0000:00`; empty where unknown."""

    @property
    def label(self) -> str:
        """The number by which people and configs name the GPU, see `gpu_label`."""
        return gpu_label(self.index, self.mig.number if self.mig else None)

    @property
    def identity(self) -> str:
        """The name of the GPU in messages, see `gpu_identity`."""
        return gpu_identity(self.label, self.uuid)

    @property
    def description(self) -> str:
        """The name of the GPU in messages with its product: `GPU 0 (GPU-…, NVIDIA A100)`."""
        return f"GPU {self.label} ({', '.join(filter(None, (self.uuid, self.product)))})"

    @property
    def product(self) -> str:
        """The product in words: the name of the card, with the profile of a MIG instance."""
        return f"{self.name} MIG {self.mig.profile}".lstrip() if self.mig else self.name

    @property
    def card(self) -> str:
        """The UUID of the card; for a MIG instance, of the card below."""
        return self.mig.parent if self.mig else self.uuid

    @property
    def mig_place(self) -> MigPlace | None:
        """The place of a MIG instance on its card; None for a card, and where unknown."""
        return None if self.mig is None or self.mig.start is None else MigPlace(self.mig.profile, self.mig.start)

    @property
    def place(self) -> tuple[int, int]:
        """The sort key of GPUs: cards in index order, a card before its instances."""
        return self.index, self.mig.number if self.mig else -1


class FailedGpu(Struct, frozen=True):
    """An unresponsive GPU: a card or MIG instance that did not answer, is gone, or has the UUID of another GPU.

    The fields are the JSON of a failed GPU in `gpushare list -o json` and at the daemon's socket.
    """

    index: int
    """NVML's number of the card."""
    reason: str
    """The failure in words."""
    uuid: str | None = None
    """The UUID; None where not even the UUID could be read."""
    lost: bool = False
    """Whether the card is off the bus, or was reset while in use: a lost card that answers again has been reset."""
    number: int | None = None
    """The number of a MIG instance on its card; None for a card."""

    @property
    def label(self) -> str:
        """The number by which people name the failed GPU, see `gpu_label`."""
        return gpu_label(self.index, self.number)

    @property
    def identity(self) -> str:
        """The name of the failed GPU in messages, see `gpu_identity`."""
        return gpu_identity(self.label, self.uuid)


Closeness = Mapping[frozenset[str], int]
"""The closeness of two GPUs by the pair of their UUIDs: a higher number is closer, an absent pair counts as 0."""


class Inventory(Struct, frozen=True):
    """The GPUs of a node at one look."""

    cards: tuple[Gpu, ...]
    """The cards that answer, in index order."""
    failed: tuple[FailedGpu, ...] = ()
    """The unresponsive cards and MIG instances."""
    driver_version: str = ""
    """The version of the driver; empty where unknown."""
    cuda_version: tuple[int, int] = (0, 0)
    """The CUDA version of the driver, as major and minor number; zeros where unknown."""
    closeness: Closeness = field(default_factory=dict)
    """The closeness of pairs of GPUs; filled on nodes with two GPUs or more."""
    needs_reset: Mapping[str, bool] = field(default_factory=dict)
    """Whether a card needs a reset by the driver's own word, by UUID; empty where the driver is too old to tell."""
    unwatched: Mapping[str, str] = field(default_factory=dict)
    """Why the errors of a card that answers are not reported, by UUID."""
    instances: tuple[Gpu, ...] = ()
    """The MIG instances of the cards."""
    machine: str = ""
    """The model of the host; empty where unknown."""
    driver_limits: DriverLimits | None = None
    """The means of simulated GPUs to limit memory; None for real GPUs, whose host has to be looked at."""

    @property
    def cuda(self) -> str:
        """The CUDA version of the driver as text, for example `12.4`; empty where unknown."""
        return ".".join(map(str, self.cuda_version)) if any(self.cuda_version) else ""

    def probe(self, gpu: Gpu) -> Probe:
        """Return the findings of the look about a GPU that answers; an instance has the findings of its card."""
        return Probe(self.unwatched.get(gpu.card), needs_reset=self.needs_reset.get(gpu.card))

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """Cards and MIG instances, a card before its own instances."""
        return tuple(sorted((*self.cards, *self.instances), key=lambda gpu: gpu.place))

    @property
    def numa_nodes(self) -> dict[str, int | None]:
        """The NUMA nodes of cards and instances, by UUID."""
        return {gpu.uuid: gpu.numa_node for gpu in self.gpus}

    @property
    def parts(self) -> Mapping[str, str]:
        """The UUID of the card by the UUID of the MIG instance."""
        return {gpu.uuid: gpu.card for gpu in self.instances}

    def instances_of(self, card: Gpu) -> tuple[Gpu, ...]:
        """Return the instances of a card, by number."""
        return tuple(gpu for gpu in self.instances if gpu.card == card.uuid)

    def concerned(self, event: GpuEvent) -> frozenset[str]:
        """Return the UUIDs of the GPUs concerned by an event: the named instances, or the card, or else all cards.

        An event of an unknown instance concerns the card: the layout has just changed.
        """
        if event.uuid is None:
            return frozenset(gpu.uuid for gpu in self.cards)
        concerned = frozenset(gpu.uuid for gpu in self.instances if gpu.card == event.uuid and _concerns(event, gpu))
        return concerned or frozenset({event.uuid})

    def affected(self, faulty: Collection[str]) -> frozenset[str]:
        """Return the UUIDs of the GPUs that must not be allocated while the GPUs `faulty` have faults.

        A faulty card affects all its instances. A faulty instance affects the card, because a container that gets a
        whole card in MIG mode gets the instances of the card.
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
