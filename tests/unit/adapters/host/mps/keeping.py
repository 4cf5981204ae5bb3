"""A keeper that runs in the test itself, between a stand-in for the programs and modes in the test's hands."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace

from gpushare_plugin.adapters.host.compute_modes import ComputeMode, ComputeModeError
from gpushare_plugin.adapters.host.mps.exchange import (
    MpsGpu,
    MpsRoot,
    MpsSettings,
    MpsStatus,
    read_message,
    write_message,
)
from gpushare_plugin.programs.mps.keeper import Pace
from gpushare_plugin.programs.mps.service import serve
from tests.waiting import until

PACE = Pace(look=0.02, ask=0.5)
UUIDS = tuple(f"GPU-{index:08x}-0000-4000-8000-{index:012x}" for index in range(4))


class Modes:
    """Compute modes in the hands of a test: `refusals` are GPUs whose mode cannot be set, with the reason."""

    def __init__(self) -> None:
        """Have every GPU in the default mode."""
        self.modes = dict.fromkeys(UUIDS, ComputeMode.DEFAULT)
        self.refusals: dict[str, str] = {}

    def read(self, uuid: str) -> ComputeMode:
        """Return the mode of a GPU."""
        return self.modes[uuid]

    def set(self, uuid: str, mode: ComputeMode) -> None:
        """Change the mode of a GPU."""
        if uuid in self.refusals:
            raise ComputeModeError(self.refusals[uuid])
        self.modes[uuid] = mode

    @property
    def exclusive(self) -> list[str]:
        """The GPUs that only one process may use."""
        return [uuid for uuid, mode in self.modes.items() if mode is ComputeMode.EXCLUSIVE_PROCESS]


class Kept:
    """What a keeper does, as the plugin and the node see it."""

    def __init__(self, root: MpsRoot, modes: Modes) -> None:
        """Look at `root` and `modes`."""
        self.root = root
        self.modes = modes

    def want(self, *gpus: MpsGpu, percentage: int | None = None) -> None:
        """Want these GPUs."""
        write_message(self.root.wanted, MpsSettings(gpus=gpus, active_thread_percentage=percentage))

    def status(self) -> MpsStatus:
        """Return what the keeper says."""
        return read_message(self.root.status, MpsStatus) or MpsStatus()

    async def serves(self, *gpus: MpsGpu) -> None:
        """Wait until exactly these GPUs are served, with these limits."""
        await until(
            lambda: self.status().in_force.gpus == gpus and not self.status().not_served, lambda: str(self.status())
        )

    async def says(self, uuid: str, words: str) -> None:
        """Wait until the reason why a GPU is not served has these words."""
        await until(lambda: words in self.status().not_served.get(uuid, ""), lambda: str(self.status()))


@contextlib.asynccontextmanager
async def keeping(
    root: MpsRoot, modes: Modes | None = None, patience: float = 10.0, *, replace_silent: bool = False
) -> AsyncIterator[Kept]:
    """Keep the daemon of `root`, and end in good order."""
    kept = Kept(root, modes or Modes())
    pace = replace(PACE, patience=patience)
    keeper = asyncio.create_task(serve(root, kept.modes, pace=pace, replace_silent=replace_silent))
    try:
        yield kept
        assert not keeper.done(), keeper
    finally:
        keeper.cancel()
        await asyncio.wait([keeper])
        if not keeper.cancelled():
            keeper.result()
