"""Isolation by HAMi-core, a library that is preloaded into every program of a container and counts what it allocates.

We ship no such library; it must lie on the node. Facts: variables in Project-HAMi/HAMi-core,
src/multiprocess/multiprocess_memory_limit.c and src/include/memory_limit.h; mounts in Project-HAMi/HAMi,
pkg/device-plugin/nvidiadevice/nvinternal/plugin/server.go.
"""

from collections.abc import Iterable
from hashlib import blake2s
from posixpath import join
from typing import ClassVar

from gpushare_plugin.config.schema.sections import Compute
from gpushare_plugin.foundation.structs import Struct
from gpushare_plugin.model.gpu import Gpu
from gpushare_plugin.model.grant import Grant, Mount
from gpushare_plugin.sharing.isolation.layer import ContainerShare, Isolation, Layers, Limits, Mode, percentage

LIBRARY_DIRECTORY = "/usr/local/vgpu"
"""Where a container finds the library: the `ld.so.preload` that HAMi installs names it there."""

_COMPUTE_LIMIT = "CUDA_DEVICE_SM_LIMIT"


class PreloadedHamiCore(Struct, frozen=True):
    """Preloads the library of `directory`, a path of the host, with the limits of the container's share."""

    directory: str
    compute: Compute

    def add(self, grant: Grant, share: ContainerShare) -> None:
        """Add the library, the limits, and a place for what its processes share."""
        grant.mounts += [
            Mount(LIBRARY_DIRECTORY, self.directory, read_only=True),
            Mount("/etc/ld.so.preload", join(self.directory, "ld.so.preload"), read_only=True),
        ]
        for place, part in enumerate(share.parts):
            grant.environment[f"CUDA_DEVICE_MEMORY_LIMIT_{place}"] = f"{part.mib}m"
        if (percent := percentage(self.compute, share)) is not None:
            grant.environment[_COMPUTE_LIMIT] = str(percent)
        grant.environment["CUDA_DEVICE_MEMORY_SHARED_CACHE"] = _cache(share.ids)


class HamiCoreIsolation(Struct, Isolation, frozen=True):
    """`isolation: hami-core` of an entry; `directory` is where the host has the library."""

    name: ClassVar[str] = "hami-core"

    directory: str
    limits: Limits

    @property
    def layers(self) -> Layers:
        """The library and its limits."""
        return (PreloadedHamiCore(self.directory, self.limits.compute),)

    def mode(self, gpu: Gpu) -> Mode:  # noqa: ARG002 - the same on all
        """Return the mode, with the part that each container gets where parts are equal."""
        return f"hami-core, 1/{self.limits.equal_parts}" if self.limits.equal_parts else "hami-core"

    def compute_variable(self, gpu: Gpu) -> str:  # noqa: ARG002 - the same on all
        """Return the limit that the library reads."""
        return _COMPUTE_LIMIT


def _cache(ids: Iterable[str]) -> str:
    """Return the file in which the processes of a container count together.

    The library makes it. /tmp is the container's own and all may write there; where the containers of a pod share
    a volume at /tmp, the names still differ, because no two of them hold the same units.
    """
    key = blake2s(",".join(sorted(ids)).encode(), digest_size=8).hexdigest()
    return f"/tmp/gpushare-{key}.cache"  # noqa: S108 - in the container
