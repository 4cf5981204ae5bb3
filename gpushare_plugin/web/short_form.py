"""A request for GPUs as people type one: `24 GiB, 2 GPUs, A100`."""

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from gpushare_plugin.base.errors import GpushareError
from gpushare_plugin.base.structs import Struct

LONGEST = 512
"""The most characters of a request."""
_MOST_PARTS = 16

_EXAMPLE = "write the parts with commas between them, as in `24 GiB, 2 GPUs, A100`"
_NUMBER = r"(?P<number>[0-9]{1,9})"
_MEMORY = re.compile(rf"{_NUMBER}\s*(?P<unit>[KMGTkmgt]i?[Bb]?)")
_FRACTION = re.compile(r"[0-9]\.[0-9]")
_GPUS = re.compile(rf"{_NUMBER}\s*gpus?", re.IGNORECASE)
_COMPUTE = re.compile(rf"{_NUMBER}\s*%")
_RESOURCE = re.compile(rf"(?P<name>[A-Za-z0-9][-A-Za-z0-9._]*/[A-Za-z0-9][-A-Za-z0-9._]*)(\s*[:=\s]\s*{_NUMBER})?")
_MODEL = re.compile(r"(?P<no>not\s+)?(?P<model>[A-Za-z][-A-Za-z0-9 .]*)", re.IGNORECASE)
_MIB = {"MI": 1, "GI": 1024, "TI": 1024 * 1024}
_MOST_GPUS = 256
_WHOLE = 100


class ShortFormError(GpushareError):
    """A request cannot be understood; the message says what to write."""


class ShortForm(Struct, frozen=True):
    """What a short request asks for."""

    memory_mib: int = 0
    """The memory of GPUs in MiB, of all GPUs together; 0 for none."""
    gpus: int = 0
    """The number of GPUs; 0 where the request names no number."""
    compute: int = 0
    """The percent of the compute of a GPU; 0 for none."""
    resources: tuple[tuple[str, int], ...] = ()
    """The amounts of resources that the request names."""
    models: tuple[str, ...] = ()
    """Parts of the names of wanted models; empty for any model."""
    not_models: tuple[str, ...] = ()
    """Parts of the names of models that are not wanted."""


class SharedMemoryUnit(NamedTuple):
    """The resource by which a cluster shares the memory of GPUs."""

    resource: str
    """The name of the resource."""
    mib: int
    """The MiB of a unit."""


def parse(text: str) -> ShortForm:
    """Return what a request asks for; raises ShortFormError."""
    if len(text) > LONGEST:
        raise ShortFormError(f"the request has {len(text):,} characters, {LONGEST} at most are read: write less")
    parts = [part.strip() for part in re.split(r"[,;\n]", text) if part.strip()]
    if len(parts) > _MOST_PARTS:
        raise ShortFormError(f"the request has {len(parts):,} parts, {_MOST_PARTS} at most are read: write fewer")
    found: dict[str, list[tuple[str, int]]] = {}
    for part in parts:
        for field, name, amount in [_part(part)]:
            found.setdefault(field, []).append((name, amount))
    for field in ("memory_mib", "gpus", "compute"):
        if len(found.get(field, ())) > 1:
            raise ShortFormError(f"the request says twice how much of {_WORDS[field]} it wants: write one of them")
    asked = ShortForm(
        **{field: found[field][0][1] for field in ("memory_mib", "gpus", "compute") if field in found},
        resources=tuple(found.get("resources", ())),
        models=tuple(name for name, _ in found.get("models", ())),
        not_models=tuple(name for name, _ in found.get("not_models", ())),
    )
    if not (asked.memory_mib or asked.gpus or asked.compute or asked.resources):
        raise ShortFormError(f"the request asks for no amount: {_EXAMPLE}")
    return asked


_WORDS = {"memory_mib": "memory", "gpus": "GPUs", "compute": "compute"}


def _part(part: str) -> tuple[str, str, int]:
    """Return the field of a part of a request, with name and amount; raises ShortFormError."""
    if match := _MEMORY.fullmatch(part):
        return "memory_mib", "", _memory(part, match)
    if match := _GPUS.fullmatch(part):
        return "gpus", "", _within(part, int(match["number"]), _MOST_GPUS)
    if match := _COMPUTE.fullmatch(part):
        return "compute", "", _within(part, int(match["number"]), _WHOLE)
    if match := _RESOURCE.fullmatch(part):
        return "resources", match["name"], _within(part, int(match["number"] or 1), 10**9)
    if match := _MODEL.fullmatch(part):
        return ("not_models" if match["no"] else "models"), match["model"].strip(), 0
    if _FRACTION.search(part):
        raise ShortFormError(f"`{part[:_SHOWN]}`: amounts are whole numbers: write `1536 MiB` for one and a half GiB")
    raise ShortFormError(f"`{part[:_SHOWN]}` is no amount, no resource and no model: {_EXAMPLE}")


_SHOWN = 64


def _memory(part: str, match: re.Match[str]) -> int:
    number, unit = match["number"], match["unit"].upper().removesuffix("B")
    if unit not in _MIB:
        remedy = (
            f"write `{number} {unit[0]}iB`"
            if f"{unit[0]}I" in _MIB
            else f"write it in GiB or MiB, as in `{number} MiB`"
        )
        raise ShortFormError(f"`{part}`: GPUs are shared in GiB and MiB: {remedy}")
    return _within(part, int(number), 10**9) * _MIB[unit]


def _within(part: str, number: int, most: int) -> int:
    if not 1 <= number <= most:
        raise ShortFormError(f"`{part}`: {number} found, a number from 1 to {most:,} expected")
    return number


def limits(asked: ShortForm, memory: SharedMemoryUnit, compute: str, whole: str) -> Mapping[str, str]:
    """Return the resource limits of the one container of a pod that asks for this.

    `memory` is how the cluster shares memory, `compute` the resource of compute, and `whole` that of whole GPUs.
    """
    found: dict[str, int] = {}
    for name, amount in _amounts(asked, memory, compute, whole):
        found[name] = found.get(name, 0) + amount
    return {name: str(amount) for name, amount in found.items()}


def _amounts(asked: ShortForm, memory: SharedMemoryUnit, compute: str, whole: str) -> Iterator[tuple[str, int]]:
    if asked.memory_mib:
        yield memory.resource, -(-asked.memory_mib // memory.mib)
    if asked.compute:
        yield compute, asked.compute
    if asked.gpus and not asked.memory_mib and not any(name == memory.resource for name, _ in asked.resources):
        yield whole, asked.gpus
    yield from asked.resources
