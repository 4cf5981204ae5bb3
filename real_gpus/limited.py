"""A cgroup whose memory the driver limits on a GPU, and the programs in the cgroup."""

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Self

from gpushare_plugin.base.memory import MIB
from gpushare_plugin.core.driver_limits import NO_LIMIT, MemoryLimit
from gpushare_plugin.gpus.memory_limits import LimitError, LimitRefusedError, NoLimitAnswerError
from gpushare_plugin.gpus.nvml.memory_limits import NvmlMemoryLimits
from real_gpus.containers import RunningContainer
from real_gpus.node import Machine

SET, REFUSED, NONE = "set", "refused", "none"
"""What the driver answers, in words."""


class LimitedCgroup:
    """A cgroup with a limit on one GPU."""

    def __init__(self, uuid: str, cgroup: Path, programs: RunningContainer) -> None:
        """Limit `cgroup` on the GPU `uuid`; `programs` starts the programs in the cgroup."""
        self.cgroup = cgroup
        """The cgroup, without a limit yet."""
        self.programs = programs
        """Starts the programs in the cgroup."""
        self._uuid = uuid
        self._driver = NvmlMemoryLimits(Path("/"))

    @classmethod
    @contextlib.asynccontextmanager
    async def made(cls, machine: Machine, gpu: str) -> AsyncIterator[Self]:
        """Make a cgroup; at the end of the block its programs end, and its limit is removed."""
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            cgroup = machine.cgroups.of(folder.name)
            programs = RunningContainer.of_no_pod(gpu, folder, machine.gpus, cgroup)
            made = cls(gpu, Path(cgroup), programs)
            try:
                yield made
            finally:
                await programs.end()
                await made.remove()

    async def set(self, mib: int, cgroup: Path | None = None) -> str:
        """Set the hard limit of the cgroup, or of another one; return the answer of the driver."""
        return await self._answer(MemoryLimit(mib * MIB), cgroup or self.cgroup)

    async def remove(self, cgroup: Path | None = None) -> str:
        """Remove the limit of the cgroup, or of another one; return the answer of the driver."""
        return await self._answer(NO_LIMIT, cgroup or self.cgroup)

    async def _answer(self, limit: MemoryLimit, cgroup: Path) -> str:
        try:
            await asyncio.to_thread(self._driver.set, self._uuid, cgroup, limit)
        except LimitRefusedError:
            return REFUSED
        except NoLimitAnswerError as error:
            # Without a limit, the driver's own account has one answer for "none" and for "not supported".
            return SET if limit == NO_LIMIT else str(error)
        except LimitError as error:
            return str(error)
        return SET

    async def read(self) -> tuple[str, int]:
        """Return the hard limit of the cgroup in MiB, `none` without one, and what its programs use in MiB."""
        try:
            found = await asyncio.to_thread(self._driver.read, self._uuid, self.cgroup)
        except NoLimitAnswerError:
            return NONE, 0
        hard = found.limit.hard
        return NONE if hard is None else str(hard // MIB), (found.used or 0) // MIB
