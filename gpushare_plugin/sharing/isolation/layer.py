"""The boundary between ways of sharing and isolations.

A way of sharing knows the share of a container on each GPU. An isolation knows the variables and mounts that keep the
container within its share. Each isolation is a module of this package and a line in `table`.
"""

from collections.abc import Hashable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import ClassVar, Protocol

from gpushare_plugin.base.errors import Path
from gpushare_plugin.base.structs import Struct
from gpushare_plugin.config.findings import Findings
from gpushare_plugin.config.schema.sections import Burst, Compute
from gpushare_plugin.core.driver_limits import DriverLimits
from gpushare_plugin.core.gpu import Gpu
from gpushare_plugin.core.grant import Allocation, Grant


class Layer(Protocol):
    """One layer of additions to a grant, made to keep a container within its share."""

    def add(self, grant: Grant, share: Allocation) -> None:
        """Add variables and mounts for `share`, whose units are the parts that count for limits, to `grant`."""
        ...


Layers = tuple[Layer, ...]
"""Layers in the order of their additions to a grant."""


def isolate(grant: Grant, share: Allocation, layers: Layers) -> Grant:
    """Add all `layers` to `grant`, and return `grant`."""
    for layer in layers:
        layer.add(grant, share)
    return grant


Mode = Hashable
"""A value that differs between ways to share a GPU by equal units, such as the limit under MPS; None by default."""


class IsolatedMode(Struct, frozen=True):
    """The mode of a GPU whose containers an isolation limits."""

    @property
    def isolation(self) -> str:
        """The name of the isolation."""
        raise NotImplementedError

    def equal_share_mib(self, gpu_mib: int) -> int | None:
        """Return the share of each container in MiB on a GPU of `gpu_mib` MiB; None if each has a share of its own."""
        raise NotImplementedError


class EqualParts(IsolatedMode, frozen=True):
    """The mode of a GPU whose containers are limited to equal parts of the GPU, or to shares of their own."""

    equal_parts: int | None
    """The number of equal parts of the GPU; None if each container has its own share."""

    def equal_share_mib(self, gpu_mib: int) -> int | None:
        """Return the share of each container in MiB."""
        return gpu_mib // self.equal_parts if self.equal_parts else None


class Limits(Struct, frozen=True):
    """The limits that an entry of the config sets for its containers."""

    compute: Compute = "proportional"
    """The compute limit of a container."""
    equal_parts: int | None = None
    """The number of equal parts of a GPU, one part for each container; None if each container has its own limits."""
    unit_mib: int = 1
    """The memory of a unit in MiB, the smallest share of a container; of no meaning with equal parts."""
    burst: Burst | None = None
    """How far a container may use free memory beyond its share; None for not at all."""

    @property
    def keys_of_compute(self) -> frozenset[str]:
        """The key `compute` where it is a percentage: another value is not lost without an isolation, or told apart."""
        return frozenset({"compute"} if isinstance(self.compute, int) else ())

    @property
    def percentage(self) -> int | None:
        """The compute limit of every container in percent of a GPU; None without a limit, or with different limits."""
        if self.equal_parts:
            return 100 // self.equal_parts
        return self.compute if isinstance(self.compute, int) else None


class SharedGpus(Struct, frozen=True):
    """The GPUs of one entry of the config, with the number of containers on each GPU."""

    title: str
    """The name of the entry in messages."""
    path: Path
    """The path of the entry in the config."""
    containers: Mapping[Gpu, int]
    """The number of containers that could share each GPU at a time."""
    key: str = ""
    """The key of the entry that sets the number of containers; empty if a container can count for several."""
    by_claim: AbstractSet[Gpu] = frozenset()
    """Those of the GPUs that are given by claim: their ResourceSlices say how many containers can share them."""


class NodeMeans(Struct, frozen=True):
    """The means of a node to isolate containers, beside the GPUs of the node."""

    driver_version: str = ""
    """The version of NVIDIA's driver; empty where unknown."""
    driver_limits: DriverLimits | None = None
    """The means to set driver limits; None where nobody looked."""


class Isolation:
    """The isolation of the containers of one entry of the config; the base class, `none`, enforces nothing."""

    name: ClassVar[str] = "none"
    """The name of the isolation in the config and in messages."""

    @property
    def keys_in_force(self) -> frozenset[str]:
        """The keys of the entry that are set, and that not every isolation puts into force."""
        return frozenset()

    @property
    def limits_several_gpus(self) -> bool:
        """Whether the limits of a container hold on each of several GPUs."""
        return True

    @property
    def limit_is_seen(self) -> bool:
        """Whether programs see the limit as the memory of the GPU (cuMemGetInfo)."""
        return False

    @property
    def layers(self) -> Layers:
        """The layers that keep each container within its share."""
        return ()

    def mode(self, gpu: Gpu) -> Mode:  # noqa: ARG002 - for isolations with a mode
        """Return the mode of sharing `gpu`."""
        return None

    def compute_variable(self, gpu: Gpu) -> str | None:  # noqa: ARG002 - for isolations that limit compute
        """Return the variable that limits a container to a percentage of the compute of `gpu`, None without limits."""
        return None

    def why_not_on(self, gpu: Gpu) -> str:  # noqa: ARG002 - for isolations that need something of GPUs
        """Return why containers on `gpu` cannot be isolated, in words that follow the GPU; empty if they can."""
        return ""

    def why_not(self, gpus: Iterable[Gpu]) -> str:
        """Return why this node cannot isolate containers on `gpus`, for people; empty if the node can."""
        return next((f"{gpu.description} {reason}" for gpu in gpus if (reason := self.why_not_on(gpu))), "")

    def check(self, shared: SharedGpus, findings: Findings) -> None:
        """Add problems to `findings` if the `shared` GPUs cannot be isolated, and warnings for people."""
        for gpu in shared.containers:
            if reason := self.why_not_on(gpu):
                remedy = (
                    "leave it out of devices, or disable MIG on it" if gpu.mig_enabled else "leave it out of devices"
                )
                findings.problem((*shared.path, "devices"), f"{gpu.description} {reason}: {remedy}")


def percentage(compute: Compute, share: Allocation) -> int | None:
    """Return the compute limit of `share` in percent of a GPU, at least 1, or None without a limit."""
    match compute:
        case "unlimited" | "requested":
            return None  # requested compute is a resource of its own, and its grant sets the limit
        case "proportional":
            return max(1, int(100 * min(part.fraction for part in share.gpus)))
        case percent:
            return percent
