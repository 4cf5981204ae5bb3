"""A GPU that pods get by claims, and how claims share the GPU; the neutral form, which the plan makes."""

from typing import Literal

from gpushare_plugin.base.structs import Struct
from gpushare_plugin.core.gpu import Gpu
from gpushare_plugin.core.grant import Granter
from gpushare_plugin.core.policies import PolicyName
from gpushare_plugin.core.resource import Resource

ClaimWay = Literal["memory", "replicas", "mps-replicas", "slices", "whole"]
"""The way in which claims share a GPU.

`replicas` take turns, `mps-replicas` run side by side under MPS; a whole GPU belongs to one claim at a time.
"""


class ClaimedGpu(Struct, frozen=True):
    """A GPU that is given by claim, with everything that decides what a claim can take and what a container gets."""

    gpu: Gpu
    """The GPU, with the memory that the config gives a GPU without a memory of its own."""
    way: ClaimWay
    """The way in which claims share the GPU."""
    resources: tuple[Resource, ...]
    """The resources of the way, with the units of this GPU only; several only for slices of several sizes.

    Their granters decide what a container gets. The device plugin does not offer these resources.
    """
    unlimited: Granter
    """Gives access to whole GPUs, without limits."""
    isolation: str = "none"
    """The name of the isolation that keeps containers within their shares."""
    limited: bool = False
    """Whether the isolation limits the memory of a container to its share."""
    compute_variable: str | None = None
    """The variable that limits a container to a percentage of the compute; None where compute cannot be limited."""
    shares: int | None = None
    """The most shares at a time: replicas, or clients of MPS; None where the number of shares does not count."""
    single_share: bool = False
    """Whether a claim can take no more than one share."""
    default_mib: int | None = None
    """The memory in MiB for a claim that asks for no size of a GPU shared by memory; None for all of the memory."""
    policy: PolicyName = "binpack"
    """The order in which GPUs of this way are taken."""

    @property
    def resource(self) -> Resource:
        """The resource of the way; of slices, the smallest size."""
        return self.resources[0]

    @property
    def shared(self) -> bool:
        """Whether several claims can have the GPU at a time."""
        return self.way != "whole"
