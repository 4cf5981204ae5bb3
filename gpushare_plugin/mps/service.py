"""`gpushare mps`: one process per node, which runs the MPS control daemon until a signal arrives."""

import asyncio
from pathlib import Path

import structlog

from gpushare_plugin.base.files.liveness import show_alive
from gpushare_plugin.base.signals.ending import until_stopped
from gpushare_plugin.config.schema.values import MemoryUnit
from gpushare_plugin.core.namespaces import SERVER
from gpushare_plugin.gpus.compute_modes import ComputeModes
from gpushare_plugin.gpus.exchange import ExchangeError, take
from gpushare_plugin.mps.control import Control
from gpushare_plugin.mps.exchange import MpsRoot
from gpushare_plugin.mps.log import follow
from gpushare_plugin.mps.modes import ExclusiveModes
from gpushare_plugin.mps.shared_memory import SharedMemoryError, bound
from gpushare_plugin.mps.supervisor import MpsPace, Supervisor

_log = structlog.get_logger()


async def run(
    root: MpsRoot,
    modes: ComputeModes,
    *,
    shm: Path | None = None,
    shared_memory: MemoryUnit | None = None,
    replace_silent: bool = False,
) -> None:
    """Carry out `wanted.json` in `root` until a signal arrives; then end MPS and restore the compute modes.

    `shm` is the path at which this process sees the memory shared by MPS servers and clients; None skips the check of
    the path. `shared_memory` is the most memory for all servers and clients of the node together; None leaves the limit
    to the file system. `replace_silent` is passed to the supervisor. Raises AlreadyRunningError, and ExchangeError if
    the root cannot be used; in both cases the process has changed no GPU and no MPS daemon.
    """
    await until_stopped(serve(root, modes, shm=shm, shared_memory=shared_memory, replace_silent=replace_silent))


async def serve(  # noqa: PLR0913 - the parameters of run, and the pace for tests
    root: MpsRoot,
    modes: ComputeModes,
    *,
    shm: Path | None = None,
    shared_memory: MemoryUnit | None = None,
    pace: MpsPace | None = None,
    replace_silent: bool = False,
) -> None:
    """Do the work of `run` until cancelled.

    If this process itself fails, the MPS daemon keeps running for the next `gpushare mps`.
    """
    root.refuse_long_path()
    with take(root, root.status, root.ready):  # files of an earlier run: this run serves nothing yet
        _make_directories(root)
        if shared_memory is not None:
            _bound_memory(root, shared_memory)
        if shm is not None:
            _check_memory(root, shm)
        pace = pace or MpsPace()
        control, exclusive = Control(root.pipe, root.log, pace.patience), ExclusiveModes(modes, root.modes)
        supervisor = Supervisor(root, control, exclusive, pace, replace_silent=replace_silent)
        try:
            async with asyncio.TaskGroup() as tasks:
                for name in ("control.log", "server.log", f"{SERVER}/server.log"):
                    tasks.create_task(follow(root.log / name), name=name)
                tasks.create_task(show_alive(root.alive, pace.ask), name="liveness")
                await supervisor.run()
        except asyncio.CancelledError:
            await supervisor.stop()
            raise


def _make_directories(root: MpsRoot) -> None:
    """Make the directories in the root with modes for servers and clients of every user, whatever the umask."""
    try:
        for directory, mode in ((root.pipe, 0o755), (root.log, 0o755), (root.shm, 0o1777)):
            directory.mkdir(exist_ok=True)
            directory.chmod(mode)
    except OSError as error:
        raise ExchangeError(f"the MPS root {root.path} cannot be used: {error.strerror or error}") from error


def _bound_memory(root: MpsRoot, limit: MemoryUnit) -> None:
    try:
        bound(root.shm, limit)
    except SharedMemoryError as error:
        _log.warning("mps_shared_memory_unlimited", reason=str(error))


def _check_memory(root: MpsRoot, shm: Path) -> None:
    if not (shm.exists() and shm.samefile(root.shm)):
        _log.warning(
            "mps_shared_memory_separate",
            reason="MPS servers share memory with containers only where both see the same directory",
            found=str(shm),
            expected=str(root.shm),
            remedy=f"mount {root.shm} of the host at {shm} in the container of gpushare mps",
        )
