"""What NVML answers, and whether that can be: a driver that is broken answers anything."""

from collections import defaultdict
from collections.abc import Callable, Iterable

from gpushare_plugin.model.gpu import MOST_MEMORY_MIB, FailedGpu, Gpu
from gpushare_plugin.model.unit import MIB


def why(error: Exception) -> str:
    """Say in words what NVML, or an answer of it that makes no sense, raised."""
    if isinstance(error, UnicodeDecodeError):
        return f"NVML answers {error.object!r}, which is no text; UTF-8 expected"
    return str(error)


def shown(ask: Callable[[], str]) -> str:
    """Return a text that is only shown; bytes that are no text are shown as their numbers."""
    try:
        return ask()
    except UnicodeDecodeError as error:
        return error.object.decode(errors="backslashreplace")


def usable_mib(total: int, reserved: int) -> int:
    """Return how many MiB can be used of `total` bytes; raises ValueError for an amount that no GPU has."""
    usable = (total - reserved) // MIB
    if not 0 < usable <= total // MIB <= MOST_MEMORY_MIB:
        raise ValueError(
            f"NVML answers {total // MIB} MiB of memory, {reserved // MIB} MiB of them reserved; expected are some "
            f"that can be used, and at most {MOST_MEMORY_MIB} MiB"
        )
    return usable


def clashes(gpus: Iterable[Gpu]) -> dict[str, list[FailedGpu]]:
    """Return the GPUs that share a UUID, by that: nobody could tell which of them a container gets."""
    named: defaultdict[str, list[Gpu]] = defaultdict(list)
    for gpu in gpus:
        named[gpu.uuid].append(gpu)
    return {uuid: [_clashing(gpu, alike) for gpu in alike] for uuid, alike in named.items() if len(alike) > 1}


def _clashing(gpu: Gpu, alike: Iterable[Gpu]) -> FailedGpu:
    others = " and ".join(other.label for other in alike if other is not gpu)
    reason = f"GPU {others} have the same UUID" if " " in others else f"GPU {others} has the same UUID"
    return FailedGpu(
        gpu.index, f"{reason}; a UUID of its own expected", gpu.uuid, number=gpu.mig.number if gpu.mig else None
    )
