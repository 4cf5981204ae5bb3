"""Checks of NVML's answers: a broken driver may answer anything."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable

from gpushare_plugin.base.memory import MIB
from gpushare_plugin.core.gpu import MOST_MEMORY_MIB, FailedGpu, Gpu

_DIGITS = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_CARD = re.compile(rf"GPU-{_DIGITS}")
_INSTANCE = re.compile(rf"MIG-{_DIGITS}|MIG-GPU-{_DIGITS}/[0-9]{{1,3}}/[0-9]{{1,3}}")
"""The UUID of a MIG instance; drivers before 470 use the second form."""


def why(error: Exception) -> str:
    """Return the reason for an error of NVML, or for an invalid answer of NVML, in words."""
    if isinstance(error, UnicodeDecodeError):
        return f"NVML reports {error.object!r}, which is not text; UTF-8 expected"
    return str(error)


def shown(ask: Callable[[], str]) -> str:
    """Return a text for display only; bytes that are not text are shown by their numbers."""
    try:
        return ask()
    except UnicodeDecodeError as error:
        return error.object.decode(errors="backslashreplace")


def card_uuid(text: str) -> str:
    """Return the UUID of a card; raises ValueError for any other text.

    Unit IDs are made from the UUID and parsed again, and containers get the UUID in a variable.
    """
    return _uuid(text, _CARD, "GPU-")


def instance_uuid(text: str) -> str:
    """Return the UUID of a MIG instance; raises ValueError for any other text."""
    return _uuid(text, _INSTANCE, "MIG-")


def _uuid(text: str, form: re.Pattern[str], begin: str) -> str:
    if form.fullmatch(text) is None:
        raise ValueError(f"NVML reports the UUID {text!r}; {begin} and 32 hexadecimal digits in groups expected")
    return text


def usable_mib(total: int, reserved: int) -> int:
    """Return the MiB of `total` bytes that are not `reserved`; raises ValueError for an impossible amount."""
    usable = (total - reserved) // MIB
    if not 0 < usable <= total // MIB <= MOST_MEMORY_MIB:
        raise ValueError(
            f"NVML reports {total // MIB} MiB of memory, {reserved // MIB} MiB of them reserved; expected usable "
            f"memory, and at most {MOST_MEMORY_MIB} MiB in total"
        )
    return usable


def clashes(gpus: Iterable[Gpu]) -> dict[str, list[FailedGpu]]:
    """Return the GPUs with the same UUID, by UUID: a container with the UUID could get any of the GPUs."""
    by_uuid: defaultdict[str, list[Gpu]] = defaultdict(list)
    for gpu in gpus:
        by_uuid[gpu.uuid].append(gpu)
    return {uuid: [_clashing(gpu, alike) for gpu in alike] for uuid, alike in by_uuid.items() if len(alike) > 1}


def _clashing(gpu: Gpu, alike: Iterable[Gpu]) -> FailedGpu:
    others = " and ".join(other.label for other in alike if other is not gpu)
    reason = f"GPU {others} have the same UUID" if " " in others else f"GPU {others} has the same UUID"
    return FailedGpu(
        gpu.index, f"{reason}; a UUID of its own expected", gpu.uuid, number=gpu.mig.number if gpu.mig else None
    )
