"""The seam between how a GPU is cut and what holds a container to its share.

A cut knows which units a container holds, an isolation what a container needs so that it uses no more. Each isolation
is a module beside this one; `layers` chooses among them.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

from gpushare_plugin.config.schema.sections import Compute
from gpushare_plugin.model.gpu import Gpu
from gpushare_plugin.model.grant import Grant


@dataclass(frozen=True, slots=True)
class Part:
    """What a container gets of one GPU: `mib` MiB of its memory, the `fraction` of what the GPU shares out."""

    gpu: Gpu
    mib: int
    fraction: Fraction


@dataclass(frozen=True, slots=True)
class Share:
    """What one container gets: its parts, in the order it sees the GPUs in, and the IDs of the units it holds."""

    parts: tuple[Part, ...]
    ids: frozenset[str]


class Isolation(Protocol):
    """One layer of what a container is given to stay within its share."""

    def add(self, grant: Grant, share: Share) -> None:
        """Add environment and mounts for `share` to `grant`."""
        ...


Layers = tuple[Isolation, ...]


def isolate(grant: Grant, share: Share, layers: Layers) -> Grant:
    """Return `grant` with what each of `layers` adds to it."""
    for layer in layers:
        layer.add(grant, share)
    return grant


@dataclass(frozen=True, slots=True)
class Told:
    """Tells a container its share, in MiB, and enforces nothing; several GPUs are told with commas between.

    `cgpu_disabled` tells ACK's cGPU, a kernel module that reads the variable, to leave the container alone.
    """

    cgpu_disabled: bool = False

    def add(self, grant: Grant, share: Share) -> None:
        """Add the memory limit and the memory of the whole GPU."""
        grant.environment["GPUSHARE_MEMORY_LIMIT_MIB"] = _listed(part.mib for part in share.parts)
        grant.environment["GPUSHARE_GPU_MEMORY_MIB"] = _listed(part.gpu.memory_mib for part in share.parts)
        if self.cgpu_disabled:
            grant.environment["CGPU_DISABLE"] = "true"


def percentage(compute: Compute, share: Share) -> int | None:
    """Return the percent of a GPU's compute that `share` comes with, at least 1, or None where it is not limited."""
    match compute:
        case "unlimited":
            return None
        case "proportional":
            return max(1, int(100 * min(part.fraction for part in share.parts)))
        case percent:
            return percent


def _listed(numbers: Iterable[int]) -> str:
    return ",".join(map(str, numbers))
