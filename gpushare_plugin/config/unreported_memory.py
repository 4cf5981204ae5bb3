"""The size of GPUs whose memory the driver does not report, as the config gives the size; see `unreportedMemory`.

GPUs that use the memory of the host, such as GB10, do not report any. Without a size, such a GPU has no memory to share
and no limit to enforce: it is offered whole, or time-sliced without an isolation. The size is not guessed from the
memory of the host, because kubelet and pods use that memory, too.
"""

from collections.abc import Iterable, Sequence

from gpushare_plugin.base.structs import replace
from gpushare_plugin.config.schema.sections import GpuMemory
from gpushare_plugin.core.gpu import Gpu, Inventory

NO_SIZE = "does not report its memory, and unreportedMemory in the config has no size for it"
"""Why a GPU cannot be shared by memory or limited to a part of it; follows the name of the GPU."""


def remedy(gpu: Gpu) -> str:
    """Return what people can do about a GPU of unknown memory: the entry for the config, with the product's name."""
    return f'add {{pattern: "{gpu.name or "*"}", size: …GiB}} to unreportedMemory, with the memory that pods may use'


def sized(inventory: Inventory, sizes: Sequence[GpuMemory]) -> Inventory:
    """Return the GPUs with the sizes of the config where the driver does not report one; the first match counts."""
    if all(gpu.memory_mib for gpu in inventory.cards):
        return inventory
    return replace(inventory, cards=tuple(replace(gpu, memory_mib=_mib(gpu, sizes)) for gpu in inventory.cards))


def _mib(gpu: Gpu, sizes: Iterable[GpuMemory]) -> int:
    return gpu.memory_mib or next((each.size.mib for each in sizes if each.matches(gpu.name)), 0)


def with_memory(gpus: Iterable[Gpu]) -> tuple[Gpu, ...]:
    """Return the GPUs of known memory."""
    return tuple(gpu for gpu in gpus if gpu.memory_mib)


def without_memory(gpus: Iterable[Gpu]) -> tuple[Gpu, ...]:
    """Return the GPUs of unknown memory, which have no size in the config."""
    return tuple(gpu for gpu in gpus if not gpu.memory_mib)
