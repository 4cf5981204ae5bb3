"""The boundary between how a GPU is cut and what holds a container to its share.

A way of sharing knows what a container was allocated, an isolation what the container needs so that it uses no more.
Each isolation is a module beside this one and a line in `table`.
"""

from collections.abc import Hashable, Mapping
from fractions import Fraction
from typing import ClassVar, Protocol

from gpushare_plugin.config.schema.sections import Compute
from gpushare_plugin.foundation.errors import Path
from gpushare_plugin.foundation.structs import Struct
from gpushare_plugin.model.gpu import Gpu
from gpushare_plugin.model.grant import Grant
from gpushare_plugin.sharing.findings import Findings


class GpuShare(Struct, frozen=True):
    """What a container gets of one GPU: `mib` MiB of its memory, the `fraction` of what the GPU shares out."""

    gpu: Gpu
    mib: int
    fraction: Fraction


class ContainerShare(Struct, frozen=True):
    """What one container gets: its parts, in the order it sees the GPUs in, and the IDs of the units it holds."""

    parts: tuple[GpuShare, ...]
    ids: frozenset[str]


class Layer(Protocol):
    """One layer of what a container is given to stay within its share."""

    def add(self, grant: Grant, share: ContainerShare) -> None:
        """Add environment and mounts for `share` to `grant`."""
        ...


Layers = tuple[Layer, ...]


def isolate(grant: Grant, share: ContainerShare, layers: Layers) -> Grant:
    """Return `grant` with what each of `layers` adds to it."""
    for layer in layers:
        layer.add(grant, share)
    return grant


Mode = Hashable
"""What makes two ways to share a GPU different beside their units, such as the limits under MPS; None for nothing."""


class Limits(Struct, frozen=True):
    """How far an entry of the config limits its containers.

    `equal_parts` is the number of equal parts a GPU has, one for each container; None where each container has limits
    of its own.
    """

    compute: Compute = "proportional"
    equal_parts: int | None = None

    @property
    def percentage(self) -> int | None:
        """The percent of a GPU's compute that every container is limited to, None where they differ or are not."""
        if self.equal_parts:
            return 100 // self.equal_parts
        return self.compute if isinstance(self.compute, int) else None


class SharedGpus(Struct, frozen=True):
    """The GPUs of one entry of the config, each with how many containers could share it at a time.

    `title` names the entry to people, `path` says where it stands. `key` is the key of it that says how many
    containers there are, empty where a container can count for several.
    """

    title: str
    path: Path
    containers: Mapping[Gpu, int]
    key: str = ""


class Isolation:
    """What isolates the containers of one entry of the config; this one, `none`, enforces nothing.

    `name` is what the config and people call it. `limits_several_gpus` is whether the limits of a container hold on
    each of several GPUs.
    """

    name: ClassVar[str] = "none"
    limits_several_gpus: ClassVar[bool] = True

    @property
    def layers(self) -> Layers:
        """What each container is given so that it stays within its share."""
        return ()

    def mode(self, gpu: Gpu) -> Mode:  # noqa: ARG002 - for those that have one
        """Return the mode that `gpu` is shared in."""
        return None

    def compute_variable(self, gpu: Gpu) -> str | None:  # noqa: ARG002 - for those that limit compute
        """Return the variable that limits a container to a percentage of the compute of `gpu`, None without limits."""
        return None

    def check(self, shared: SharedGpus, findings: Findings) -> None:
        """Find what keeps these GPUs from being isolated so, and what people should know of it."""


def percentage(compute: Compute, share: ContainerShare) -> int | None:
    """Return the percent of a GPU's compute that `share` comes with, at least 1, or None where it is not limited."""
    match compute:
        case "unlimited" | "requested":
            return None  # what is requested is another resource, which limits it
        case "proportional":
            return max(1, int(100 * min(part.fraction for part in share.parts)))
        case percent:
            return percent
