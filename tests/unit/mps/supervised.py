"""A supervisor that runs in the test itself, between a stand-in for the programs and modes that the test sets."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from gpushare_plugin.base.structs import replace
from gpushare_plugin.gpus.compute_modes import ComputeMode, ComputeModeError
from gpushare_plugin.gpus.exchange import read_message, write_message
from gpushare_plugin.mps.exchange import MpsGpu, MpsRoot, MpsSettings, MpsStatus
from gpushare_plugin.mps.processes import MpsProcess, candidates
from gpushare_plugin.mps.service import serve
from gpushare_plugin.mps.supervisor import MpsPace
from tests.unit.mps.roots import UUIDS
from tests.waiting import until

PACE = MpsPace(look=0.02, ask=0.5)


def control_daemon(pipe: Path) -> MpsProcess | None:
    """Return the control daemon of a pipe directory, None when there is none that is ours."""
    return next((each.process for each in candidates(pipe) if each.objection is None), None)


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


class Supervised:
    """What a supervisor does, as the plugin and the node see it."""

    def __init__(self, root: MpsRoot, modes: Modes) -> None:
        """Look at `root` and `modes`."""
        self.root = root
        self.modes = modes

    def want(self, *gpus: MpsGpu, percentage: int | None = None) -> None:
        """Want these GPUs."""
        write_message(self.root.wanted, MpsSettings(gpus=gpus, active_thread_percentage=percentage))

    def status(self) -> MpsStatus:
        """Return what the supervisor reports."""
        return read_message(self.root.status, MpsStatus) or MpsStatus()

    async def asks(self) -> None:
        """Wait until the control daemon was asked for its clients; then it is not asked again for a while."""
        before = self.status().clients_asked_at
        await until(lambda: self.status().clients_asked_at not in {None, before})

    async def serves(self, *gpus: MpsGpu) -> None:
        """Wait until exactly these GPUs are served, with these limits."""
        await until(
            lambda: self.status().in_force.gpus == gpus and not self.status().not_served, lambda: str(self.status())
        )

    async def says(self, uuid: str, words: str) -> None:
        """Wait until the reason why a GPU is not served has these words."""
        await until(lambda: words in self.status().not_served.get(uuid, ""), lambda: str(self.status()))


@contextlib.asynccontextmanager
async def supervising(
    root: MpsRoot,
    modes: Modes | None = None,
    patience: float = 10.0,
    *,
    ask: float = PACE.ask,
    replace_silent: bool = False,
) -> AsyncIterator[Supervised]:
    """Keep the daemon of `root`, ask it every `ask` seconds for its clients, and end in good order."""
    supervised = Supervised(root, modes or Modes())
    pace = replace(PACE, patience=patience, ask=ask)
    running = asyncio.create_task(serve(root, supervised.modes, pace=pace, replace_silent=replace_silent))
    try:
        yield supervised
        assert not running.done(), running
    finally:
        running.cancel()
        await asyncio.wait([running])
        if not running.cancelled():
            running.result()
