"""Isolation by HAMi-core, a library that is preloaded into every program of a container and counts its allocations.

gpushare does not ship the library; the library must be on the node. Sources: variables in Project-HAMi/HAMi-core,
src/multiprocess/multiprocess_memory_limit.c and src/include/memory_limit.h; mounts in Project-HAMi/HAMi,
pkg/device-plugin/nvidiadevice/nvinternal/plugin/server.go.
"""

from collections.abc import Iterable
from hashlib import blake2s
from posixpath import join
from typing import ClassVar

from gpushare_plugin.base.structs import Struct
from gpushare_plugin.config.schema.sections import Compute
from gpushare_plugin.core.gpu import Gpu
from gpushare_plugin.core.grant import Allocation, Grant, Mount
from gpushare_plugin.sharing.isolation.layer import EqualParts, Isolation, Layers, Limits, percentage

LIBRARY_DIRECTORY = "/usr/local/vgpu"
"""The directory of the library in a container, as in the `ld.so.preload` file that HAMi installs."""

_COMPUTE_LIMIT = "CUDA_DEVICE_SM_LIMIT"


class PreloadedHamiCore(Struct, frozen=True):
    """The layer that preloads the library with the limits of the share."""

    directory: str
    """The directory of the library on the host."""
    compute: Compute
    """The compute limit of the entry."""

    def add(self, grant: Grant, share: Allocation) -> None:
        """Add the library, the limits, and the path of a file shared by the processes of the container."""
        grant.mounts += [
            Mount(LIBRARY_DIRECTORY, self.directory, read_only=True),
            Mount("/etc/ld.so.preload", join(self.directory, "ld.so.preload"), read_only=True),
        ]
        for place, part in enumerate(share.gpus):
            grant.environment[f"CUDA_DEVICE_MEMORY_LIMIT_{place}"] = f"{part.mib}m"
        if (percent := percentage(self.compute, share)) is not None:
            grant.environment[_COMPUTE_LIMIT] = str(percent)
        grant.environment["CUDA_DEVICE_MEMORY_SHARED_CACHE"] = _cache(share.ids)


class WithHamiCore(EqualParts, frozen=True):
    """The mode of a GPU whose containers have the library."""

    @property
    def isolation(self) -> str:
        """The name of the isolation."""
        return HamiCoreIsolation.name


class HamiCoreIsolation(Struct, Isolation, frozen=True):
    """The isolation of an entry with `isolation: hami-core`."""

    name: ClassVar[str] = "hami-core"

    directory: str
    """The directory of the library on the host."""
    limits: Limits
    """The limits of the entry."""

    @property
    def keys_in_force(self) -> frozenset[str]:
        """The key of the compute limit."""
        return self.limits.keys_of_compute

    @property
    def limit_is_seen(self) -> bool:
        """Whether programs see the limit as the memory of the GPU: the library tells the limit."""
        return True

    @property
    def layers(self) -> Layers:
        """The layer with the library and its limits."""
        return (PreloadedHamiCore(self.directory, self.limits.compute),)

    def mode(self, gpu: Gpu) -> WithHamiCore:  # noqa: ARG002 - all GPUs have the same mode
        """Return the mode, with the parts of the GPU if all are equal."""
        return WithHamiCore(self.limits.equal_parts)

    def compute_variable(self, gpu: Gpu) -> str:  # noqa: ARG002 - all GPUs have the same variable
        """Return the variable of the compute limit, which the library reads."""
        return _COMPUTE_LIMIT


def _cache(ids: Iterable[str]) -> str:
    """Return the path of the file in which the processes of a container count their memory together.

    The library makes the file. /tmp belongs to the container, and every process may write to /tmp. Where containers of
    a pod share a volume at /tmp, the file names still differ, because no two containers hold the same units.
    """
    key = blake2s(",".join(sorted(ids)).encode(), digest_size=8).hexdigest()
    return f"/tmp/gpushare-{key}.cache"  # noqa: S108 - in the container
