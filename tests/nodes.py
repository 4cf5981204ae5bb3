"""GPUs for tests of the core, made without any host."""

from collections.abc import Callable, Mapping, Sequence

from gpushare_plugin.base.structs import replace
from gpushare_plugin.core.gpu import Gpu, Inventory, MigAttributes, MigInstance
from gpushare_plugin.core.health import GpuEvent
from gpushare_plugin.core.usage import GpuUsage
from gpushare_plugin.gpus.memory_limits import LimitError, LimitReading
from gpushare_plugin.gpus.source import Asked


def a_gpu(index: int, memory_mib: int = 40960, **changes: object) -> Gpu:
    """Return GPU number `index`, of `memory_mib` MiB, with `changes` to its other fields."""
    fields: dict[str, object] = {
        "index": index,
        "uuid": f"GPU-{index:08x}-0000-4000-8000-{index:012x}",
        "minor": index,
        "name": "NVIDIA A100-SXM4-40GB",
        "compute_capability": (8, 0),
        "memory_mib": memory_mib,
        "pci_bus_id": f"00000000:{index + 1:02X}:00.0",
        "total_mib": memory_mib,
    }
    return Gpu(**(fields | changes))  # type: ignore[arg-type] # tests name the fields they change


def a_node(*memory_mib: int, **changes: object) -> Inventory:
    """Return a node with one GPU for each size in MiB."""
    return Inventory(tuple(a_gpu(index, size, **changes) for index, size in enumerate(memory_mib)))


class Cards:
    """A source of GPUs in the hands of a test: change `inventory`, and the next look finds the change."""

    def __init__(self, inventory: Inventory) -> None:
        """Have these GPUs at first."""
        self.inventory = inventory
        self.trouble: Exception | None = None
        self.samples: tuple[GpuUsage, ...] = ()
        self.limits: dict[Asked, LimitReading | LimitError] = {}

    def read(self) -> Inventory:
        """Return the GPUs there are now, or fail with `trouble`."""
        if self.trouble is not None:
            raise self.trouble
        return self.inventory

    def sample(self) -> tuple[GpuUsage, ...]:
        """Return the `samples` that the test has set, or fail with `trouble`."""
        if self.trouble is not None:
            raise self.trouble
        return self.samples

    def read_limits(self, asked: Sequence[Asked]) -> Mapping[Asked, LimitReading | LimitError]:
        """Return the `limits` that the test has set."""
        return {each: self.limits.get(each, LimitError("the test has set no limit")) for each in asked}

    def watch_events(self, report: Callable[[GpuEvent], None], beat: Callable[[], None]) -> None:
        """Return at once: tests tell events themselves."""


def cut(card: Gpu, *profiles: str) -> tuple[Gpu, ...]:
    """Return the MIG instances of a card that is in MIG mode, one for each profile and each in a GPU instance alone."""
    assert card.mig_enabled
    instances = []
    for number, profile in enumerate(profiles):
        first = 3 + 14 * card.index + 2 * number
        mig = MigInstance(
            card.uuid, number, profile, number + 7, 0, (first, first + 1), MigAttributes(1, 1, 14, copy_engines=1)
        )
        uuid = f"MIG-{card.index:08x}-0000-4000-8000-{number:012x}"
        instances.append(replace(card, uuid=uuid, memory_mib=4864, mig=mig))
    return tuple(instances)


def a_mig_node(*layouts: tuple[str, ...] | None) -> Inventory:
    """Return a node with a card in MIG mode for each layout, and one without for each None."""
    cards = tuple(a_gpu(index, mig_enabled=layout is not None) for index, layout in enumerate(layouts))
    cuts = (cut(card, *layout) for card, layout in zip(cards, layouts, strict=True) if layout is not None)
    return Inventory(cards, instances=tuple(gpu for instances in cuts for gpu in instances))
